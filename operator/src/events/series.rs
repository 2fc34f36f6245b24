//! Decides when an Event is written. Pure.
//!
//! A new Event begins a series. A repetition is counted, and the count is written at most every
//! [`WRITE_INTERVAL`]. The number of new series per object is limited, so an object that alternates
//! between many states does not flood the API server. The bounds equal the bounds of client-go,
//! which `kubectl` users know.

use std::collections::BTreeMap;

use k8s_openapi::jiff::{SignedDuration, Timestamp};

/// A series ends this long after its last repetition.
const SERIES_LIFE: SignedDuration = SignedDuration::from_mins(6);
/// Minimum time between two writes of a series' count.
const WRITE_INTERVAL: SignedDuration = SignedDuration::from_secs(30);
/// Minimum time between two searches for ended series.
const SWEEP_INTERVAL: SignedDuration = SignedDuration::from_mins(1);
/// Number of new series that an object may begin in a burst.
const BURST: u32 = 25;
/// Time after which an object may begin one more series.
const REFILL: SignedDuration = SignedDuration::from_mins(5);
/// Maximum number of remembered series of all objects, about 300 bytes each. A further series drops
/// the series with the oldest repetition.
const SERIES_MAX: usize = 4096;
/// Maximum number of objects with counted series. A further object drops the object whose budget
/// has gone longest without a refill.
const OBJECTS_MAX: usize = 4096;

/// Events with the same key form one series.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    /// UID of the object.
    pub(super) object: String,
    pub(super) action: String,
    pub(super) reason: String,
}

/// The API request for an Event.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// An Event that begins a series.
    Begin,
    /// The new count of the Event `name`.
    Count { name: String, count: i32 },
    /// No request, because the object has had too many new Events, or the count was written
    /// recently.
    Hold,
}

#[derive(Debug)]
struct Series {
    /// The name of the Event.
    name: String,
    count: i32,
    seen: Timestamp,
    /// `None` if the Event has no count yet.
    written: Option<Timestamp>,
}

impl Series {
    fn lives(&self, now: Timestamp) -> bool {
        now.duration_since(self.seen) < SERIES_LIFE
    }
}

/// The number of series that an object may begin now.
#[derive(Debug)]
struct Bucket {
    left: u32,
    refilled: Timestamp,
}

/// The active series, and the budgets of objects.
#[derive(Debug, Default)]
pub(super) struct Table {
    series: BTreeMap<Key, Series>,
    buckets: BTreeMap<String, Bucket>,
    swept: Option<Timestamp>,
}

impl Table {
    /// The API request for an Event that happens `now`.
    pub(super) fn step(&mut self, key: &Key, now: Timestamp) -> Step {
        self.sweep(now);
        let series = self.series.get_mut(key);
        let Some(series) = series.filter(|series| series.lives(now)) else {
            return match self.may_begin(&key.object, now) {
                true => Step::Begin,
                false => Step::Hold,
            };
        };
        series.count = series.count.saturating_add(1);
        series.seen = now;
        if let Some(written) = series.written
            && now.duration_since(written) < WRITE_INTERVAL
        {
            return Step::Hold;
        }
        series.written = Some(now);
        Step::Count {
            name: series.name.clone(),
            count: series.count,
        }
    }

    /// Records that the Event `name` was written and begins the series of `key`.
    pub(super) fn begun(&mut self, key: Key, name: String, now: Timestamp) {
        if self.series.len() >= SERIES_MAX && !self.series.contains_key(&key) {
            drop_oldest(&mut self.series, |series| series.seen);
        }
        let series = Series {
            name,
            count: 1,
            seen: now,
            written: None,
        };
        self.series.insert(key, series);
    }

    /// Drops ended series and full budgets, at most once per [`SWEEP_INTERVAL`], because the sweep
    /// searches all entries. A full budget equals the budget of a new object.
    fn sweep(&mut self, now: Timestamp) {
        let swept = self.swept;
        if swept.is_some_and(|swept| now.duration_since(swept) < SWEEP_INTERVAL) {
            return;
        }
        self.swept = Some(now);
        self.series.retain(|_, series| series.lives(now));
        let burst = i32::try_from(BURST).unwrap_or(i32::MAX);
        self.buckets
            .retain(|_, bucket| now.duration_since(bucket.refilled) < REFILL * burst);
    }

    fn may_begin(&mut self, object: &str, now: Timestamp) -> bool {
        if self.buckets.len() >= OBJECTS_MAX && !self.buckets.contains_key(object) {
            drop_oldest(&mut self.buckets, |bucket| bucket.refilled);
        }
        let bucket = self.buckets.entry(object.to_owned()).or_insert(Bucket {
            left: BURST,
            refilled: now,
        });
        while bucket.left < BURST && now.duration_since(bucket.refilled) >= REFILL {
            bucket.left += 1;
            bucket.refilled += REFILL;
        }
        if bucket.left == BURST {
            bucket.refilled = now;
        }
        let may = bucket.left > 0;
        bucket.left = bucket.left.saturating_sub(1);
        may
    }
}

fn drop_oldest<K: Clone + Ord, V>(all: &mut BTreeMap<K, V>, time: fn(&V) -> Timestamp) {
    let oldest = all.iter().min_by_key(|(_, value)| time(value));
    if let Some(oldest) = oldest.map(|(key, _)| key.clone()) {
        all.remove(&oldest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_900_000_000 + seconds).unwrap()
    }

    fn key(object: &str, reason: &str) -> Key {
        Key {
            object: object.to_owned(),
            action: "SetReady".to_owned(),
            reason: reason.to_owned(),
        }
    }

    /// Whether an Event was written, and with which count.
    fn publish(table: &mut Table, key: &Key, seconds: i64) -> Option<i32> {
        match table.step(key, at(seconds)) {
            Step::Begin => {
                table.begun(key.clone(), format!("event-{seconds}"), at(seconds));
                Some(1)
            }
            Step::Count { count, .. } => Some(count),
            Step::Hold => None,
        }
    }

    #[test]
    fn repetitions_are_counted_and_the_count_is_written_now_and_then() {
        let mut table = Table::default();
        let key = key("a", "Lost");
        let written = [0, 1, 2, 30, 31, 60].map(|seconds| publish(&mut table, &key, seconds));
        assert_eq!(written, [Some(1), Some(2), None, None, Some(5), None]);
        assert_eq!(
            publish(&mut table, &key, 61),
            Some(7),
            "no repetition was lost"
        );
    }

    #[test]
    fn what_did_not_repeat_for_six_minutes_begins_anew() {
        let mut table = Table::default();
        let key = key("a", "Lost");
        assert_eq!(publish(&mut table, &key, 0), Some(1));
        assert_eq!(publish(&mut table, &key, 359), Some(2));
        assert_eq!(publish(&mut table, &key, 359 + 360), Some(1));
    }

    #[test]
    fn an_object_that_begins_many_waits_and_another_does_not() {
        let mut table = Table::default();
        let reason = |n: u32| key("a", &format!("Reason{n}"));
        for n in 0..BURST {
            assert_eq!(publish(&mut table, &reason(n), 0), Some(1));
        }
        assert_eq!(publish(&mut table, &reason(100), 0), None);
        assert_eq!(publish(&mut table, &key("b", "Lost"), 0), Some(1));
        assert_eq!(publish(&mut table, &reason(100), 299), None);
        assert_eq!(publish(&mut table, &reason(100), 300), Some(1));
        assert_eq!(publish(&mut table, &reason(101), 300), None);
    }

    #[test]
    fn both_tables_are_bounded_and_forget_the_oldest_first() {
        let mut table = Table::default();
        for n in 0..SERIES_MAX + 10 {
            let object = format!("object-{n:05}");
            assert_eq!(publish(&mut table, &key(&object, "Lost"), 0), Some(1));
        }
        assert_eq!(table.series.len(), SERIES_MAX);
        assert_eq!(table.buckets.len(), OBJECTS_MAX);
        let last = format!("object-{:05}", SERIES_MAX + 9);
        assert_eq!(publish(&mut table, &key(&last, "Lost"), 1), Some(2));
    }
}
