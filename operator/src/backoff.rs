//! Back-off of reconciliations, with jitter.
//!
//! Bounds: one entry per waiting object, at most [`WAITING_MAX`]. A further entry replaces an
//! arbitrary entry.

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

/// The first pause after an error, without the jitter of up to 100 %.
const FIRST: Duration = Duration::from_millis(500);
/// The longest pause after an error, without the jitter of up to 100 %. With the jitter, the
/// operator queries a recovered API server within half a minute.
const LONGEST: Duration = Duration::from_secs(15);
/// The longest pause if only a user can resolve the state, without the jitter of up to 100 %. Most
/// changes trigger a reconciliation earlier, through a watch.
pub const LONGEST_FOR_PERSONS: Duration = Duration::from_mins(5);
/// Maximum number of objects with a back-off.
const WAITING_MAX: usize = 10_000;

/// The pauses of all objects of a controller.
pub struct Backoffs {
    first: Duration,
    table: Mutex<BTreeMap<Key, Waiting>>,
}

/// The state in which an object waits, and its pauses.
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
    /// Back-offs whose first pause is `first`, before the jitter of up to 100 %.
    #[must_use]
    pub fn beginning_with(first: Duration) -> Self {
        Self {
            first,
            table: Mutex::default(),
        }
    }

    /// Records that the reconciliation of `object` failed with `error`. Returns the action that
    /// retries after the next pause.
    pub fn failed<K: Resource<DynamicType = ()>>(&self, object: &K, error: &impl Coded) -> Action {
        let code = error.code();
        let longest = match code {
            Code::ApiRefused => LONGEST_FOR_PERSONS,
            _ => LONGEST,
        };
        Action::requeue(self.pause(object, code.reason(), longest))
    }

    /// The number of failed reconciliations of `object` in a row.
    pub fn failures<K: Resource<DynamicType = ()>>(&self, object: &K) -> u32 {
        self.lock()
            .get(&key(object))
            .map_or(0, |waiting| waiting.count)
    }

    /// The pause before `object` in `state` is reconciled again. The pause grows while the state
    /// stays the same, up to `longest`, and has a jitter of up to 100 %.
    pub fn pause<K: Resource<DynamicType = ()>>(
        &self,
        object: &K,
        state: &str,
        longest: Duration,
    ) -> Duration {
        self.next(&key(object), state, longest)
    }

    /// Records that the reconciliation of `object` succeeded.
    pub fn succeeded<K: Resource<DynamicType = ()>>(&self, object: &K) {
        self.forget(&key(object));
    }

    /// Drops the back-off of a deleted object.
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
        assert!(
            other <= FIRST * 2,
            "the pause of another object does not grow"
        );
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
