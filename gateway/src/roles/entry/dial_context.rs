//! How an entry establishes a carrier: it connects to the peer and verifies the peer's identity.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use muxtunnel_gateway_config::status::CarrierTransport;
use muxtunnel_gateway_config::{Exits, Protocol, WebSocket};
use muxtunnel_proto::patience;
use tokio::sync::watch;
use tokio::time::Instant;

use super::ways::Ways;
use crate::base::patience::Patience;
use crate::io::carrier::Carrier;
use crate::io::security::{Credentials, PROOF_MAX};
#[cfg(feature = "connect-command")]
use crate::io::transport;
use crate::io::transport::{Side, Transport, Upgrade};
use crate::io::{quic, ssh};
#[cfg(feature = "connect-command")]
use crate::net::egress::COMMAND_TIMEOUT;
use crate::net::egress::{Address, Egress, Step};
use crate::net::race::Reached;
use crate::roles::network::Network;
use crate::roles::rendezvous::leaf::{Leaf, MEET_MAX};

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
            #[cfg(feature = "connect-command")]
            Exits::Command(_) => ("", None),
        }
    }

    /// The name of the exits in log messages.
    pub(super) fn label(&self) -> String {
        match &self.exits {
            Exits::Addresses { connect, .. } => connect.clone(),
            #[cfg(feature = "connect-command")]
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
            #[cfg(feature = "connect-command")]
            Exits::Command(_) => Ok(vec![Address::unresolved(&self.label())]),
        }
    }

    /// Whether `names` is a single endpoint that no name server can expand.
    pub(super) fn is_single(&self, names: &str) -> bool {
        match self.exits {
            Exits::Addresses { .. } => self.egress.is_single(names),
            #[cfg(feature = "connect-command")]
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
            #[cfg(feature = "connect-command")]
            Exits::Command(words) => transport::start_command(words),
        }
    }

    /// Verifies the identity of `exit` by `prove`. `took` is the time that the connection took,
    /// which includes a round trip.
    async fn proved(
        &self,
        exit: &Address,
        took: Duration,
        prove: impl AsyncFnOnce(Patience) -> std::io::Result<Carrier>,
    ) -> std::io::Result<Carrier> {
        let least = match self.exits {
            Exits::Addresses { .. } => patience(PROOF_MAX, took),
            #[cfg(feature = "connect-command")]
            Exits::Command(_) => COMMAND_TIMEOUT,
        };
        let prove = async |limit| prove(Patience::fixed(limit)).await;
        let step = (Step::Proof, exit.name());
        self.egress.waits.within(step, least, prove).await
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
    let begun = Instant::now();
    let below = match &dial_context.leaf {
        Some(leaf) => {
            let egress = &dial_context.egress;
            let mut tcp = egress.tcp(exit).await?;
            let least = patience(MEET_MAX, begun.elapsed());
            let visit = async |limit| leaf.visit(&mut tcp, limit).await;
            let step = (Step::Meet, exit.name());
            egress.waits.within(step, least, visit).await?;
            egress.carried(tcp, exit)
        }
        None => dial_context.open(exit, by).await?,
    };
    let took = begun.elapsed();
    reached.report();
    let credentials = Arc::clone(&dial_context.credentials.borrow());
    if dial_context.protocol == Protocol::Ssh {
        let to = (exit.host(), exit.port());
        let keys = credentials.ssh()?;
        let log_in = async |patience| {
            let dialled = ssh::dial(below, to, keys, dial_context.ssh, &patience);
            dialled.await.map(Carrier::Ssh)
        };
        return dial_context.proved(exit, took, log_in).await;
    }
    let upgrade = match &dial_context.web_socket {
        Some(web_socket) if by == CarrierTransport::WebSocket => Upgrade::Always(web_socket),
        _ => Upgrade::Never,
    };
    let runs = (dial_context.protocol, upgrade);
    let secure = async |patience| {
        let secured = credentials.secure(below, Side::Dials, exit.host(), runs, &patience);
        secured.await.map(Carrier::Bytes)
    };
    dial_context.proved(exit, took, secure).await
}

/// Works as [`connect_by`], over UDP.
async fn datagrams(exit: &Address, dial_context: &DialContext) -> std::io::Result<Carrier> {
    let to = exit.ip().ok_or_else(|| {
        let text = format!("{exit} is not HOST:PORT, which QUIC requires");
        std::io::Error::new(std::io::ErrorKind::InvalidInput, text)
    })?;
    let credentials = Arc::clone(&dial_context.credentials.borrow());
    let settings = &dial_context.quic;
    let dial = async |patience| {
        let dialled = quic::dial(to, exit.host(), &credentials, settings, &patience);
        dialled.await.map(Carrier::Quic)
    };
    dial_context.proved(exit, Duration::ZERO, dial).await
}
