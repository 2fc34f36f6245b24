//! The transports of carriers: one trait, on which the driver depends, and one file for each kind.
//!
//! A transport is a [`Duplex`], and one transport may run inside another. A layer depends on two
//! properties of the layers below: the path of the bytes ([`Transport::path`]), and whether the
//! kernel can move payload directly ([`Transport::plain`]).
//!
//! This module must not depend on frames, sessions or streams.

mod buffer;
#[cfg(feature = "connect-command")]
mod command;
mod kcp;
mod pipes;
mod sealed;
mod tcp;
mod tls;
mod unix;
mod upgrade;
mod web_socket;

use std::fmt::Debug;
use std::io::{Error, ErrorKind, Result};
use std::time::Duration;

use muxtunnel_gateway_config::CongestionControl;
use muxtunnel_gateway_config::status::CarrierTransport;
use tokio::net::TcpStream;

use crate::base::path::{PathInfo, PathProbe};
use crate::io::duplex::Duplex;
use crate::io::proof::Proof;
use crate::io::socket::KeepaliveConfig;
#[cfg(feature = "connect-command")]
pub(crate) use command::{name as command_name, start as start_command};
pub(crate) use kcp::{Kcp, KcpListener, KcpPeers, KcpWindows};
pub(crate) use pipes::{Pipes, Released};
pub(crate) use tcp::Tcp;
#[cfg(any(test, feature = "oracles"))]
pub(crate) use tls::oracle as tls_oracle;
pub(crate) use tls::{Chosen, Inside, KeyTls, Presented, ServerTls, Tls, to_proxy};
#[cfg(test)]
pub(crate) use tls::{rotating, with_a_forger};
pub(crate) use unix::Unix;
pub(crate) use upgrade::Upgrade;
#[cfg(any(test, feature = "oracles"))]
pub(crate) use web_socket::oracle::web_socket as web_socket_oracle;
pub(crate) use web_socket::upgrade;

/// Maximum number of bytes that are read from a peer before it has proved its identity.
const HANDSHAKE_BYTES_MAX: usize = 16 << 10;

/// Which end of a transport this side is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Dials,
    Accepts,
}

/// The end of a transport that this side has in a handshake, with the exit that a dialling side
/// dials.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Part<'a> {
    Dials(To<'a>),
    Accepts,
}

impl Part<'_> {
    pub(crate) const fn side(self) -> Side {
        match self {
            Self::Dials(_) => Side::Dials,
            Self::Accepts => Side::Accepts,
        }
    }
}

/// The exit that a dialling side dials.
#[derive(Debug, Clone, Copy)]
pub(crate) struct To<'a> {
    /// The name of the exit in `connect`. The exit must prove an identity that the configuration
    /// lists for this name.
    pub(crate) exit: &'a str,
    /// The dialled host.
    pub(crate) host: &'a str,
    /// The Host header of a WebSocket request.
    pub(crate) authority: &'a str,
    /// The name of the proxy to which TLS outside of a WebSocket connection leads; `None`: no such TLS.
    pub(crate) proxy: Option<&'a str>,
}

#[cfg(any(test, feature = "oracles"))]
impl<'a> To<'a> {
    /// An exit with the name `exit`.
    pub(crate) const fn exit(host: &'a str) -> Self {
        Self {
            exit: "exit",
            host,
            authority: host,
            proxy: None,
        }
    }
}

/// A connection that transfers the bytes of a carrier.
pub(crate) trait Transport: Duplex + Debug {
    /// Whether the transport holds bytes that the kernel has not accepted.
    /// [`Duplex::poll_writable`] waits for these bytes.
    fn holds_back(&self) -> bool {
        false
    }

    /// Ends both directions, also for duplicates of the descriptor.
    fn shut(&self);

    /// The path of the bytes; `None`: the path is unknown, and no layer below detects a dead peer.
    fn path(&self) -> Option<&dyn Path> {
        None
    }

    /// The round trip time of the path, as the transport below measured it; `None`: unknown.
    fn round_trip(&self) -> Option<Duration> {
        let info = self.path()?.info().ok()?;
        Some(info.rtt).filter(|rtt| !rtt.is_zero())
    }

    /// Sends a message that the peer's transport has to answer, without any byte of the session.
    /// Returns whether the transport has such a message. The answers count in [`Self::answers`].
    fn ping(&self) -> bool {
        false
    }

    /// Number of answers to [`Self::ping`] that have arrived.
    fn answers(&self) -> u64 {
        0
    }

    /// The TCP socket below, if the transport sends bytes unchanged, so that the kernel can move
    /// payload directly.
    fn plain(&self) -> Option<&TcpStream> {
        None
    }

    /// The lowest layer that carries the bytes.
    fn runs_on(&self) -> CarrierTransport {
        CarrierTransport::Tcp
    }

    /// The peer's proof of identity; `None`: this gateway requested no proof.
    fn proof(&self) -> Option<&Proof> {
        None
    }

    /// The peer's proved identity; `None`: this gateway requested no proof.
    fn identity(&self) -> Option<&str> {
        self.proof().map(|proof| proof.identity.as_str())
    }

    /// The peer's address, if it is known.
    fn peer(&self) -> String {
        String::new()
    }

    /// Removes the transport from this thread's event loop.
    ///
    /// # Errors
    /// The system's error.
    fn detach(self: Box<Self>) -> Result<Detached>;
}

/// The path below a transport.
pub(crate) trait Path {
    /// The current state of the path.
    ///
    /// # Errors
    /// The system's error.
    fn info(&self) -> Result<PathInfo>;

    /// Sets the options of a carrier. `keepalive` configures the detection of a dead peer.
    ///
    /// # Errors
    /// The system's error. An unavailable congestion control is not an error.
    fn prepare(
        &self,
        congestion_control: CongestionControl,
        keepalive: KeepaliveConfig,
    ) -> Result<()>;

    /// Adapts the detection of a dead peer to the current round trip.
    ///
    /// # Errors
    /// The system's error.
    fn follow(&self, keepalive: KeepaliveConfig) -> Result<()>;

    /// Limits the unsent bytes to about `bytes`: at this number, the transport accepts no more
    /// bytes.
    ///
    /// # Errors
    /// The system's error.
    fn bound_queue(&self, bytes: u32) -> Result<()>;

    /// A probe of the path for another thread.
    ///
    /// # Errors
    /// The system's error.
    fn probe(&self) -> Result<Box<dyn PathProbe>>;
}

/// A transport that is being moved to another thread. The call adds the transport to the event loop
/// of the calling thread, or returns the system's error.
pub(crate) type Detached = Box<dyn FnOnce() -> Result<Box<dyn Transport>> + Send>;

/// An error for bytes that the peer must not send.
fn invalid(problem: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::new(ErrorKind::InvalidData, problem)
}

/// An error for a peer that closed the connection before it proved its identity.
fn closed_early() -> Error {
    let text = "the peer closed the connection during the handshake";
    Error::new(ErrorKind::UnexpectedEof, text)
}
