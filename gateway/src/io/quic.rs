//! QUIC (RFC 9000): connections that bring streams, flow control, recovery and TLS 1.3 of their own.
//!
//! quinn does the protocol; here is what this gateway wants of it: credentials as on TLS carriers, sockets and their
//! buffers ([`socket`]), settings ([`settings`]), and which worker a connection belongs to ([`steering`]).
//!
//! No early data (0-RTT): an attacker who records it can send it again, and a repeated open dials a target twice. It would
//! save one round trip of a connection that lives for hours.
//!
//! Must not: know sessions or streams' contents.

mod listener;
mod probe;
mod settings;
mod socket;
mod steering;

use std::io::{Error, ErrorKind, Result};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use muxtunnel_gateway_config::Protocol;
use quinn::crypto::rustls::QuicClientConfig;
use quinn::{ClientConfig, Endpoint, EndpointConfig, NoneTokenStore, TokioRuntime, VarInt};
use rustls::pki_types::CertificateDer;

use crate::base::path::PathProbe;

use super::local_socket::canonical;
use super::security::Credentials;
use super::transport::{Proof, Side};
pub(crate) use listener::{Attempt, Listener};
use probe::Probe;
pub(crate) use settings::{PACKETS_UNSENT_MAX, Settings, window};
pub(crate) use steering::steer;

/// Why a side closes a connection: the codes of CONNECTION_CLOSE (RFC 9000, section 19.19). quinn sends 0 for a connection
/// that is dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CloseCode {
    /// It was dropped.
    Dropped = 0,
    /// The session is over: a stream that has no answer was not taken.
    Done = 1,
    /// No more sessions are taken.
    GoingAway = 2,
    /// The peer broke the protocol.
    Violation = 3,
    /// The peer may not connect, or not any more.
    Refused = 4,
}

impl From<CloseCode> for VarInt {
    fn from(code: CloseCode) -> Self {
        Self::from_u32(code as u32)
    }
}

impl CloseCode {
    /// The code of `protocol`: HTTP/3 has codes of its own (RFC 9114, section 8.1).
    fn of(self, protocol: Protocol) -> VarInt {
        match (protocol, self) {
            // H3_NO_ERROR.
            (Protocol::Http3, Self::Dropped | Self::Done | Self::GoingAway) => {
                VarInt::from_u32(0x100)
            }
            // H3_GENERAL_PROTOCOL_ERROR.
            (Protocol::Http3, Self::Violation) => VarInt::from_u32(0x101),
            // H3_REQUEST_REJECTED.
            (Protocol::Http3, Self::Refused) => VarInt::from_u32(0x10b),
            (_, code) => code.into(),
        }
    }
}

/// A connection whose other end has proved who it is.
#[derive(Debug, Clone)]
pub(crate) struct Connection {
    quic: quinn::Connection,
    proof: Option<Proof>,
    congestion_control: &'static str,
    protocol: Protocol,
}

impl Connection {
    /// `name`: whom the side that dials has asked for.
    ///
    /// # Errors
    /// The other end is not who it may be.
    fn proved(
        (quic, settings): (quinn::Connection, &Settings),
        credentials: &Credentials,
        side: Side,
        name: &str,
    ) -> Result<Self> {
        let chain = quic.peer_identity().and_then(|identity| {
            let chain = identity.downcast::<Vec<CertificateDer<'static>>>();
            chain.ok().map(|chain| *chain)
        });
        match credentials.quic_proof(side, name, chain) {
            Ok(proof) => Ok(Self {
                quic,
                proof,
                congestion_control: settings.congestion_control(),
                protocol: settings.protocol(),
            }),
            Err(error) => {
                quic.close(CloseCode::Refused.of(settings.protocol()), b"");
                Err(error)
            }
        }
    }

    /// The library's.
    pub(crate) const fn quic(&self) -> &quinn::Connection {
        &self.quic
    }

    /// What the other end has proved of itself; `None`: it was not asked.
    pub(crate) const fn proof(&self) -> Option<&Proof> {
        self.proof.as_ref()
    }

    /// Asks for its path from another thread.
    pub(crate) fn probe(&self) -> Box<dyn PathProbe> {
        Box::new(Probe {
            quic: self.quic.clone(),
            congestion_control: self.congestion_control,
        })
    }

    /// Where the other end is now: it may move.
    pub(crate) fn peer(&self) -> String {
        canonical(self.quic.remote_address()).to_string()
    }

    /// Tells the other end why, and ends it.
    pub(crate) fn close(&self, code: CloseCode, text: &str) {
        self.quic.close(code.of(self.protocol), text.as_bytes());
    }

    /// Ends it where that was not done before.
    pub(crate) fn shut(&self) {
        self.close(CloseCode::Dropped, "");
    }
}

/// Connects to `to`, and has it prove who it is. `host`: what was dialled. `within`: how long that may take.
///
/// # Errors
/// Nobody answers there, or the other end did not prove that, or not in time.
pub(crate) async fn dial(
    to: SocketAddr,
    host: &str,
    credentials: &Credentials,
    settings: &Settings,
    within: Duration,
) -> Result<Connection> {
    let (client, name) = credentials.quic_client(settings.protocol(), host)?;
    let socket = socket::to(to)?;
    // Each has a socket of its own, so that a path that one loses is not lost for all.
    let runtime = Arc::new(TokioRuntime);
    let endpoint = Endpoint::new(EndpointConfig::default(), None, socket, runtime)?;
    let crypto = QuicClientConfig::try_from(client).map_err(invalid)?;
    let mut config = ClientConfig::new(Arc::new(crypto));
    config.transport_config(settings.transport());
    config.token_store(Arc::new(NoneTokenStore));
    let connecting = endpoint.connect_with(config, to, &name).map_err(invalid)?;
    let quic = in_time(within, connecting).await?;
    Connection::proved((quic, settings), credentials, Side::Dials, &name)
}

async fn in_time(within: Duration, connecting: quinn::Connecting) -> Result<quinn::Connection> {
    match tokio::time::timeout(within, connecting).await {
        Ok(connected) => connected.map_err(Error::from),
        Err(_) => {
            let text = format!("no answer by QUIC within {} s", within.as_secs());
            Err(Error::new(ErrorKind::TimedOut, text))
        }
    }
}

fn invalid(problem: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::new(ErrorKind::InvalidInput, problem)
}

#[cfg(test)]
pub(crate) mod tests;
