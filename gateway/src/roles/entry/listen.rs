//! Listens on the ports of the forwards, and passes each connection to a session.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use muxtunnel_codes::Code;
use muxtunnel_gateway_config::{self as config, ProxyListen, Reloadable};
use muxtunnel_proto::{OpenError, Priority, Refusal};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::exits::SESSIONLESS_MAX;
use super::refused::{Refused, code_of_open};
use super::{Entry, Underway};
use crate::base::forward::{Admission, Forward};
use crate::base::open_files::{self, Use};
use crate::base::telemetry::Listened;
use crate::ingress::listener::answer::code_of;
use crate::ingress::listener::greeting::IngressProtocol;
use crate::ingress::listener::socket::ListeningSocket;
use crate::io::local_socket::LocalSocket;
use crate::net::bind::ACCEPT_RETRY;
use crate::roles::worker::{Phase, WorkerError, wait_for};
use crate::session::mux::OpenEnd;
use crate::stream::account::Local;
use crate::stream::early_data::Connection;

/// Pause before a connection is tried again after sessions have returned it more than once.
const RETURNED_PAUSE: Duration = Duration::from_millis(100);

/// One listening port. The route is looked up for each connection, so a changed target requires no
/// new listener.
pub(super) struct Listener {
    route: Rc<RefCell<Route>>,
    task: JoinHandle<()>,
}

/// The forward of a port, and the protocol in which its clients specify a target.
#[derive(Clone)]
pub(super) struct Route {
    pub(super) forward: Arc<Forward>,
    pub(super) ingress_protocol: IngressProtocol,
    pub(super) priority: Priority,
}

impl Route {
    /// Admits a connection to the forward, if the process has open files for streams.
    pub(super) fn admit(&self, socket: &LocalSocket) -> Result<Admission, Code> {
        open_files::check(socket, Use::Stream).map_err(|_| Code::OpenFilesExhausted)?;
        self.forward.admit(Instant::now())
    }
}

impl Entry {
    /// Listens for exactly the forwards in `forwards`. Unchanged forwards keep their listeners.
    /// Returns the errors of forwards that cannot listen. The other forwards work.
    pub(super) fn listen(self: &Rc<Self>, forwards: &[config::Listener]) -> Vec<WorkerError> {
        let mut errors = Vec::new();
        let mut listened = Vec::new();
        let mut listeners = self.listeners.borrow_mut();
        listeners.retain(|address, listener| {
            let here =
                |forward: &&config::Listener| forward.direction == config::Direction::EntryToExit;
            let mut here = forwards.iter().filter(here);
            let stays = here.any(|forward| forward.listen == *address);
            if !stays {
                listener.task.abort();
            }
            stays
        });
        for wanted in forwards {
            let forward = self.telemetry.forwards.get(wanted);
            let error = match wanted.direction {
                config::Direction::ExitToEntry => self.outcomes.borrow().problem(&wanted.name),
                config::Direction::EntryToExit => {
                    let begun = self.listen_for(wanted, Arc::clone(&forward), &mut listeners);
                    let problem = begun.as_ref().err().map(ToString::to_string);
                    errors.extend(begun.err());
                    problem
                }
            };
            listened.push(Listened {
                forward,
                listen: wanted.listen.clone(),
                target: target_of(wanted),
                has_fixed_target: wanted.has_fixed_target(),
                error,
            });
        }
        self.telemetry.set_listened(self.worker, listened);
        errors
    }

    fn listen_for(
        self: &Rc<Self>,
        wanted: &config::Listener,
        forward: Arc<Forward>,
        listeners: &mut BTreeMap<String, Listener>,
    ) -> Result<(), WorkerError> {
        let ingress_protocol = match IngressProtocol::of(wanted) {
            Ok(ingress_protocol) => ingress_protocol,
            Err(source) => {
                // The users file is invalid. An existing listener on this port continues only if it
                // authenticates the users of the same `auth`. Otherwise the listener closes, since
                // it would accept other users.
                let asks =
                    |listener: &Listener| listener.route.borrow().ingress_protocol.asks_for(wanted);
                if !listeners.get(&wanted.listen).is_some_and(asks)
                    && let Some(listener) = listeners.remove(&wanted.listen)
                {
                    listener.task.abort();
                }
                return Err(WorkerError::Users {
                    listen: wanted.listen.clone(),
                    source,
                });
            }
        };
        let route = Route {
            forward,
            ingress_protocol,
            priority: priority(wanted.priority),
        };
        if let Some(listener) = listeners.get(&wanted.listen) {
            listener.route.replace(route);
            return Ok(());
        }
        let listener = self.start(&wanted.listen, route)?;
        listeners.insert(wanted.listen.clone(), listener);
        Ok(())
    }

    fn start(self: &Rc<Self>, listen: &str, route: Route) -> Result<Listener, WorkerError> {
        let socket = ListeningSocket::bind(listen, &self.unix_listeners)?;
        tracing::info!(forward = route.forward.name, listen, "Listening");
        let route = Rc::new(RefCell::new(route));
        let accept = accept(Rc::clone(self), socket, Rc::clone(&route));
        let task = self.tasks.spawn(accept);
        Ok(Listener { route, task })
    }

    /// Waits until every listener has accepted its backlog and is closed.
    pub(super) async fn stop_listening(&self) {
        self.telemetry.set_listening(self.worker, false);
        let listeners = std::mem::take(&mut *self.listeners.borrow_mut());
        for listener in listeners.into_values() {
            // An error means that the listener's task was aborted.
            let _ = listener.task.await;
        }
    }
}

/// The targets of a port, or the protocol in which its clients name theirs.
fn target_of(port: &config::Listener) -> String {
    if port.targets.is_empty() {
        return port.protocol.map_or("", ProxyListen::as_str).to_owned();
    }
    let targets: Vec<_> = port.targets.iter().map(ToString::to_string).collect();
    targets.join(", ")
}

/// A connection that is being opened. If a dial fails, the next target is dialled. If a session shuts down, the connection moves to another
/// session.
pub(super) struct Opening {
    entry: Rc<Entry>,
    /// The target that is dialled, and the further targets.
    url: RefCell<Rc<str>>,
    further: RefCell<VecDeque<Rc<str>>>,
    priority: Priority,
    refused: Refused,
    /// The deadline for finding another session.
    until: Cell<Instant>,
    /// Number of sessions that returned the connection.
    returned: Cell<u32>,
    _underway: Option<Underway>,
}

impl Opening {
    pub(super) fn new(
        entry: &Rc<Entry>,
        (url, further): (Rc<str>, VecDeque<Rc<str>>),
        priority: Priority,
        refused: Refused,
        underway: Option<Underway>,
    ) -> Rc<Self> {
        Rc::new(Self {
            entry: Rc::clone(entry),
            url: RefCell::new(url),
            further: RefCell::new(further),
            priority,
            refused,
            until: Cell::new(Instant::now() + SESSIONLESS_MAX),
            returned: Cell::new(0),
            _underway: underway,
        })
    }

    /// Opens the stream on the first session that accepts it. Waits if a session is expected soon.
    pub(super) fn open(self: Rc<Self>, mut connection: Connection) {
        let sessions = self.entry.links.borrow().by_load();
        let url = self.url.borrow().clone();
        connection.has_next = !self.further.borrow().is_empty();
        let mut problem = None;
        for session in sessions {
            let opening = Rc::clone(&self);
            let ended = Box::new(move |end| opening.ended(end));
            match session.open(&url, self.priority, connection, ended) {
                Ok(()) => return,
                Err(not_opened) => {
                    connection = not_opened.connection;
                    problem.get_or_insert(not_opened.error);
                }
            }
        }
        // The refusal can be temporary: one session has ended or sent GOAWAY, and the next session
        // is not ready yet.
        let passes = problem.as_ref().is_none_or(is_passing);
        if passes && self.entry.links.borrow().may_come() && Instant::now() < self.until.get() {
            drop(tokio::task::spawn_local(self.wait_and_open(connection)));
            return;
        }
        match problem {
            Some(error) => self
                .refused
                .report(code_of_open(&error), &error.to_string()),
            None => self
                .refused
                .report(Code::CarrierConnecting, "no exit is connected"),
        }
        connection.turn_away();
    }

    /// Handles a failed open on one session.
    fn ended(self: Rc<Self>, end: OpenEnd) {
        match end {
            OpenEnd::Refused(refusal) => {
                let code = code_of(refusal.reason);
                self.refused.report(code, &refusal.description);
            }
            OpenEnd::Failed(refusal, connection) => {
                drop(tokio::task::spawn_local(async move {
                    self.open_next(&refusal, connection);
                }));
            }
            OpenEnd::Abandoned => {
                let code = Code::OpenAbandoned;
                self.refused.report(code, code.cause());
            }
            OpenEnd::Returned(connection) => {
                drop(tokio::task::spawn_local(self.open_again(connection)));
            }
        }
    }

    /// Opens a stream to the next target, since the dial of a target failed.
    fn open_next(self: Rc<Self>, refusal: &Refusal, mut connection: Connection) {
        let Some(next) = self.further.borrow_mut().pop_front() else {
            self.refused
                .report(code_of(refusal.reason), &refusal.description);
            return connection.turn_away();
        };
        self.refused.report_retried(refusal, &next);
        if let Local::Client { target, .. } = &mut connection.local {
            *target = Rc::clone(&next);
        }
        self.url.replace(next);
        self.until.set(Instant::now() + SESSIONLESS_MAX);
        self.open(connection);
    }

    async fn open_again(self: Rc<Self>, connection: Connection) {
        self.refused.telemetry.opens_retried.add(1);
        if self.returned.replace(self.returned.get() + 1) > 0 {
            // This may be the only session, so the retry must not be a tight loop.
            tokio::time::sleep(RETURNED_PAUSE).await;
        }
        if Instant::now() < self.until.get() {
            return self.wait_and_open(connection).await;
        }
        let text = "no exit accepted the connection";
        self.refused.report(Code::CarrierConnecting, text);
        connection.turn_away();
    }

    async fn wait_and_open(self: Rc<Self>, connection: Connection) {
        self.entry.has_session_until(self.until.get()).await;
        self.open(connection);
    }
}

/// Applies changes of the forwards, as long as the configuration can change.
pub(super) async fn follow(entry: &Rc<Entry>, mut reloadable: watch::Receiver<Arc<Reloadable>>) {
    while reloadable.changed().await.is_ok() {
        let forwards = reloadable.borrow_and_update().listeners.clone();
        for error in entry.listen(&forwards) {
            tracing::error!(%error, "Cannot listen for a forward");
        }
    }
    std::future::pending::<()>().await;
}

/// Accepts connections. Without a session, connections wait, but after [`SESSIONLESS_MAX`] without
/// a session the entry resets them. During a shutdown, the loop first empties the backlog and then
/// closes the socket, since closing the socket resets the connections in the backlog.
async fn accept(entry: Rc<Entry>, listening: ListeningSocket, route: Rc<RefCell<Route>>) {
    let closed = wait_for(entry.phase.clone(), Phase::Closed);
    tokio::pin!(closed);
    loop {
        let accepted = tokio::select! {
            biased;
            accepted = listening.accept() => accepted,
            () = &mut closed => return,
        };
        match accepted {
            Ok((socket, client)) => {
                entry.telemetry.arrived();
                entry.has_session_or_none_for_long().await;
                entry.take(socket, client, &route);
            }
            Err(error) => {
                tracing::warn!(%error, "Cannot accept a connection; is the limit of open files reached?");
                tokio::time::sleep(ACCEPT_RETRY).await;
            }
        }
    }
}

pub(super) fn priority(configured: config::Priority) -> Priority {
    match configured {
        config::Priority::Auto => Priority::Auto,
        config::Priority::Interactive => Priority::Interactive,
        config::Priority::Bulk => Priority::Bulk,
    }
}

/// Whether the error is temporary: another session may soon accept the stream that this session
/// refused.
fn is_passing(error: &OpenError) -> bool {
    matches!(error, OpenError::NotReady | OpenError::GoingAway)
}
