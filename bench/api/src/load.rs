//! What `muxbench load` saw: the line of its log that follows [`LOG_WORD`](crate::result::LOG_WORD).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// What became of all short connections and long streams of a load.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// Short connections that were begun.
    pub begun: u64,
    /// When the last one was begun, in milliseconds since 1970.
    pub last_begun_unix_ms: u64,
    /// Short connections that are over, well or not.
    pub opens: u64,
    /// Those that failed, by how.
    pub failed: BTreeMap<Failure, Failures>,
    /// What the slowest one that did not fail took.
    pub slowest_ms: u64,
    /// Long streams; one that is lost is replaced by another.
    pub streams: u64,
    /// Those that were lost, by how.
    pub lost: BTreeMap<Failure, Failures>,
}

/// How a connection fails its client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Failure {
    /// Nobody took it.
    Refused,
    /// It was cut, and its client was told so.
    Reset,
    /// There was no answer in time.
    TimedOut,
    /// It ended as if all were well, but too early.
    Short,
    /// A byte was not the one that was sent.
    Wrong,
    /// Another error of the socket.
    Broken,
}

/// Failures of one kind. Each is counted at the time when its connection was begun or, of a stream, when it
/// was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failures {
    /// How many.
    pub count: u64,
    /// When the first one was, in milliseconds since 1970.
    pub first_unix_ms: u64,
    /// When the last one was.
    pub last_unix_ms: u64,
}

impl Report {
    /// Short connections that failed, however.
    #[must_use]
    pub fn failed_opens(&self) -> u64 {
        self.failed.values().map(|failures| failures.count).sum()
    }

    /// Long streams that were lost, however.
    #[must_use]
    pub fn lost_streams(&self) -> u64 {
        self.lost.values().map(|failures| failures.count).sum()
    }

    /// When something failed last.
    #[must_use]
    pub fn last_failure_unix_ms(&self) -> Option<u64> {
        let all = self.failed.values().chain(self.lost.values());
        all.map(|failures| failures.last_unix_ms).max()
    }

    /// Counts one failure, in `failed` or `lost`.
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
