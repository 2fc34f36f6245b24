//! Measures the fraction of time in which the workers run or wait for a processor.
//!
//! The source is `/proc/self/task/*/schedstat`: the time on a processor, and the time ready to run
//! without a processor. The time without a processor shows CPU limits and busy neighbours. The
//! admin thread reads one small file for each thread.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

/// Prefix of a worker thread's name, before the worker's number.
pub(crate) const WORKER_NAME: &str = "worker-";

/// CPU times at the last sample.
#[derive(Debug, Default)]
pub(crate) struct WorkersCpu {
    /// The CPU time of each worker, by thread name.
    before: BTreeMap<String, Duration>,
    read: Option<Instant>,
}

impl WorkersCpu {
    /// The fraction of the time since the last sample in which the busiest worker ran or was ready
    /// to run. `None` at the first sample, and on kernels that lack the times.
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

/// CPU time of the calling thread at the last sample.
#[derive(Debug, Default)]
pub(crate) struct ThreadCpu {
    before: Option<(Instant, Duration)>,
}

impl ThreadCpu {
    /// The fraction of the time since the last sample in which this thread ran or was ready to run.
    /// `None` at the first sample, and on kernels that lack the times.
    pub(crate) fn part(&mut self, now: Instant) -> Option<f64> {
        let after = parse(&std::fs::read_to_string("/proc/thread-self/schedstat").ok()?)?;
        let (read, before) = self.before.replace((now, after))?;
        let passed = now.saturating_duration_since(read);
        let time = after.saturating_sub(before);
        (!passed.is_zero()).then(|| time.as_secs_f64() / passed.as_secs_f64())
    }
}

/// Each worker's time. Unreadable files are skipped.
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

/// Parses `running waiting slices`, of which the first two are in nanoseconds.
fn parse(schedstat: &str) -> Option<Duration> {
    let mut words = schedstat.split_whitespace();
    let [running, waiting] = [words.next()?, words.next()?].map(str::parse::<u64>);
    Some(Duration::from_nanos(
        running.ok()?.saturating_add(waiting.ok()?),
    ))
}

#[cfg(test)]
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
        // A virtual machine may have been suspended during any single sample.
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
