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
    /// Whether the status `new` of the object `uid` is written at `now`, in place of `old`. A status
    /// that differs only in its counts waits until the last write is long enough ago. `still`: the
    /// status with the same value for each count.
    pub fn writes<S: PartialEq>(
        &self,
        uid: &str,
        (old, new): (Option<&S>, &S),
        still: impl Fn(&S) -> S,
        now: Instant,
    ) -> bool {
        let Some(old) = old.filter(|old| still(old) == still(new)) else {
            return true;
        };
        if old == new {
            return false;
        }
        let mut written = self.0.lock();
        written.retain(|_, at| now.saturating_duration_since(*at) < INTERVAL);
        let is_due = !written.contains_key(uid);
        if is_due {
            written.insert(uid.to_owned(), now);
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_change_of_a_count_waits() {
        let (clock, now) = (CountClock::default(), Instant::now());
        let writes = |uid, old: Option<(bool, i32)>, new: (bool, i32), seconds| {
            let still = |(is_ready, _): &(bool, i32)| (*is_ready, 0);
            let at = now + Duration::from_secs(seconds);
            clock.writes(uid, (old.as_ref(), &new), still, at)
        };
        assert!(writes("a", None, (true, 1), 0));
        assert!(!writes("a", Some((true, 1)), (true, 1), 0));
        assert!(writes("a", Some((true, 1)), (true, 2), 0));
        assert!(!writes("a", Some((true, 2)), (true, 3), 29));
        assert!(writes("a", Some((true, 2)), (false, 3), 29));
        assert!(writes("b", Some((true, 2)), (true, 3), 29));
        assert!(writes("a", Some((true, 2)), (true, 3), 30));
    }
}
