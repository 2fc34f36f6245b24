//! A UDP socket that uses quinn-udp to send and receive many datagrams in one call (UDP_SEGMENT,
//! UDP_GRO, recvmmsg(2)).

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io::{ErrorKind, IoSliceMut, Result};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::task::{Context, Poll, ready};

use muxtunnel_contract::sysctls::KCP_BUFFER_BYTES;
use quinn_udp::{BATCH_SIZE, RecvMeta, Transmit, UdpSocketState};
use rustix::net::sockopt::{Ipv4PathMtuDiscovery, set_ip_mtu_discover};
use socket2::{Domain, SockRef, Type};
use tokio::io::Interest;
use tokio::net::UdpSocket;

use crate::base::socket_buffers::{Buffers, enlarge};

/// Maximum size of a buffer that the kernel fills with joined datagrams.
const GATHERED_BYTES: usize = 64 << 10;
/// Number of buffers of this size that one call may fill.
const GATHERED_MAX: usize = 8;
const _: () = assert!(GATHERED_MAX <= BATCH_SIZE);
/// Maximum number of bytes in one call of sendmsg(2), below the maximum of UDP's length field.
const RUN_BYTES_MAX: usize = 65_000;

thread_local! {
    /// All sockets of a worker share this buffer. Its contents are used up before another task
    /// runs.
    static RECEIVED: RefCell<Vec<u8>> = RefCell::new(vec![0; GATHERED_MAX * GATHERED_BYTES]);
}

/// Consecutive datagrams of the same length. The last datagram may be shorter.
#[derive(Debug)]
struct Run {
    bytes: Vec<u8>,
    length: usize,
}

/// A socket in this thread's event loop.
#[derive(Debug)]
pub(super) struct Socket {
    udp: UdpSocket,
    state: UdpSocketState,
    /// Datagrams for which the kernel had no room.
    unsent: VecDeque<Run>,
    /// Whether the network reported that the peer is unreachable.
    refused: Cell<bool>,
    buffers: Buffers,
}

impl Socket {
    /// # Errors
    /// The system's error.
    pub(super) fn new(udp: std::net::UdpSocket) -> Result<Self> {
        let state = UdpSocketState::new((&udp).into())?;
        // If a datagram is too long for the path, fragments are better than a loss.
        if let Err(error) = set_ip_mtu_discover(&udp, Ipv4PathMtuDiscovery::DONT) {
            tracing::debug!(%error, "Cannot permit the fragmentation of datagrams");
        }
        Ok(Self {
            buffers: enlarge(&SockRef::from(&udp), KCP_BUFFER_BYTES)?,
            udp: UdpSocket::from_std(udp)?,
            state,
            unsent: VecDeque::new(),
            refused: Cell::new(false),
        })
    }

    /// The kernel's buffers for receiving and sending.
    pub(super) fn buffers(&self) -> Buffers {
        self.buffers
    }

    pub(super) fn local_address(&self) -> Result<SocketAddr> {
        self.udp.local_addr()
    }

    /// Removes the socket from this thread's event loop.
    ///
    /// # Errors
    /// The system's error.
    pub(super) fn into_std(self) -> Result<std::net::UdpSocket> {
        self.udp.into_std()
    }

    /// Passes each available datagram, with its source and destination, to `each`. Returns the
    /// number of datagrams.
    ///
    /// # Errors
    /// The error of recvmmsg(2). `WouldBlock`: no datagram is available.
    pub(super) fn receive(
        &self,
        each: impl FnMut(SocketAddr, Option<IpAddr>, &[u8]),
    ) -> Result<usize> {
        self.received(each, |receive| self.udp.try_io(Interest::READABLE, receive))
    }

    /// Works like [`Self::receive`], before the socket is part of the event loop.
    ///
    /// # Errors
    /// The errors of [`Self::receive`].
    pub(super) fn receive_now(
        &self,
        each: impl FnMut(SocketAddr, Option<IpAddr>, &[u8]),
    ) -> Result<usize> {
        self.received(each, |receive| receive())
    }

    fn received(
        &self,
        mut each: impl FnMut(SocketAddr, Option<IpAddr>, &[u8]),
        attempt: impl FnOnce(&mut dyn FnMut() -> Result<usize>) -> Result<usize>,
    ) -> Result<usize> {
        RECEIVED.with_borrow_mut(|buffer| {
            let mut metas = [RecvMeta::default(); GATHERED_MAX];
            let mut receive = || {
                let mut parts = buffer.chunks_exact_mut(GATHERED_BYTES);
                let mut slices: [IoSliceMut<'_>; GATHERED_MAX] =
                    std::array::from_fn(|_| IoSliceMut::new(parts.next().unwrap_or_default()));
                let udp = (&self.udp).into();
                self.state.recv(udp, &mut slices, &mut metas)
            };
            let count = attempt(&mut receive)?;
            let mut datagrams = 0;
            for (meta, bytes) in metas[..count]
                .iter()
                .zip(buffer.chunks_exact(GATHERED_BYTES))
            {
                let bytes = &bytes[..meta.len.min(bytes.len())];
                for datagram in bytes.chunks(meta.stride.max(1)) {
                    each(meta.addr, meta.dst_ip, datagram);
                    datagrams += 1;
                }
            }
            Ok(datagrams)
        })
    }

    pub(super) fn poll_readable(&self, context: &mut Context<'_>) -> Poll<Result<()>> {
        self.udp.poll_recv_ready(context)
    }

    /// Waits until a datagram may be available.
    ///
    /// # Errors
    /// The system's error.
    pub(super) async fn readable(&self) -> Result<()> {
        self.udp.readable().await
    }

    /// Sends one datagram, unless the kernel has no room for it.
    pub(super) fn send_one(&self, to: SocketAddr, from: Option<IpAddr>, bytes: &[u8]) {
        let transmit = Transmit {
            destination: to,
            ecn: None,
            contents: bytes,
            segment_size: None,
            src_ip: from,
        };
        let send = || self.state.try_send((&self.udp).into(), &transmit);
        if let Err(error) = self.udp.try_io(Interest::WRITABLE, send) {
            tracing::trace!(%error, "Sending a datagram failed");
        }
    }

    /// Whether the network has reported since the previous call that the peer is unreachable.
    pub(super) fn was_refused(&self) -> bool {
        self.refused.take()
    }

    /// Whether datagrams wait for the kernel.
    pub(super) fn is_full(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// Sends datagrams that wait for the kernel. Ready once no datagram waits.
    pub(super) fn poll_send(&mut self, context: &mut Context<'_>, to: SocketAddr) -> Poll<()> {
        while let Some(run) = self.unsent.front() {
            if self.try_send(to, &run.bytes, run.length) {
                self.unsent.pop_front();
            } else {
                // A socket that has failed fails again, and its datagrams are dropped.
                let _ = ready!(self.udp.poll_send_ready(context));
            }
        }
        Poll::Ready(())
    }

    /// Sends the consecutive datagrams in `bytes`, which have the lengths `lengths`. If the kernel
    /// has no room for some datagrams, these datagrams wait.
    pub(super) fn send(&mut self, to: SocketAddr, bytes: &[u8], lengths: &[usize]) {
        let (mut at, mut rest) = (0, lengths);
        while let Some((&length, _)) = rest.split_first() {
            let most = self
                .state
                .max_gso_segments()
                .min(RUN_BYTES_MAX / length.max(1));
            let mut count = rest.iter().take_while(|next| **next == length).count();
            count += usize::from(rest.get(count).is_some_and(|next| *next < length));
            let count = count.min(most.max(1));
            let total: usize = rest[..count].iter().sum();
            let run = &bytes[at..at + total];
            if self.is_full() || !self.try_send(to, run, length) {
                let bytes = run.to_vec();
                self.unsent.push_back(Run { bytes, length });
            }
            at += total;
            rest = &rest[count..];
        }
    }

    /// Returns true if the kernel accepted the datagrams. A permanent refusal by the kernel counts
    /// as a loss of the datagrams, and also returns true.
    fn try_send(&self, to: SocketAddr, bytes: &[u8], length: usize) -> bool {
        let transmit = Transmit {
            destination: to,
            ecn: None,
            contents: bytes,
            segment_size: (bytes.len() > length).then_some(length),
            src_ip: None,
        };
        let send = || self.state.try_send((&self.udp).into(), &transmit);
        match self.udp.try_io(Interest::WRITABLE, send) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => false,
            Err(error) => {
                if error.kind() == ErrorKind::ConnectionRefused {
                    self.refused.set(true);
                }
                tracing::trace!(%error, "Sending datagrams failed");
                true
            }
            Ok(()) => true,
        }
    }
}

/// Binds a socket to `address`, which several sockets may share. `[::]` means all addresses of both
/// families.
///
/// # Errors
/// The system's error.
pub(super) fn bind(address: SocketAddr, shared: bool) -> Result<std::net::UdpSocket> {
    let all = address.ip() == Ipv6Addr::UNSPECIFIED;
    match bind_to(address, shared) {
        Err(_) if all => bind_to((Ipv4Addr::UNSPECIFIED, address.port()).into(), shared),
        bound => bound,
    }
}

fn bind_to(address: SocketAddr, shared: bool) -> Result<std::net::UdpSocket> {
    let domain = Domain::for_address(address);
    let socket = socket2::Socket::new(
        domain,
        Type::DGRAM.nonblocking(),
        Some(socket2::Protocol::UDP),
    )?;
    if domain == Domain::IPV6 {
        socket.set_only_v6(false)?;
    }
    // SO_REUSEADDR would allow another process to bind the port.
    socket.set_reuse_port(shared)?;
    socket.bind(&address.into())?;
    Ok(socket.into())
}
