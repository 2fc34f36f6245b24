//! QUIC (RFC 9000): connections that have their own streams, flow control, recovery and TLS 1.3.
//!
//! quinn implements the protocol. This module adds the credentials of TLS carriers, sockets and
//! their buffers ([`socket`]), settings ([`settings`]), and the assignment of connections to
//! workers ([`steering`]).
//!
//! Early data (0-RTT) is disabled. An attacker could replay recorded early data, and a repeated
//! open dials a target twice. Early data would save one round trip in a connection that lives for
//! hours.
//!
//! This module must not depend on sessions or on the contents of streams.

mod listener;
mod probe;
mod settings;
mod socket;
mod steering;
mod strangers;

use std::io::{Error, ErrorKind, Result};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use muxtunnel_gateway_config::Protocol;
use quinn::crypto::rustls::QuicClientConfig;
use quinn::{ClientConfig, Endpoint, EndpointConfig, NoneTokenStore, TokioRuntime, VarInt};
use rustls::pki_types::CertificateDer;

use crate::base::path::PathProbe;
use crate::base::patience::{Elapsed, Patience};

use super::key_refusal::KeyRefusal;
use super::local_socket::canonical;
use super::proof::Proof;
use super::security::Credentials;
use super::transport::{Chosen, Part, Presented, To};
pub(crate) use listener::{Attempt, Listener};
use probe::Probe;
use settings::PACKETS_UNSENT_MAX;
pub(crate) use settings::{Settings, window};
pub(crate) use steering::steer;

/// Why a side closes a connection: the codes of CONNECTION_CLOSE (RFC 9000, section 19.19). quinn
/// sends 0 for a dropped connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CloseCode {
    /// The connection was dropped.
    Dropped = 0,
    /// The session is over. Streams without an answer were not accepted.
    Done = 1,
    /// This side accepts no further sessions.
    GoingAway = 2,
    /// The peer broke the protocol.
    Violation = 3,
    /// The peer is not permitted to connect.
    Refused = 4,
}

impl From<CloseCode> for VarInt {
    fn from(code: CloseCode) -> Self {
        Self::from_u32(code as u32)
    }
}

impl CloseCode {
    /// Returns the code for `protocol`. HTTP/3 has its own codes (RFC 9114, section 8.1).
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

/// A connection whose peer has proved its identity.
#[derive(Debug, Clone)]
pub(crate) struct Connection {
    quic: quinn::Connection,
    proof: Option<Box<Proof>>,
    /// The public key that this side presents, if this side dials.
    presented: Option<Box<Presented>>,
    congestion_control: &'static str,
    protocol: Protocol,
}

impl Connection {
    /// Creates a connection from a completed handshake. `name` is the name that the dialling side
    /// requested.
    ///
    /// # Errors
    /// The peer is not permitted.
    fn proved(
        (quic, settings): (quinn::Connection, &Settings),
        credentials: &Credentials,
        part: Part<'_>,
        name: &str,
    ) -> Result<Self> {
        let chain = quic.peer_identity().and_then(|identity| {
            let chain = identity.downcast::<Vec<CertificateDer<'static>>>();
            chain.ok().map(|chain| *chain)
        });
        match credentials.quic_proof(part, name, chain) {
            Ok(proof) => Ok(Self {
                quic,
                proof: proof.map(Box::new),
                presented: None,
                congestion_control: settings.congestion_control(),
                protocol: settings.protocol(),
            }),
            Err(error) => {
                quic.close(CloseCode::Refused.of(settings.protocol()), b"");
                Err(error)
            }
        }
    }

    /// The connection, on which this side has accepted the peer and has presented `chosen`.
    fn presenting(mut self, chosen: &Chosen) -> Self {
        if let Some(proof) = &mut self.proof {
            proof.presented = chosen.key();
        }
        self
    }

    /// The connection of the library.
    pub(crate) const fn quic(&self) -> &quinn::Connection {
        &self.quic
    }

    /// Number of bytes of packets that the library has not sent, at most [`PACKETS_UNSENT_MAX`].
    pub(crate) fn packets_unsent(&self) -> u64 {
        let space = self.quic.datagram_send_buffer_space();
        let empty = PACKETS_UNSENT_MAX - size_of::<Bytes>();
        empty.saturating_sub(space) as u64
    }

    /// The peer's proof of identity; `None`: this gateway requested no proof.
    pub(crate) fn proof(&self) -> Option<&Proof> {
        self.proof.as_deref()
    }

    /// A probe of the connection's path for another thread.
    pub(crate) fn probe(&self) -> Box<dyn PathProbe> {
        Box::new(Probe {
            quic: self.quic.clone(),
            congestion_control: self.congestion_control,
        })
    }

    /// Records that the peer has refused this side's key. The peer verifies the key after this
    /// side's handshake.
    pub(crate) fn key_refused(&self) {
        if let Some(presented) = &self.presented {
            presented.refused();
        }
    }

    /// The peer's current address, which may change.
    pub(crate) fn peer(&self) -> String {
        canonical(self.quic.remote_address()).to_string()
    }

    /// Sends the peer the reason and closes the connection.
    pub(crate) fn close(&self, code: CloseCode, text: &str) {
        self.quic.close(code.of(self.protocol), text.as_bytes());
    }

    /// Closes the connection unless it is closed already.
    pub(crate) fn shut(&self) {
        self.close(CloseCode::Dropped, "");
    }
}

/// Connects to `at`, an address of the exit `to`, and verifies the exit. `patience` is the time
/// limit.
///
/// # Errors
/// No peer answered, or the peer did not prove its identity in time.
pub(crate) async fn dial(
    at: SocketAddr,
    to: To<'_>,
    credentials: &Credentials,
    settings: &Settings,
    patience: &Patience,
) -> Result<Connection> {
    let (client, name, presented) = credentials.quic_client(settings.protocol(), to)?;
    let socket = socket::to(at)?;
    // Each connection has its own socket, so that the loss of one path does not affect other
    // connections.
    let runtime = Arc::new(TokioRuntime);
    let endpoint = Endpoint::new(EndpointConfig::default(), None, socket, runtime)?;
    let crypto = QuicClientConfig::try_from(client).map_err(invalid)?;
    let mut config = ClientConfig::new(Arc::new(crypto));
    config.transport_config(settings.transport());
    config.token_store(Arc::new(NoneTokenStore));
    let connecting = endpoint.connect_with(config, at, &name).map_err(invalid)?;
    let quic = in_time(patience, connecting).await;
    let quic = quic.inspect_err(|error| {
        let is_refusal = matches!(KeyRefusal::find(error), Some(KeyRefusal::ByPeer(_)));
        if let Some(presented) = presented.as_ref().filter(|_| is_refusal) {
            presented.refused();
        }
    })?;
    let connection = Connection::proved((quic, settings), credentials, Part::Dials(to), &name)?;
    Ok(Connection {
        presented: presented.map(Box::new),
        ..connection
    })
}

async fn in_time(
    patience: &Patience,
    mut connecting: quinn::Connecting,
) -> Result<quinn::Connection> {
    match patience.within(Pin::new(&mut connecting)).await {
        Ok(connected) => connected.map_err(KeyRefusal::of_quic),
        Err(Elapsed(time)) => {
            let text = format!(
                "the peer did not answer by QUIC within {} s",
                time.as_secs()
            );
            Err(Error::new(ErrorKind::TimedOut, text))
        }
    }
}

fn invalid(problem: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::new(ErrorKind::InvalidInput, problem)
}

#[cfg(test)]
pub(crate) mod tests;
