//! Connections that come: one worker's socket on the port.
//!
//! Of a stranger a connection that is not accepted yet costs what quinn keeps of its first packet, at most
//! [`INCOMING_MAX`] of them with [`INCOMING_BYTES`] each.

use std::io::{Error, Result};
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use muxtunnel_gateway_config::SessionConfig;
use quinn::crypto::rustls::QuicServerConfig;
use quinn::{
    Endpoint, EndpointConfig, Incoming, ServerConfig, TokioRuntime, ValidationTokenConfig,
};

use super::steering::Ids;
use super::{Connection, Settings, in_time, invalid};
use crate::io::local_socket::canonical;
use crate::io::security::Credentials;
use crate::io::transport::Side;

/// Connections that wait to be accepted, as a listener's backlog.
const INCOMING_MAX: usize = 1024;
/// What each of them may send meanwhile.
const INCOMING_BYTES: u64 = 16 << 10;
/// All of them together.
const INCOMING_BYTES_ALL: u64 = 1 << 20;

/// Connections beyond the carriers of all workers: in their handshake, or closed and not forgotten, which takes three times
/// the time in which an answer is expected (RFC 9000, section 10.2).
const ENDING_MAX: usize = 512;

/// One worker's.
#[derive(Debug)]
pub(crate) struct Listener {
    endpoint: Endpoint,
    settings: Settings,
    connections_max: usize,
}

impl Listener {
    /// Takes what comes to `socket`, that of `worker`; must be called on the worker.
    ///
    /// # Errors
    /// The system's, or the credentials are none of an accepting side.
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
        let mut endpoint = EndpointConfig::default();
        endpoint.cid_generator(move || Box::new(ids));
        let server = server(credentials, &settings)?;
        let runtime = Arc::new(TokioRuntime);
        Ok(Self {
            endpoint: Endpoint::new(endpoint, Some(server), socket, runtime)?,
            settings,
            connections_max: carriers_max + ENDING_MAX,
        })
    }

    /// The next connection; `None`: there will be no more.
    pub(crate) async fn next(&self) -> Option<Attempt> {
        loop {
            let incoming = self.endpoint.accept().await?;
            if self.endpoint.open_connections() >= self.connections_max {
                // It comes again soon.
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

/// A connection that nobody has accepted yet.
#[derive(Debug)]
pub(crate) struct Attempt {
    incoming: Incoming,
    settings: Settings,
}

impl Attempt {
    /// Where it comes from, as it says.
    pub(crate) fn peer(&self) -> SocketAddr {
        canonical(self.incoming.remote_address())
    }

    /// Whether it is known to come from there.
    pub(crate) fn is_validated(&self) -> bool {
        self.incoming.remote_address_validated()
    }

    /// Has the client prove where it is before anything is kept of it (RFC 9000, section 8.1.2).
    pub(crate) fn retry(self) {
        // It fails where that was proved, and then the client tries again.
        let _ = self.incoming.retry();
    }

    /// The client learns that it is not taken.
    pub(crate) fn refuse(self) {
        self.incoming.refuse();
    }

    /// Has it prove who it is. `within`: how long that may take.
    ///
    /// # Errors
    /// It did not prove that, or not in time.
    pub(crate) async fn secure(
        self,
        credentials: &Credentials,
        within: Duration,
    ) -> Result<Connection> {
        let server = server(credentials, &self.settings)?;
        let accepted = self.incoming.accept_with(Arc::new(server));
        let quic = in_time(within, accepted.map_err(Error::from)?).await?;
        let made = (quic, &self.settings);
        Connection::proved(made, credentials, Side::Accepts, "")
    }
}

fn server(credentials: &Credentials, settings: &Settings) -> Result<ServerConfig> {
    let crypto = QuicServerConfig::try_from(credentials.quic_server(settings.protocol())?)
        .map_err(invalid)?;
    let mut server = ServerConfig::with_crypto(Arc::new(crypto));
    let mut tokens = ValidationTokenConfig::default();
    // Each connection proves where it is by its handshake, or by a retry.
    tokens.sent(0);
    server
        .transport_config(settings.transport())
        .validation_token_config(tokens)
        .max_incoming(INCOMING_MAX)
        .incoming_buffer_size(INCOMING_BYTES)
        .incoming_buffer_size_total(INCOMING_BYTES_ALL);
    Ok(server)
}
