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
use kube::runtime::controller::Action;
use muxtunnel_codes::Code;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::failure::Coded;
use crate::watches::ObjectId;

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

/// The pauses of all objects of a controller.
pub struct Backoffs {
    first: Duration,
    table: Mutex<BTreeMap<ObjectId, Waiting>>,
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
        while (taken.get(&second)).is_some_and(|taken| *taken >= UNWATCHED_PER_SECOND) {
            second += 1;
        }
        *taken.entry(second).or_default() += 1;
        pause + Duration::from_secs(second - due.as_secs())
    }
}

/// Pauses that double from `first` to `longest`, with a jitter of up to 100 %.
pub(crate) fn doubling(first: Duration, longest: Duration) -> ExponentialBuilder {
    ExponentialBuilder::new()
        .with_min_delay(first)
        .with_max_delay(longest)
        .with_factor(2.0)
        .with_jitter()
        .without_max_times()
}

/// The state in which an object waits, and its pauses.
struct Waiting {
    state: String,
    pauses: ExponentialBackoff,
    count: u32,
}

impl Default for Backoffs {
    fn default() -> Self {
        let unwatched = Slots {
            begun: Instant::now(),
            taken: Mutex::default(),
        };
        Self {
            first: FIRST,
            table: Mutex::default(),
            unwatched: Arc::new(unwatched),
        }
    }
}

impl Backoffs {
    /// Back-offs of other states of the same objects, whose first pause is `first`, before the
    /// jitter of up to 100 %.
    pub fn sibling(&self, first: Duration) -> Self {
        Self {
            first,
            table: Mutex::default(),
            unwatched: self.unwatched.clone(),
        }
    }

    /// Records that the reconciliation of `object` failed with `error`. Returns the action that
    /// retries after the next pause.
    pub fn failed(&self, object: &ObjectId, error: &impl Coded) -> Action {
        let code = error.code();
        Action::requeue(match code {
            Code::ApiRefused | Code::NameTaken | Code::ImmutableField => {
                self.pause_unwatched(object, code.reason())
            }
            _ => self.pause(object, code.reason(), LONGEST),
        })
    }

    /// The number of failed reconciliations of `object` in a row.
    pub fn failures(&self, object: &ObjectId) -> u32 {
        let table = self.table.lock();
        table.get(object).map_or(0, |waiting| waiting.count)
    }

    /// The pause before `object` in `state` is reconciled again. The pause grows while the state
    /// stays the same, up to `longest`, and has a jitter of up to 100 %.
    pub fn pause(&self, object: &ObjectId, state: &str, longest: Duration) -> Duration {
        let mut table = self.table.lock();
        if table.len() >= WAITING_MAX && !table.contains_key(object) {
            table.pop_first();
        }
        let builder = doubling(self.first, longest);
        let waiting = table.entry(object.clone()).or_insert_with(|| Waiting {
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

    /// Like [`Self::pause`], if no watch shows the end of `state`.
    pub fn pause_unwatched(&self, object: &ObjectId, state: &str) -> Duration {
        let pause = self.pause(object, state, LONGEST_UNWATCHED);
        self.unwatched.take(pause)
    }

    /// Drops the back-off of an object that was deleted, or whose reconciliation succeeded.
    pub fn forget(&self, object: &ObjectId) {
        self.table.lock().remove(object);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(name: &str) -> ObjectId {
        ObjectId {
            namespace: "site".to_owned(),
            kind: "Pod".to_owned(),
            name: name.to_owned(),
        }
    }

    #[test]
    fn pauses_double_up_to_a_bound_and_begin_anew_after_a_success() {
        let (backoffs, a) = (Backoffs::default(), object("a"));
        let mut least = FIRST;
        for _ in 0..20 {
            let pause = backoffs.pause(&a, "x", LONGEST);
            assert!((least..=least * 2).contains(&pause), "{pause:?} {least:?}");
            least = (least * 2).min(LONGEST);
        }
        let other = backoffs.pause(&object("b"), "x", LONGEST);
        assert!(
            other <= FIRST * 2,
            "the pause of another object does not grow"
        );
        backoffs.forget(&a);
        assert!(backoffs.pause(&a, "x", LONGEST) <= FIRST * 2);
    }

    #[test]
    fn another_state_begins_with_short_pauses_and_what_persons_end_has_long_ones() {
        let (backoffs, a) = (Backoffs::default(), object("a"));
        for _ in 0..20 {
            backoffs.pause(&a, "x", LONGEST_FOR_PERSONS);
        }
        assert!(backoffs.pause(&a, "x", LONGEST_FOR_PERSONS) >= LONGEST_FOR_PERSONS);
        assert!(backoffs.pause(&a, "y", LONGEST_FOR_PERSONS) <= FIRST * 2);
    }

    /// A thousand tunnels of one namespace whose quota is used up, for ten minutes.
    #[tokio::test(start_paused = true)]
    async fn obstacles_that_no_watch_shows_are_read_soon_and_not_all_at_once() {
        let backoffs = Backoffs::default();
        let pending = backoffs.sibling(Duration::from_secs(1));
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
            let object = object(&format!("t{number}"));
            let table = if number % 2 == 0 { &backoffs } else { &pending };
            let pause = table.pause_unwatched(&object, Code::ApiRefused.reason());
            longest = longest.max(pause.as_secs_f64());
            // The timer may fire up to 1 ms late.
            due[0].0 = (begin.elapsed() + pause).as_secs_f64();
        }
        let most = reads.values().max().unwrap();
        assert!(*most <= UNWATCHED_PER_SECOND, "{most} reads in a second");
        assert!(longest <= 60.0, "{longest} s until a read");
    }

    #[test]
    fn objects_that_fail_together_do_not_come_back_together() {
        let backoffs = Backoffs::default();
        let pauses: std::collections::BTreeSet<_> = (0..100)
            .map(|number| backoffs.pause(&object(&number.to_string()), "x", LONGEST))
            .collect();
        assert!(pauses.len() > 50, "{}", pauses.len());
    }

    #[test]
    fn the_table_is_bounded() {
        let backoffs = Backoffs::default();
        for number in 0..=WAITING_MAX {
            backoffs.pause(&object(&number.to_string()), "x", LONGEST);
        }
        assert_eq!(backoffs.table.lock().len(), WAITING_MAX);
    }
}
