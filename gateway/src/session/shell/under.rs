//! The connection of a carrier, which its session shares with the library of its protocol.

use std::rc::Rc;

use muxtunnel_gateway_config::status::CarrierTransport;

use crate::base::path::PathProbe;
use crate::io::carrier::Carrier;
use crate::io::duplex;
use crate::io::proof::Proof;
use crate::io::transport::{Path, Transport};
use crate::io::{quic, ssh};
use crate::session::shell::LINGER_MAX;

#[derive(Clone)]
pub(crate) enum Under {
    Bytes(Rc<dyn Transport>),
    Quic(quic::Connection),
    Ssh(ssh::Connection),
}

impl From<Carrier> for Under {
    fn from(carrier: Carrier) -> Self {
        match carrier {
            Carrier::Bytes(transport) => Self::Bytes(transport.into()),
            Carrier::Quic(connection) => Self::Quic(connection),
            Carrier::Ssh(connection) => Self::Ssh(connection),
        }
    }
}

impl Under {
    /// The peer's proof of identity; `None`: this gateway requested no proof.
    pub(crate) fn proof(&self) -> Option<&Proof> {
        match self {
            Self::Bytes(transport) => transport.proof(),
            Self::Quic(connection) => connection.proof(),
            Self::Ssh(connection) => Some(connection.proof()),
        }
    }

    /// The peer's address, if it is known.
    pub(crate) fn peer(&self) -> String {
        match self {
            Self::Bytes(transport) => transport.peer(),
            Self::Quic(connection) => connection.peer(),
            Self::Ssh(connection) => connection.peer(),
        }
    }

    /// The carrier's transport.
    pub(crate) fn runs_on(&self) -> CarrierTransport {
        match self {
            Self::Bytes(transport) => transport.runs_on(),
            Self::Quic(_) => CarrierTransport::Quic,
            Self::Ssh(connection) => connection.runs_on(),
        }
    }

    /// Access to the path of the carrier from another thread; `None`: the path is unknown.
    ///
    /// # Errors
    /// The system call fails.
    pub(crate) fn probe(&self) -> std::io::Result<Option<Box<dyn PathProbe>>> {
        match self {
            Self::Bytes(transport) => transport.path().map(Path::probe).transpose(),
            Self::Quic(connection) => Ok(Some(connection.probe())),
            Self::Ssh(connection) => connection.probe(),
        }
    }

    /// Records that the peer has refused this side's public key. Carriers of bytes record it
    /// themselves.
    pub(crate) fn key_refused(&self) {
        if let Self::Quic(connection) = self {
            connection.key_refused();
        }
    }

    /// Call after the library has ended the carrier in order, and before [`Self::shut`]. Waits for
    /// the peer to read the last frames and to close the carrier too, for at most [`LINGER_MAX`]. If
    /// a write of the peer failed meanwhile, the peer's library would drop frames that it has not
    /// read.
    pub(crate) async fn linger(&self) {
        let lingers = async {
            match self {
                Self::Bytes(transport) => drop(duplex::linger(&**transport).await),
                Self::Ssh(connection) => connection.linger().await,
                Self::Quic(_) => {}
            }
        };
        let _ = tokio::time::timeout(LINGER_MAX, lingers).await;
    }

    /// Closes the carrier.
    pub(crate) fn shut(&self) {
        match self {
            Self::Bytes(transport) => transport.shut(),
            Self::Quic(connection) => connection.shut(),
            Self::Ssh(connection) => connection.shut(),
        }
    }
}
