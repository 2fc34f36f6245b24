//! The report of `muxbench load`: the line of its log after [`LOG_WORD`](crate::result::LOG_WORD).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The outcome of all short connections and long streams of a load.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// Short connections that the load has started.
    pub begun: u64,
    /// When the load started the last short connection, in milliseconds since 1970.
    pub last_begun_unix_ms: u64,
    /// Short connections that have ended, with or without a failure.
    pub opens: u64,
    /// Short connections that failed, by kind of failure.
    pub failed: BTreeMap<Failure, Failures>,
    /// Connections that the load itself could not begin, because its machine had no port, file or
    /// memory for them. They say nothing about the target, so `failed` and `lost` do not count them.
    #[serde(default)]
    pub own: u64,
    /// Duration of the slowest short connection that did not fail, in milliseconds.
    pub slowest_ms: u64,
    /// Long streams, including the streams that replaced lost streams.
    pub streams: u64,
    /// Long streams that were lost, by kind of failure.
    pub lost: BTreeMap<Failure, Failures>,
}

/// How a connection fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Failure {
    /// The connection was refused.
    Refused,
    /// The connection was reset.
    Reset,
    /// There was no answer in time.
    TimedOut,
    /// The connection ended cleanly, but too early.
    Short,
    /// A received byte differed from the sent byte.
    Wrong,
    /// Another error of the socket.
    Broken,
}

/// Failures of one kind. The time of a failure is the time at which the short connection began, or
/// at which the long stream was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failures {
    /// Number of failures.
    pub count: u64,
    /// Time of the first failure, in milliseconds since 1970.
    pub first_unix_ms: u64,
    /// Time of the last failure, in milliseconds since 1970.
    pub last_unix_ms: u64,
}

impl Report {
    /// Number of short connections that failed.
    #[must_use]
    pub fn failed_opens(&self) -> u64 {
        self.failed.values().map(|failures| failures.count).sum()
    }

    /// Number of long streams that were lost.
    #[must_use]
    pub fn lost_streams(&self) -> u64 {
        self.lost.values().map(|failures| failures.count).sum()
    }

    /// Time of the last failure, in milliseconds since 1970.
    #[must_use]
    pub fn last_failure_unix_ms(&self) -> Option<u64> {
        let all = self.failed.values().chain(self.lost.values());
        all.map(|failures| failures.last_unix_ms).max()
    }

    /// Counts one failure in `failures`, which is `failed` or `lost` of the report.
    pub fn count(failures: &mut BTreeMap<Failure, Failures>, how: Failure, unix_ms: u64) {
        let counted = failures.entry(how).or_insert(Failures {
            count: 0,
            first_unix_ms: unix_ms,
            last_unix_ms: unix_ms,
        });
        counted.count += 1;
        counted.first_unix_ms = counted.first_unix_ms.min(unix_ms);
        counted.last_unix_ms = counted.last_unix_ms.max(unix_ms);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_counted_with_the_first_and_the_last_time() {
        let mut report = Report::default();
        assert_eq!(report.last_failure_unix_ms(), None);
        for at in [30, 10, 20] {
            Report::count(&mut report.failed, Failure::Reset, at);
        }
        Report::count(&mut report.lost, Failure::TimedOut, 40);
        let resets = report.failed[&Failure::Reset];
        assert_eq!(
            (resets.count, resets.first_unix_ms, resets.last_unix_ms),
            (3, 10, 30)
        );
        assert_eq!((report.failed_opens(), report.lost_streams()), (3, 1));
        assert_eq!(report.last_failure_unix_ms(), Some(40));
    }
}
