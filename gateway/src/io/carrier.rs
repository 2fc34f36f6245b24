//! A connection to a peer that has proved its identity, for any kind of session.
//!
//! A dial returns a carrier, and an exit accepts carriers. The code that creates a session decides
//! which kinds of carrier it accepts.

use super::proof::Proof;
use super::transport::Transport;
use super::{quic, ssh};

/// The connection that carries a session.
#[derive(Debug)]
pub(crate) enum Carrier {
    /// An ordered byte stream. The session's protocol defines the frames.
    Bytes(Box<dyn Transport>),
    /// A QUIC connection, with its own streams, flow control and recovery.
    Quic(quic::Connection),
    /// An SSH connection after the login.
    Ssh(ssh::Connection),
}

impl From<Box<dyn Transport>> for Carrier {
    fn from(transport: Box<dyn Transport>) -> Self {
        Self::Bytes(transport)
    }
}

impl Carrier {
    /// Returns the carrier as an ordered byte stream.
    ///
    /// # Errors
    /// The unchanged carrier, if it is of another kind.
    pub(crate) fn into_bytes(self) -> Result<Box<dyn Transport>, Self> {
        match self {
            Self::Bytes(transport) => Ok(transport),
            other => Err(other),
        }
    }

    /// The peer's proof of identity; `None`: this gateway requested no proof.
    pub(crate) fn proof(&self) -> Option<&Proof> {
        match self {
            Self::Bytes(transport) => transport.proof(),
            Self::Quic(connection) => connection.proof(),
            Self::Ssh(connection) => Some(connection.proof()),
        }
    }

    /// The peer's proved identity; `None`: this gateway requested no proof.
    pub(crate) fn identity(&self) -> Option<&str> {
        self.proof().map(|proof| proof.identity.as_str())
    }

    /// The peer's address, if it is known.
    pub(crate) fn peer(&self) -> String {
        match self {
            Self::Bytes(transport) => transport.peer(),
            Self::Quic(connection) => connection.peer(),
            Self::Ssh(connection) => connection.peer(),
        }
    }
}
