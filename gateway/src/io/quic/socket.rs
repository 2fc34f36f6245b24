//! UDP sockets and their buffers.
//!
//! QUIC's packets wait in the socket's buffer while the gateway's loop is busy, and those that find no room are lost. The
//! kernel gives at most `net.core.rmem_max`, which only the node can raise: what is in force is in the log.

use std::io::Result;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use socket2::{Domain, Protocol, SockRef, Socket, Type};

/// Bytes of each buffer that are asked for: what 10 Gbit/s bring in 6 ms.
pub(crate) const BUFFER_BYTES: usize = 8 << 20;

/// One to reach `to` from whatever address the system chooses: the connection goes on where that changes.
///
/// # Errors
/// The system's.
pub(super) fn to(to: SocketAddr) -> Result<UdpSocket> {
    let any: SocketAddr = match to {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let socket = Socket::new(
        Domain::for_address(to),
        Type::DGRAM.nonblocking(),
        Some(Protocol::UDP),
    )?;
    socket.bind(&any.into())?;
    let socket = UdpSocket::from(socket);
    let Buffers { receive, send } = enlarge(&socket)?;
    tracing::debug!(%to, receive, send, "UDP buffers in force, bytes");
    Ok(socket)
}

/// What the buffers of a socket hold, bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Buffers {
    pub(crate) receive: usize,
    pub(crate) send: usize,
}

/// Has the buffers as large as may be, and returns what they are: the kernel counts its own overhead twice.
///
/// # Errors
/// The system's.
pub(crate) fn enlarge(socket: &UdpSocket) -> Result<Buffers> {
    let socket = SockRef::from(socket);
    socket.set_recv_buffer_size(BUFFER_BYTES)?;
    socket.set_send_buffer_size(BUFFER_BYTES)?;
    Ok(Buffers {
        receive: socket.recv_buffer_size()? / 2,
        send: socket.send_buffer_size()? / 2,
    })
}
