//! Listens on the ports of the forwards, and leads each connection to a session.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use muxtunnel_codes::Code;
use muxtunnel_gateway_config as config;
use muxtunnel_proto::{OpenError, Priority, Source};
use tokio::net::UnixStream;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::exits::SESSIONLESS_MAX;
use super::http::Exchange;
use super::{Entry, Underway};
use crate::base::forward::{Admission, Forward};
use crate::base::handshake_limiter::Permit;
use crate::base::telemetry::{Listened, Telemetry};
use crate::ingress::listener::answer::{Answer, code_of};
use crate::ingress::listener::greeting::{Heard, IngressProtocol};
use crate::ingress::listener::socket::ListeningSocket;
use crate::ingress::listener::{Rejection, Request};
use crate::io::local_end::LocalEnd;
use crate::io::local_socket::{LocalAddress, LocalSocket};
use crate::net::bind::ACCEPT_RETRY;
use crate::roles::worker::{Phase, WorkerError, wait_for};
use crate::session::mux::OpenEnd;
use crate::stream::account::{Ended, Local};
use crate::stream::early_data::Connection;

/// Before a connection that was given back more than once is opened again.
const RETURNED_PAUSE: Duration = Duration::from_millis(100);

/// One listening port. Each connection looks up its route, so a changed target needs no new listener.
pub(super) struct Listener {
    route: Rc<RefCell<Route>>,
    task: JoinHandle<()>,
}

/// Where connections lead, and what they may take.
#[derive(Clone)]
struct Route {
    forward: Arc<Forward>,
    ingress_protocol: IngressProtocol,
    priority: Priority,
}

impl Entry {
    /// Listens on exactly what `forwards` ask for; those that stay keep their listener. Returns why the
    /// others could not be had; the rest works.
    pub(super) fn listen(self: &Rc<Self>, forwards: &[config::Forward]) -> Vec<WorkerError> {
        let mut errors = Vec::new();
        let mut listened = Vec::new();
        let mut listeners = self.listeners.borrow_mut();
        listeners.retain(|address, listener| {
            let here =
                |forward: &&config::Forward| forward.direction == config::Direction::EntryToExit;
            let mut here = forwards.iter().filter(here);
            let stays = here.any(|forward| forward.listen == *address);
            if !stays {
                listener.task.abort();
            }
            stays
        });
        for wanted in forwards {
            let forward = self.telemetry.forwards.get(wanted);
            if wanted.direction == config::Direction::ExitToEntry {
                listened.push(Listened {
                    error: self.outcomes.borrow().problem(&wanted.name),
                    forward,
                    listen: wanted.listen.clone(),
                    target: wanted
                        .target
                        .as_ref()
                        .map(ToString::to_string)
                        .unwrap_or_default(),
                });
                continue;
            }
            let begun = self.listen_for(wanted, Arc::clone(&forward), &mut listeners);
            listened.push(Listened {
                forward,
                listen: wanted.listen.clone(),
                target: match &wanted.target {
                    Some(target) => target.to_string(),
                    None => wanted.protocol.name().to_owned(),
                },
                error: begun.as_ref().err().map(ToString::to_string),
            });
            errors.extend(begun.err());
        }
        self.telemetry.set_listened(self.worker, listened);
        errors
    }

    fn listen_for(
        self: &Rc<Self>,
        wanted: &config::Forward,
        forward: Arc<Forward>,
        listeners: &mut BTreeMap<String, Listener>,
    ) -> Result<(), WorkerError> {
        let ingress_protocol = match IngressProtocol::of(wanted) {
            Ok(ingress_protocol) => ingress_protocol,
            Err(source) => {
                // Nobody is served who was not to be: a listener stays only where it asks for these users.
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
        let task = tokio::task::spawn_local(accept(Rc::clone(self), socket, Rc::clone(&route)));
        Ok(Listener { route, task })
    }

    /// Waits until every listener has taken what stood in its backlog, and is closed.
    pub(super) async fn stop_listening(&self) {
        self.telemetry.set_listening(self.worker, false);
        let listeners = std::mem::take(&mut *self.listeners.borrow_mut());
        for listener in listeners.into_values() {
            // One that panicked takes no more either.
            let _ = listener.task.await;
        }
    }

    /// Sends a new connection on its way, or resets it.
    fn take(self: &Rc<Self>, socket: LocalSocket, client: LocalAddress, route: &Route) {
        let address = client.ip();
        let refused = Refused::new(&self.telemetry, &route.forward, client);
        let client = Client { socket, refused };
        if let Some(url) = route.ingress_protocol.straight() {
            let heard = Heard {
                request: Request::raw(url),
                rest: Vec::new(),
                source: None,
            };
            match route.forward.admit(Instant::now()) {
                Ok(admission) => {
                    let underway = self.underway.borrow().clone();
                    self.lead(client, admission, route, heard, underway);
                }
                Err(code) => client.refused.report(code, code.cause()),
            }
            return;
        }
        let Ok(permit) = self.greetings.enter(address) else {
            let Rejection { code, problem, .. } = Rejection::evicted();
            return client.refused.report(code, problem);
        };
        let (entry, route) = (Rc::clone(self), route.clone());
        let underway = self.underway.borrow().clone();
        tokio::task::spawn_local(async move {
            entry.hear(client, &route, permit, underway).await;
        });
    }

    /// Hears a client out, then leads it where it wants to go. Only then it takes one of the forward's places.
    async fn hear(
        self: &Rc<Self>,
        mut client: Client,
        route: &Route,
        mut permit: Permit,
        underway: Option<Underway>,
    ) {
        let mut source = None;
        let heard = tokio::select! {
            biased;
            heard = route.ingress_protocol.hear(&client.socket, &mut source) => heard,
            () = permit.evicted() => Err(Rejection::evicted()),
        };
        if let Some(Source::Tcp {
            client: address, ..
        }) = source
        {
            client.refused.client = address.into();
        }
        match &heard {
            Ok(_) => permit.succeeded(),
            Err(rejection) if rejection.is_failure() => permit.failed(),
            Err(_) => {}
        }
        let rejection = match heard {
            Ok(heard) => match route.forward.admit(Instant::now()) {
                Ok(admission) => return self.lead(client, admission, route, heard, underway),
                Err(code) => Rejection {
                    reply: heard.request.answer.refused(None),
                    code,
                    problem: code.cause(),
                },
            },
            Err(rejection) => rejection,
        };
        let Client { socket, refused } = client;
        let socket: Box<dyn LocalEnd> = Box::new(socket);
        refused.report(rejection.code, rejection.problem);
        tokio::select! {
            biased;
            () = socket.end_with(&rejection.reply) => {}
            () = permit.evicted() => {}
        }
    }

    /// Leads a client to a session.
    fn lead(
        self: &Rc<Self>,
        client: Client,
        admission: Admission,
        route: &Route,
        heard: Heard,
        underway: Option<Underway>,
    ) {
        let source = route.ingress_protocol.tells(heard.source, &client.socket);
        let Client { socket, refused } = client;
        let Request { url, head, answer } = heard.request;
        let mut early = head;
        early.extend(heard.rest);
        let mut ended = Ended::default();
        let socket: Box<dyn LocalEnd> = Box::new(socket);
        let socket = match answer {
            Answer::Http => match self.exchange(socket, std::mem::take(&mut early)) {
                Ok((near, hears)) => {
                    ended = hears;
                    near
                }
                Err(error) => {
                    let code = Code::OpenFailed;
                    return refused.report(code, &format!("no socket for the request: {error}"));
                }
            },
            _ => socket,
        };
        let local = Local::Client {
            address: refused.client.clone(),
            target: Rc::clone(&url),
            admission,
            ended,
        };
        let opening = Rc::new(Opening {
            entry: Rc::clone(self),
            url,
            priority: route.priority,
            refused,
            until: Instant::now() + SESSIONLESS_MAX,
            returned: Cell::new(0),
            _underway: underway,
        });
        opening.open(Connection {
            socket,
            local,
            early,
            answer,
            source,
        });
    }

    /// Begins the exchange of one request with an HTTP client. Returns the local end of its stream, and who learns how
    /// that ends.
    fn exchange(
        &self,
        client: Box<dyn LocalEnd>,
        request: Vec<u8>,
    ) -> std::io::Result<(Box<dyn LocalEnd>, Ended)> {
        let (near, target) = UnixStream::pair()?;
        let (sender, ended) = oneshot::channel();
        let exchange = Exchange {
            client,
            request,
            target,
            ended,
        };
        let guard = self.exchanges.borrow().clone();
        tokio::task::spawn_local(async move {
            exchange.run().await;
            drop(guard);
        });
        let near = Box::new(LocalSocket::Unix(near));
        Ok((near, RefCell::new(Some(sender))))
    }
}

/// One that has connected.
struct Client {
    socket: LocalSocket,
    refused: Refused,
}

/// A connection on its way to a session, and to another one where that goes away.
struct Opening {
    entry: Rc<Entry>,
    url: Rc<str>,
    priority: Priority,
    refused: Refused,
    /// Nobody waits longer for another session.
    until: Instant,
    /// Sessions that gave it back.
    returned: Cell<u32>,
    _underway: Option<Underway>,
}

impl Opening {
    /// Opens it on the first session that takes it; waits for one where one is about to be there.
    fn open(self: Rc<Self>, mut connection: Connection) {
        let sessions = self.entry.links.borrow().by_load();
        let mut problem = None;
        for session in sessions {
            let opening = Rc::clone(&self);
            let ended = Box::new(move |end| opening.ended(end));
            match session.open(&self.url, self.priority, connection, ended) {
                Ok(()) => return,
                Err(not_opened) => {
                    connection = not_opened.connection;
                    problem.get_or_insert(not_opened.error);
                }
            }
        }
        // Between the end of one session, or its GOAWAY, and the next.
        let passes = problem.as_ref().is_none_or(is_passing);
        if passes && self.entry.links.borrow().is_linked() && Instant::now() < self.until {
            drop(tokio::task::spawn_local(self.wait_and_open(connection)));
            return;
        }
        match problem {
            Some(error) => self
                .refused
                .report(code_of_open(&error), &error.to_string()),
            None => self
                .refused
                .report(Code::CarrierConnecting, "there is no carrier to an exit"),
        }
        connection.turn_away();
    }

    /// Nothing came of it on one session.
    fn ended(self: Rc<Self>, end: OpenEnd) {
        match end {
            OpenEnd::Refused(refusal) => {
                let code = code_of(refusal.reason);
                self.refused.report(code, &refusal.description);
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

    async fn open_again(self: Rc<Self>, connection: Connection) {
        self.refused.telemetry.count_retried();
        if self.returned.replace(self.returned.get() + 1) > 0 {
            // Again and again: it may be the only one that there is.
            tokio::time::sleep(RETURNED_PAUSE).await;
        }
        if Instant::now() < self.until {
            return self.wait_and_open(connection).await;
        }
        let text = "no exit takes it: each gives it back";
        self.refused.report(Code::CarrierConnecting, text);
        connection.turn_away();
    }

    async fn wait_and_open(self: Rc<Self>, connection: Connection) {
        self.entry.has_session_until(self.until).await;
        self.open(connection);
    }
}

/// A connection that may be refused.
#[derive(Clone)]
pub(crate) struct Refused {
    telemetry: Arc<Telemetry>,
    forward: Arc<Forward>,
    client: LocalAddress,
}

impl Refused {
    pub(crate) fn new(
        telemetry: &Arc<Telemetry>,
        forward: &Arc<Forward>,
        client: impl Into<LocalAddress>,
    ) -> Self {
        Self {
            telemetry: Arc::clone(telemetry),
            forward: Arc::clone(forward),
            client: client.into(),
        }
    }

    /// It was.
    pub(crate) fn report(&self, code: Code, reason: &str) {
        self.telemetry.streams.refused(code);
        self.forward.streams.refused(code);
        if self.telemetry.may_log_refusal() {
            let (forward, client) = (&self.forward.name, &self.client);
            tracing::warn!(%code, forward, %client, reason, "Connection refused");
        }
    }
}

/// Takes one connection after another; those that come while there is no session wait in the backlog. In a shutdown
/// it ends once the backlog is empty: closing the socket would reset who stands in it.
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
                entry.has_session_or_none_for_long().await;
                entry.take(socket, client, &route.borrow());
            }
            Err(error) => {
                tracing::warn!(%error, "Accepting failed; is the limit of open files reached?");
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

/// Whether another session may be about to take what this one did not.
fn is_passing(error: &OpenError) -> bool {
    matches!(error, OpenError::NotReady | OpenError::GoingAway)
}

pub(crate) fn code_of_open(error: &OpenError) -> Code {
    match error {
        OpenError::NotReady | OpenError::GoingAway => Code::CarrierConnecting,
        OpenError::TooManyStreams { .. } | OpenError::PeerStreamLimit { .. } => {
            Code::TooManyStreams
        }
        OpenError::BudgetExhausted { .. } => Code::MemoryExhausted,
        OpenError::TargetTooLong { .. } | OpenError::NoSources => Code::ConfigInvalid,
    }
}
