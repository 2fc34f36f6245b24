//! KCP over UDP: carriers for lossy paths that let UDP through. `muxtunnel_proto::kcp` implements
//! the protocol.
//!
//! Each connection has its own UDP socket, connected to its peer, also on an exit ([`listener`]).
//! The socket can move to another worker like a TCP socket, and the kernel finds the socket by both
//! addresses. A flood from unknown peers fills the listener's buffer, but not the buffers of
//! carriers. The listener's socket receives the datagrams that arrive before the connection has its
//! socket, and [`peers`] passes these datagrams on.
//!
//! `finish` sends an end. A dropped transport continues for a while until all written bytes have
//! arrived. The protocol detects a dead peer, as configured by [`Path::prepare`].

mod driven;
mod listener;
mod peers;
mod socket;

use std::future::poll_fn;
use std::io::{Error, ErrorKind, IoSlice, Result};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use muxtunnel_gateway_config::status::CarrierTransport;
use muxtunnel_gateway_config::{CongestionControl, Memory};
use muxtunnel_proto::kcp::{Connection, Keepalive, PAYLOAD_BYTES_MAX, Settings};
use parking_lot::Mutex;

use super::{Detached, Path, Transport};
use crate::base::path::{PathInfo, PathProbe};
use crate::io::duplex::Duplex;
use crate::io::local_socket::canonical;
use crate::io::socket::KeepaliveConfig;
use driven::{Driven, State};
pub(crate) use listener::KcpListener;
use listener::UNPROVED;
pub(crate) use peers::KcpPeers;
use socket::Socket;

/// Maximum number of received bytes of an unproved peer: KCP's smallest window.
const UNPROVED_BYTES: usize = 128 * PAYLOAD_BYTES_MAX;
/// Bounds of each direction's window for any configuration. KCP's window field has 16 bits, which
/// suffices for up to 90 MB.
const WINDOW_BYTES_MIN: u64 = 1 << 20;
const WINDOW_BYTES_MAX: u64 = 64 << 20;
/// Interval at which a dialler repeats its first request, since any datagram may be lost.
const ASK_AGAIN: Duration = Duration::from_millis(250);

/// The windows of a connection. The windows use memory in addition to the session's memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct KcpWindows {
    send: usize,
    receive: usize,
}

impl KcpWindows {
    /// Returns half of a session's retransmit buffer for sending, and an eighth of its receive
    /// memory for receiving, within the bounds. With the defaults the windows have 64 and 32 MiB,
    /// which is more than twice the bytes in flight at 1 Gbit/s and a round trip of 100 ms.
    pub(crate) fn of(memory: &Memory) -> Self {
        let bytes = |of: u64| of.clamp(WINDOW_BYTES_MIN, WINDOW_BYTES_MAX) as usize;
        Self {
            send: bytes(memory.retain.0 / 2),
            receive: bytes(memory.receive.0 / 8),
        }
    }

    fn settings(self) -> Settings {
        Settings {
            send_bytes: self.send,
            receive_bytes: UNPROVED_BYTES,
        }
    }
}

/// A KCP connection.
#[derive(Debug)]
pub(crate) struct Kcp {
    driven: Rc<Driven>,
    peer: SocketAddr,
    windows: KcpWindows,
}

impl Kcp {
    fn of(state: State, windows: KcpWindows) -> Self {
        Self {
            peer: state.peer,
            driven: Driven::start(state),
            windows,
        }
    }

    /// Connects to `address` and waits for the first answer.
    ///
    /// # Errors
    /// The system's error, or the network reported that the address is unreachable.
    pub(crate) async fn connect(
        address: SocketAddr,
        windows: KcpWindows,
    ) -> Result<Box<dyn Transport>> {
        let any: SocketAddr = match address {
            SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
            SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
        };
        let udp = socket::bind(any, false)?;
        udp.connect(address)?;
        let began = driven::now();
        let names = (rand::random(), rand::random());
        let mut connection = Connection::new(names, windows.settings(), UNPROVED, began, 0);
        connection.ask();
        let state = State::new(connection, Socket::new(udp)?, address, None);
        let kcp = Self::of(state, windows);
        let mut is_first = true;
        loop {
            let met = poll_fn(|context| kcp.driven.poll_met(context));
            match tokio::time::timeout(ASK_AGAIN, met).await {
                Ok(met) => {
                    met?;
                    break;
                }
                Err(_) => {
                    is_first = false;
                    kcp.driven.update(|state| state.connection.ask())?;
                }
            }
        }
        let rtt = driven::now().saturating_duration_since(began);
        // After a repeated request, the time may be too long by the repetitions. On a long path, the
        // difference is small.
        if is_first || rtt > 4 * ASK_AGAIN {
            kcp.driven.update(|state| state.connection.measured(rtt))?;
        }
        Ok(Box::new(kcp))
    }
}

impl Drop for Kcp {
    fn drop(&mut self) {
        self.driven.abandon();
    }
}

impl Duplex for Kcp {
    fn poll_readable(&self, context: &mut Context<'_>) -> Poll<Result<()>> {
        self.driven.poll_readable(context)
    }

    fn poll_writable(&self, context: &mut Context<'_>) -> Poll<Result<()>> {
        self.driven.poll_writable(context)
    }

    fn try_read(&self, bytes: &mut [u8]) -> Result<usize> {
        let read = self.driven.with(|state| {
            if state.shut {
                return Ok((0, false));
            }
            match state.connection.read(bytes) {
                Some(length) => Ok((length, state.connection.is_to_tell())),
                None => Err(state
                    .failure()
                    .unwrap_or_else(|| ErrorKind::WouldBlock.into())),
            }
        });
        let (length, tells) = read.ok_or(ErrorKind::NotConnected)??;
        if tells {
            self.driven.update(|_| ())?;
        }
        Ok(length)
    }

    fn try_write(&self, slices: &[IoSlice<'_>]) -> Result<usize> {
        let write = |state: &mut State| -> Result<usize> {
            if let Some(failure) = state.failure() {
                return Err(failure);
            }
            if state.connection.is_finished() {
                return Err(ErrorKind::BrokenPipe.into());
            }
            match state.connection.write(slices) {
                0 => Err(ErrorKind::WouldBlock.into()),
                length => Ok(length),
            }
        };
        self.driven.update(write)?
    }

    fn finish(&self) -> Result<()> {
        self.driven.update(|state| state.connection.finish())
    }
}

impl Transport for Kcp {
    fn shut(&self) {
        // An ended connection needs no shutdown.
        let _ = self.driven.update(|state| {
            state.connection.finish();
            state.shut = true;
        });
    }

    fn path(&self) -> Option<&dyn Path> {
        Some(self)
    }

    fn runs_on(&self) -> CarrierTransport {
        CarrierTransport::Kcp
    }

    fn peer(&self) -> String {
        canonical(self.peer).to_string()
    }

    fn detach(self: Box<Self>) -> Result<Detached> {
        let State {
            connection,
            socket,
            peer,
            known,
            ..
        } = self.driven.take()?;
        let (socket, windows) = (socket.into_std()?, self.windows);
        Ok(Box::new(move || {
            let state = State::new(connection, Socket::new(socket)?, peer, known);
            Ok(Box::new(Self::of(state, windows)))
        }))
    }
}

impl Path for Kcp {
    fn info(&self) -> Result<PathInfo> {
        let info = self.driven.with(|state| state.info());
        info.ok_or_else(|| ErrorKind::NotConnected.into())
    }

    /// Ignores the requested congestion control, since KCP has its own.
    fn prepare(&self, _: CongestionControl, keepalive: KeepaliveConfig) -> Result<()> {
        self.driven.update(|state| {
            state.connection.keep_alive(Keepalive {
                dead_after: keepalive.dead_after,
                interval: keepalive.interval,
                retries: keepalive.retries,
            });
            state.connection.receive_up_to(self.windows.receive);
            state.lingers = true;
        })
    }

    /// Does nothing: the protocol itself follows its round trip.
    fn follow(&self, _: KeepaliveConfig) -> Result<()> {
        Ok(())
    }

    fn bound_queue(&self, bytes: u32) -> Result<()> {
        let bytes = bytes as usize;
        self.driven
            .update(|state| state.connection.bound_queue(bytes))
    }

    fn probe(&self) -> Result<Box<dyn PathProbe>> {
        let figures = self.driven.with(|state| Arc::clone(&state.figures));
        let figures = figures.ok_or_else(|| Error::from(ErrorKind::NotConnected))?;
        Ok(Box::new(KcpProbe(figures)))
    }
}

/// The last published state of a connection's path.
#[derive(Debug)]
struct KcpProbe(Arc<Mutex<PathInfo>>);

impl PathProbe for KcpProbe {
    fn info(&self) -> Option<PathInfo> {
        Some(*self.0.lock())
    }

    fn congestion_control(&self) -> Option<String> {
        Some("kcp".to_owned())
    }
}

#[cfg(test)]
mod tests;
