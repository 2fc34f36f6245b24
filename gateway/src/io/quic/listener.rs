//! Incoming connections on one worker's socket of the port.
//!
//! A connection that is not accepted yet costs the memory of the packets that quinn stores for this
//! connection: at most [`INCOMING_BYTES`] for each of [`INCOMING_MAX`] connections, and at most
//! [`INCOMING_BYTES_ALL`] for all of them.

use std::io::{Error, Result};
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;

use muxtunnel_gateway_config::SessionConfig;
use quinn::crypto::rustls::QuicServerConfig;
use quinn::{
    Endpoint, EndpointConfig, Incoming, ServerConfig, TokioRuntime, ValidationTokenConfig,
};

use super::steering::Ids;
use super::{Connection, Settings, in_time, invalid};
use crate::base::patience::Patience;
use crate::io::local_socket::canonical;
use crate::io::security::Credentials;
use crate::io::transport::Side;

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

/// The listener of one worker.
#[derive(Debug)]
pub(crate) struct Listener {
    endpoint: Endpoint,
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
        (worker, workers): (usize, usize),
        (config, carriers_max): (&SessionConfig, usize),
        credentials: &Credentials,
    ) -> Result<Self> {
        let settings = Settings::new(config);
        let ids = Ids {
            worker: u8::try_from(worker).unwrap_or_default(),
            workers: u8::try_from(workers).unwrap_or(u8::MAX),
        };
        let reset_key = credentials.quic_reset_key(socket.local_addr()?)?;
        let mut endpoint = EndpointConfig::new(Arc::new(reset_key));
        endpoint.cid_generator(move || Box::new(ids));
        let server = server(credentials, &settings)?;
        let runtime = Arc::new(TokioRuntime);
        Ok(Self {
            endpoint: Endpoint::new(endpoint, Some(server), socket, runtime)?,
            settings,
            connections_max: carriers_max + ENDING_MAX,
        })
    }

    /// Returns the next connection; `None`: no further connections will arrive.
    pub(crate) async fn next(&self) -> Option<Attempt> {
        loop {
            let incoming = self.endpoint.accept().await?;
            if self.endpoint.open_connections() >= self.connections_max {
                // The client soon sends its first packet again, and a connection may have ended by
                // then.
                incoming.ignore();
                continue;
            }
            return Some(Attempt {
                incoming,
                settings: self.settings.clone(),
            });
        }
    }
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
        let server = server(credentials, &self.settings)?;
        let accepted = self.incoming.accept_with(Arc::new(server));
        let quic = in_time(patience, accepted.map_err(Error::from)?).await?;
        let made = (quic, &self.settings);
        Connection::proved(made, credentials, Side::Accepts, "")
    }
}

fn server(credentials: &Credentials, settings: &Settings) -> Result<ServerConfig> {
    let crypto = QuicServerConfig::try_from(credentials.quic_server(settings.protocol())?)
        .map_err(invalid)?;
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
    Ok(server)
}
