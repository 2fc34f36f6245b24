//! The kernel's buffers of UDP sockets.
//!
//! Datagrams wait there while the gateway's loop is busy, and those that find no room are lost. The kernel gives at most
//! `net.core.rmem_max` and `net.core.wmem_max`, which only the node can raise.

use std::io::Result;

use muxtunnel_codes::Code;
use socket2::{Domain, SockRef, Socket, Type};

/// More than a node gives, and no more than the kernel counts.
const MOST: usize = 0x3fff_ffff;
/// Below this the buffers lose datagrams that come while the loop is busy: what 5 Gbit/s bring in 3 ms.
const BUFFER_BYTES_MIN: usize = 2 << 20;

/// What the buffers of a socket hold, bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Buffers {
    pub(crate) receive: usize,
    pub(crate) send: usize,
}

impl Buffers {
    /// The smaller of both, each way.
    pub(crate) fn least(self, other: Self) -> Self {
        Self {
            receive: self.receive.min(other.receive),
            send: self.send.min(other.send),
        }
    }

    /// Writes what those of the sockets on `listen` are to the log.
    pub(crate) fn report(self, listen: &str) {
        let Self { receive, send } = self;
        if receive.min(send) < BUFFER_BYTES_MIN {
            let code = Code::UdpBuffersSmall;
            let advice = code.remedy();
            tracing::warn!(%code, %listen, receive, send, advice, "Small UDP buffers");
        } else {
            tracing::info!(%listen, receive, send, "UDP buffers in force, bytes");
        }
    }
}

/// Has the buffers of a socket hold `bytes` each, as far as the kernel lets them, and returns what they hold: the kernel
/// counts its own overhead twice.
///
/// # Errors
/// The system's.
pub(crate) fn enlarge(socket: &SockRef<'_>, bytes: usize) -> Result<Buffers> {
    socket.set_recv_buffer_size(bytes)?;
    socket.set_send_buffer_size(bytes)?;
    Ok(Buffers {
        receive: socket.recv_buffer_size()? / 2,
        send: socket.send_buffer_size()? / 2,
    })
}

/// The values of `net.core.rmem_max` and `net.core.wmem_max` in force, by what a socket gets: a pod may not see them.
///
/// # Errors
/// The system's.
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
        // Older kernels do not show them in a container.
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
