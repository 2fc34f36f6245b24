//! Free ports and networks. Each test has its own process, so reservations are between processes.

use std::net::{Ipv4Addr, TcpListener};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

/// Ports below the range of outgoing connections. Otherwise an outgoing connection could take a
/// port before a test listens on it.
const PORTS: std::ops::Range<u16> = 20_000..30_000;
/// Distance between the first ports, or networks, of two processes with successive numbers.
const STRIDE: u32 = 61;
/// Number of networks of [`free_network`].
const NETWORKS: u32 = 1 << 14;

/// The reservations of this process, which the kernel releases when the process ends.
static RESERVED: Mutex<Vec<UnixDatagram>> = Mutex::new(Vec::new());

/// A free port. All test processes of a network namespace together get each port only once.
#[must_use]
pub fn free_port() -> u16 {
    static NAMED: AtomicU32 = AtomicU32::new(0);
    loop {
        let first = std::process::id().wrapping_mul(STRIDE);
        let next = first.wrapping_add(NAMED.fetch_add(1, Relaxed));
        let port = PORTS.start + (next % u32::from(PORTS.end - PORTS.start)) as u16;
        if reserve("port", port) && TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return port;
        }
    }
}

/// The first three bytes of an unused network `N.N.N.0/24`. All test processes of a network
/// namespace together get each network only once. The networks are in 100.64.0.0/10, which nothing
/// else in the tests uses (RFC 6598).
#[must_use]
pub fn free_network() -> String {
    static NAMED: AtomicU32 = AtomicU32::new(0);
    loop {
        let first = std::process::id().wrapping_mul(STRIDE);
        let number = first.wrapping_add(NAMED.fetch_add(1, Relaxed)) % NETWORKS;
        let number = number as u16;
        if reserve("network", number) {
            return format!("100.{}.{}", 64 + (number >> 8), number & 0xff);
        }
    }
}

/// Reserves a number by a name that only one process can have. Returns false if another process has
/// the name.
fn reserve(what: &str, number: u16) -> bool {
    let name = format!("muxtunnel-test-{what}-{number}");
    let address = SocketAddr::from_abstract_name(name);
    let Ok(socket) = address.and_then(|address| UnixDatagram::bind_addr(&address)) else {
        return false;
    };
    let mut reserved = RESERVED.lock().unwrap_or_else(PoisonError::into_inner);
    reserved.push(socket);
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_given_once() {
        let port = free_port();
        assert!(!reserve("port", port));
        assert_ne!(free_port(), port);
    }

    #[test]
    fn a_network_is_given_once() {
        assert_ne!(free_network(), free_network());
    }
}
