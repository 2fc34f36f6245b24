//! The kernel's buffers of UDP sockets.
//!
//! Datagrams wait in these buffers while the gateway's event loop is busy, and are lost if the
//! buffers are full. The kernel grants at most `net.core.rmem_max` and `net.core.wmem_max`, which
//! only the node's administrator can raise.

use std::io::Result;

use muxtunnel_codes::Code;
use socket2::{Domain, SockRef, Socket, Type};

/// The requested size, in bytes: more than any node grants, but within the range of the kernel's
/// counter.
const MOST: usize = 0x3fff_ffff;
/// Buffers below this size lose datagrams while the event loop is busy. 5 Gbit/s bring this amount
/// in 3 ms.
const BUFFER_BYTES_MIN: usize = 2 << 20;

/// Capacity of a socket's buffers, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Buffers {
    pub(crate) receive: usize,
    pub(crate) send: usize,
}

impl Buffers {
    /// The smaller of both values, for each direction.
    pub(crate) fn least(self, other: Self) -> Self {
        Self {
            receive: self.receive.min(other.receive),
            send: self.send.min(other.send),
        }
    }

    /// Logs the capacity of the buffers of the sockets on `listen`.
    pub(crate) fn report(self, listen: &str) {
        let Self { receive, send } = self;
        if receive.min(send) < BUFFER_BYTES_MIN {
            let code = Code::UdpBuffersSmall;
            let advice = code.remedy();
            tracing::warn!(%code, %listen, receive, send, advice, "Small UDP buffers, bytes");
        } else {
            tracing::info!(%listen, receive, send, "UDP buffers in force, bytes");
        }
    }
}

/// Sets both buffers of a socket to `bytes`, as far as the kernel permits. Returns the capacity of
/// both buffers: half of the size that the kernel reports, because that size includes the kernel's
/// overhead.
///
/// # Errors
/// The system call fails.
pub(crate) fn enlarge(socket: &SockRef<'_>, bytes: usize) -> Result<Buffers> {
    socket.set_recv_buffer_size(bytes)?;
    socket.set_send_buffer_size(bytes)?;
    Ok(Buffers {
        receive: socket.recv_buffer_size()? / 2,
        send: socket.send_buffer_size()? / 2,
    })
}

/// The effective values of `net.core.rmem_max` and `net.core.wmem_max`. The function measures the
/// values on a socket, since a pod may be unable to read the sysctls.
///
/// # Errors
/// The system call fails.
pub(crate) fn max() -> Result<Buffers> {
    let socket = Socket::new(Domain::UNIX, Type::DGRAM, None)?;
    enlarge(&SockRef::from(&socket), MOST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bounds_are_those_of_the_kernel() {
        let read = |name: &str| {
            let text = std::fs::read_to_string(format!("/proc/sys/net/core/{name}"));
            text.map(|text| text.trim().parse::<usize>().unwrap())
        };
        // Older kernels hide these files from containers.
        if let (Ok(receive), Ok(send)) = (read("rmem_max"), read("wmem_max")) {
            assert_eq!(max().unwrap(), Buffers { receive, send });
        }
    }

    #[test]
    fn a_socket_gets_what_it_asks_for_below_the_bounds() {
        let socket = Socket::new(Domain::IPV4, Type::DGRAM, None).unwrap();
        let got = enlarge(&SockRef::from(&socket), 16 << 10).unwrap();
        let (receive, send) = (16 << 10, 16 << 10);
        assert_eq!(got, Buffers { receive, send });
    }
}
