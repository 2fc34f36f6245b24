//! Carriers that are SSH connections: the login is what others prove by their handshake.
//!
//! Each worker keeps those that come to its socket, as the library's task runs on it. So they are not passed on.

use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;

use super::{Exit, HandshakeError, Use};
use crate::io::carrier::Carrier;
use crate::io::ssh::{self, Connection, Settings};
use crate::io::transport::Transport;

/// Has a client log in. `source`: the address that the limiter counts it by; `None`: it comes from no address of a client.
pub(super) async fn greet(exit: Rc<Exit>, tcp: Box<dyn Transport>, source: Option<IpAddr>) {
    let peer = tcp.peer();
    if exit.is_closed() {
        return;
    }
    let mut permit = match exit.handover.limiter.enter(source) {
        Ok(permit) => permit,
        Err(dropped) => return exit.refused(&peer, &dropped),
    };
    let credentials = Arc::clone(&exit.worker.credentials.borrow());
    let settings = Settings::new(exit.session.memory.receive.0);
    let login = async { ssh::accept(tcp, credentials.ssh()?, settings).await };
    let logged_in = tokio::select! {
        biased;
        logged_in = login => logged_in.map_err(HandshakeError::Unproved),
        () = permit.evicted() => Err(HandshakeError::Evicted),
    };
    match &logged_in {
        Ok(_) => permit.succeeded(),
        Err(error) if error.is_failure() => permit.failed(),
        Err(_) => {}
    }
    drop(permit);
    match logged_in {
        Ok(connection) => exit.admit_ssh(connection),
        Err(error) => exit.refused(&peer, &error),
    }
}

impl Exit {
    fn admit_ssh(self: &Rc<Self>, connection: Connection) {
        let carrier = Carrier::Ssh(connection.clone());
        let Ok(place) = self.handover.admit(carrier.identity(), Use::First) else {
            let close = async move { connection.close("too many connections").await };
            drop(tokio::task::spawn_local(close));
            return self.too_many();
        };
        if let Err(error) = self.take_up(carrier, Vec::new(), None, place) {
            tracing::warn!(%error, "Carrier could not be set up");
        }
    }
}
