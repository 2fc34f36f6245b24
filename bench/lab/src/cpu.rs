//! CPU time that processes have used, from `/proc/PID/stat`.

use std::{fs, time::Duration};

use anyhow::{Context, Result};

/// The unit of the times in `/proc/PID/stat`: Linux gives user space 100 a second on every
/// architecture that Rust runs on.
const TICK: Duration = Duration::from_millis(10);

/// User and system time of these processes so far, all threads included.
///
/// # Errors
/// When a process is gone.
pub(crate) fn used(pids: &[u32]) -> Result<Duration> {
    pids.iter().map(|pid| used_by(*pid)).sum()
}

fn used_by(pid: u32) -> Result<Duration> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))
        .with_context(|| format!("process {pid} has ended"))?;
    parse(&stat).with_context(|| format!("/proc/{pid}/stat has another form: {stat}"))
}

/// `utime` and `stime` are the fields 14 and 15; the name in field 2 may hold spaces and brackets.
fn parse(stat: &str) -> Option<Duration> {
    let (_, after_name) = stat.rsplit_once(')')?;
    let mut fields = after_name.split_whitespace().skip(11);
    let user: u32 = fields.next()?.parse().ok()?;
    let system: u32 = fields.next()?.parse().ok()?;
    Some(TICK * user.checked_add(system)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_and_system_time_are_added_whatever_the_process_is_called() {
        let stat = "42 (a b) c) S 1 42 42 0 -1 4194560 90 0 0 0 150 25 0 0 20 0 1 0 7 8 9";
        assert_eq!(parse(stat), Some(Duration::from_millis(1750)));
        assert_eq!(parse("42 (a) S 1"), None);
    }

    #[test]
    fn this_process_has_used_some() {
        assert!(used(&[std::process::id()]).is_ok());
        assert!(used(&[u32::MAX]).is_err());
    }
}
