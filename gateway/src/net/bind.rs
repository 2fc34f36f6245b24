//! Ports that this process listens on, shared between its workers or for the process alone.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use muxtunnel_codes::Code;
use socket2::Type;
use tokio::net::TcpListener;

use crate::io::local_socket::canonical;

/// Connections that wait to be accepted; the kernel clamps it to net.core.somaxconn.
pub(crate) const BACKLOG: u32 = 4096;
/// Pause after a failed accept: running out of file descriptors must not spin.
pub(crate) const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// A port cannot be listened on.
#[derive(Debug, thiserror::Error)]
#[error("{}: cannot listen on {address}: {source}", Code::ListenFailed)]
pub(crate) struct ListenError {
    /// As configured.
    address: String,
    /// The system's error.
    source: std::io::Error,
}

impl ListenError {
    pub(crate) fn new(address: &str, source: std::io::Error) -> Self {
        Self {
            address: address.to_owned(),
            source,
        }
    }
}

/// One worker's listener on `address` (`addr:port`), which the kernel gives its share of the
/// connections; must be called on the worker.
pub(crate) fn listen_shared(address: &str) -> Result<TcpListener, ListenError> {
    let listen = || {
        let socket = bind(address, Type::STREAM, true)?;
        // What it accepts inherits it.
        socket.set_tcp_nodelay(true)?;
        socket.listen(BACKLOG.cast_signed())?;
        TcpListener::from_std(socket.into())
    };
    listen().map_err(|source| ListenError::new(address, source))
}

pub(crate) fn listen_alone(address: &str) -> Result<std::net::TcpListener, ListenError> {
    let listen = || {
        let socket = bind(address, Type::STREAM, false)?;
        socket.listen(BACKLOG.cast_signed())?;
        Ok(socket.into())
    };
    listen().map_err(|source| ListenError::new(address, source))
}

/// Whether the port is free of other processes: with another muxgate of the same user a shared one
/// would be shared without a word.
pub(crate) fn check_free(address: &str) -> Result<(), ListenError> {
    bind(address, Type::STREAM, false)
        .map(drop)
        .map_err(|source| ListenError::new(address, source))
}

/// As many UDP sockets as workers on `address` (`addr:port`), in the order in which the kernel numbers them. No other
/// process has the port.
pub(crate) fn datagram_sockets(
    address: &str,
    workers: usize,
) -> Result<Vec<UdpSocket>, ListenError> {
    let wrong = |source| ListenError::new(address, source);
    drop(bind(address, Type::DGRAM, false).map_err(wrong)?);
    let first = bind(address, Type::DGRAM, true).map_err(wrong)?;
    // Where the system chooses the port it is one for all.
    let bound = first.local_addr().map_err(wrong)?.as_socket();
    let bound = bound.map_or_else(|| address.to_owned(), |bound| bound.to_string());
    let mut sockets = vec![UdpSocket::from(first)];
    while sockets.len() < workers {
        let socket = bind(&bound, Type::DGRAM, true).map_err(wrong)?;
        sockets.push(socket.into());
    }
    Ok(sockets)
}

fn bind(address: &str, kind: Type, shared: bool) -> std::io::Result<socket2::Socket> {
    let parsed: SocketAddr = address
        .parse()
        .map_err(|_| std::io::Error::new(std::io::ErrorKind::InvalidInput, "not ADDRESS:PORT"))?;
    let all = parsed.ip() == Ipv6Addr::UNSPECIFIED;
    match bind_to(canonical(parsed), kind, shared) {
        Err(error) if all && lacks_ipv6(&error) => {
            bind_to((Ipv4Addr::UNSPECIFIED, parsed.port()).into(), kind, shared)
        }
        bound => bound,
    }
}

/// `[::]` is all addresses of both families.
fn bind_to(address: SocketAddr, kind: Type, shared: bool) -> std::io::Result<socket2::Socket> {
    let domain = socket2::Domain::for_address(address);
    let socket = socket2::Socket::new(domain, kind.nonblocking(), None)?;
    if domain == socket2::Domain::IPV6 {
        socket.set_only_v6(false)?;
    }
    // Of UDP sockets it would share the port with anybody.
    socket.set_reuse_address(kind == Type::STREAM)?;
    socket.set_reuse_port(shared)?;
    socket.bind(&address.into())?;
    Ok(socket)
}

/// Whether a bind failed since the kernel has no IPv6, or the network namespace has no IPv6 address at all.
fn lacks_ipv6(error: &std::io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EAFNOSUPPORT | libc::EADDRNOTAVAIL)
    )
}
