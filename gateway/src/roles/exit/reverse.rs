//! The ports on which a worker listens at the request of entries, and the sessions that get the
//! connections.
//!
//! A listener belongs to the identity that requested it first, and the sessions of that identity
//! share the listener. A connection goes to the session with the fewest streams of those that
//! answer, whose entry dials the target ([`listener`]). A listener exists as long as a session
//! requests it. The limits of the sessions bound the listeners, and `limits.carriers` bounds the
//! sessions.

mod listener;

use std::cell::{OnceCell, RefCell};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use muxtunnel_codes::Code;
use muxtunnel_gateway_config::{Limits, Reloadable};
use muxtunnel_proto::{ListenEvent, ListenId, Priority, Reason, Refusal};
use tokio::sync::watch;

use crate::base::tasks::Tasks;
use crate::base::telemetry::{Listened, Telemetry};
use crate::io::local_socket::canonical;
use crate::net::bind::check_free;
use crate::net::shared_ports::{SharedPortError, SharedPorts};
use crate::roles::worker::Worker;
use crate::session::mux::{Listeners, Mux};
use listener::{Asker, Listener, accept};

/// Maximum number of ports that are tried if an entry requests any free port.
const ANY_PORT_TRIES: usize = 1024;

/// The listeners of a worker that entries have requested.
pub(super) struct Reverse {
    worker: usize,
    reloadable: watch::Receiver<Arc<Reloadable>>,
    telemetry: Arc<Telemetry>,
    shared_ports: Arc<SharedPorts>,
    listeners: RefCell<BTreeMap<SocketAddr, Rc<Listener>>>,
    /// The accept loops.
    tasks: Tasks,
}

impl Reverse {
    pub(super) fn new(worker: &Worker) -> Rc<Self> {
        Rc::new(Self {
            worker: worker.index,
            reloadable: worker.reloadable.clone(),
            telemetry: Arc::clone(&worker.telemetry),
            shared_ports: Arc::clone(&worker.shared_ports),
            listeners: RefCell::default(),
            tasks: Tasks::default(),
        })
    }

    /// Panics once the loop of a listener has panicked; otherwise never returns.
    pub(super) async fn fail(&self) -> Infallible {
        self.tasks.fail().await
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
            listener.doubt();
            listener.askers.borrow_mut().push(asker);
            listener.registration.tell_others();
            return Ok(address);
        }
        let shared_listener = self.shared_ports.listen(address, peer.as_deref());
        let shared_listener = shared_listener.map_err(refused)?;
        tracing::info!(listen = %address, peer = %asker.session.peer(), "Listening for an entry");
        let listener = Rc::new(Listener {
            peer,
            // At the exit, the listen address is the name of the forward, which has no limits here:
            // the entry has the limits of the forward, and the exit only those of the peer.
            forward: self
                .telemetry
                .forwards
                .named(&address.to_string(), Limits::default()),
            telemetry: Arc::clone(&self.telemetry),
            askers: RefCell::new(vec![asker]),
            registration: Rc::clone(&shared_listener.registration),
            task: OnceCell::new(),
        });
        listener.registration.tell_others();
        let accepting = accept(Rc::downgrade(&listener), shared_listener);
        let _ = listener.task.set(self.tasks.spawn(accepting));
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
            has_fixed_target: true,
            error: None,
        });
        self.telemetry.set_listened(self.worker, listened.collect());
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
mod tests;
