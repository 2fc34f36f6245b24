//! Asks gateways how they are, outside of reconciliations: a gateway that does not answer holds none of them up.
//!
//! In: the addresses of a tunnel's running gateways. Out: their answers, if all have come within [`ANSWERS_WAIT_MAX`]; otherwise
//! nothing, and the tunnel is reconciled again once they have. Bounds: one round a tunnel at a time, at most
//! [`ROUNDS_AT_ONCE`] at once, each with [`ASKED_AT_ONCE`] connections and [`ROUND_TIME_MAX`]; its answers wait for the
//! next reconciliation, for at most [`ANSWERS_AGE_MAX`].

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{self, BoxStream, StreamExt};
use kube::runtime::reflector::ObjectRef;
use muxtunnel_crds::MuxTunnel;
use muxtunnel_gateway_config::status::Status;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::time::{Instant, timeout, timeout_at};

use super::Gateways;

/// How long a reconciliation waits for the answers. A gateway that is well takes milliseconds.
const ANSWERS_WAIT_MAX: Duration = Duration::from_millis(500);
/// Time for the answers of all gateways of a tunnel.
const ROUND_TIME_MAX: Duration = Duration::from_secs(5);
/// The same, where an entry is asked for an offer, which it gives up itself after 10 s.
const OFFER_ROUND_TIME_MAX: Duration = Duration::from_secs(15);
/// Gateways of a tunnel that are asked at once.
const ASKED_AT_ONCE: usize = 32;
/// Tunnels whose gateways are asked at once.
const ROUNDS_AT_ONCE: usize = 32;
/// How old answers may be that are judged.
const ANSWERS_AGE_MAX: Duration = Duration::from_secs(10);

/// What is asked of the gateways of a tunnel.
#[derive(Debug, Clone, Default)]
pub struct Asked {
    /// The addresses of those that run.
    pub gateways: Vec<String>,
    /// The addresses of entries that are asked for what the exit offers, one after another, until one has it.
    pub entries: Vec<String>,
}

/// What they answered.
#[derive(Debug, Default)]
pub struct Answers {
    /// By address: the status, or why there is none.
    pub statuses: BTreeMap<String, Result<Status, String>>,
    /// What the exit offers, where an entry was asked.
    pub offer: Option<Result<String, String>>,
}

/// Namespace and name.
type Key = (String, String);

/// The round of one tunnel.
enum Round {
    /// It is under way.
    Running {
        /// `true` is sent at its end.
        over: watch::Receiver<bool>,
        /// A reconciliation has ended without its answers.
        is_late: bool,
    },
    /// It is over, and nobody has read the answers.
    Over(Instant, Answers),
}

/// Asks the gateways of all tunnels.
pub struct Prober<G> {
    gateways: Arc<G>,
    rounds: Arc<Mutex<BTreeMap<Key, Round>>>,
    permits: Arc<Semaphore>,
    late: mpsc::UnboundedSender<Key>,
    /// Until the controller takes it. At most one entry a round that outlasted its reconciliation.
    wakes: Mutex<Option<mpsc::UnboundedReceiver<Key>>>,
}

impl<G: Gateways> Prober<G> {
    /// One that asks by `gateways`.
    #[must_use]
    pub fn new(gateways: G) -> Self {
        let (late, wakes) = mpsc::unbounded_channel();
        Self {
            gateways: Arc::new(gateways),
            rounds: Arc::default(),
            permits: Arc::new(Semaphore::new(ROUNDS_AT_ONCE)),
            late,
            wakes: Mutex::new(Some(wakes)),
        }
    }

    /// The tunnels whose answers have come after their reconciliation had ended. The second call has none.
    pub fn wakes(&self) -> BoxStream<'static, ObjectRef<MuxTunnel>> {
        let mut wakes = self.wakes.lock();
        let Some(wakes) = wakes.take() else {
            return stream::pending().boxed();
        };
        let references = stream::unfold(wakes, |mut wakes| async move {
            let (namespace, name) = wakes.recv().await?;
            Some((ObjectRef::new(&name).within(&namespace), wakes))
        });
        references.boxed()
    }

    /// What the gateways of the tunnel `name` answer; `None`: not all have answered yet.
    pub async fn answers(&self, namespace: &str, name: &str, asked: Asked) -> Option<Answers> {
        if asked.gateways.is_empty() {
            return Some(Answers::default());
        }
        let key = (namespace.to_owned(), name.to_owned());
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

    /// The answers of a round that is over, or how to wait for the one that is under way.
    fn taken(&self, key: &Key) -> Result<Answers, Option<watch::Receiver<bool>>> {
        let mut rounds = lock(&self.rounds);
        if let Some(Round::Running { over, .. }) = rounds.get(key) {
            return Err(Some(over.clone()));
        }
        match rounds.remove(key) {
            Some(Round::Over(at, answers)) if at.elapsed() < ANSWERS_AGE_MAX => Ok(answers),
            _ => Err(None),
        }
    }

    fn begin(&self, key: Key, asked: Asked) -> watch::Receiver<bool> {
        let (ended, over) = watch::channel(false);
        let mut rounds = lock(&self.rounds);
        // Answers that nobody came for, as of a tunnel that is gone.
        rounds.retain(|_, round| match round {
            Round::Running { .. } => true,
            Round::Over(at, _) => at.elapsed() < ANSWERS_AGE_MAX,
        });
        let running = Round::Running {
            over: over.clone(),
            is_late: false,
        };
        rounds.insert(key.clone(), running);
        drop(rounds);
        let (gateways, rounds) = (self.gateways.clone(), self.rounds.clone());
        let (permits, late) = (self.permits.clone(), self.late.clone());
        tokio::spawn(async move {
            // It is never closed.
            let _permit = permits.acquire_owned().await;
            let answers = round(gateways.as_ref(), &asked).await;
            let over = Round::Over(Instant::now(), answers);
            let running = lock(&rounds).insert(key.clone(), over);
            ended.send_replace(true);
            if matches!(running, Some(Round::Running { is_late: true, .. })) {
                let _the_controller_has_ended = late.send(key);
            }
        });
        over
    }
}

fn lock(rounds: &Mutex<BTreeMap<Key, Round>>) -> MutexGuard<'_, BTreeMap<Key, Round>> {
    rounds.lock()
}

/// Asks all, and gives up those that have not answered in time.
async fn round<G: Gateways>(gateways: &G, asked: &Asked) -> Answers {
    let time = match asked.entries.is_empty() {
        true => ROUND_TIME_MAX,
        false => OFFER_ROUND_TIME_MAX,
    };
    let end = Instant::now() + time;
    let statuses = async {
        let mut answered: BTreeMap<_, _> = asked
            .gateways
            .iter()
            .map(|address| (address.clone(), Err(silent())))
            .collect();
        let mut answers = stream::iter(asked.gateways.clone())
            .map(|address| async move {
                let answer = gateways.status(&address).await;
                (address, answer)
            })
            .buffer_unordered(ASKED_AT_ONCE);
        let end = Instant::now() + ROUND_TIME_MAX;
        while let Ok(Some((address, answer))) = timeout_at(end, answers.next()).await {
            answered.insert(address, answer);
        }
        answered
    };
    let offer = async {
        let asking = offer(gateways, &asked.entries);
        let nobody = || (!asked.entries.is_empty()).then(|| Err(silent()));
        timeout_at(end, asking).await.unwrap_or_else(|_| nobody())
    };
    let (statuses, offer) = tokio::join!(statuses, offer);
    Answers { statuses, offer }
}

fn silent() -> String {
    "no answer in time".to_owned()
}

/// What the first of `entries` that has it says that the exit offers.
async fn offer<G: Gateways>(gateways: &G, entries: &[String]) -> Option<Result<String, String>> {
    let mut offer = None;
    for address in entries {
        let asked = gateways.offer(address).await;
        let has_it = asked.is_ok();
        offer = Some(asked);
        if has_it {
            break;
        }
    }
    offer
}
