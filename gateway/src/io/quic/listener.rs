//! Incoming connections on one worker's socket of the port.
//!
//! quinn's endpoint is a task that ends if receiving fails, and every connection ends with it. The
//! listener then creates another endpoint on the same socket. The socket stays open, so the kernel
//! still leads the same datagrams to it ([`super::steering`]).
//!
//! A connection that is not accepted yet costs the memory of the packets that quinn stores for this
//! connection: at most [`INCOMING_BYTES`] for each of [`INCOMING_MAX`] connections, and at most
//! [`INCOMING_BYTES_ALL`] for all of them.

use std::cell::{Cell, RefCell};
use std::io::{Error, Result};
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use muxtunnel_gateway_config::SessionConfig;
use quinn::crypto::rustls::QuicServerConfig;
use quinn::{
    AsyncUdpSocket, Endpoint, EndpointConfig, Incoming, Runtime, ServerConfig, TokioRuntime,
    ValidationTokenConfig,
};
use tokio::time::Instant;

use super::steering::Ids;
use super::strangers::ListenerSocket;
use super::{Connection, Settings, in_time, invalid};
use crate::base::patience::Patience;
use crate::io::local_socket::canonical;
use crate::io::security::Credentials;
use crate::io::transport::{Chosen, Part};

/// Maximum number of connections that wait to be accepted, like a listener's backlog.
const INCOMING_MAX: usize = 1024;
/// Maximum number of bytes that each waiting connection may send.
const INCOMING_BYTES: u64 = 16 << 10;
/// Maximum number of bytes that all waiting connections may send together.
const INCOMING_BYTES_ALL: u64 = 1 << 20;

/// Number of connections in addition to the carriers of all workers: connections in their
/// handshake, and closed connections. A closed connection remains for three times the probe timeout
/// (RFC 9000, section 10.2).
const ENDING_MAX: usize = 512;

/// Minimum interval of stateless resets, of all sources together.
const RESET_EVERY: Duration = Duration::from_millis(20);
/// Pause before a failed endpoint is replaced.
const REPLACE_PAUSE: Duration = Duration::from_millis(100);
/// Maximum number of consecutive failures of the endpoint, without a connection in between. A
/// failure that lasts needs a new socket, thus a new process.
const FAILURES_MAX: u32 = 50;
/// An endpoint that ran this long did not fail because of the previous failure.
const STABLE_AFTER: Duration = Duration::from_secs(60);

/// The listener of one worker.
#[derive(Debug)]
pub(crate) struct Listener {
    endpoint: RefCell<Endpoint>,
    since: Cell<Instant>,
    failures: Cell<u32>,
    socket: Arc<ListenerSocket>,
    config: EndpointConfig,
    server: ServerConfig,
    settings: Settings,
    connections_max: usize,
}

impl Listener {
    /// Listens on `socket`, which belongs to `worker`. Call this function on that worker.
    ///
    /// # Errors
    /// The system's error, or an error if the credentials are not for an accepting side.
    pub(crate) fn new(
        socket: UdpSocket,
        place: (usize, usize),
        bounds: (&SessionConfig, usize),
        credentials: &Credentials,
    ) -> Result<Self> {
        let socket = TokioRuntime.wrap_udp_socket(socket)?;
        Self::on(socket, place, bounds, credentials)
    }

    /// Works as [`Self::new`], on a socket of the event loop.
    ///
    /// # Errors
    /// The errors of [`Self::new`].
    pub(super) fn on(
        socket: Arc<dyn AsyncUdpSocket>,
        (worker, workers): (usize, usize),
        (session, carriers_max): (&SessionConfig, usize),
        credentials: &Credentials,
    ) -> Result<Self> {
        let settings = Settings::new(session);
        let key = credentials.quic_reset_key(socket.local_addr()?)?;
        let ids = Ids {
            worker: u8::try_from(worker).unwrap_or_default(),
            workers: u8::try_from(workers).unwrap_or(u8::MAX),
            key: key.clone(),
        };
        let mut config = EndpointConfig::new(Arc::new(key));
        config
            .cid_generator(move || Box::new(ids.clone()))
            .min_reset_interval(RESET_EVERY);
        let (server, _) = server(credentials, &settings)?;
        let socket = ListenerSocket::new(socket);
        Ok(Self {
            endpoint: RefCell::new(endpoint(&config, &server, &socket)?),
            since: Cell::new(Instant::now()),
            failures: Cell::new(0),
            socket,
            config,
            server,
            settings,
            connections_max: carriers_max + ENDING_MAX,
        })
    }

    /// The listening address.
    ///
    /// # Errors
    /// The system's error.
    pub(crate) fn address(&self) -> Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Returns the next connection.
    ///
    /// # Errors
    /// The socket's error, if the socket can no longer be used.
    pub(crate) async fn next(&self) -> Result<Attempt> {
        loop {
            let endpoint = self.endpoint.borrow().clone();
            let Some(incoming) = endpoint.accept().await else {
                self.replace_endpoint().await?;
                continue;
            };
            self.failures.set(0);
            if endpoint.open_connections() >= self.connections_max {
                // The client soon sends its first packet again, and a connection may have ended by
                // then.
                incoming.ignore();
                continue;
            }
            return Ok(Attempt {
                incoming,
                settings: self.settings.clone(),
            });
        }
    }

    /// Replaces an endpoint whose task has ended.
    async fn replace_endpoint(&self) -> Result<()> {
        let error = self.socket.take_failure();
        let failures = match self.since.get().elapsed() < STABLE_AFTER {
            true => self.failures.get() + 1,
            false => 1,
        };
        self.failures.set(failures);
        if failures > FAILURES_MAX {
            return Err(error);
        }
        tracing::error!(%error, failures, "The QUIC listener has failed, and its connections have ended; it starts again");
        tokio::time::sleep(REPLACE_PAUSE).await;
        let endpoint = endpoint(&self.config, &self.server, &self.socket)?;
        self.endpoint.replace(endpoint);
        self.since.set(Instant::now());
        Ok(())
    }
}

fn endpoint(
    config: &EndpointConfig,
    server: &ServerConfig,
    socket: &Arc<ListenerSocket>,
) -> Result<Endpoint> {
    let (config, server) = (config.clone(), Some(server.clone()));
    let socket: Arc<dyn AsyncUdpSocket> = Arc::clone(socket) as _;
    Endpoint::new_with_abstract_socket(config, server, socket, Arc::new(TokioRuntime))
}

/// A connection that is not accepted yet.
#[derive(Debug)]
pub(crate) struct Attempt {
    incoming: Incoming,
    settings: Settings,
}

impl Attempt {
    /// The client's claimed address.
    pub(crate) fn peer(&self) -> SocketAddr {
        canonical(self.incoming.remote_address())
    }

    /// Whether the address has been verified.
    pub(crate) fn is_validated(&self) -> bool {
        self.incoming.remote_address_validated()
    }

    /// Requires the client to prove its address, before the listener stores any state (RFC 9000,
    /// section 8.1.2).
    pub(crate) fn retry(self) {
        // The call fails if the client has already proved its address. The client then tries again.
        let _ = self.incoming.retry();
    }

    /// Refuses the client.
    pub(crate) fn refuse(self) {
        self.incoming.refuse();
    }

    /// Verifies the client. `patience` is the time limit.
    ///
    /// # Errors
    /// The client did not prove its identity in time.
    pub(crate) async fn secure(
        self,
        credentials: &Credentials,
        patience: &Patience,
    ) -> Result<Connection> {
        let (server, chosen) = server(credentials, &self.settings)?;
        let accepted = self.incoming.accept_with(Arc::new(server));
        let quic = in_time(patience, accepted.map_err(Error::from)?).await?;
        let made = (quic, &self.settings);
        let connection = Connection::proved(made, credentials, Part::Accepts, "")?;
        Ok(connection.presenting(&chosen))
    }
}

/// The configuration for one connection, and the public key that the connection will present.
fn server(credentials: &Credentials, settings: &Settings) -> Result<(ServerConfig, Chosen)> {
    let (config, chosen) = credentials.quic_server(settings.protocol())?;
    let crypto = QuicServerConfig::try_from(config).map_err(invalid)?;
    let mut server = ServerConfig::with_crypto(Arc::new(crypto));
    let mut tokens = ValidationTokenConfig::default();
    // No tokens for later connections: each connection proves its address by its own handshake or
    // by a retry.
    tokens.sent(0);
    server
        .transport_config(settings.transport())
        .validation_token_config(tokens)
        .max_incoming(INCOMING_MAX)
        .incoming_buffer_size(INCOMING_BYTES)
        .incoming_buffer_size_total(INCOMING_BYTES_ALL);
    Ok((server, chosen))
}
