//! Listens on the ports of the forwards, and leads each connection to a session.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use muxtunnel_codes::Code;
use muxtunnel_gateway_config as config;
use muxtunnel_proto::{OpenError, Priority, Reason};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use super::Entry;
use super::exits::SESSIONLESS_MAX;
use crate::account::Local;
use crate::dial;
use crate::driver::{Connection, OpenEnd};
use crate::forward::Forward;
use crate::process::{ACCEPT_RETRY, WorkerError, listen_shared};
use crate::telemetry::{Listened, Telemetry};

/// One port that is listened on. Its route is looked up anew for each connection, so a changed target
/// needs no new listener.
pub(super) struct Listener {
    route: Rc<RefCell<Route>>,
    task: JoinHandle<()>,
}

/// Where connections lead, and what they may take.
struct Route {
    forward: Arc<Forward>,
    url: Rc<str>,
    priority: Priority,
}

impl Entry {
    /// Listens on exactly what `forwards` ask for; those that stay keep their listener. Returns the
    /// ports that could not be had; the others work.
    pub(super) fn listen(self: &Rc<Self>, forwards: &[config::Forward]) -> Vec<WorkerError> {
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
                priority: priority(wanted.priority),
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

    pub(super) fn stop_listening(&self) {
        self.telemetry.set_listening(self.worker, false);
        for listener in std::mem::take(&mut *self.listeners.borrow_mut()).into_values() {
            listener.task.abort();
        }
    }

    /// Sends a new connection on its way, or resets it.
    fn take(self: &Rc<Self>, tcp: TcpStream, client: SocketAddr, route: &Route) {
        let refused = Refused {
            telemetry: Arc::clone(&self.telemetry),
            forward: Arc::clone(&route.forward),
            client,
        };
        let admission = match route.forward.admit(Instant::now()) {
            Ok(admission) => admission,
            Err(code) => {
                let _ = tcp.set_zero_linger();
                return refused.report(code, code.cause());
            }
        };
        let local = Local::Client {
            address: client,
            target: Rc::clone(&route.url),
            admission,
        };
        let opening = Opening {
            entry: Rc::clone(self),
            url: Rc::clone(&route.url),
            priority: route.priority,
            refused,
            until: Instant::now() + SESSIONLESS_MAX,
        };
        opening.open(Connection {
            tcp,
            local,
            early: Vec::new(),
        });
    }
}

/// A connection on its way to a session, and to another one where that goes away.
struct Opening {
    entry: Rc<Entry>,
    url: Rc<str>,
    priority: Priority,
    refused: Refused,
    /// Nobody waits longer for another session.
    until: Instant,
}

impl Opening {
    fn open(self, connection: Connection) {
        let Some(session) = self.entry.links.borrow().best() else {
            let _ = connection.tcp.set_zero_linger();
            let text = "there is no carrier to an exit";
            return self.refused.report(Code::CarrierConnecting, text);
        };
        let (url, priority) = (Rc::clone(&self.url), self.priority);
        let refused = self.refused.clone();
        let ended = move |end: OpenEnd| match end {
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
        };
        if let Err(error) = session.open(&url, priority, connection, Box::new(ended)) {
            refused.report(code_of_open(&error), &error.to_string());
        }
    }

    async fn open_again(self, connection: Connection) {
        self.refused.telemetry.count_retried();
        self.entry.has_session_until(self.until).await;
        self.open(connection);
    }
}

/// A connection that may be refused.
#[derive(Clone)]
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

/// Takes one connection after another; those that come while there is no session wait in the backlog.
async fn accept(entry: Rc<Entry>, socket: TcpListener, route: Rc<RefCell<Route>>) {
    loop {
        match socket.accept().await {
            Ok((tcp, client)) => {
                entry.has_session_or_none_for_long().await;
                entry.take(tcp, client, &route.borrow());
            }
            Err(error) => {
                tracing::warn!(%error, "Accepting failed; is the limit of open files reached?");
                tokio::time::sleep(ACCEPT_RETRY).await;
            }
        }
    }
}

fn priority(configured: config::Priority) -> Priority {
    match configured {
        config::Priority::Auto => Priority::Auto,
        config::Priority::Interactive => Priority::Interactive,
        config::Priority::Bulk => Priority::Bulk,
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
