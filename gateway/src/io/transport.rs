//! What a carrier runs on: a trait that is all that the driver knows of it, one file a kind.
//!
//! A transport is a [`Duplex`]. One may lie in another. Of what is below, two things are known above: the path that the
//! bytes take ([`Transport::path`]), and whether the kernel may move payload by itself ([`Transport::plain`]).
//!
//! Must not: know frames, sessions or streams.

mod buffer;
mod command;
mod kcp;
mod noise;
mod pipes;
mod sealed;
mod tcp;
mod tls;
mod unix;
mod upgrade;
mod web_socket;

use std::fmt::Debug;
use std::io::{Error, ErrorKind, Result};
use std::sync::Arc;

use muxtunnel_gateway_config::CongestionControl;
use muxtunnel_gateway_config::status::CarrierTransport;
use rustls::pki_types::CertificateDer;
use tokio::net::TcpStream;

use crate::base::path::{PathInfo, PathProbe};
use crate::io::duplex::Duplex;
use crate::io::socket::KeepaliveConfig;
use crate::io::ssh;
pub(crate) use command::{Released, name as command_name, start as start_command};
pub(crate) use kcp::{Kcp, KcpListener, KcpPeers, KcpWindows};
pub(crate) use noise::Noise;
pub(crate) use pipes::Pipes;
pub(crate) use tcp::Tcp;
pub(crate) use tls::{Inside, ServerTls, Tls};
pub(crate) use unix::Unix;
pub(crate) use upgrade::Upgrade;
#[cfg(any(test, feature = "oracles"))]
pub(crate) use web_socket::oracle::web_socket as web_socket_oracle;
pub(crate) use web_socket::upgrade;

/// Bytes that are read of another end before it has proved who it is.
const HANDSHAKE_BYTES_MAX: usize = 16 << 10;

/// Which end of a transport this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Dials,
    Accepts,
}

/// What the other end of a transport has proved of itself. Bounded by [`HANDSHAKE_BYTES_MAX`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Proof {
    /// A name in its certificate, or its public key.
    pub(crate) identity: String,
    /// Its certificate and those between it and the authority; empty: it has proved a key.
    pub(crate) chain: Vec<CertificateDer<'static>>,
    /// The last second that its certificate is good in, since 1970; `None`: a key does not expire.
    pub(crate) not_after: Option<u64>,
    /// By SSH: all that was shown, to be judged again.
    pub(crate) shown: Option<Arc<ssh::Shown>>,
}

impl Proof {
    /// Of an identity that has no certificate, or none that is verified again.
    pub(crate) const fn of(identity: String) -> Self {
        Self {
            identity,
            chain: Vec::new(),
            not_after: None,
            shown: None,
        }
    }

    /// Whether its certificate has expired by `now`, seconds since 1970.
    pub(crate) fn has_expired(&self, now: u64) -> bool {
        self.not_after.is_some_and(|not_after| not_after < now)
    }
}

/// Whether a proof that was accepted still is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Standing {
    Good,
    /// The certificate was good until it expired.
    Expired,
    /// No authority that counts now has signed the certificate, for this reason. Another certificate may be good.
    Unverified(String),
    /// The peer may not connect any more, for this reason.
    Revoked(String),
}

/// What a carrier's bytes go through.
pub(crate) trait Transport: Duplex + Debug {
    /// Whether it took bytes that the kernel has not taken from it: [`Duplex::poll_writable`] waits for that.
    fn holds_back(&self) -> bool {
        false
    }

    /// Ends both directions for good, also for duplicates of the descriptor.
    fn shut(&self);

    /// The path that its bytes take; `None`: nothing is known of it, and nothing below notices that the other end has
    /// vanished.
    fn path(&self) -> Option<&dyn Path> {
        None
    }

    /// The TCP socket below, where what is written to it is what goes out: the kernel may move payload by itself.
    fn plain(&self) -> Option<&TcpStream> {
        None
    }

    /// What its bytes run on at last.
    fn runs_on(&self) -> CarrierTransport {
        CarrierTransport::Tcp
    }

    /// What the other end has proved of itself; `None`: it was not asked.
    fn proof(&self) -> Option<&Proof> {
        None
    }

    /// Who the other end has proved to be; `None`: it was not asked.
    fn identity(&self) -> Option<&str> {
        self.proof().map(|proof| proof.identity.as_str())
    }

    /// Where the other end is, as far as can be said.
    fn peer(&self) -> String {
        String::new()
    }

    /// Takes it from this thread's event loop.
    ///
    /// # Errors
    /// The system's.
    fn detach(self: Box<Self>) -> Result<Box<dyn Detached>>;
}

/// The path below a transport.
pub(crate) trait Path {
    /// What is known of it as of now.
    ///
    /// # Errors
    /// The system's.
    fn info(&self) -> Result<PathInfo>;

    /// Makes it one for a carrier. An other end that vanished is noticed as `keepalive` says.
    ///
    /// # Errors
    /// The system's. A congestion control that cannot be had is none.
    fn prepare(
        &self,
        congestion_control: CongestionControl,
        keepalive: KeepaliveConfig,
    ) -> Result<()>;

    /// Takes no more while about `bytes` wait that were not sent once.
    ///
    /// # Errors
    /// The system's.
    fn bound_queue(&self, bytes: u32) -> Result<()>;

    /// The same path for another thread.
    ///
    /// # Errors
    /// The system's.
    fn probe(&self) -> Result<Box<dyn PathProbe>>;
}

/// A transport on its way to another thread.
pub(crate) trait Detached: Debug + Send {
    /// Puts it into this thread's event loop.
    ///
    /// # Errors
    /// The system's.
    fn attach(self: Box<Self>) -> Result<Box<dyn Transport>>;
}

/// What the other end sent is not what it may send.
fn invalid(problem: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::new(ErrorKind::InvalidData, problem)
}

/// The other end has gone before it proved who it is.
fn closed_early() -> Error {
    let text = "the other end closed the connection during the handshake";
    Error::new(ErrorKind::UnexpectedEof, text)
}
