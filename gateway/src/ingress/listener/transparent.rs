//! The original destination of a redirected connection (iptables REDIRECT; netfilter's
//! SO_ORIGINAL_DST).

use std::net::{SocketAddr, UdpSocket};

use socket2::SockRef;

use crate::io::local_socket::{LocalSocket, canonical};

/// Returns the destination before the redirection.
///
/// # Errors
/// The connection was not redirected: its destination is this listener, so forwarding the
/// connection there would create a loop.
pub(super) fn destination(socket: &LocalSocket) -> Result<SocketAddr, &'static str> {
    let not_redirected = "was not redirected to this port";
    let LocalSocket::Tcp(tcp) = socket else {
        return Err(not_redirected);
    };
    let here = tcp.local_addr().map_err(|_| not_redirected)?;
    let socket = SockRef::from(tcp);
    let asked = if canonical(here).is_ipv4() {
        socket.original_dst_v4()
    } else {
        socket.original_dst_v6()
    };
    let destination = asked
        .ok()
        .and_then(|destination| destination.as_socket())
        .ok_or(not_redirected)?;
    if destination.port() == here.port() && is_own(destination) {
        return Err("was sent to this gateway's own port");
    }
    Ok(destination)
}

/// Whether this machine has the address. A socket can be bound only to local addresses.
fn is_own(address: SocketAddr) -> bool {
    UdpSocket::bind((address.ip(), 0)).is_ok()
}
