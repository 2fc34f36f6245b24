//! CPU time that processes, and all the others on the machine, have used: `/proc/PID/stat`, `/proc/stat`.

use std::{fs, iter::Sum, ops::Add, time::Duration};

use anyhow::{Context, Result};

/// The unit of the times in `/proc`: Linux gives user space 100 a second on every architecture that
/// Rust runs on.
const TICK: Duration = Duration::from_millis(10);

/// CPU time of processes, all threads included.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Used {
    pub(crate) user: Duration,
    pub(crate) system: Duration,
}

/// What these processes have used so far.
///
/// # Errors
/// When a process is gone.
pub(crate) fn used(pids: &[u32]) -> Result<Used> {
    pids.iter().map(|pid| used_by(*pid)).sum()
}

fn used_by(pid: u32) -> Result<Used> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))
        .with_context(|| format!("process {pid} has ended"))?;
    parse(&stat).with_context(|| format!("/proc/{pid}/stat has another form: {stat}"))
}

/// `utime` and `stime` are the fields 14 and 15; the name in field 2 may hold spaces and brackets.
fn parse(stat: &str) -> Option<Used> {
    let (_, after_name) = stat.rsplit_once(')')?;
    let mut fields = after_name.split_whitespace().skip(11);
    let mut next = || Some(TICK * fields.next()?.parse::<u32>().ok()?);
    Some(Used {
        user: next()?,
        system: next()?,
    })
}

/// The time that all processors together have spent in programs (not in the kernel), or were taken
/// away by the hypervisor. What is measured here works in the kernel, compilers and the like do not;
/// so this shows foreign work.
///
/// # Errors
/// When `/proc/stat` has another form.
pub(crate) fn machine_in_programs() -> Result<Duration> {
    let stat = fs::read_to_string("/proc/stat").context("reading /proc/stat")?;
    parse_machine(&stat).context("/proc/stat has another form")
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

impl Add for Used {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            user: self.user + other.user,
            system: self.system + other.system,
        }
    }
}

impl Sum for Used {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), Add::add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_and_system_time_are_read_whatever_the_process_is_called() {
        let stat = "42 (a b) c) S 1 42 42 0 -1 4194560 90 0 0 0 150 25 0 0 20 0 1 0 7 8 9";
        let ms = Duration::from_millis;
        assert_eq!(
            parse(stat),
            Some(Used {
                user: ms(1500),
                system: ms(250)
            })
        );
        assert_eq!(parse("42 (a) S 1"), None);
    }

    #[test]
    fn time_in_programs_is_user_nice_and_stolen_time() {
        let stat = "cpu  100 20 999 999 9 0 9 3 0 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n";
        assert_eq!(parse_machine(stat), Some(Duration::from_millis(1230)));
        assert_eq!(parse_machine("intr 1"), None);
        assert!(machine_in_programs().is_ok());
    }

    #[test]
    fn this_process_has_used_some() {
        assert!(used(&[std::process::id()]).is_ok());
        assert!(used(&[u32::MAX]).is_err());
    }
}
