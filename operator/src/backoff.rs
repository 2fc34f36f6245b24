//! Back-off of reconciliations, with jitter.
//!
//! Some obstacles end without an event of a watch, such as a quota, an admission policy or an
//! object of another owner. A retry reads the obstacle, so its pauses stay short, and all objects
//! together retry at most [`UNWATCHED_PER_SECOND`] times a second.
//!
//! Bounds: one entry per waiting object, at most [`WAITING_MAX`]. A further entry replaces an
//! arbitrary entry.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use kube::Resource;
use kube::api::DynamicObject;
use kube::runtime::controller::Action;
use kube::runtime::reflector::ObjectRef;
use muxtunnel_codes::Code;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::caches::key;
use crate::failure::Coded;

/// The first pause after an error, without the jitter of up to 100 %.
const FIRST: Duration = Duration::from_millis(500);
/// The longest pause after an error, without the jitter of up to 100 %. With the jitter, the
/// operator queries a recovered API server within half a minute.
const LONGEST: Duration = Duration::from_secs(15);
/// The longest pause if only a user can resolve the state and no watch shows the change, without the
/// jitter of up to 100 %. With the jitter, the pause is half a minute on average.
const LONGEST_UNWATCHED: Duration = Duration::from_secs(20);
/// Maximum number of retries per second of all objects that wait for such a change.
const UNWATCHED_PER_SECOND: u32 = 40;
/// The longest pause if only a user can resolve the state, without the jitter of up to 100 %. The
/// change triggers a reconciliation earlier, through a watch.
pub const LONGEST_FOR_PERSONS: Duration = Duration::from_mins(5);
/// Maximum number of objects with a back-off.
const WAITING_MAX: usize = 10_000;

/// Kind, namespace and name.
type Key = (String, Option<String>, String);

fn of<K: Resource<DynamicType = ()>>(object: &K) -> Key {
    let (namespace, name) = key(object);
    (K::kind(&()).into_owned(), namespace, name)
}

/// The pauses of all objects of a controller.
pub struct Backoffs {
    first: Duration,
    table: Mutex<BTreeMap<Key, Waiting>>,
    unwatched: Arc<Slots>,
}

/// The number of retries in each second, in seconds since `begun`.
struct Slots {
    begun: Instant,
    taken: Mutex<BTreeMap<u64, u32>>,
}

impl Slots {
    /// The pause until the first free second after `pause`.
    fn take(&self, pause: Duration) -> Duration {
        let now = self.begun.elapsed();
        let due = now + pause;
        let mut taken = self.taken.lock();
        *taken = taken.split_off(&now.as_secs());
        let mut second = due.as_secs();
        while taken
            .get(&second)
            .is_some_and(|taken| *taken >= UNWATCHED_PER_SECOND)
        {
            second += 1;
        }
        *taken.entry(second).or_default() += 1;
        pause + Duration::from_secs(second - due.as_secs())
    }
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
        let unwatched = Slots {
            begun: Instant::now(),
            taken: Mutex::default(),
        };
        Self {
            first,
            table: Mutex::default(),
            unwatched: Arc::new(unwatched),
        }
    }

    /// Back-offs of other states of the same objects, whose first pause is `first`.
    #[must_use]
    pub fn sibling(&self, first: Duration) -> Self {
        Self {
            unwatched: self.unwatched.clone(),
            ..Self::beginning_with(first)
        }
    }

    /// Records that the reconciliation of `object` failed with `error`. Returns the action that
    /// retries after the next pause.
    pub fn failed<K: Resource<DynamicType = ()>>(&self, object: &K, error: &impl Coded) -> Action {
        let code = error.code();
        Action::requeue(match code {
            Code::ApiRefused | Code::NameTaken | Code::ImmutableField => {
                self.pause_unwatched(object, code.reason())
            }
            _ => self.pause(object, code.reason(), LONGEST),
        })
    }

    /// The number of failed reconciliations of `object` in a row.
    pub fn failures<K: Resource<DynamicType = ()>>(&self, object: &K) -> u32 {
        self.table
            .lock()
            .get(&of(object))
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
        self.next(&of(object), state, longest)
    }

    /// Like [`Self::pause`], if no watch shows the end of `state`.
    pub fn pause_unwatched<K: Resource<DynamicType = ()>>(
        &self,
        object: &K,
        state: &str,
    ) -> Duration {
        let pause = self.next(&of(object), state, LONGEST_UNWATCHED);
        self.unwatched.take(pause)
    }

    /// Records that the reconciliation of `object` succeeded.
    pub fn succeeded<K: Resource<DynamicType = ()>>(&self, object: &K) {
        self.forget(&of(object));
    }

    /// Drops the back-off of a deleted object.
    pub fn is_gone(&self, object: &ObjectRef<DynamicObject>) {
        let kind = object.dyntype.kind.clone();
        self.forget(&(kind, object.namespace.clone(), object.name.clone()));
    }

    fn next(&self, key: &Key, state: &str, longest: Duration) -> Duration {
        let mut table = self.table.lock();
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
        self.table.lock().remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::Pod;

    fn object(name: &str) -> Key {
        ("Pod".to_owned(), Some("site".to_owned()), name.to_owned())
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

    /// A thousand tunnels of one namespace whose quota is used up, for ten minutes.
    #[tokio::test(start_paused = true)]
    async fn obstacles_that_no_watch_shows_are_read_soon_and_not_all_at_once() {
        let backoffs = Backoffs::default();
        let pending = backoffs.sibling(Duration::from_secs(1));
        let mut pod = Pod::default();
        pod.metadata.namespace = Some("site".to_owned());
        let mut due: Vec<_> = (0..1000).map(|number| (0.0_f64, number)).collect();
        let mut reads = BTreeMap::<u64, u32>::new();
        let mut longest = 0.0_f64;
        let begin = Instant::now();
        loop {
            due.sort_by(|a, b| a.0.total_cmp(&b.0));
            let (at, number) = due[0];
            if at >= 600.0 {
                break;
            }
            let at = Duration::from_secs_f64(at);
            tokio::time::sleep_until(begin + at).await;
            if at > Duration::ZERO {
                *reads.entry(at.as_secs()).or_default() += 1;
            }
            pod.metadata.name = Some(format!("t{number}"));
            let table = if number % 2 == 0 { &backoffs } else { &pending };
            let pause = table.pause_unwatched(&pod, Code::ApiRefused.reason());
            longest = longest.max(pause.as_secs_f64());
            due[0].0 = (at + pause).as_secs_f64();
        }
        let most = reads.values().max().unwrap();
        assert!(
            *most <= UNWATCHED_PER_SECOND + 1,
            "{most} reads in a second"
        );
        assert!(longest <= 60.0, "{longest} s until a read");
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
