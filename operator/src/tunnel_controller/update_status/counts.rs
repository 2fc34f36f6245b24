//! Limits how often the status is written because of a count that may change at any time.

use std::collections::BTreeMap;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Minimum time between two writes for an object.
const INTERVAL: Duration = Duration::from_secs(30);

/// When a changed count of each object was last written. Contains the objects of the last
/// [`INTERVAL`].
#[derive(Debug, Default)]
pub struct CountClock(Mutex<BTreeMap<String, Instant>>);

impl CountClock {
    /// The counts to write: `new` if the last write is long enough before `now`, otherwise `old`.
    /// Counts that appear or disappear are written at once.
    pub fn settle(&self, uid: &str, old: Vec<i32>, new: Vec<i32>, now: Instant) -> Vec<i32> {
        if old == new || old.len() != new.len() {
            return new;
        }
        let mut written = self.0.lock();
        written.retain(|_, at| now.saturating_duration_since(*at) < INTERVAL);
        if written.contains_key(uid) {
            return old;
        }
        written.insert(uid.to_owned(), now);
        new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_change_waits() {
        let (clock, now) = (CountClock::default(), Instant::now());
        let settle = |uid, old: &[i32], new: &[i32], seconds| {
            let at = now + Duration::from_secs(seconds);
            clock.settle(uid, old.to_vec(), new.to_vec(), at)
        };
        assert_eq!(settle("a", &[], &[1], 0), [1]);
        assert_eq!(settle("a", &[1], &[2], 0), [2]);
        assert_eq!(settle("a", &[2], &[3], 29), [2]);
        assert_eq!(settle("b", &[2], &[3], 29), [3]);
        assert_eq!(settle("a", &[2], &[3], 30), [3]);
    }
}
