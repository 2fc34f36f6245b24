//! CPU time and peak memory of processes, from `/proc`.
//!
//! The module also reads the CPU time of all programs on the machine, which shows the load by other
//! programs.

use std::{collections::BTreeMap, fs, iter::Sum, ops::Add, time::Duration};

use anyhow::{Context, Result};

/// The unit of times in `/proc`: 1/100 s on every architecture of Linux that Rust supports.
const TICK: Duration = Duration::from_millis(10);

/// CPU time of processes with all threads.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Cpu {
    pub(crate) user: Duration,
    pub(crate) system: Duration,
}

impl Cpu {
    /// User and system time together.
    pub(crate) fn total(self) -> Duration {
        self.user + self.system
    }
}

/// The parsed fields of `/proc/PID/stat`.
#[derive(Debug, PartialEq, Eq)]
struct Stat {
    parent: u32,
    cpu: Cpu,
}

/// CPU time of these processes so far, without processes that have ended.
pub(crate) fn cpu(pids: &[u32]) -> Cpu {
    pids.iter().filter_map(|pid| Some(stat(*pid)?.cpu)).sum()
}

/// For how long the threads of these processes were ready and waited for a processor so far: the
/// second field of `schedstat`, nanoseconds (Linux: Documentation/scheduler/sched-stats.rst).
pub(crate) fn queued(pids: &[u32]) -> Duration {
    let threads = pids
        .iter()
        .filter_map(|pid| fs::read_dir(format!("/proc/{pid}/task")).ok());
    threads
        .flatten()
        .filter_map(|thread| fs::read_to_string(thread.ok()?.path().join("schedstat")).ok())
        .filter_map(|schedstat| parse_queued(&schedstat))
        .sum()
}

fn parse_queued(schedstat: &str) -> Option<Duration> {
    let nanoseconds = schedstat.split_whitespace().nth(1)?;
    Some(Duration::from_nanos(nanoseconds.parse().ok()?))
}

/// The sum of the processes' peak memory in bytes (`VmHWM`).
pub(crate) fn peak_rss_bytes(pids: &[u32]) -> u64 {
    pids.iter()
        .filter_map(|pid| fs::read_to_string(format!("/proc/{pid}/status")).ok())
        .filter_map(|status| parse_peak_rss(&status))
        .sum()
}

/// A process and all its live descendants.
pub(crate) fn tree(root: u32) -> Vec<u32> {
    let parents: BTreeMap<u32, u32> = fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter_map(|pid| Some((pid, stat(pid)?.parent)))
        .collect();
    descendants(root, &parents)
}

/// `parents` maps a process id to the process id of its parent.
fn descendants(root: u32, parents: &BTreeMap<u32, u32>) -> Vec<u32> {
    let mut tree = vec![root];
    let mut next = 0;
    while let Some(&parent) = tree.get(next) {
        let children = parents
            .iter()
            .filter(|(pid, of)| **of == parent && **pid != parent);
        tree.extend(children.map(|(pid, _)| *pid));
        next += 1;
    }
    tree
}

fn stat(pid: u32) -> Option<Stat> {
    parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// The parent is field 4, `utime` is field 14, and `stime` is field 15. The name in field 2 can
/// contain spaces and brackets.
fn parse(stat: &str) -> Option<Stat> {
    let (_, after_name) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = after_name.split_whitespace().collect();
    let time = |index: usize| Some(TICK * fields.get(index)?.parse::<u32>().ok()?);
    Some(Stat {
        parent: fields.get(1)?.parse().ok()?,
        cpu: Cpu {
            user: time(11)?,
            system: time(12)?,
        },
    })
}

fn parse_peak_rss(status: &str) -> Option<u64> {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.trim().parse().ok()?;
    Some(kib << 10)
}

/// The time that all processors together spent in user space, plus the time that the hypervisor
/// took. The measured systems work mostly in the kernel, while compilers and similar programs work
/// in user space. So this time shows the load by other programs.
///
/// # Errors
/// If `/proc/stat` has an unexpected format.
pub(crate) fn machine_in_programs() -> Result<Duration> {
    let stat = fs::read_to_string("/proc/stat").context("cannot read /proc/stat")?;
    parse_machine(&stat).context("/proc/stat has an unexpected format")
}

/// The first line: `cpu`, then user, nice, system, idle, iowait, irq, softirq, steal.
fn parse_machine(stat: &str) -> Option<Duration> {
    let line = stat.lines().next()?.strip_prefix("cpu ")?;
    let fields: Vec<u64> = line
        .split_whitespace()
        .map_while(|f| f.parse().ok())
        .collect();
    let ticks = fields.first()? + fields.get(1)? + fields.get(7)?;
    Some(Duration::from_millis(
        ticks.checked_mul(TICK.as_millis() as u64)?,
    ))
}

impl Add for Cpu {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            user: self.user + other.user,
            system: self.system + other.system,
        }
    }
}

impl Sum for Cpu {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), Add::add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parent_user_and_system_time_are_read_whatever_the_process_is_called() {
        let stat = "42 (a b) c) S 7 42 42 0 -1 4194560 90 0 0 0 150 25 0 0 20 0 1 0 7 8 9";
        let ms = Duration::from_millis;
        let cpu = Cpu {
            user: ms(1500),
            system: ms(250),
        };
        assert_eq!(parse(stat), Some(Stat { parent: 7, cpu }));
        assert_eq!(parse("42 (a) S 1"), None);
    }

    #[test]
    fn the_peak_of_memory_is_read_in_bytes() {
        assert_eq!(
            parse_peak_rss("VmPeak:\t 9 kB\nVmHWM:\t  2048 kB\n"),
            Some(2 << 20)
        );
        assert_eq!(parse_peak_rss("VmRSS:\t 1 kB\n"), None);
    }

    #[test]
    fn the_time_in_queues_for_a_processor_is_the_second_field() {
        let queued = Some(Duration::from_nanos(250));
        assert_eq!(parse_queued("900 250 7\n"), queued);
        assert_eq!(parse_queued("900"), None);
    }

    #[test]
    fn descendants_are_found_over_all_generations() {
        let parents = BTreeMap::from([(2, 1), (3, 2), (4, 3), (5, 1), (6, 2)]);
        assert_eq!(descendants(2, &parents), [2, 3, 6, 4]);
    }

    #[test]
    fn time_in_programs_is_user_nice_and_stolen_time() {
        let stat = "cpu  100 20 999 999 9 0 9 3 0 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n";
        assert_eq!(parse_machine(stat), Some(Duration::from_millis(1230)));
        assert_eq!(parse_machine("intr 1"), None);
        assert!(machine_in_programs().is_ok());
    }

    #[test]
    fn this_process_has_used_some_memory() {
        let pids = tree(std::process::id());
        assert!(peak_rss_bytes(&pids) > 0);
        assert_eq!(cpu(&[u32::MAX]), Cpu::default());
    }
}
