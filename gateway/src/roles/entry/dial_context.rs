//! How an entry establishes a carrier: it connects to the peer and verifies the peer's identity.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use muxtunnel_gateway_config::status::CarrierTransport;
use muxtunnel_gateway_config::{Connect, ConnectWebSocket, Protocol, WebSocket, WebSocketScheme};
use muxtunnel_proto::patience;
use tokio::sync::watch;
use tokio::time::Instant;

use super::levels::{Exits, label};
use super::ways::Ways;
use crate::base::patience::Patience;
use crate::io::carrier::Carrier;
use crate::io::security::{Credentials, PROOF_MAX};
#[cfg(feature = "connect-command")]
use crate::io::transport;
use crate::io::transport::{Part, To, Transport, Upgrade};
use crate::io::{quic, ssh};
#[cfg(feature = "connect-command")]
use crate::net::egress::COMMAND_TIMEOUT;
use crate::net::egress::{Address, Egress, Step};
use crate::net::race::Reached;
use crate::roles::network::Network;
use crate::roles::rendezvous::leaf::Place;

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
    pub(super) exits: Rc<Exits>,
    /// Connects to addresses.
    pub(super) egress: Egress,
    /// The network whose TUN interface the carriers must not use.
    pub(super) network: Option<Rc<Network>>,
}

impl DialContext {
    /// Resolves the exits of `level`.
    ///
    /// # Errors
    /// The errors of [`Egress::addresses`].
    pub(super) async fn addresses(&self, level: usize) -> std::io::Result<Vec<Address>> {
        self.resolve(self.exits.of_level(level)).await
    }

    /// Resolves the exit of `address` again.
    ///
    /// # Errors
    /// The errors of [`Egress::addresses`].
    pub(super) async fn addresses_of(&self, address: &Address) -> std::io::Result<Vec<Address>> {
        self.resolve(self.exits.of_address(address)).await
    }

    async fn resolve(
        &self,
        exits: impl Iterator<Item = (usize, &Connect)>,
    ) -> std::io::Result<Vec<Address>> {
        let named = |(index, exit): (usize, &Connect)| match exit.dialled() {
            Some(address) => Ok((index, address.to_owned())),
            None => Err(Address::unresolved(&label(exit)).of_exit(index)),
        };
        let (named, commands): (Vec<_>, Vec<_>) = exits.map(named).partition(Result::is_ok);
        if let Some(Err(command)) = commands.into_iter().next() {
            // A command is the only way to an exit.
            return Ok(vec![command]);
        }
        let named: Vec<_> = named.into_iter().flatten().collect();
        let named = named.iter().map(|(index, address)| (*index, &**address));
        let addresses = self.egress.addresses(named).await?;
        let meets = |address: &Address| {
            let exit = self.exits.at(address.exit());
            exit.is_some_and(|exit| exit.rendezvous.is_some())
        };
        let addresses = addresses.into_iter().map(|address| match meets(&address) {
            true => address.of_meeting(),
            false => address,
        });
        let addresses: Vec<_> = addresses.collect();
        if let Some(network) = &self.network {
            let resolved = addresses.iter().filter_map(Address::ip);
            resolved.for_each(|address| network.is_dialled(address));
        }
        Ok(addresses)
    }

    /// Whether no name server can expand the exit of `address`.
    pub(super) fn is_single(&self, address: &Address) -> bool {
        let mut exits = self.exits.of_address(address);
        exits.all(|(_, exit)| self.is_one(exit))
    }

    /// Whether `level` has one exit that no name server can expand.
    pub(super) fn has_one_exit(&self, level: usize) -> bool {
        let mut exits = self.exits.of_level(level);
        let first = exits.next();
        exits.next().is_none() && first.is_none_or(|(_, exit)| self.is_one(exit))
    }

    fn is_one(&self, exit: &Connect) -> bool {
        // A rendezvous connects to one exit, regardless of its own addresses.
        exit.rendezvous.is_some()
            || exit
                .dialled()
                .is_none_or(|address| self.egress.is_single(address))
    }

    /// The exit to which a dial of `address` leads.
    fn to<'a>(&'a self, address: &'a Address) -> To<'a> {
        let exit = self.exits.at(address.exit());
        let web_socket = exit.and_then(|exit| exit.web_socket.as_ref());
        let authority = web_socket.and_then(|web_socket| web_socket.host.as_deref());
        let is_https = |own: &&ConnectWebSocket| own.scheme == WebSocketScheme::Https;
        let https = web_socket.filter(is_https);
        To {
            exit: exit.map_or("", |exit| &exit.name),
            // The host of a rendezvous is not that of the exit.
            host: match exit {
                Some(exit) if address.is_meeting() => &exit.name,
                _ => address.host(),
            },
            authority: authority.unwrap_or_else(|| match address.port() {
                Some(_) => address.name(),
                None => "localhost",
            }),
            proxy: https.map(|_| authority.map_or(address.host(), host_of)),
        }
    }

    #[cfg(feature = "connect-command")]
    fn command(&self, address: &Address) -> Option<&[String]> {
        let exit = self.exits.at(address.exit())?;
        (!exit.command.is_empty()).then_some(&*exit.command)
    }

    async fn open(
        &self,
        exit: &Address,
        by: CarrierTransport,
    ) -> std::io::Result<Box<dyn Transport>> {
        #[cfg(feature = "connect-command")]
        if let Some(words) = self.command(exit) {
            return transport::start_command(words);
        }
        match by {
            CarrierTransport::Kcp => self.egress.kcp(exit).await,
            CarrierTransport::WebSocket => self.egress.open_for_requests(exit).await,
            _ => self.egress.open(exit).await,
        }
    }

    /// Connects to `exit` at its rendezvous.
    async fn visit(
        &self,
        exit: &Address,
        credentials: &Arc<Credentials>,
    ) -> std::io::Result<Box<dyn Transport>> {
        let name = self.exits.at(exit.exit()).map_or("", |exit| &exit.name);
        let place = Place {
            name,
            address: exit,
            egress: &self.egress,
        };
        let keys = credentials.keys().map(|keys| keys.keys_of_exit(name));
        place.visit(credentials, keys.unwrap_or_default()).await
    }

    /// Verifies the identity of `exit` by `prove`. `took` is the time that the connection took,
    /// which includes a round trip.
    async fn proved(
        &self,
        exit: &Address,
        took: Duration,
        prove: impl AsyncFnOnce(Patience) -> std::io::Result<Carrier>,
    ) -> std::io::Result<Carrier> {
        let least = patience(PROOF_MAX, took);
        #[cfg(feature = "connect-command")]
        let least = match self.command(exit) {
            Some(_) => COMMAND_TIMEOUT,
            None => least,
        };
        let prove = async |limit| prove(Patience::fixed(limit)).await;
        let step = (Step::Proof, exit.name());
        self.egress.waits.within(step, least, prove).await
    }
}

/// The host of a Host header.
fn host_of(authority: &str) -> &str {
    let end = match authority.strip_prefix('[') {
        Some(_) => authority.find(']').map(|end| end + 1),
        None => authority.rfind(':'),
    };
    let host = &authority[..end.unwrap_or(authority.len())];
    host.trim_start_matches('[').trim_end_matches(']')
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
    let credentials = Arc::clone(&dial_context.credentials.borrow());
    let below = match exit.is_meeting() {
        true => dial_context.visit(exit, &credentials).await?,
        false => dial_context.open(exit, by).await?,
    };
    let took = begun.elapsed();
    reached.report();
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
        let part = Part::Dials(dial_context.to(exit));
        let secured = credentials.secure(below, part, runs, &patience);
        secured.await.map(Carrier::Bytes)
    };
    dial_context.proved(exit, took, secure).await
}

/// Works as [`connect_by`], over UDP.
async fn datagrams(exit: &Address, dial_context: &DialContext) -> std::io::Result<Carrier> {
    let at = exit.ip().ok_or_else(|| {
        let text = format!("{exit} is not HOST:PORT, which QUIC requires");
        std::io::Error::new(std::io::ErrorKind::InvalidInput, text)
    })?;
    let credentials = Arc::clone(&dial_context.credentials.borrow());
    let settings = &dial_context.quic;
    let dial = async |patience| {
        let dialled = quic::dial(at, dial_context.to(exit), &credentials, settings, &patience);
        dialled.await.map(Carrier::Quic)
    };
    dial_context.proved(exit, Duration::ZERO, dial).await
}
