//! How soon an object that is not as it should be is reconciled again: later each time, and not in step with others.
//!
//! Bounds: an entry an object that waits, at most [`WAITING_MAX`]; one more drops any.

use std::collections::BTreeMap;
use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use kube::Resource;
use kube::api::DynamicObject;
use kube::runtime::controller::Action;
use kube::runtime::reflector::ObjectRef;
use muxtunnel_codes::Code;
use parking_lot::{Mutex, MutexGuard};

use crate::caches::{Key, key};
use crate::failure::Coded;

/// The first pause after an error, and up to as much more by chance.
const FIRST: Duration = Duration::from_millis(500);
/// The longest after an error, and up to as much more by chance: an API server that is back is asked again within half
/// a minute.
const LONGEST: Duration = Duration::from_secs(15);
/// The longest, and up to as much more by chance, for what only a person can end. A watch brings most of what they do.
pub const LONGEST_FOR_PERSONS: Duration = Duration::from_mins(5);
/// Objects that wait at once.
const WAITING_MAX: usize = 10_000;

/// The pauses of all objects of a controller.
pub struct Backoffs {
    first: Duration,
    table: Mutex<BTreeMap<Key, Waiting>>,
}

/// What an object waits for, and the pauses between reconciliations.
struct Waiting {
    state: String,
    pauses: ExponentialBackoff,
    count: u32,
}

impl Default for Backoffs {
    fn default() -> Self {
        Self::beginning_with(FIRST)
    }
}

impl Backoffs {
    /// Pauses of which the first one is `first`, and up to as much more by chance.
    #[must_use]
    pub fn beginning_with(first: Duration) -> Self {
        Self {
            first,
            table: Mutex::default(),
        }
    }

    /// The reconciliation of `object` has failed with `error`: the next one, and when.
    pub fn failed<K: Resource<DynamicType = ()>>(&self, object: &K, error: &impl Coded) -> Action {
        let code = error.code();
        let longest = match code {
            Code::ApiRefused => LONGEST_FOR_PERSONS,
            _ => LONGEST,
        };
        Action::requeue(self.pause(object, code.reason(), longest))
    }

    /// How often in a row the reconciliation of `object` has failed.
    pub fn failures<K: Resource<DynamicType = ()>>(&self, object: &K) -> u32 {
        self.lock()
            .get(&key(object))
            .map_or(0, |waiting| waiting.count)
    }

    /// The pause before `object`, which is in `state`, is reconciled again: longer each time while the state is the same,
    /// up to `longest`, and up to as much more by chance.
    pub fn pause<K: Resource<DynamicType = ()>>(
        &self,
        object: &K,
        state: &str,
        longest: Duration,
    ) -> Duration {
        self.next(&key(object), state, longest)
    }

    /// The reconciliation of `object` has not failed.
    pub fn succeeded<K: Resource<DynamicType = ()>>(&self, object: &K) {
        self.forget(&key(object));
    }

    /// The object is not there any more.
    pub fn is_gone(&self, object: &ObjectRef<DynamicObject>) {
        self.forget(&(object.namespace.clone(), object.name.clone()));
    }

    fn next(&self, key: &Key, state: &str, longest: Duration) -> Duration {
        let mut table = self.lock();
        if table.len() >= WAITING_MAX && !table.contains_key(key) {
            table.pop_first();
        }
        let builder = ExponentialBuilder::new()
            .with_min_delay(self.first)
            .with_max_delay(longest)
            .with_factor(2.0)
            .with_jitter()
            .without_max_times();
        let waiting = table.entry(key.clone()).or_insert_with(|| Waiting {
            state: state.to_owned(),
            pauses: builder.build(),
            count: 0,
        });
        if waiting.state != state {
            state.clone_into(&mut waiting.state);
            waiting.pauses = builder.build();
        }
        waiting.count = waiting.count.saturating_add(1);
        waiting.pauses.next().unwrap_or(longest)
    }

    fn forget(&self, key: &Key) {
        self.lock().remove(key);
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Key, Waiting>> {
        self.table.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(name: &str) -> Key {
        (Some("site".to_owned()), name.to_owned())
    }

    #[test]
    fn pauses_double_up_to_a_bound_and_begin_anew_after_a_success() {
        let (backoffs, a) = (Backoffs::default(), object("a"));
        let mut least = FIRST;
        for _ in 0..20 {
            let pause = backoffs.next(&a, "x", LONGEST);
            assert!((least..=least * 2).contains(&pause), "{pause:?} {least:?}");
            least = (least * 2).min(LONGEST);
        }
        let other = backoffs.next(&object("b"), "x", LONGEST);
        assert!(other <= FIRST * 2, "others do not wait");
        backoffs.forget(&a);
        assert!(backoffs.next(&a, "x", LONGEST) <= FIRST * 2);
    }

    #[test]
    fn another_state_begins_with_short_pauses_and_what_persons_end_has_long_ones() {
        let (backoffs, a) = (Backoffs::default(), object("a"));
        for _ in 0..20 {
            backoffs.next(&a, "x", LONGEST_FOR_PERSONS);
        }
        assert!(backoffs.next(&a, "x", LONGEST_FOR_PERSONS) >= LONGEST_FOR_PERSONS);
        assert!(backoffs.next(&a, "y", LONGEST_FOR_PERSONS) <= FIRST * 2);
    }

    #[test]
    fn objects_that_fail_together_do_not_come_back_together() {
        let backoffs = Backoffs::default();
        let pauses: std::collections::BTreeSet<_> = (0..100)
            .map(|number| backoffs.next(&object(&number.to_string()), "x", LONGEST))
            .collect();
        assert!(pauses.len() > 50, "{}", pauses.len());
    }

    #[test]
    fn the_table_is_bounded() {
        let backoffs = Backoffs::default();
        for number in 0..=WAITING_MAX {
            backoffs.next(&object(&number.to_string()), "x", LONGEST);
        }
        assert_eq!(backoffs.table.lock().len(), WAITING_MAX);
    }
}
