//! How an entry makes a carrier: the connection, and the proof of who is at its other end.

use std::sync::Arc;

use muxtunnel_gateway_config as config;
use tokio::sync::watch;

use crate::io::security::Credentials;
use crate::io::transport::{Side, Transport};
use crate::net::egress::{Address, Egress};
use crate::roles::rendezvous::leaf::Leaf;

/// What every carrier of an entry is made with.
#[derive(Clone)]
pub(super) struct DialContext {
    pub(super) credentials: watch::Receiver<Arc<Credentials>>,
    pub(super) web_socket: Option<config::WebSocket>,
    pub(super) egress: Egress,
    /// The exit is visited at a rendezvous.
    pub(super) leaf: Option<Leaf>,
}

/// Connects to `exit`, or to the one that is visited at this rendezvous, and has it prove who it is.
pub(super) async fn connect(
    exit: &Address,
    dial_context: &DialContext,
) -> std::io::Result<Box<dyn Transport>> {
    let below = match &dial_context.leaf {
        Some(leaf) => {
            let mut tcp = dial_context.egress.tcp(exit).await?;
            leaf.visit(&mut tcp).await?;
            dial_context.egress.carried(tcp, exit)
        }
        None => dial_context.egress.open(exit).await?,
    };
    let credentials = Arc::clone(&dial_context.credentials.borrow());
    let (host, web_socket) = (exit.host(), dial_context.web_socket.as_ref());
    let within = dial_context.egress.proof_timeout();
    let secured = credentials.secure(below, Side::Dials, host, web_socket, within);
    secured.await
}
