//! A connection to a peer that has proved who it is, whatever kind of session runs on it.
//!
//! What a dial brings, and what an exit accepts. Where sessions are made it is decided
//! which of them takes which kind.

use super::transport::{Proof, Transport};
use super::{quic, ssh};

/// What carries a session.
#[derive(Debug)]
pub(crate) enum Carrier {
    /// Bytes in order: the session's protocol has frames of its own.
    Bytes(Box<dyn Transport>),
    /// A connection with streams, flow control and recovery of its own.
    Quic(quic::Connection),
    /// The same, which has been logged in on.
    Ssh(ssh::Connection),
}

impl From<Box<dyn Transport>> for Carrier {
    fn from(transport: Box<dyn Transport>) -> Self {
        Self::Bytes(transport)
    }
}

impl Carrier {
    /// The same as bytes in order.
    ///
    /// # Errors
    /// It is something else.
    pub(crate) fn into_bytes(self) -> Result<Box<dyn Transport>, Self> {
        match self {
            Self::Bytes(transport) => Ok(transport),
            other => Err(other),
        }
    }

    /// What the other end has proved of itself; `None`: it was not asked.
    pub(crate) fn proof(&self) -> Option<&Proof> {
        match self {
            Self::Bytes(transport) => transport.proof(),
            Self::Quic(connection) => connection.proof(),
            Self::Ssh(connection) => Some(connection.proof()),
        }
    }

    /// Who the other end has proved to be; `None`: it was not asked.
    pub(crate) fn identity(&self) -> Option<&str> {
        self.proof().map(|proof| proof.identity.as_str())
    }

    /// Where the other end is, as far as can be said.
    pub(crate) fn peer(&self) -> String {
        match self {
            Self::Bytes(transport) => transport.peer(),
            Self::Quic(connection) => connection.peer(),
            Self::Ssh(connection) => connection.peer(),
        }
    }
}
