//! SSH carriers, which authenticate by their SSH login.
//!
//! The task of the SSH library runs on the worker that accepted the socket, so no SSH carrier is
//! passed to another worker.

use std::cell::RefCell;
use std::net::IpAddr;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;

use muxtunnel_codes::Code;
use muxtunnel_gateway_config::SessionConfig;
use muxtunnel_proto::patience;
use tokio::sync::watch;

use super::handshake::is_failure;
use super::{Exit, Use};
use crate::base::patience::Patience;
use crate::io::carrier::Carrier;
use crate::io::security::Credentials;
use crate::io::ssh::{self, Connection, NAMES_MAX, Settings};
use crate::io::transport::Transport;
use crate::roles::worker::Worker;
use crate::session::mux::Mux;

/// The SSH sessions of an exit whose `protocol` is not SSH.
pub(super) struct SshSessions {
    pub(super) session: SessionConfig,
    pub(super) credentials: watch::Receiver<Arc<Credentials>>,
    muxes: RefCell<Vec<Rc<dyn Mux>>>,
}

impl SshSessions {
    /// Creates the sessions; `None`: the process has no SSH keys.
    pub(super) fn new(session: SessionConfig, worker: &Worker) -> Option<Self> {
        Some(Self {
            session,
            credentials: worker.ssh_credentials.clone()?,
            muxes: RefCell::default(),
        })
    }

    pub(super) fn add(&self, mux: &Rc<dyn Mux>) {
        self.muxes.borrow_mut().push(Rc::clone(mux));
    }

    pub(super) fn remove(&self, mux: &Rc<dyn Mux>) {
        self.muxes.borrow_mut().retain(|one| !Rc::ptr_eq(one, mux));
    }

    pub(super) fn has(&self, mux: &Rc<dyn Mux>) -> bool {
        self.muxes.borrow().iter().any(|one| Rc::ptr_eq(one, mux))
    }

    pub(super) fn all(&self) -> Vec<Rc<dyn Mux>> {
        self.muxes.borrow().clone()
    }
}

/// Authenticates an SSH client. `source` is the address that the limiter counts; `None`: the
/// connection has no client address.
pub(super) async fn greet(exit: Rc<Exit>, tcp: Box<dyn Transport>, source: Option<IpAddr>) {
    let peer = tcp.peer();
    if exit.is_closed() {
        return;
    }
    let in_force = exit.ssh.as_ref().map(|ssh| &ssh.credentials);
    let in_force = in_force.unwrap_or(&exit.worker.credentials);
    let credentials = Arc::clone(&in_force.borrow());
    let settings = Settings::new(&exit.session);
    // A client sends its first message at once, so a hidden round trip costs only half of its time.
    let names = Patience::fixed(patience(NAMES_MAX, tcp.round_trip().unwrap_or_default()));
    let logged_in = {
        let login = pin!(async { ssh::accept(tcp, credentials.ssh()?, settings, &names).await });
        exit.prove(source, login, is_failure).await
    };
    match logged_in {
        Ok(connection) => exit.admit_ssh(connection),
        Err(error) => exit.refused(Code::CarrierRefused, &peer, &error),
    }
}

impl Exit {
    fn admit_ssh(self: &Rc<Self>, connection: Connection) {
        let carrier = Carrier::Ssh(connection.clone());
        let Some(place) = self.place(carrier.identity(), Use::First) else {
            let close = async move { connection.close("too many connections").await };
            drop(tokio::task::spawn_local(close));
            return;
        };
        if let Err(error) = self.take_up(carrier, Vec::new(), None, place) {
            tracing::warn!(%error, "Cannot set up a carrier");
        }
    }
}
