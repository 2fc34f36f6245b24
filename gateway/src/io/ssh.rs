//! SSH (RFC 4251): connections that have their own channels, keys and encryption.
//!
//! russh implements the protocol in a separate task. This module adds the permitted logins
//! ([`credentials`]), the transport below ([`wire`]), and bounds that the library does not provide
//! ([`channels`]).
//!
//! This module must not depend on sessions or local ends.

mod authorized;
pub(crate) mod channels;
mod client;
mod credentials;
pub(crate) mod events;
mod known_hosts;
mod lines;
#[cfg(any(test, feature = "oracles"))]
pub(crate) mod oracle;
mod server;
mod settings;
mod user_keys;
mod wire;

use std::cell::RefCell;
use std::io::{Error, ErrorKind, Result};
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use muxtunnel_gateway_config::status::CarrierTransport;
use muxtunnel_proto::patience;
use parking_lot::Mutex;
use russh::keys::PrivateKeyWithHashAlg;
use russh::{ChannelOpenFailure, Disconnect};
use tokio::sync::{mpsc, oneshot};

use crate::base::path::PathProbe;
use crate::base::patience::{Elapsed, Patience};
use crate::base::telemetry::CarrierStats;
use crate::io::proof::Proof;
use crate::io::transport::{Path, Transport};
use channels::{Chan, End, Shared};
use client::Client;
pub(crate) use credentials::Keys;
use events::{EVENTS_MAX, Event, Half};
use server::Server;
pub(crate) use settings::Settings;
use wire::Wire;

/// Maximum time for a client's login on ordinary paths. A user may have to type a passphrase.
pub(crate) const LOGIN_MAX: Duration = Duration::from_secs(60);
/// Maximum time for the exchange of identification strings on ordinary paths. This exchange is the
/// first step of an unknown client.
pub(crate) const NAMES_MAX: Duration = Duration::from_secs(5);

/// Maximum time for the refusal of a connection.
const CLOSE_MAX: Duration = Duration::from_millis(500);

/// A connection whose peer has proved its identity.
#[derive(Debug, Clone)]
pub(crate) struct Connection(Rc<Inner>);

#[derive(Debug)]
struct Inner {
    wire: Wire,
    shared: Arc<Shared>,
    events: RefCell<Option<mpsc::Receiver<Event>>>,
    handle: Handle,
    proof: Proof,
    is_own: bool,
}

enum Handle {
    Server(russh::server::Handle),
    Client(Box<russh::client::Handle<Client>>),
}

impl std::fmt::Debug for Handle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Server(_) => "Server",
            Self::Client(_) => "Client",
        })
    }
}

/// Why a channel could not be opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum NoChannel {
    /// The peer refused the channel with this code.
    Refused(u32),
    /// The connection has ended.
    Lost,
}

impl From<russh::Error> for NoChannel {
    fn from(error: russh::Error) -> Self {
        match error {
            russh::Error::ChannelOpenFailure(failure) => Self::Refused(failure.code()),
            _ => Self::Lost,
        }
    }
}

impl Connection {
    /// The peer's proof of identity.
    pub(crate) fn proof(&self) -> &Proof {
        &self.0.proof
    }

    /// The peer's address.
    pub(crate) fn peer(&self) -> String {
        self.0.wire.transport.peer()
    }

    /// The transport that carries the connection.
    pub(crate) fn runs_on(&self) -> CarrierTransport {
        self.0.wire.transport.runs_on()
    }

    /// The path of the transport.
    pub(crate) fn path(&self) -> Option<&dyn Path> {
        self.0.wire.transport.path()
    }

    /// The round trip time of the path; zero: unknown.
    pub(crate) fn round_trip(&self) -> Duration {
        self.0.wire.transport.round_trip().unwrap_or_default()
    }

    /// Asks the peer for an answer, and waits for it. A server, whose library has no such request,
    /// waits for the regular probes.
    pub(crate) async fn ping(&self) {
        match &self.0.handle {
            // The end of the connection is reported elsewhere.
            Handle::Client(handle) => drop(handle.send_ping().await),
            Handle::Server(_) => {}
        }
    }

    /// A probe of the path for another thread; `None`: the path is unknown.
    ///
    /// # Errors
    /// The system's error.
    pub(crate) fn probe(&self) -> Result<Option<Box<dyn PathProbe>>> {
        self.path().map(Path::probe).transpose()
    }

    /// Whether the peer identifies itself as a MuxTunnel gateway.
    pub(crate) fn is_own(&self) -> bool {
        self.0.is_own
    }

    /// The state that the connection's tasks share.
    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.0.shared
    }

    /// Counts the transferred bytes in `stats`.
    pub(crate) fn count_in(&self, stats: Arc<CarrierStats>) {
        self.0.wire.count_in(stats);
    }

    /// Returns the receiver of the peer's requests. Call this once.
    pub(crate) fn events(&self) -> Option<mpsc::Receiver<Event>> {
        self.0.events.take()
    }

    /// Sends the peer the reason, within a time limit, and closes the connection.
    pub(crate) async fn close(&self, text: &str) {
        let last_word = async {
            self.disconnect(text).await;
            self.linger().await;
        };
        let _ = tokio::time::timeout(CLOSE_MAX, last_word).await;
        self.shut();
    }

    /// Waits until the peer has received the last bytes of a connection that has ended, and has
    /// closed it too.
    pub(crate) async fn linger(&self) {
        self.0.wire.ended().await;
    }

    /// Sends the peer the reason, and ends the connection.
    pub(crate) async fn disconnect(&self, text: &str) {
        let (reason, text) = (Disconnect::ByApplication, text.to_owned());
        // This fails if the connection has ended.
        let _ = match &self.0.handle {
            Handle::Server(handle) => handle.disconnect(reason, text, String::new()).await,
            Handle::Client(handle) => handle.disconnect(reason, &text, "").await,
        };
    }

    /// Closes the connection at once.
    pub(crate) fn shut(&self) {
        self.0.wire.shut();
    }

    /// Opens a channel to `host`. The message names 127.0.0.1 and port 0 as the originator, and so
    /// hides the client's address.
    ///
    /// # Errors
    /// [`NoChannel`].
    pub(crate) async fn open_tcp(
        &self,
        host: &str,
        port: u16,
    ) -> std::result::Result<Opened, NoChannel> {
        let Handle::Client(handle) = &self.0.handle else {
            return Err(NoChannel::Refused(events::PROHIBITED));
        };
        let opened = handle.channel_open_direct_tcpip(host, port.into(), "127.0.0.1", 0);
        self.opened(Half::of_client(opened.await?))
    }

    /// Opens a channel to a Unix socket.
    ///
    /// # Errors
    /// [`NoChannel`].
    pub(crate) async fn open_unix(&self, path: &str) -> std::result::Result<Opened, NoChannel> {
        let Handle::Client(handle) = &self.0.handle else {
            return Err(NoChannel::Refused(events::PROHIBITED));
        };
        let opened = handle.channel_open_direct_streamlocal(path).await?;
        self.opened(Half::of_client(opened))
    }

    /// Opens a channel for a connection to a listener that the peer requested.
    ///
    /// # Errors
    /// [`NoChannel`].
    pub(crate) async fn open_forwarded(
        &self,
        address: &str,
        port: u16,
    ) -> std::result::Result<Opened, NoChannel> {
        let Handle::Server(handle) = &self.0.handle else {
            return Err(NoChannel::Refused(events::PROHIBITED));
        };
        let opened = handle.channel_open_forwarded_tcpip(address, port.into(), "127.0.0.1", 0);
        self.opened(Half::of_server(opened.await?))
    }

    fn opened(
        &self,
        (id, half, receiver): (u32, Half, russh::ChannelReadHalf),
    ) -> std::result::Result<Opened, NoChannel> {
        // The shared state of the channel receives the payload instead.
        drop(receiver);
        let chan = self.0.shared.get(id).ok_or(NoChannel::Lost)?;
        Ok((half, chan))
    }

    /// Requests that the peer listens. Returns the port.
    ///
    /// # Errors
    /// The peer refused, or the connection has ended.
    pub(crate) async fn listen(
        &self,
        address: &str,
        port: u16,
    ) -> std::result::Result<u16, NoChannel> {
        let Handle::Client(handle) = &self.0.handle else {
            return Err(NoChannel::Refused(events::PROHIBITED));
        };
        match handle.tcpip_forward(address, port.into()).await {
            Ok(0) => Ok(port),
            Ok(chosen) => {
                u16::try_from(chosen).map_err(|_| NoChannel::Refused(events::CONNECT_FAILED))
            }
            Err(russh::Error::RequestDenied) => Err(NoChannel::Refused(events::PROHIBITED)),
            Err(_) => Err(NoChannel::Lost),
        }
    }

    /// Ends a listener at the peer.
    pub(crate) async fn unlisten(&self, address: &str, port: u16) {
        if let Handle::Client(handle) = &self.0.handle {
            // If the request fails, the listener ends with the connection.
            let _ = handle.cancel_tcpip_forward(address, port.into()).await;
        }
    }
}

/// A channel that the peer accepted.
pub(crate) type Opened = (Half, Arc<Chan>);

/// Waits for a client's login on `transport`, within [`LOGIN_MAX`] on ordinary paths. `names` is
/// the time limit for the client's first message.
///
/// # Errors
/// No permitted client logged in.
pub(crate) async fn accept(
    transport: Box<dyn Transport>,
    keys: Arc<Keys>,
    settings: Settings,
    names: &Patience,
) -> Result<Connection> {
    let source = address_of(&transport.peer());
    let round_trip = transport.round_trip().unwrap_or_default();
    let config = settings.server(keys.private.clone(), keys.algorithms, round_trip);
    let (sender, events) = mpsc::channel(EVENTS_MAX);
    let shared = Shared::new(settings.held_max as usize);
    let (wire, pipe) = Wire::new(transport.into(), &shared);
    let problem = Arc::<Mutex<Option<String>>>::default();
    let (told, logged_in) = oneshot::channel();
    let handler = Server {
        shared: Arc::clone(&shared),
        events: sender,
        keys,
        source,
        logged_in: Some(told),
        problem: Arc::clone(&problem),
        login: None,
        offers: 0,
    };
    let running = russh::server::run_stream(config, pipe, handler);
    let running = within(names, "identification", running)
        .await?
        .map_err(failed)?;
    let handle = Handle::Server(running.handle());
    let ending = Arc::clone(&shared);
    drop(tokio::task::spawn_local(async move {
        ending.end(match running.await {
            Ok(()) => End::Closed,
            Err(error) => (&error).into(),
        });
    }));
    let login = Patience::fixed(patience(LOGIN_MAX, round_trip));
    let Ok((proof, id)) = within(&login, "login", logged_in).await? else {
        let why = problem.lock().take();
        return Err(match (why, shared.ended().await) {
            (Some(why), _) => denied(why),
            (None, End::Closed) => failed(russh::Error::Disconnect),
            (None, End::Violation(why) | End::Failed(why)) => {
                Error::new(ErrorKind::InvalidData, why)
            }
        });
    };
    wire.logged_in();
    Ok(Connection(Rc::new(Inner {
        wire,
        shared,
        events: RefCell::new(Some(events)),
        handle,
        proof,
        is_own: id.starts_with(settings::OWN_ID_PREFIX),
    })))
}

/// Logs in on `transport`, which is connected to `host`. `patience` is the time limit.
///
/// # Errors
/// The host is not permitted, refused the login, or did not answer in time.
pub(crate) async fn dial(
    transport: Box<dyn Transport>,
    (host, port): (&str, Option<u16>),
    keys: Arc<Keys>,
    settings: Settings,
    patience: &Patience,
) -> Result<Connection> {
    let login = log_in(transport, (host, port), keys, settings);
    within(patience, "login", login).await?
}

async fn log_in(
    transport: Box<dyn Transport>,
    (host, port): (&str, Option<u16>),
    keys: Arc<Keys>,
    settings: Settings,
) -> Result<Connection> {
    let name = keys.host_name(host, port);
    let certificates = keys.knows_authorities(&name);
    let config = settings.client(certificates, transport.round_trip().unwrap_or_default());
    let (sender, events) = mpsc::channel(EVENTS_MAX);
    let shared = Shared::new(settings.held_max as usize);
    let (wire, pipe) = Wire::new(transport.into(), &shared);
    let host = Arc::<Mutex<client::Host>>::default();
    let handler = Client {
        shared: Arc::clone(&shared),
        events: sender,
        keys: Arc::clone(&keys),
        name,
        host: Arc::clone(&host),
    };
    let connected = russh::client::connect_stream(config, pipe, handler).await;
    let mut handle = match connected {
        Ok(handle) => handle,
        Err(error) => {
            let problem = host.lock().problem.take();
            return Err(problem.map_or_else(|| failed(error), denied));
        }
    };
    let Some(key) = keys.private.first().cloned().map(Arc::new) else {
        return Err(denied(
            "no private key for the login is configured: set security.key (--ssh-key)".to_owned(),
        ));
    };
    let user = keys.user.clone();
    let print = key.fingerprint(russh::keys::HashAlg::Sha256);
    let answer = match keys.certificate.clone() {
        Some(certificate) => {
            handle
                .authenticate_openssh_cert(user, key, certificate)
                .await
        }
        None => {
            let key = PrivateKeyWithHashAlg::new(key, None);
            handle.authenticate_publickey(user, key).await
        }
    };
    if !answer.map_err(failed)?.success() {
        let text = format!(
            "the host refuses the user {:?} with the key {print}: check that the host lists the key for this user",
            keys.user
        );
        return Err(denied(text));
    }
    wire.logged_in();
    let client::Host { proof, id, .. } = std::mem::take(&mut *host.lock());
    let proof = proof.ok_or_else(|| denied("the host did not prove its identity".to_owned()))?;
    Ok(Connection(Rc::new(Inner {
        wire,
        shared,
        events: RefCell::new(Some(events)),
        handle: Handle::Client(Box::new(handle)),
        proof,
        is_own: id.starts_with(settings::OWN_ID_PREFIX),
    })))
}

async fn within<T>(patience: &Patience, what: &str, future: impl Future<Output = T>) -> Result<T> {
    let mut future = pin!(future);
    let done = patience.within(future.as_mut()).await;
    done.map_err(|Elapsed(time)| {
        let text = format!("no SSH {what} within {} s", time.as_secs());
        Error::new(ErrorKind::TimedOut, text)
    })
}

fn failed(error: russh::Error) -> Error {
    match error {
        russh::Error::IO(error) => error,
        russh::Error::Disconnect | russh::Error::HUP => {
            let text = "the peer closed the connection during the login";
            Error::new(ErrorKind::UnexpectedEof, text)
        }
        error => Error::new(ErrorKind::InvalidData, error),
    }
}

fn denied(text: String) -> Error {
    Error::new(ErrorKind::PermissionDenied, text)
}

/// The IP address in `addr:port`; `None`: the text has another form.
fn address_of(peer: &str) -> Option<IpAddr> {
    let address = peer.parse::<SocketAddr>();
    address.ok().map(|address| address.ip())
}

/// The result of a future that completes without waiting; `None`: the future would wait.
pub(super) fn at_once<T>(future: impl Future<Output = T>) -> Option<T> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => Some(value),
        Poll::Pending => None,
    }
}

/// Describes the code with which a peer refused a channel.
pub(crate) fn reason_of(code: u32) -> String {
    let failure = match code {
        events::PROHIBITED => ChannelOpenFailure::AdministrativelyProhibited,
        events::CONNECT_FAILED => ChannelOpenFailure::ConnectFailed,
        events::RESOURCE_SHORTAGE => ChannelOpenFailure::ResourceShortage,
        code => return format!("code {code}"),
    };
    failure.description().to_lowercase()
}
