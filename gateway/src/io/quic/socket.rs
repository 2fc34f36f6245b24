//! UDP sockets with buffers for packets that arrive while the event loop is busy.

use std::io::Result;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use muxtunnel_contract::sysctls::QUIC_BUFFER_BYTES;
use socket2::{Domain, Protocol, SockRef, Socket, Type};

use crate::base::socket_buffers::{Buffers, enlarge};

/// Creates a socket to reach `to` from any local address. A connection survives a change of the
/// local address.
///
/// # Errors
/// The system's error.
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
    let Buffers { receive, send } = enlarge(&SockRef::from(&socket), QUIC_BUFFER_BYTES)?;
    tracing::debug!(%to, receive, send, "UDP buffers in force, bytes");
    Ok(socket.into())
}
