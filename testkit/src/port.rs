//! Free ports.

use std::net::{Ipv4Addr, TcpListener};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Ports below the range of outgoing connections. Otherwise an outgoing connection could take a
/// port before a test listens on it.
const PORTS: std::ops::Range<u16> = 20_000..30_000;

/// A free port. The process gets each port only once.
#[must_use]
pub fn free_port() -> u16 {
    static NAMED: AtomicU32 = AtomicU32::new(0);
    loop {
        let next = std::process::id().wrapping_add(NAMED.fetch_add(1, Relaxed));
        let port = PORTS.start + (next % u32::from(PORTS.end - PORTS.start)) as u16;
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return port;
        }
    }
}
