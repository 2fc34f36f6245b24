//! The entry: keeps a session with the exit, listens for the forwards.
//!
//! A session counts once it is ready; from then on it has as many carriers as are configured, and those
//! that are lost are dialled anew. One whose exit goes away keeps its streams while another is begun;
//! connections that come in between wait for it in the backlog.

mod carriers;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use muxtunnel_codes::Code;
use muxtunnel_gateway_config::{self as config, Config};
use muxtunnel_proto::{OpenError, Reason, Refusal};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::account::Local;
use crate::driver::{CarrierEnd, Dial, Driver, NoCarrier, Progress};
use crate::forward::Forward;
use crate::process::{ACCEPT_RETRY, Phase, Worker, WorkerError, listen_shared, wait_for};
use crate::sessions::Sessions;
use crate::telemetry::{Listened, Telemetry};
use crate::{dial, process};

/// A session, or a carrier, that lived this long ends the row of failures.
const STABLE_AFTER: Duration = Duration::from_secs(10);
/// New connections find a session that has had no carrier for less than this.
const CARRIERLESS_MAX: Duration = Duration::from_secs(1);
/// Sessions at once: the one that takes new streams, and those whose exit went away and whose streams
/// go on. One more ends the oldest.
const SESSIONS_MAX: usize = 8;

/// Where new streams go.
#[derive(Clone, Default)]
enum Link {
    /// There is no session with a carrier: new connections are reset.
    #[default]
    Down,
    /// The exit went away and another is dialled: new connections wait for the outcome.
    Replacing,
    Up(Rc<Driver>),
}

struct Entry {
    worker: usize,
    config: watch::Receiver<Arc<Config>>,
    telemetry: Arc<Telemetry>,
    link: watch::Sender<Link>,
    sessions: Sessions,
    listeners: RefCell<BTreeMap<String, Listener>>,
}

/// One port that is listened on. Its route is looked up anew for each connection, so a changed target
/// needs no new listener.
struct Listener {
    route: Rc<RefCell<Route>>,
    task: JoinHandle<()>,
}

/// Where connections lead, and what they may take.
struct Route {
    forward: Arc<Forward>,
    url: Rc<str>,
}

/// Runs until the shutdown is complete.
///
/// # Errors
/// [`WorkerError`]: a forward's port cannot be listened on at the start.
pub(crate) async fn run(worker: Worker) -> Result<(), WorkerError> {
    let Worker {
        index,
        workers,
        mut config,
        phase,
        telemetry,
    } = worker;
    let entry = Rc::new(Entry {
        worker: index,
        config: config.clone(),
        telemetry,
        link: watch::Sender::default(),
        sessions: Sessions::on_one_of(workers),
        listeners: RefCell::default(),
    });
    let first = Arc::clone(&config.borrow_and_update());
    if let Some(error) = entry.listen(&first.forwards).into_iter().next() {
        return Err(error);
    }
    entry.telemetry.set_listening(index, true);
    let dialler = tokio::task::spawn_local(keep_session(Rc::clone(&entry), first));
    tokio::select! {
        () = follow(&entry, config) => {}
        () = wait_for(phase.clone(), Phase::Closed) => {}
    }
    entry.stop_listening();
    tokio::select! {
        () = entry.sessions.drained() => {}
        () = wait_for(phase, Phase::Deadline) => {}
    }
    dialler.abort();
    entry.sessions.end_all().await;
    Ok(())
}

/// Takes over changed forwards for as long as the configuration can change.
async fn follow(entry: &Rc<Entry>, mut config: watch::Receiver<Arc<Config>>) {
    while config.changed().await.is_ok() {
        let forwards = config.borrow_and_update().forwards.clone();
        for error in entry.listen(&forwards) {
            tracing::error!(%error, "Forward does not listen");
        }
    }
    std::future::pending::<()>().await;
}

/// When another session is begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    /// The exit went away in order.
    AtOnce,
    /// The session was lost.
    AfterPause,
}

/// Dials, runs, waits, dials again.
async fn keep_session(entry: Rc<Entry>, config: Arc<Config>) {
    let exit = config.connect.clone().unwrap_or_default();
    let mut failures = 0;
    loop {
        match begin(&entry, &exit, &config).await {
            Ok(driver) => {
                let since = Instant::now();
                let next = entry.keep(driver, &exit, config.pool).await;
                let stable = since.elapsed() >= STABLE_AFTER;
                failures = if stable { 0 } else { failures + 1 };
                if stable && next == Next::AtOnce {
                    continue;
                }
            }
            Err(error) => {
                tracing::warn!(code = %Code::CarrierConnecting, exit = %exit, %error, "No carrier");
                entry.set_link(Link::Down);
                failures += 1;
            }
        }
        carriers::pause(failures).await;
    }
}

/// A session with its first carrier.
async fn begin(entry: &Entry, exit: &str, config: &Config) -> Result<Rc<Driver>, NoCarrier> {
    let tcp = carriers::connect(exit).await?;
    let dialler = Box::new(|_| -> Dial {
        let text = format!("{}: an entry dials nothing", Code::OpenRefused);
        Box::pin(std::future::ready(Err(Refusal::new(
            Reason::NotAllowed,
            text,
        ))))
    });
    let driver = Driver::new(
        process::dial(config),
        entry.sessions.pool(),
        entry.config.clone(),
        Arc::clone(&entry.telemetry),
        dialler,
    );
    driver.add_carrier(tcp, Vec::new(), None)?;
    Ok(driver)
}

impl Entry {
    /// Runs a session; returns when another is needed.
    async fn keep(self: &Rc<Self>, driver: Rc<Driver>, exit: &str, pool: config::Pool) -> Next {
        let mut run = self.run(Rc::clone(&driver), exit);
        tokio::select! {
            _ = &mut run => {
                self.set_link(Link::Down);
                return Next::AfterPause;
            }
            () = driver.reached(Progress::Ready) => {}
        }
        self.set_link(Link::Up(Rc::clone(&driver)));
        tokio::select! {
            _ = &mut run => {
                self.set_link(Link::Down);
                Next::AfterPause
            }
            () = driver.reached(Progress::GoingAway) => {
                tracing::info!(exit = %exit, peer = %driver.peer(), "The exit takes no more streams; those that are open go on");
                self.set_link(Link::Replacing);
                Next::AtOnce
            }
            never = carriers::keep(&driver, exit, pool) => match never {},
            never = self.follow_carriers(&driver) => match never {},
        }
    }

    /// No connection is let in while the session has been without a carrier for long; never ends.
    async fn follow_carriers(&self, driver: &Rc<Driver>) -> Infallible {
        loop {
            driver.lacks(1).await;
            if tokio::time::timeout(CARRIERLESS_MAX, driver.has_carrier())
                .await
                .is_err()
            {
                self.set_link(Link::Down);
                driver.has_carrier().await;
                self.set_link(Link::Up(Rc::clone(driver)));
            }
        }
    }

    fn set_link(&self, link: Link) {
        self.telemetry
            .set_linked(self.worker, !matches!(link, Link::Down));
        self.link.send_replace(link);
    }

    fn run(self: &Rc<Self>, driver: Rc<Driver>, exit: &str) -> JoinHandle<()> {
        if self.sessions.len() >= SESSIONS_MAX
            && let Some(oldest) = self.sessions.oldest()
        {
            oldest.shut_down();
        }
        let (entry, exit) = (Rc::clone(self), exit.to_owned());
        tokio::task::spawn_local(async move {
            let drained = async {
                driver.reached(Progress::GoingAway).await;
                driver.idle().await;
                driver.shut_down();
                std::future::pending().await
            };
            let end = tokio::select! {
                end = entry.sessions.run(&driver) => end,
                end = drained => end,
            };
            report(&driver, &exit, &end);
        })
    }

    /// Listens on exactly what `forwards` ask for; those that stay keep their listener. Returns the
    /// ports that could not be had; the others work.
    fn listen(self: &Rc<Self>, forwards: &[config::Forward]) -> Vec<WorkerError> {
        let mut errors = Vec::new();
        let mut listened = Vec::new();
        let mut listeners = self.listeners.borrow_mut();
        listeners.retain(|address, listener| {
            let stays = forwards.iter().any(|forward| forward.listen == *address);
            if !stays {
                listener.task.abort();
            }
            stays
        });
        for wanted in forwards {
            let forward = self.telemetry.forwards.get(wanted);
            let target = &wanted.target;
            let route = Route {
                forward: Arc::clone(&forward),
                url: dial::url(&target.host, target.port).into(),
            };
            let mut error = None;
            if let Some(listener) = listeners.get(&wanted.listen) {
                listener.route.replace(route);
            } else {
                match self.start(&wanted.listen, route) {
                    Ok(listener) => drop(listeners.insert(wanted.listen.clone(), listener)),
                    Err(refused) => {
                        error = Some(refused.to_string());
                        errors.push(refused);
                    }
                }
            }
            listened.push(Listened {
                forward,
                listen: wanted.listen.clone(),
                target: format!("{}:{}", target.host, target.port),
                error,
            });
        }
        self.telemetry.set_listened(self.worker, listened);
        errors
    }

    fn start(self: &Rc<Self>, listen: &str, route: Route) -> Result<Listener, WorkerError> {
        let socket = listen_shared(listen)?;
        tracing::info!(forward = route.forward.name, listen, "Listening");
        let route = Rc::new(RefCell::new(route));
        let task = tokio::task::spawn_local(accept(Rc::clone(self), socket, Rc::clone(&route)));
        Ok(Listener { route, task })
    }

    fn stop_listening(&self) {
        self.telemetry.set_listening(self.worker, false);
        for listener in std::mem::take(&mut *self.listeners.borrow_mut()).into_values() {
            listener.task.abort();
        }
    }

    /// Sends a new connection on its way, or resets it.
    fn take(&self, tcp: TcpStream, client: SocketAddr, route: &Route) {
        let refused = || Refused {
            telemetry: Arc::clone(&self.telemetry),
            forward: Arc::clone(&route.forward),
            client,
        };
        let admission = match route.forward.admit(Instant::now()) {
            Ok(admission) => admission,
            Err(code) => {
                let _ = tcp.set_zero_linger();
                return refused().report(code, code.cause());
            }
        };
        let Link::Up(session) = self.link.borrow().clone() else {
            let _ = tcp.set_zero_linger();
            return refused().report(Code::CarrierConnecting, "there is no carrier to the exit");
        };
        let local = Local::Client {
            address: client,
            target: Rc::clone(&route.url),
            admission,
        };
        let by_peer = refused();
        let by_peer = move |refusal: Option<Refusal>| match refusal {
            Some(refusal) => by_peer.report(code_of(refusal.reason), &refusal.description),
            None => by_peer.report(Code::OpenAbandoned, Code::OpenAbandoned.cause()),
        };
        if let Err(error) = session.open(&route.url, tcp, local, Box::new(by_peer)) {
            refused().report(code_of_open(&error), &error.to_string());
        }
    }
}

/// A connection that may be refused.
struct Refused {
    telemetry: Arc<Telemetry>,
    forward: Arc<Forward>,
    client: SocketAddr,
}

impl Refused {
    /// It was.
    fn report(&self, code: Code, reason: &str) {
        self.telemetry.streams.refused(code);
        self.forward.streams.refused(code);
        if self.telemetry.may_log_refusal() {
            let (forward, client) = (&self.forward.name, self.client);
            tracing::warn!(%code, forward, %client, reason, "Connection refused");
        }
    }
}

async fn accept(entry: Rc<Entry>, socket: TcpListener, route: Rc<RefCell<Route>>) {
    let mut link = entry.link.subscribe();
    loop {
        // It cannot fail: the sender is in `entry`.
        let _ = link.wait_for(|link| !matches!(link, Link::Replacing)).await;
        match socket.accept().await {
            Ok((tcp, client)) => entry.take(tcp, client, &route.borrow()),
            Err(error) => {
                tracing::warn!(%error, "Accepting failed; is the limit of open files reached?");
                tokio::time::sleep(ACCEPT_RETRY).await;
            }
        }
    }
}

fn report(driver: &Driver, exit: &str, end: &CarrierEnd) {
    let code = Code::CarrierLost;
    match end {
        CarrierEnd::ShutDown => {
            tracing::info!(%exit, peer = %driver.peer(), "Carrier is shut down");
        }
        _ if !driver.was_ready() => {
            tracing::warn!(%code, %exit, reason = %end, "Carrier ended before the exit said hello: does it speak this protocol?");
        }
        _ => tracing::warn!(%code, %exit, reason = %end, "Carrier ended"),
    }
}

fn code_of_open(error: &OpenError) -> Code {
    match error {
        OpenError::NotReady | OpenError::GoingAway => Code::CarrierConnecting,
        OpenError::TooManyStreams { .. } | OpenError::PeerStreamLimit { .. } => {
            Code::TooManyStreams
        }
        OpenError::BudgetExhausted { .. } => Code::MemoryExhausted,
        OpenError::TargetTooLong { .. } => Code::ConfigInvalid,
    }
}

fn code_of(reason: Reason) -> Code {
    match reason {
        Reason::NotAllowed => Code::OpenRefused,
        Reason::TimedOut => Code::OpenTimedOut,
        _ => Code::OpenFailed,
    }
}
