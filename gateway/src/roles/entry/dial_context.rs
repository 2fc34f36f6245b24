//! How an entry establishes a carrier: it connects to the peer and verifies the peer's identity.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use muxtunnel_gateway_config::status::CarrierTransport;
use muxtunnel_gateway_config::{Exits, Protocol, WebSocket};
use tokio::sync::watch;

use super::ways::Ways;
use crate::io::carrier::Carrier;
use crate::io::security::{Credentials, PROOF_MAX};
use crate::io::transport::{self, Side, Transport, Upgrade};
use crate::io::{quic, ssh};
use crate::net::egress::{Address, COMMAND_TIMEOUT, Egress};
use crate::net::race::Reached;
use crate::roles::network::Network;
use crate::roles::rendezvous::leaf::Leaf;

/// The context in which an entry dials its carriers.
#[derive(Clone)]
pub(super) struct DialContext {
    pub(super) credentials: watch::Receiver<Arc<Credentials>>,
    pub(super) protocol: Protocol,
    pub(super) web_socket: Option<WebSocket>,
    /// The transports of carriers.
    pub(super) ways: Rc<Ways>,
    /// Settings of QUIC connections.
    pub(super) quic: quic::Settings,
    /// Settings of SSH connections.
    pub(super) ssh: ssh::Settings,
    pub(super) exits: Exits,
    /// Connects to addresses.
    pub(super) egress: Egress,
    /// The network whose TUN interface the carriers must not use.
    pub(super) network: Option<Rc<Network>>,
    /// The credentials for the rendezvous, if the exit is reached through a rendezvous.
    pub(super) leaf: Option<Leaf>,
}

impl DialContext {
    /// The names of the exits, and of the fallback that is dialled if no exit answers. An exit that
    /// is reached through a command has no name.
    pub(super) fn names(&self) -> (&str, Option<&str>) {
        match &self.exits {
            Exits::Addresses { connect, fallback } => (connect, fallback.as_deref()),
            Exits::Command(_) => ("", None),
        }
    }

    /// The name of the exits in log messages.
    pub(super) fn label(&self) -> String {
        match &self.exits {
            Exits::Addresses { connect, .. } => connect.clone(),
            Exits::Command(words) => transport::command_name(words),
        }
    }

    /// Resolves `names`, which come from [`Self::names`].
    ///
    /// # Errors
    /// The errors of [`Egress::addresses`].
    pub(super) async fn addresses(&self, names: &str) -> std::io::Result<Vec<Address>> {
        match &self.exits {
            Exits::Addresses { .. } => {
                let addresses = self.egress.addresses(names).await?;
                if let Some(network) = &self.network {
                    let resolved = addresses.iter().filter_map(Address::ip);
                    resolved.for_each(|address| network.is_dialled(address));
                }
                Ok(addresses)
            }
            Exits::Command(_) => Ok(vec![Address::unresolved(&self.label())]),
        }
    }

    /// Whether `names` is a single endpoint that no name server can expand.
    pub(super) fn is_single(&self, names: &str) -> bool {
        match self.exits {
            Exits::Addresses { .. } => self.egress.is_single(names),
            Exits::Command(_) => true,
        }
    }

    async fn open(
        &self,
        exit: &Address,
        by: CarrierTransport,
    ) -> std::io::Result<Box<dyn Transport>> {
        match &self.exits {
            Exits::Addresses { .. } => match by {
                CarrierTransport::Kcp => self.egress.kcp(exit).await,
                CarrierTransport::WebSocket => self.egress.open_for_requests(exit).await,
                _ => self.egress.open(exit).await,
            },
            Exits::Command(words) => transport::start_command(words),
        }
    }

    /// Maximum time for the peer to authenticate.
    const fn proof_timeout(&self) -> Duration {
        match self.exits {
            Exits::Addresses { .. } => PROOF_MAX,
            Exits::Command(_) => COMMAND_TIMEOUT,
        }
    }
}

/// Connects to `exit`, or to the exit at the rendezvous, and verifies the exit's identity. Returns
/// the connection and its transport. Reports to `reached` when a transport is connected.
pub(super) async fn connect(
    exit: &Address,
    dial_context: &DialContext,
    reached: &Reached,
) -> std::io::Result<(CarrierTransport, Carrier)> {
    let dial = |by| connect_by(by, exit, dial_context, reached);
    dial_context.ways.dial(dial).await
}

/// Works as [`connect`], over the transport `by`. A protocol with its own transport ignores `by`.
pub(super) async fn connect_by(
    by: CarrierTransport,
    exit: &Address,
    dial_context: &DialContext,
    reached: &Reached,
) -> std::io::Result<Carrier> {
    if !dial_context.protocol.can().bytes {
        return datagrams(exit, dial_context).await;
    }
    let below = match &dial_context.leaf {
        Some(leaf) => {
            let mut tcp = dial_context.egress.tcp(exit).await?;
            leaf.visit(&mut tcp).await?;
            dial_context.egress.carried(tcp, exit)
        }
        None => dial_context.open(exit, by).await?,
    };
    reached.report();
    let credentials = Arc::clone(&dial_context.credentials.borrow());
    if dial_context.protocol == Protocol::Ssh {
        let to = (exit.host(), exit.port());
        let (keys, within) = (credentials.ssh()?, dial_context.proof_timeout());
        let dialled = ssh::dial(below, to, keys, dial_context.ssh, within);
        return dialled.await.map(Carrier::Ssh);
    }
    let upgrade = match &dial_context.web_socket {
        Some(web_socket) if by == CarrierTransport::WebSocket => Upgrade::Always(web_socket),
        _ => Upgrade::Never,
    };
    let runs = (dial_context.protocol, upgrade);
    let within = dial_context.proof_timeout();
    let secured = credentials.secure(below, Side::Dials, exit.host(), runs, within);
    secured.await.map(Carrier::Bytes)
}

/// Works as [`connect_by`], over UDP.
async fn datagrams(exit: &Address, dial_context: &DialContext) -> std::io::Result<Carrier> {
    let to = exit.ip().ok_or_else(|| {
        let text = format!("{exit} is not HOST:PORT, which QUIC requires");
        std::io::Error::new(std::io::ErrorKind::InvalidInput, text)
    })?;
    let credentials = Arc::clone(&dial_context.credentials.borrow());
    let (settings, within) = (&dial_context.quic, dial_context.proof_timeout());
    let dialled = quic::dial(to, exit.host(), &credentials, settings, within);
    dialled.await.map(Carrier::Quic)
}
