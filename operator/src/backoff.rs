//! How soon an object whose look failed is looked at again: later each time, and not in step with others.
//!
//! Bounds: an entry an object that fails, at most [`FAILING_MAX`]; one more drops any.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use kube::Resource;
use kube::api::DynamicObject;
use kube::runtime::controller::Action;
use kube::runtime::reflector::ObjectRef;

use crate::caches::{Key, key};

/// The first pause, and up to as much more by chance.
const FIRST: Duration = Duration::from_millis(500);
/// The longest, and up to as much more by chance: an API server that is back is asked again within half
/// a minute.
const LONGEST: Duration = Duration::from_secs(15);
/// Objects that fail at once.
const FAILING_MAX: usize = 10_000;

/// The pauses of all objects of a controller.
#[derive(Default)]
pub struct Backoffs(Mutex<BTreeMap<Key, ExponentialBackoff>>);

impl Backoffs {
    /// The look at `object` has failed: the next one, and when.
    pub fn failed<K: Resource<DynamicType = ()>>(&self, object: &K) -> Action {
        Action::requeue(self.pause(&key(object)))
    }

    /// The look at `object` has not failed.
    pub fn succeeded<K: Resource<DynamicType = ()>>(&self, object: &K) {
        self.forget(&key(object));
    }

    /// The object is not there any more.
    pub fn is_gone(&self, object: &ObjectRef<DynamicObject>) {
        self.forget(&(object.namespace.clone(), object.name.clone()));
    }

    fn pause(&self, key: &Key) -> Duration {
        let mut failing = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if failing.len() >= FAILING_MAX && !failing.contains_key(key) {
            let any = failing.keys().next().cloned();
            any.and_then(|any| failing.remove(&any));
        }
        let builder = ExponentialBuilder::new()
            .with_min_delay(FIRST)
            .with_max_delay(LONGEST)
            .with_factor(2.0)
            .with_jitter()
            .without_max_times();
        let pauses = failing
            .entry(key.clone())
            .or_insert_with(|| builder.build());
        pauses.next().unwrap_or(LONGEST)
    }

    fn forget(&self, key: &Key) {
        let mut failing = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        failing.remove(key);
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
            let pause = backoffs.pause(&a);
            assert!((least..=least * 2).contains(&pause), "{pause:?} {least:?}");
            least = (least * 2).min(LONGEST);
        }
        let other = backoffs.pause(&object("b"));
        assert!(other <= FIRST * 2, "others do not wait");
        backoffs.forget(&a);
        assert!(backoffs.pause(&a) <= FIRST * 2);
    }

    #[test]
    fn objects_that_fail_together_do_not_come_back_together() {
        let backoffs = Backoffs::default();
        let pauses: std::collections::BTreeSet<_> = (0..100)
            .map(|number| backoffs.pause(&object(&number.to_string())))
            .collect();
        assert!(pauses.len() > 50, "{}", pauses.len());
    }

    #[test]
    fn the_table_is_bounded() {
        let backoffs = Backoffs::default();
        for number in 0..=FAILING_MAX {
            backoffs.pause(&object(&number.to_string()));
        }
        assert_eq!(backoffs.0.lock().unwrap().len(), FAILING_MAX);
    }
}
