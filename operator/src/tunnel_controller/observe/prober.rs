//! Queries gateways outside of reconciliations, so that a gateway that does not answer delays no
//! reconciliation.
//!
//! Input: the addresses of an object's running gateways. Output: their answers, if all arrive within
//! [`ANSWERS_WAIT_MAX`]. Otherwise the tunnel is reconciled again when all answers have arrived.
//! Bounds: one round of queries per tunnel at a time, and at most [`ROUNDS_AT_ONCE`] in total. A
//! round has at most [`ASKED_AT_ONCE`] queries at a time, and lasts at most [`ROUND_TIME_MAX`]. The
//! answers of a round are kept for the next reconciliation, for at most [`ANSWERS_AGE_MAX`].

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{self, BoxStream, StreamExt};
use muxtunnel_gateway_config::status::Status;
use parking_lot::Mutex;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::time::{Instant, timeout, timeout_at};

use super::Gateways;
use crate::clock::Clock;
use crate::watches::ObjectId;

/// How long a reconciliation waits for the answers. A healthy gateway answers within milliseconds.
const ANSWERS_WAIT_MAX: Duration = Duration::from_millis(500);
/// Time limit for the status of all gateways of a tunnel.
const ROUND_TIME_MAX: Duration = Duration::from_secs(5);
/// Maximum number of concurrent queries per tunnel.
const ASKED_AT_ONCE: usize = 32;
/// Maximum number of tunnels with a round in progress.
const ROUNDS_AT_ONCE: usize = 32;
/// Maximum age of answers that a reconciliation uses.
const ANSWERS_AGE_MAX: Duration = Duration::from_secs(10);

/// The status of each gateway of a tunnel, or why it is missing, by address.
pub(super) type Answers = BTreeMap<String, Result<Status, String>>;

/// The round of one object.
struct Round {
    /// Becomes `true` at the end of the round.
    over: watch::Receiver<bool>,
    /// Whether a reconciliation has ended without the answers.
    is_late: bool,
    /// The end of the round and its unread answers. `None` while the round is in progress.
    answers: Option<(Instant, Answers)>,
}

/// Queries the gateways of all objects.
pub struct Prober<G> {
    gateways: Arc<G>,
    clock: Clock,
    rounds: Arc<Mutex<BTreeMap<ObjectId, Round>>>,
    permits: Arc<Semaphore>,
    late: mpsc::UnboundedSender<ObjectId>,
    /// Present until the controller takes the receiver. Contains at most one entry per round that
    /// outlasted its reconciliation.
    wakes: Mutex<Option<mpsc::UnboundedReceiver<ObjectId>>>,
}

impl<G: Gateways> Prober<G> {
    /// A prober that queries through `gateways`, with the times of `clock`.
    pub fn new(gateways: G, clock: Clock) -> Self {
        let (late, wakes) = mpsc::unbounded_channel();
        Self {
            gateways: Arc::new(gateways),
            clock,
            rounds: Arc::default(),
            permits: Arc::new(Semaphore::new(ROUNDS_AT_ONCE)),
            late,
            wakes: Mutex::new(Some(wakes)),
        }
    }

    /// The objects whose answers arrived after the end of their reconciliation. Only the stream of
    /// the first call has items.
    pub fn wakes(&self) -> BoxStream<'static, ObjectId> {
        match self.wakes.lock().take() {
            Some(mut wakes) => stream::poll_fn(move |context| wakes.poll_recv(context)).boxed(),
            None => stream::pending().boxed(),
        }
    }

    /// Returns the answers of the gateways at `asked`, which belong to `object`, or `None` while an
    /// answer is missing.
    pub async fn answers(&self, object: ObjectId, asked: Vec<String>) -> Option<Answers> {
        if asked.is_empty() {
            return Some(Answers::default());
        }
        let mut over = self.round(&object, asked);
        let _in_time_or_not = timeout(ANSWERS_WAIT_MAX, over.wait_for(|over| *over)).await;
        let mut rounds = self.rounds.lock();
        let round = rounds.get_mut(&object)?;
        if round.answers.is_none() {
            round.is_late = true;
            return None;
        }
        let (_, answers) = rounds.remove(&object)?.answers?;
        Some(answers)
    }

    /// The end of the round with unread answers or in progress. Begins a round if there is none.
    fn round(&self, object: &ObjectId, asked: Vec<String>) -> watch::Receiver<bool> {
        let now = self.clock.now().instant;
        let is_new = |at: Instant| now.duration_since(at) < ANSWERS_AGE_MAX;
        let mut rounds = self.rounds.lock();
        // Drop answers that no reconciliation reads, for example answers for a deleted object.
        rounds.retain(|_, round| (round.answers.as_ref()).is_none_or(|(at, _)| is_new(*at)));
        if let Some(round) = rounds.get(object) {
            return round.over.clone();
        }
        let (ended, over) = watch::channel(false);
        let round = Round {
            over: over.clone(),
            is_late: false,
            answers: None,
        };
        rounds.insert(object.clone(), round);
        drop(rounds);
        let (gateways, rounds) = (self.gateways.clone(), self.rounds.clone());
        let (permits, late) = (self.permits.clone(), self.late.clone());
        let (clock, object) = (self.clock.clone(), object.clone());
        tokio::spawn(async move {
            // Acquiring cannot fail, because nothing closes the semaphore.
            let _permit = permits.acquire_owned().await;
            let answers = query(gateways.as_ref(), &asked, clock.now().instant).await;
            let answers = Some((clock.now().instant, answers));
            // Only a round with answers is removed.
            let mut is_late = false;
            if let Some(round) = rounds.lock().get_mut(&object) {
                (round.answers, is_late) = (answers, round.is_late);
            }
            ended.send_replace(true);
            if is_late {
                let _the_controller_has_ended = late.send(object);
            }
        });
        over
    }
}

/// Queries all gateways from `begin`, and gives up on gateways that have not answered in time.
async fn query<G: Gateways>(gateways: &G, asked: &[String], begin: Instant) -> Answers {
    let silent = |address: &String| (address.clone(), Err("no answer in time".to_owned()));
    let mut answered: Answers = asked.iter().map(silent).collect();
    let mut answers = stream::iter(asked.to_vec())
        .map(|address| async move {
            let answer = gateways.status(&address).await;
            (address, answer)
        })
        .buffer_unordered(ASKED_AT_ONCE);
    let end = begin + ROUND_TIME_MAX;
    while let Ok(Some((address, answer))) = timeout_at(end, answers.next()).await {
        answered.insert(address, answer);
    }
    answered
}
