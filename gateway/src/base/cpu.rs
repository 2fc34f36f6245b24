//! How much of the time the workers run, or wait for a processor.
//!
//! From `/proc/self/task/*/schedstat`: time on a processor, and time ready to run without one, which is
//! where a CPU limit and busy neighbours show. One small file a thread, read by the admin thread.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

/// A worker's thread is named this and its number.
pub(crate) const WORKER_NAME: &str = "worker-";

/// What was read last.
#[derive(Debug, Default)]
pub(crate) struct WorkersCpu {
    /// By thread.
    before: BTreeMap<String, Duration>,
    read: Option<Instant>,
}

impl WorkersCpu {
    /// The part of the time since the last look that the busiest worker ran or was ready to; `None` at
    /// the first look, and where the kernel does not tell.
    pub(crate) fn busiest(&mut self, now: Instant) -> Option<f64> {
        self.busiest_of(workers(Path::new("/proc/self/task")), now)
    }

    fn busiest_of(&mut self, after: BTreeMap<String, Duration>, now: Instant) -> Option<f64> {
        let read = self.read.replace(now);
        let before = std::mem::replace(&mut self.before, after);
        let passed = now.saturating_duration_since(read?);
        let grown = self.before.iter().filter_map(|(thread, time)| {
            Some(time.saturating_sub(*before.get(thread)?).as_secs_f64())
        });
        let most = grown.max_by(f64::total_cmp)?;
        (!passed.is_zero()).then(|| most / passed.as_secs_f64())
    }
}

/// What was read last of the thread that reads.
#[derive(Debug, Default)]
pub(crate) struct ThreadCpu {
    before: Option<(Instant, Duration)>,
}

impl ThreadCpu {
    /// The part of the time since the last look that this thread ran or was ready to; `None` at the first
    /// look, and where the kernel does not tell.
    pub(crate) fn part(&mut self, now: Instant) -> Option<f64> {
        let after = parse(&std::fs::read_to_string("/proc/thread-self/schedstat").ok()?)?;
        let (read, before) = self.before.replace((now, after))?;
        let passed = now.saturating_duration_since(read);
        let time = after.saturating_sub(before);
        (!passed.is_zero()).then(|| time.as_secs_f64() / passed.as_secs_f64())
    }
}

/// Each worker's time. What cannot be read is left out.
fn workers(tasks: &Path) -> BTreeMap<String, Duration> {
    let Ok(threads) = std::fs::read_dir(tasks) else {
        return BTreeMap::new();
    };
    let time = |thread: std::fs::DirEntry| {
        let read = |file| std::fs::read_to_string(thread.path().join(file)).ok();
        let is_worker = read("comm")?.starts_with(WORKER_NAME);
        let time = is_worker.then(|| read("schedstat")).flatten()?;
        Some((thread.file_name().into_string().ok()?, parse(&time)?))
    };
    threads.flatten().filter_map(time).collect()
}

/// `running waiting slices`, the first two in nanoseconds.
fn parse(schedstat: &str) -> Option<Duration> {
    let mut words = schedstat.split_whitespace();
    let [running, waiting] = [words.next()?, words.next()?].map(str::parse::<u64>);
    Some(Duration::from_nanos(
        running.ok()?.saturating_add(waiting.ok()?),
    ))
}

#[cfg(test)]
#[allow(
    clippy::disallowed_methods,
    reason = "a test's clock has to begin somewhere"
)]
mod tests {
    use super::*;

    #[test]
    fn time_without_a_processor_counts() {
        let time = parse("739823048 99288 18\n");
        assert_eq!(time, Some(Duration::from_nanos(739_922_336)));
        assert_eq!(parse("739823048"), None);
        assert_eq!(parse("a b c"), None);
    }

    #[test]
    fn the_busiest_worker_counts_and_a_new_one_from_its_second_look_on() {
        let mut cpu = WorkersCpu::default();
        let start = Instant::now();
        let table = |times: &[(&str, u64)]| {
            let time = |(thread, time): &(&str, u64)| (thread.to_string(), ms(*time));
            times.iter().map(time).collect::<BTreeMap<_, _>>()
        };
        assert_eq!(cpu.busiest_of(table(&[("1", 100), ("2", 0)]), start), None);
        let busiest = cpu.busiest_of(
            table(&[("1", 300), ("2", 1800), ("3", 2000)]),
            start + ms(2000),
        );
        assert_eq!(busiest, Some(0.9));
        let busiest = cpu.busiest_of(table(&[("3", 2500)]), start + ms(3000));
        assert_eq!(busiest, Some(0.5));
        assert_eq!(cpu.busiest_of(BTreeMap::new(), start + ms(4000)), None);
    }

    #[test]
    fn a_thread_of_that_name_is_found() {
        let (seen, wait) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let worker = std::thread::Builder::new().name(format!("{WORKER_NAME}7"));
        let worker = worker.spawn(move || {
            seen.send(()).unwrap();
            let _ = ended.recv();
        });
        wait.recv().unwrap();
        assert_eq!(workers(Path::new("/proc/self/task")).len(), 1);
        drop(end);
        worker.unwrap().join().unwrap();
    }

    #[test]
    fn a_thread_that_never_waits_is_busy_all_the_time_and_one_that_sleeps_is_not() {
        let spin = || {
            let begun = Instant::now();
            while begun.elapsed() < ms(50) {
                std::hint::spin_loop();
            }
        };
        let sleep = || std::thread::sleep(ms(50));
        let mut cpu = ThreadCpu::default();
        assert_eq!(cpu.part(Instant::now()), None);
        // A machine that is itself one of several may have stood still in any single look.
        let mut is_seen = |work: &dyn Fn(), expected: fn(f64) -> bool| {
            (0..200).any(|_| {
                work();
                cpu.part(Instant::now()).is_some_and(expected)
            })
        };
        assert!(is_seen(&spin, |part| part > 0.8));
        assert!(is_seen(&sleep, |part| part < 0.5));
    }

    fn ms(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }
}
