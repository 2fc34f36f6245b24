//! Opens listening ports. A port is either shared by the workers of the process, or used by one
//! socket only.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use muxtunnel_codes::Code;
use socket2::Type;
use tokio::net::TcpListener;

use crate::io::local_socket::canonical;

/// Length of the accept queue. The kernel limits the length to net.core.somaxconn.
pub(crate) const BACKLOG: u32 = 4096;
/// Pause after a failed accept, so that the loop does not take all CPU time while file descriptors
/// are exhausted.
pub(crate) const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// The process cannot listen on an address.
#[derive(Debug, thiserror::Error)]
#[error("{}: cannot listen on {address}: {source}", Code::ListenFailed)]
pub(crate) struct ListenError {
    /// The address, as configured.
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

/// Opens one worker's listener on `address` (`addr:port`). The kernel distributes connections among
/// the workers' listeners. Call this function on the worker.
pub(crate) fn listen_shared(address: &str) -> Result<TcpListener, ListenError> {
    let listen = || {
        let socket = bind(address, Type::STREAM, true)?;
        // Accepted connections inherit the option.
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

/// Checks that no other process listens on the port. Without this check, another muxgate of the
/// same user would share the port unnoticed.
pub(crate) fn check_free(address: &str) -> Result<(), ListenError> {
    bind(address, Type::STREAM, false)
        .map(drop)
        .map_err(|source| ListenError::new(address, source))
}

/// Opens one UDP socket per worker on `address` (`addr:port`). The kernel numbers the sockets in
/// the order of the result. No other process can use the port.
pub(crate) fn datagram_sockets(
    address: &str,
    workers: usize,
) -> Result<Vec<UdpSocket>, ListenError> {
    let wrong = |source| ListenError::new(address, source);
    drop(bind(address, Type::DGRAM, false).map_err(wrong)?);
    let first = bind(address, Type::DGRAM, true).map_err(wrong)?;
    // If the system chooses the port, all sockets use the same port.
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

/// Binds a socket to `address`. `[::]` accepts both families.
fn bind_to(address: SocketAddr, kind: Type, shared: bool) -> std::io::Result<socket2::Socket> {
    let domain = socket2::Domain::for_address(address);
    let socket = socket2::Socket::new(domain, kind.nonblocking(), None)?;
    if domain == socket2::Domain::IPV6 {
        socket.set_only_v6(false)?;
    }
    // For UDP sockets this option would allow any process to share the port.
    socket.set_reuse_address(kind == Type::STREAM)?;
    socket.set_reuse_port(shared)?;
    socket.bind(&address.into())?;
    Ok(socket)
}

/// Whether a bind failed because the kernel has no IPv6, or the network namespace has no IPv6
/// address.
fn lacks_ipv6(error: &std::io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EAFNOSUPPORT | libc::EADDRNOTAVAIL)
    )
}
