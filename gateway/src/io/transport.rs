//! What a carrier runs on: a trait that is all that the driver knows of it, one file a kind.
//!
//! A transport is a duplex stream of bytes that never blocks. Whoever holds it waits for readiness
//! ([`readable`], [`writable`]), then tries. One may lie in another: what is below is nobody's business but
//! where the kernel is asked about its TCP socket ([`Transport::tcp`]), and where it may move payload by
//! itself ([`Transport::plain`]). Calls are made once for many bytes, so that `dyn` costs nothing.
//!
//! Must not: know frames, sessions or streams.

mod buffer;
mod command;
mod noise;
mod pipes;
mod sealed;
mod tcp;
mod tls;
mod unix;
mod web_socket;

use std::fmt::Debug;
use std::future::poll_fn;
use std::io::{Error, ErrorKind, IoSlice, Result};
use std::task::{Context, Poll};

use rustls::pki_types::CertificateDer;
use tokio::net::TcpStream;

use crate::io::local_socket::canonical;
pub(crate) use command::{Released, name as command_name, start as start_command};
pub(crate) use noise::Noise;
pub(crate) use pipes::Pipes;
pub(crate) use tcp::Tcp;
pub(crate) use tls::{Inside, ServerTls, Tls};
pub(crate) use unix::Unix;
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
}

impl Proof {
    /// Of an identity that has no certificate, or none that is verified again.
    pub(crate) const fn of(identity: String) -> Self {
        Self {
            identity,
            chain: Vec::new(),
            not_after: None,
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

/// A duplex stream of bytes.
///
/// One task at a time waits for each direction.
pub(crate) trait Transport: Debug {
    /// Ready when [`Self::try_read`] may give something, or the end.
    fn poll_readable(&self, context: &mut Context<'_>) -> Poll<Result<()>>;

    /// Ready when [`Self::try_write`] may take something. All that it took before is with the kernel then.
    fn poll_writable(&self, context: &mut Context<'_>) -> Poll<Result<()>>;

    /// Reads what is there; 0: the end.
    ///
    /// # Errors
    /// `WouldBlock`: nothing is, which the next readiness ends. Anything else ends the transport.
    fn try_read(&self, bytes: &mut [u8]) -> Result<usize>;

    /// Takes what it can of `slices`; returns how many bytes.
    ///
    /// # Errors
    /// `WouldBlock`: it takes nothing, which the next readiness ends. Anything else ends the transport.
    fn try_write(&self, slices: &[IoSlice<'_>]) -> Result<usize>;

    /// Whether it took bytes that the kernel has not taken from it: [`Self::poll_writable`] waits for that.
    fn holds_back(&self) -> bool {
        false
    }

    /// Says that nothing more will be written.
    ///
    /// # Errors
    /// As shutdown(2).
    fn finish(&self) -> Result<()>;

    /// Ends both directions for good, also for duplicates of the descriptor.
    fn shut(&self);

    /// The TCP socket below; `None`: there is none, or it is not on this machine.
    fn tcp(&self) -> Option<&TcpStream>;

    /// The same, where what is written to it is what goes out: the kernel may move payload by itself.
    fn plain(&self) -> Option<&TcpStream> {
        None
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
        let peer = self.tcp().and_then(|tcp| tcp.peer_addr().ok());
        peer.map(|peer| canonical(peer).to_string())
            .unwrap_or_default()
    }

    /// Takes it from this thread's event loop.
    ///
    /// # Errors
    /// The system's.
    fn detach(self: Box<Self>) -> Result<Box<dyn Detached>>;
}

/// A transport on its way to another thread.
pub(crate) trait Detached: Debug + Send {
    /// Puts it into this thread's event loop.
    ///
    /// # Errors
    /// The system's.
    fn attach(self: Box<Self>) -> Result<Box<dyn Transport>>;
}

/// Waits until something can be read.
///
/// # Errors
/// The transport has failed.
pub(crate) async fn readable(transport: &dyn Transport) -> Result<()> {
    poll_fn(|context| transport.poll_readable(context)).await
}

/// Waits until something can be written, and all that was written before is with the kernel.
///
/// # Errors
/// The transport has failed.
pub(crate) async fn writable(transport: &dyn Transport) -> Result<()> {
    poll_fn(|context| transport.poll_writable(context)).await
}

/// Reads once something is there; 0: the end.
///
/// # Errors
/// The transport has failed.
pub(crate) async fn read(transport: &dyn Transport, bytes: &mut [u8]) -> Result<usize> {
    loop {
        readable(transport).await?;
        match transport.try_read(bytes) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            result => return result,
        }
    }
}

/// Writes all of `bytes`, up to the kernel.
///
/// # Errors
/// The transport has failed.
pub(crate) async fn write_all(transport: &dyn Transport, mut bytes: &[u8]) -> Result<()> {
    while !bytes.is_empty() {
        writable(transport).await?;
        match transport.try_write(&[IoSlice::new(bytes)]) {
            Ok(length) => bytes = &bytes[length..],
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    writable(transport).await
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
