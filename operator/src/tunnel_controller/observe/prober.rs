//! Queries gateways outside of reconciliations, so that a gateway that does not answer delays no
//! reconciliation.
//!
//! Input: the addresses of a tunnel's running gateways. Output: their answers, if all arrive within
//! [`ANSWERS_WAIT_MAX`]. Otherwise the tunnel is reconciled again when all answers have arrived.
//! Bounds: one round of queries per tunnel at a time, and at most [`ROUNDS_AT_ONCE`] in total. A
//! round has at most [`ASKED_AT_ONCE`] queries at a time, and lasts at most [`ROUND_TIME_MAX`]. The
//! answers of a round are kept for the next reconciliation, for at most [`ANSWERS_AGE_MAX`].

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{self, BoxStream, StreamExt};
use muxtunnel_gateway_config::status::Status;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::time::{Instant, timeout, timeout_at};

use super::Gateways;
use crate::clock::Clock;
use crate::tunnel_controller::holder::Holder;
use crate::watches::Trigger;

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

/// Kind, namespace and name.
type Key = (String, String, String);

/// The round of one tunnel.
enum Round {
    /// The round is in progress.
    Running {
        /// Becomes `true` at the end of the round.
        over: watch::Receiver<bool>,
        /// Whether a reconciliation has ended without the answers.
        is_late: bool,
    },
    /// The round has ended, and its answers are unread.
    Over(Instant, Answers),
}

/// Queries the gateways of all tunnels.
pub struct Prober<G> {
    gateways: Arc<G>,
    clock: Clock,
    rounds: Arc<Mutex<BTreeMap<Key, Round>>>,
    permits: Arc<Semaphore>,
    late: mpsc::UnboundedSender<Key>,
    /// Present until the controller takes the receiver. Contains at most one entry per round that
    /// outlasted its reconciliation.
    wakes: Mutex<Option<mpsc::UnboundedReceiver<Key>>>,
}

impl<G: Gateways> Prober<G> {
    /// A prober that queries through `gateways`, with the times of `clock`.
    #[must_use]
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

    /// The tunnels whose answers arrived after the end of their reconciliation. Only the stream of
    /// the first call has items.
    pub fn wakes(&self) -> BoxStream<'static, Trigger> {
        let mut wakes = self.wakes.lock();
        let Some(wakes) = wakes.take() else {
            return stream::pending().boxed();
        };
        let references = stream::unfold(wakes, |mut wakes| async move {
            let (kind, namespace, name) = wakes.recv().await?;
            let woken = Trigger {
                kind,
                namespace,
                name,
            };
            Some((woken, wakes))
        });
        references.boxed()
    }

    /// Returns the answers of the gateways at `asked`, which belong to the object `holder`, or
    /// `None` while an answer is missing.
    pub async fn answers(&self, holder: &Holder, asked: Vec<String>) -> Option<Answers> {
        if asked.is_empty() {
            return Some(Answers::default());
        }
        let kind = holder.kind.name().to_owned();
        let key = (kind, holder.namespace.clone(), holder.name.clone());
        let mut over = match self.taken(&key) {
            Ok(answers) => return Some(answers),
            Err(Some(running)) => running,
            Err(None) => self.begin(key.clone(), asked),
        };
        let _in_time_or_not = timeout(ANSWERS_WAIT_MAX, over.wait_for(|over| *over)).await;
        if let Some(Round::Running { is_late, .. }) = lock(&self.rounds).get_mut(&key) {
            *is_late = true;
            return None;
        }
        self.taken(&key).ok()
    }

    /// The answers of an ended round. Otherwise, the receiver of the end of the round in progress,
    /// or `None` if no round is in progress.
    fn taken(&self, key: &Key) -> Result<Answers, Option<watch::Receiver<bool>>> {
        let mut rounds = lock(&self.rounds);
        if let Some(Round::Running { over, .. }) = rounds.get(key) {
            return Err(Some(over.clone()));
        }
        match rounds.remove(key) {
            Some(Round::Over(at, answers)) if is_new(at, self.instant()) => Ok(answers),
            _ => Err(None),
        }
    }

    fn instant(&self) -> Instant {
        self.clock.now().instant
    }

    fn begin(&self, key: Key, asked: Vec<String>) -> watch::Receiver<bool> {
        let (ended, over) = watch::channel(false);
        let now = self.instant();
        let mut rounds = lock(&self.rounds);
        // Drop answers that no reconciliation reads, for example answers for a deleted tunnel.
        rounds.retain(|_, round| match round {
            Round::Running { .. } => true,
            Round::Over(at, _) => is_new(*at, now),
        });
        let running = Round::Running {
            over: over.clone(),
            is_late: false,
        };
        rounds.insert(key.clone(), running);
        drop(rounds);
        let (gateways, rounds) = (self.gateways.clone(), self.rounds.clone());
        let (permits, late) = (self.permits.clone(), self.late.clone());
        let clock = self.clock.clone();
        tokio::spawn(async move {
            // Acquiring cannot fail, because nothing closes the semaphore.
            let _permit = permits.acquire_owned().await;
            let answers = round(gateways.as_ref(), &asked, clock.now().instant).await;
            let over = Round::Over(clock.now().instant, answers);
            let running = lock(&rounds).insert(key.clone(), over);
            ended.send_replace(true);
            if matches!(running, Some(Round::Running { is_late: true, .. })) {
                let _the_controller_has_ended = late.send(key);
            }
        });
        over
    }
}

/// Whether a reconciliation at `now` uses the answers of a round that has ended at `at`.
fn is_new(at: Instant, now: Instant) -> bool {
    now.duration_since(at) < ANSWERS_AGE_MAX
}

fn lock(rounds: &Mutex<BTreeMap<Key, Round>>) -> MutexGuard<'_, BTreeMap<Key, Round>> {
    rounds.lock()
}

/// Queries all gateways from `begin`, and gives up on gateways that have not answered in time.
async fn round<G: Gateways>(gateways: &G, asked: &[String], begin: Instant) -> Answers {
    let silent = || Err("no answer in time".to_owned());
    let addresses = asked.iter();
    let mut answered: Answers = addresses
        .map(|address| (address.clone(), silent()))
        .collect();
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
