//! The ports on which a worker listens at the request of entries, and the sessions that get the
//! connections.
//!
//! A listener belongs to the identity that requested it first, and the sessions of that identity
//! share the listener. A connection goes to the session with the fewest streams, whose entry dials
//! the target. A listener exists as long as a session requests it. The limits of the sessions bound
//! the listeners, and `limits.carriers` bounds the sessions.

use std::cell::{OnceCell, RefCell};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use muxtunnel_codes::Code;
use muxtunnel_gateway_config::{ForwardLimits, Reloadable};
use muxtunnel_proto::{ListenEvent, ListenId, Priority, Reason, Refusal, listen_target};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::base::forward::Forward;
use crate::base::open_files::{self, Use};
use crate::base::telemetry::{Listened, Telemetry};
use crate::ingress::listener::answer::{Answer, code_of};
use crate::io::local_socket::{LocalSocket, canonical};
use crate::net::bind::{ACCEPT_RETRY, check_free};
use crate::net::shared_ports::{SharedListener, SharedPortError, SharedPorts};
use crate::roles::entry::{Refused, code_of_open};
use crate::roles::worker::Worker;
use crate::session::mux::{Listeners, Mux, NotOpened, OpenEnd, Progress};
use crate::stream::account::{Ended, Local};
use crate::stream::early_data::Connection;

/// Maximum number of ports that are tried if an entry requests any free port.
const ANY_PORT_TRIES: usize = 1024;

/// The listeners of a worker that entries have requested.
pub(super) struct Reverse {
    worker: usize,
    reloadable: watch::Receiver<Arc<Reloadable>>,
    telemetry: Arc<Telemetry>,
    shared_ports: Arc<SharedPorts>,
    listeners: RefCell<BTreeMap<SocketAddr, Rc<Listener>>>,
}

/// A listening port.
struct Listener {
    /// The one identity of all sessions that share the port; `None`: the sessions have no identity.
    peer: Option<Rc<str>>,
    forward: Arc<Forward>,
    telemetry: Arc<Telemetry>,
    askers: RefCell<Vec<Asker>>,
    task: OnceCell<JoinHandle<()>>,
}

/// A session that requested the port.
struct Asker {
    session: Rc<dyn Mux>,
    listen: ListenId,
    priority: Priority,
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Some(task) = self.task.get() {
            task.abort();
        }
    }
}

impl Reverse {
    pub(super) fn new(worker: &Worker) -> Rc<Self> {
        Rc::new(Self {
            worker: worker.index,
            reloadable: worker.reloadable.clone(),
            telemetry: Arc::clone(&worker.telemetry),
            shared_ports: Arc::clone(&worker.shared_ports),
            listeners: RefCell::default(),
        })
    }

    /// Handles the requests of the session's peer from now on.
    pub(super) fn serve(self: &Rc<Self>, session: &Rc<dyn Mux>) {
        let Some(listeners) = session.listeners() else {
            return;
        };
        let (reverse, session) = (Rc::downgrade(self), Rc::downgrade(session));
        listeners.hear(Box::new(move |event| {
            let (Some(reverse), Some(session)) = (reverse.upgrade(), session.upgrade()) else {
                return;
            };
            match event {
                ListenEvent::Asked {
                    listen,
                    address,
                    priority,
                } => reverse.asked(&session, listen, &address, priority),
                ListenEvent::GivenUp { listen } => {
                    reverse.forget(|asker| {
                        asker.listen == listen && Rc::ptr_eq(&asker.session, &session)
                    });
                }
                // An exit sends no requests.
                ListenEvent::Listening { .. } | ListenEvent::Ended { .. } => {}
            }
        }));
    }

    /// Removes the listeners of a session that has ended.
    pub(super) fn end(&self, session: &Rc<dyn Mux>) {
        self.forget(|asker| Rc::ptr_eq(&asker.session, session));
    }

    /// Closes all listeners.
    pub(super) fn stop(&self) {
        self.listeners.take();
        self.publish();
    }

    /// Closes listeners that a changed configuration no longer allows.
    pub(super) async fn follow(&self) {
        let mut reloadable = self.reloadable.clone();
        while reloadable.changed().await.is_ok() {
            let in_force = Arc::clone(&reloadable.borrow_and_update());
            let mut closed = Vec::new();
            self.listeners.borrow_mut().retain(|address, listener| {
                let stays = is_allowed(&in_force, *address, listener.peer.as_deref());
                if !stays {
                    let askers = listener.askers.take().into_iter();
                    closed.extend(askers.map(|asker| (*address, asker)));
                }
                stays
            });
            for (address, asker) in closed {
                say(&asker.session, |listeners| {
                    listeners.end_listen(asker.listen, denied(address));
                });
            }
            self.publish();
        }
        std::future::pending::<()>().await;
    }

    fn asked(
        self: &Rc<Self>,
        session: &Rc<dyn Mux>,
        listen: ListenId,
        address: &str,
        priority: Priority,
    ) {
        let asker = Asker {
            session: Rc::clone(session),
            listen,
            priority,
        };
        match self.listen(address, asker) {
            Ok(address) => say(session, |listeners| {
                listeners.listening(listen, &address.to_string());
            }),
            Err(refusal) => {
                self.telemetry.streams.refused(Code::ListenRefused);
                if self.telemetry.may_log_refusal() {
                    let (code, peer) = (Code::ListenRefused, session.peer());
                    tracing::warn!(%code, %peer, %address, reason = %refusal.description, "Listener refused");
                }
                say(session, |listeners| listeners.end_listen(listen, refusal));
            }
        }
    }

    fn listen(self: &Rc<Self>, text: &str, asker: Asker) -> Result<SocketAddr, Refusal> {
        let address = text.parse().map(canonical).map_err(|_| {
            let text = format!("{}: {text:?} is not ADDRESS:PORT", Code::ListenRefused);
            Refusal::new(Reason::AddressType, text)
        })?;
        let peer = asker.session.identity();
        let address = match address.port() {
            0 => self.any_of(address, peer.as_deref())?,
            _ => address,
        };
        if !is_allowed(&self.reloadable.borrow(), address, peer.as_deref()) {
            return Err(denied(address));
        }
        let refused = |error: SharedPortError| Refusal::new(Reason::General, error.to_string());
        let known = self.listeners.borrow().get(&address).cloned();
        if let Some(listener) = known {
            if listener.peer != peer {
                return Err(refused(SharedPortError::OtherPeer(address)));
            }
            listener.askers.borrow_mut().push(asker);
            return Ok(address);
        }
        let shared_listener = self.shared_ports.listen(address, peer.as_deref());
        let shared_listener = shared_listener.map_err(refused)?;
        tracing::info!(listen = %address, peer = %asker.session.peer(), "Listening for an entry");
        let listener = Rc::new(Listener {
            peer,
            // At the exit, the listen address is the name of the forward. There are no limits here:
            // the entry has the configuration and the limits of the forward.
            forward: self
                .telemetry
                .forwards
                .named(&address.to_string(), ForwardLimits::default()),
            telemetry: Arc::clone(&self.telemetry),
            askers: RefCell::new(vec![asker]),
            task: OnceCell::new(),
        });
        let accepting = accept(Rc::downgrade(&listener), shared_listener);
        let _ = listener.task.set(tokio::task::spawn_local(accepting));
        self.listeners.borrow_mut().insert(address, listener);
        self.publish();
        Ok(address)
    }

    /// Finds a free port of `address` that the peer may use.
    fn any_of(&self, address: SocketAddr, peer: Option<&str>) -> Result<SocketAddr, Refusal> {
        let in_force = self.reloadable.borrow();
        let rules = in_force.allow_listen.iter();
        let ports = rules.filter_map(|rule| rule.ports_for(address.ip(), peer));
        let ports = ports.flat_map(|ports| ports.first..=ports.last);
        let mut addresses = ports
            .filter(|port| *port > 0)
            .take(ANY_PORT_TRIES)
            .map(|port| SocketAddr::new(address.ip(), port));
        let is_free = |address: &SocketAddr| {
            !self.shared_ports.is_taken(*address) && check_free(&address.to_string()).is_ok()
        };
        addresses.find(is_free).ok_or_else(|| denied(address))
    }

    /// Removes the askers for which `gone` returns true. A listener without askers is closed.
    fn forget(&self, gone: impl Fn(&Asker) -> bool) {
        self.listeners.borrow_mut().retain(|address, listener| {
            let mut askers = listener.askers.borrow_mut();
            askers.retain(|asker| !gone(asker));
            if askers.is_empty() {
                tracing::info!(listen = %address, "Listener closed because no entry requests it");
            }
            !askers.is_empty()
        });
        self.publish();
    }

    fn publish(&self) {
        let listeners = self.listeners.borrow();
        let listened = listeners.iter().map(|(address, listener)| Listened {
            forward: Arc::clone(&listener.forward),
            listen: address.to_string(),
            target: "as entries configure".to_owned(),
            error: None,
        });
        self.telemetry.set_listened(self.worker, listened.collect());
    }
}

impl Listener {
    /// The session with the fewest streams. A session without a carrier is chosen only if no
    /// session has a carrier.
    fn best(&self) -> Option<(Rc<dyn Mux>, ListenId, Priority)> {
        let askers = self.askers.borrow();
        let takes =
            |session: &Rc<dyn Mux>| session.progress() == Progress::Ready && !session.has_ended();
        let ready = askers.iter().filter(|asker| takes(&asker.session));
        let best = ready.min_by_key(|asker| asker.session.load())?;
        Some((Rc::clone(&best.session), best.listen, best.priority))
    }

    fn take(self: &Rc<Self>, socket: LocalSocket, client: SocketAddr) {
        let refused = Refused::new(&self.telemetry, &self.forward, client);
        if let Err(out_of_files) = open_files::check(&socket, Use::Stream) {
            return refused.report(Code::OpenFilesExhausted, &out_of_files.to_string());
        }
        match self.forward.admit(Instant::now()) {
            Ok(admission) => {
                let local = Local::Client {
                    address: client.into(),
                    target: self.forward.name.as_str().into(),
                    admission,
                    ended: Ended::default(),
                };
                let connection = Connection {
                    socket: Box::new(socket),
                    local,
                    early: Vec::new(),
                    answer: Answer::None,
                    source: None,
                };
                self.open(connection, refused);
            }
            Err(code) => refused.report(code, code.cause()),
        }
    }

    /// Opens a stream in a session, or in another session if the first session shuts down.
    fn open(self: &Rc<Self>, connection: Connection, refused: Refused) {
        let Some((session, listen, priority)) = self.best() else {
            connection.turn_away();
            let text = "no entry that requested the port accepts streams";
            return refused.report(Code::CarrierConnecting, text);
        };
        let (listener, report) = (Rc::clone(self), refused.clone());
        let ended = move |end: OpenEnd| match end {
            OpenEnd::Refused(refusal) => {
                report.report(code_of(refusal.reason), &refusal.description);
            }
            OpenEnd::Abandoned => report.report(Code::OpenAbandoned, Code::OpenAbandoned.cause()),
            OpenEnd::Returned(connection) => {
                listener.telemetry.count_retried();
                listener.open(connection, report);
            }
        };
        let target = listen_target(listen);
        if let Err(not_opened) = session.open(&target, priority, connection, Box::new(ended)) {
            let NotOpened { error, connection } = *not_opened;
            refused.report(code_of_open(&error), &error.to_string());
            connection.turn_away();
        }
    }
}

/// Accepts connections as long as the listener exists.
async fn accept(listener: std::rc::Weak<Listener>, shared_listener: SharedListener) {
    loop {
        let accepted = shared_listener.socket.accept().await;
        let Some(listener) = listener.upgrade() else {
            return;
        };
        match accepted {
            Ok((tcp, client)) => listener.take(tcp.into(), canonical(client)),
            Err(error) => {
                drop(listener);
                tracing::warn!(%error, "Cannot accept a connection; is the limit of open files reached?");
                tokio::time::sleep(ACCEPT_RETRY).await;
            }
        }
    }
}

/// Sends an answer. The session has requested a listener, so its protocol supports the answer.
fn say(session: &Rc<dyn Mux>, answer: impl FnOnce(&dyn Listeners)) {
    if let Some(listeners) = session.listeners() {
        answer(listeners);
    }
}

fn is_allowed(in_force: &Reloadable, address: SocketAddr, peer: Option<&str>) -> bool {
    let mut rules = in_force.allow_listen.iter();
    rules.any(|rule| rule.permits(address, peer))
}

fn denied(address: SocketAddr) -> Refusal {
    let text = format!(
        "{}: allowListen of this exit does not permit {address}",
        Code::ListenRefused
    );
    Refusal::new(Reason::NotAllowed, text)
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};
    use tokio::task::LocalSet;

    use super::*;
    use crate::session::mux::Dial;
    use crate::session::mux::memory::{Memory, memory, silent};

    /// The reverse listeners of an exit, and an address that the exit's `allowListen` permits.
    async fn reverse() -> (Rc<Reverse>, String) {
        let free = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = free.local_addr().unwrap().to_string();
        let yaml = format!(
            "role: Exit\nprotocol: Native\nsecurity: {{mode: None}}\nlisten: 127.0.0.1:1\nallowListen: ['{address}']\n"
        );
        (Reverse::new(&Worker::of(&yaml)), address)
    }

    /// A session whose other end writes `name` and the requested target to each client.
    fn named(name: &'static str) -> Rc<Memory> {
        let dialler = Box::new(move |target: String, _, _| -> Dial {
            Box::pin(async move {
                let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
                let dial = TcpStream::connect(listener.local_addr().unwrap());
                let (near, far) = tokio::join!(dial, listener.accept());
                let mut far = far.unwrap().0;
                tokio::task::spawn_local(async move {
                    far.write_all(format!("{name} {target}").as_bytes())
                        .await
                        .unwrap();
                });
                let near = near.unwrap();
                Ok(crate::net::dial::Dialled {
                    address: near.peer_addr().unwrap().into(),
                    socket: Box::new(LocalSocket::from(near)),
                    admission: None,
                    url: None,
                })
            })
        });
        memory(Some("entry"), dialler)
    }

    async fn greeting(address: &str) -> String {
        let mut client = TcpStream::connect(address).await.unwrap();
        let mut greeting = String::new();
        client.read_to_string(&mut greeting).await.unwrap();
        greeting
    }

    #[tokio::test]
    async fn a_connection_goes_to_the_least_loaded_asker_and_on_to_another_one_that_stays() {
        let test = async {
            let (reverse, address) = reverse().await;
            let (silent, quick) = (silent(Some("entry")), named("quick"));
            let sessions = [silent.shared(), quick.shared()];
            sessions.iter().for_each(|session| reverse.serve(session));
            assert_eq!(silent.asks_to_listen(&address).1, Ok(address.clone()));
            assert_eq!(quick.asks_to_listen(&address).1, Ok(address.clone()));
            let at = address.clone();
            let waits = tokio::task::spawn_local(async move { greeting(&at).await });
            while sessions[0].stream_count() == 0 {
                tokio::task::yield_now().await;
            }
            assert_eq!(greeting(&address).await, "quick listen://1");
            silent.goes_away();
            assert_eq!(waits.await.unwrap(), "quick listen://1");
        };
        LocalSet::new().run_until(test).await;
    }

    #[tokio::test]
    async fn a_port_belongs_to_the_identity_of_its_first_asker() {
        let test = async {
            let (reverse, address) = reverse().await;
            let (owner, stranger) = (silent(Some("entry")), silent(Some("other")));
            let sessions = [owner.shared(), stranger.shared()];
            sessions.iter().for_each(|session| reverse.serve(session));
            let (listen, told) = owner.asks_to_listen(&address);
            assert_eq!(told, Ok(address.clone()));
            assert!(stranger.asks_to_listen(&address).1.is_err());
            owner.says(ListenEvent::GivenUp { listen });
            // The socket is closed together with its task.
            tokio::task::yield_now().await;
            assert_eq!(stranger.asks_to_listen(&address).1, Ok(address.clone()));
            assert!(
                owner.asks_to_listen("127.0.0.1:1").1.is_err(),
                "the address is not allowed"
            );
        };
        LocalSet::new().run_until(test).await;
    }
}
