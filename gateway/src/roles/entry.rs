//! The entry keeps a session with each exit, and listens for the forwards.
//!
//! Once a session is ready, the entry opens streams on it, adapts the session's number of carriers,
//! and redials lost carriers. If an exit shuts down, its session keeps its streams while the entry
//! starts another session. Without a session, new connections wait for up to 15 s.

mod carriers;
mod clients;
mod dial_context;
mod exit_liveness;
mod exits;
mod http;
mod levels;
mod links;
mod listen;
pub(crate) mod refused;
mod reverse;
mod session_end;
mod trial;
mod ways;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use muxtunnel_gateway_config::{self as config, Reloadable, SessionConfig};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use crate::base::handshake_limiter::{EarlyDrop, HandshakeLimiter};
use crate::base::memory_budget::MemoryBudget;
use crate::base::tasks::Tasks;
use crate::base::telemetry::Telemetry;
use crate::ingress::listener::greeting::GREETINGS_MAX;
use crate::ingress::listener::{LongHeads, UnixListeners};
use crate::io::transport::Side;
use crate::io::{quic, ssh};
use crate::net::egress::Address;
use crate::net::protected_addresses::ProtectedAddresses;
use crate::roles::network::{self, Network, Queues};
use crate::roles::trust;
use crate::roles::worker::{Phase, Worker, WorkerError, wait_for};
use crate::session::context::Context;
use crate::session::end::SessionEnd;
use crate::session::mux::{Dial, Mux, NoCarrier, Progress};
use crate::session::new_session;
use crate::session::sessions::Sessions;
use carriers::Route;
pub(crate) use carriers::pause;
use dial_context::DialContext;
use exits::{Connected, EXITS_MAX};
#[cfg(any(test, feature = "oracles"))]
pub(crate) use http::oracle::response as response_oracle;
use levels::Exits;
use links::{Link, Links, Place};
use listen::{Listener, follow};
use reverse::{Asked, Outcomes};
use ways::Ways;

/// A session that lived this long resets the number of failures to 0.
const STABLE_AFTER: Duration = Duration::from_secs(10);
/// Maximum time for which a session without a carrier accepts new connections.
const CARRIERLESS_MAX: Duration = Duration::from_secs(1);
/// Maximum number of sessions, including sessions whose exit has shut down and whose streams
/// continue. For a further session, the entry ends the oldest session whose exit has shut down.
const SESSIONS_MAX: usize = 8;
/// Minimum memory of a session, in bytes, when several sessions share a worker's memory.
const MEMORY_MIN: u64 = 1 << 20;

struct Entry {
    worker: usize,
    /// The number of workers of the process.
    workers: usize,
    session: SessionConfig,
    /// Maximum number of connections of a session, if each has windows of its own. Otherwise 1.
    connections: usize,
    reloadable: watch::Receiver<Arc<Reloadable>>,
    dial_context: DialContext,
    telemetry: Arc<Telemetry>,
    links: watch::Sender<Links>,
    /// The exits for new streams, by place (see `exits.rs`).
    exits: watch::Sender<BTreeMap<Place, Address>>,
    /// The previous exit of each place.
    left: RefCell<BTreeMap<Place, Address>>,
    sessions: Sessions,
    listeners: RefCell<BTreeMap<String, Listener>>,
    phase: watch::Receiver<Phase>,
    protected: Arc<ProtectedAddresses>,
    /// Whether the exits listen for the reverse forwards.
    outcomes: RefCell<Outcomes>,
    /// Number of sessions that were started.
    begun: Cell<u64>,
    unix_listeners: Arc<UnixListeners>,
    /// Bounds the clients that have not specified their target yet.
    greetings: Arc<HandshakeLimiter>,
    long_heads: LongHeads,
    /// Cloned by each connection that is not a stream yet; `None`: the entry accepts no connections.
    underway: RefCell<Option<Underway>>,
    /// Cloned by each exchange with an HTTP client; `None`: no further exchanges begin.
    exchanges: RefCell<Option<Underway>>,
    network: Option<Rc<Network>>,
    /// The accept loops, and the loops that keep the sessions.
    tasks: Tasks,
}

/// Held by a connection until it is a stream. The shutdown waits until all clones are dropped.
type Underway = mpsc::Sender<Infallible>;

/// Runs until the shutdown is complete. `queues` are those of the interface for IP packets.
///
/// # Errors
/// [`WorkerError`]: at the start, the entry cannot listen on the port of a forward.
pub(crate) async fn run(
    worker: Worker,
    configured: config::Entry,
    queues: Option<Arc<Queues>>,
) -> Result<(), WorkerError> {
    let (index, phase, pool) = (worker.index, worker.phase.clone(), configured.pool);
    let mut reloadable = worker.reloadable.clone();
    let (underway, arrived) = mpsc::channel(1);
    let (exchanges, exchanged) = mpsc::channel(1);
    let network = configured.network.as_ref();
    let network = Network::of(&worker, queues.as_ref(), network, Side::Dials)?;
    let mut packets = tokio::task::spawn_local(network::run(network.clone()));
    let underway = (underway, exchanges);
    let entry = Rc::new(Entry::new(worker, configured, underway, network));
    let forwards = reloadable.borrow_and_update().listeners.clone();
    if let Some(error) = entry.listen(&forwards).into_iter().next() {
        return Err(error);
    }
    entry.telemetry.add_limiter(&entry.greetings);
    entry.telemetry.set_listening(index, true);
    let places = (0..entry.dial_context.exits.levels())
        .flat_map(|level| (0..EXITS_MAX).map(move |number| Place { level, number }));
    let diallers: Vec<_> = places
        .map(|place| keep_session(Rc::clone(&entry), pool, place))
        .map(|keep| entry.tasks.spawn(keep))
        .collect();
    let trust = Rc::clone(&entry);
    let trust = entry.tasks.spawn(async move { trust.trust().await });
    tokio::select! {
        () = follow(&entry, reloadable) => {}
        () = wait_for(phase.clone(), Phase::Closed) => {}
        never = entry.tasks.fail() => match never {},
        lost = &mut packets => return Err(network::lost(lost)),
    }
    tokio::select! {
        never = entry.tasks.fail() => match never {},
        () = entry.drain(arrived, exchanged) => {}
        () = wait_for(phase.clone(), Phase::Deadline) => {}
    }
    diallers.iter().for_each(JoinHandle::abort);
    let deadline = wait_for(phase, Phase::Deadline);
    entry.sessions.end_all(deadline).await;
    packets.abort();
    trust.abort();
    Ok(())
}

/// The action of the entry after a session.
enum Next {
    /// Starts another session at once, since the exit shut down in order, or since exits of a lower
    /// order answer.
    AtOnce,
    /// Starts another session after a pause, since the session was lost.
    AfterPause,
}

/// Maintains a session in one place: it dials, runs the session, pauses, and dials again.
async fn keep_session(entry: Rc<Entry>, pool: config::Pool, place: Place) {
    let exit = entry.dial_context.exits.label(place.level);
    let mut failures = 0;
    let mut discoveries = 0;
    loop {
        entry.may_be_for(place).await;
        match begin(&entry, place).await {
            Ok(None) => {
                entry.set_link(place, None);
                failures = 0;
                entry.rediscover(&mut discoveries).await;
                continue;
            }
            Ok(Some(session)) => {
                discoveries = 0;
                let since = Instant::now();
                let next = match entry.bring_up(session, pool).await {
                    Some(running) => entry.hold(running, place).await,
                    None => Next::AfterPause,
                };
                if matches!(next, Next::AfterPause) {
                    entry.set_link(place, Some(Link::Down));
                }
                entry.leave(place);
                let stable = since.elapsed() >= STABLE_AFTER;
                failures = if stable { 0 } else { failures + 1 };
                if stable && matches!(next, Next::AtOnce) {
                    continue;
                }
            }
            Err(error) => {
                let code = error.code();
                tracing::warn!(%code, exit = %exit, %error, "No carrier");
                entry.leave(place);
                entry.has_no_carrier(&exit, &error);
                entry.set_link(place, Some(Link::Down));
                failures += 1;
            }
        }
        entry.pause(place, failures).await;
    }
}

/// A session that has been started, and the route of its further carriers.
struct Begun {
    mux: Rc<dyn Mux>,
    asked: Rc<Asked>,
    route: Route,
}

/// A session that is ready.
struct Running {
    mux: Rc<dyn Mux>,
    exit: Address,
    /// Returns why the exit refused this entry's key, if it did.
    run: JoinHandle<Option<String>>,
}

/// Starts a session with its first carrier; `None`: no exit is available for this place.
async fn begin(entry: &Rc<Entry>, place: Place) -> Result<Option<Begun>, NoCarrier> {
    let connected = entry.connect(place).await?;
    connected
        .map(|connected| begin_with(entry, place, connected))
        .transpose()
}

fn begin_with(entry: &Rc<Entry>, place: Place, connected: Connected) -> Result<Begun, NoCarrier> {
    let Connected {
        carrier,
        at,
        by,
        exits,
    } = connected;
    let asked = Asked::new(entry.begun.replace(entry.begun.get() + 1));
    let reverse = (Rc::clone(entry), Rc::clone(&asked));
    let dialler = Box::new(move |target: String, peer: Option<Rc<str>>, _| -> Dial {
        let (entry, asked) = (Rc::clone(&reverse.0), Rc::clone(&reverse.1));
        Box::pin(async move { entry.dial(&asked, &target, peer.as_deref()).await })
    });
    // Each worker of the process has a session with each exit.
    let sessions = entry.workers * exits * entry.connections;
    let sessions = u32::try_from(sessions).unwrap_or(u32::MAX);
    let context = Context {
        config: share(&entry.session, exits),
        reloadable: entry.reloadable.clone(),
        telemetry: Arc::clone(&entry.telemetry),
        buffers: entry.sessions.pool(),
        memory: (MemoryBudget::of_process(), sessions),
    };
    let mux = new_session::dial(context, dialler);
    if let Some(listeners) = mux.listeners() {
        asked.hear(listeners);
    }
    if let Some(carriers) = mux.carriers() {
        drop(carriers.add(carrier, Vec::new(), None)?);
    }
    // A name finds an exit at a changed address only if the name has no other exit.
    let is_only = entry.dial_context.exits.of_level(place.level).count() == 1;
    let exit = if exits == 1 && is_only {
        at.by_name()
    } else {
        at.clone()
    };
    let route = Route { exit, at, by };
    Ok(Begun { mux, asked, route })
}

/// The session configuration with `1 / exits` of the worker's memory, but at least [`MEMORY_MIN`].
fn share(config: &SessionConfig, exits: usize) -> SessionConfig {
    let mut config = config.clone();
    for memory in [&mut config.memory.receive, &mut config.memory.retain] {
        memory.0 = (memory.0 / exits as u64).max(MEMORY_MIN.min(memory.0));
    }
    config
}

impl Entry {
    fn new(
        worker: Worker,
        configured: config::Entry,
        (underway, exchanges): (Underway, Underway),
        network: Option<Rc<Network>>,
    ) -> Self {
        let exits = Rc::new(Exits::new(configured.exits));
        let levels = exits.levels();
        Self {
            worker: worker.index,
            reloadable: worker.reloadable,
            dial_context: DialContext {
                credentials: worker.credentials,
                protocol: configured.session.protocol,
                ways: Rc::new(Ways::of(
                    configured.transport,
                    configured.web_socket.is_some(),
                    worker.egress.leads_datagrams(),
                )),
                web_socket: configured.web_socket,
                exits,
                quic: quic::Settings::new(&configured.session),
                ssh: ssh::Settings::new(&configured.session),
                egress: worker.egress,
                network: network.clone(),
            },
            connections: match configured.session.protocol.can().library_buffers {
                true => configured.pool.max().into(),
                false => 1,
            },
            session: configured.session,
            telemetry: worker.telemetry,
            links: watch::Sender::new(Links::new(levels, Instant::now())),
            exits: watch::Sender::default(),
            left: RefCell::default(),
            workers: worker.workers,
            sessions: Sessions::new(),
            listeners: RefCell::default(),
            tasks: Tasks::default(),
            phase: worker.phase,
            protected: worker.protected,
            outcomes: RefCell::default(),
            begun: Cell::new(0),
            unix_listeners: worker.unix_listeners,
            greetings: HandshakeLimiter::new(GREETINGS_MAX, EarlyDrop::Off),
            long_heads: LongHeads::default(),
            underway: RefCell::new(Some(underway)),
            exchanges: RefCell::new(Some(exchanges)),
            network,
        }
    }

    /// Stops accepting connections. Returns when `arrived` and `exchanged` report that the last
    /// connection and the last exchange have ended.
    async fn drain(
        &self,
        mut arrived: mpsc::Receiver<Infallible>,
        mut exchanged: mpsc::Receiver<Infallible>,
    ) {
        self.stop_listening().await;
        drop(self.underway.take());
        // The channel closes once the last connection is a stream or was refused.
        let _ = arrived.recv().await;
        if self.has_reverse_forwards() {
            // Exits must stop opening streams before the entry checks whether any stream is open.
            self.sessions.go_away();
        }
        self.sessions.drained().await;
        // Streams have delivered data that HTTP clients have not received yet.
        drop(self.exchanges.take());
        let _ = exchanged.recv().await;
    }

    /// Runs a session until it is ready, then in the background; `None`: it was never ready.
    async fn bring_up(self: &Rc<Self>, session: Begun, pool: config::Pool) -> Option<Running> {
        let Begun { mux, asked, route } = session;
        let (exit, by) = (route.exit.clone(), route.by);
        let mut run = self.run(Rc::clone(&mux), asked, route, pool);
        tokio::select! {
            ended = &mut run => {
                self.has_no_carrier(&exit, &session_end::reason(ended.ok().flatten()));
                return None;
            }
            () = mux.reached(Progress::Ready) => {}
        }
        self.dial_context.ways.heard(by);
        if let Some(network) = &self.network {
            network.attach(&mux);
        }
        Some(Running { mux, exit, run })
    }

    /// Assigns new streams to a session. Returns when another session is needed.
    async fn hold(self: &Rc<Self>, running: Running, place: Place) -> Next {
        let Running { mux, exit, mut run } = running;
        self.set_link(place, Some(Link::Up(Rc::clone(&mux))));
        tokio::select! {
            _ = &mut run => Next::AfterPause,
            () = mux.reached(Progress::GoingAway) => {
                tracing::info!(exit = %exit, peer = %mux.peer(), "The session accepts no more streams; open streams continue");
                self.avoid(place);
                self.set_link(place, Some(Link::Replacing));
                Next::AtOnce
            }
            () = self.is_outranked(place.level) => {
                tracing::info!(exit = %exit, peer = %mux.peer(), "Exits of a lower order answer; open streams of this exit continue");
                self.set_link(place, None);
                mux.leave();
                Next::AtOnce
            }
            never = self.follow_carriers(&mux, place) => match never {},
        }
    }

    /// Ends sessions and streams that are no longer trusted. Never returns.
    async fn trust(&self) {
        let (reloadable, credentials) = (
            self.reloadable.clone(),
            self.dial_context.credentials.clone(),
        );
        let sessions = || self.sessions.all();
        trust::follow(
            sessions,
            Side::Dials,
            reloadable,
            credentials,
            &self.protected,
        )
        .await;
    }

    /// Excludes the session from new connections after [`CARRIERLESS_MAX`] without a carrier.
    async fn follow_carriers(&self, mux: &Rc<dyn Mux>, place: Place) -> Infallible {
        let Some(carriers) = mux.carriers() else {
            return std::future::pending().await;
        };
        loop {
            carriers.lacks(1).await;
            if tokio::time::timeout(CARRIERLESS_MAX, carriers.has_one())
                .await
                .is_err()
            {
                self.set_link(place, Some(Link::Down));
                carriers.has_one().await;
            }
            // Connections may wait for the carrier.
            self.set_link(place, Some(Link::Up(Rc::clone(mux))));
        }
    }

    /// Runs a session. The task returns why the exit refused this entry's key, if it did.
    fn run(
        self: &Rc<Self>,
        mux: Rc<dyn Mux>,
        asked: Rc<Asked>,
        route: Route,
        pool: config::Pool,
    ) -> JoinHandle<Option<String>> {
        if self.sessions.len() >= SESSIONS_MAX
            && let Some(oldest) = self.sessions.oldest_going()
        {
            oldest.shut_down();
        }
        let (entry, exit, by) = (Rc::clone(self), route.exit.clone(), route.by);
        tokio::task::spawn_local(async move {
            let drained = async {
                mux.reached(Progress::GoingAway).await;
                mux.idle().await;
                mux.shut_down();
                std::future::pending::<()>().await;
            };
            // Runs as long as the session has streams, even after its exit has shut down.
            let carriers = async {
                mux.reached(Progress::Ready).await;
                carriers::keep(&*mux, route, pool, &entry.dial_context).await;
                mux.give_up(format!(
                    "the exit is gone: the exit cannot be reached, and {} resolves to other exits",
                    exit.name()
                ));
                std::future::pending::<()>().await;
            };
            let listeners = async {
                mux.reached(Progress::Ready).await;
                entry.keep_listeners(&*mux, &asked).await
            };
            let renewal = async {
                mux.reached(Progress::Ready).await;
                carriers::renew(&*mux, &entry.dial_context).await
            };
            let others = mux.guard(Box::pin(async {
                tokio::select! {
                    never = renewal => match never {},
                    () = drained => {}
                    () = carriers => {}
                    never = listeners => match never {},
                }
            }));
            let others = async {
                others.await;
                std::future::pending().await
            };
            let end = tokio::select! {
                end = entry.sessions.run(&mux) => end,
                end = others => end,
            };
            entry.forget_outcomes(&asked);
            if !mux.was_ready() && !matches!(end, SessionEnd::Finished(_) | SessionEnd::ShutDown) {
                let now = tokio::time::Instant::now();
                entry.dial_context.ways.unheard(by, now);
            }
            session_end::report(&entry, &*mux, &exit, end)
        })
    }
}
