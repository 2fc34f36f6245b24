//! A TCP socket: a plain carrier, and the base of most other transports.

use std::io::{IoSlice, Result};
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::task::{Context, Poll};

use muxtunnel_gateway_config::CongestionControl;
use socket2::SockRef;
use tokio::io::{Interest, ReadBuf};
use tokio::net::TcpStream;

use super::{Detached, Path, Transport};
use crate::base::path::{PathInfo, PathProbe};
use crate::base::sys;
use crate::io::duplex::Duplex;
use crate::io::local_socket::canonical;
use crate::io::socket::{self, KeepaliveConfig};

/// A connected socket.
#[derive(Debug)]
pub(crate) struct Tcp {
    socket: TcpStream,
    /// The address of the peer behind an intermediary, if the socket is connected to an
    /// intermediary.
    behind: Option<String>,
}

impl Tcp {
    pub(crate) fn boxed(socket: TcpStream) -> Box<dyn Transport> {
        let behind = None;
        Box::new(Self { socket, behind })
    }

    /// Creates a transport from a socket to an intermediary that forwards to `behind`.
    pub(crate) fn through(socket: TcpStream, behind: String) -> Box<dyn Transport> {
        let behind = Some(behind);
        Box::new(Self { socket, behind })
    }
}

impl Duplex for Tcp {
    fn poll_readable(&self, context: &mut Context<'_>) -> Poll<Result<()>> {
        self.socket.poll_read_ready(context)
    }

    fn poll_writable(&self, context: &mut Context<'_>) -> Poll<Result<()>> {
        self.socket.poll_write_ready(context)
    }

    /// A read that does not fill its buffer has emptied the socket. So the caller waits for the
    /// next readiness without another system call. A local socket differs: its read may end early,
    /// before a byte that a client marks as urgent.
    fn try_read(&self, bytes: &mut [u8]) -> Result<usize> {
        let length = self.socket.try_read(bytes)?;
        if length < bytes.len() {
            socket::not_ready(&self.socket, Interest::READABLE);
        }
        Ok(length)
    }

    fn try_read_into(&self, buffer: &mut ReadBuf<'_>) -> Result<usize> {
        let length = self.socket.try_read_buf(buffer)?;
        if buffer.remaining() > 0 {
            socket::not_ready(&self.socket, Interest::READABLE);
        }
        Ok(length)
    }

    fn try_write(&self, slices: &[IoSlice<'_>]) -> Result<usize> {
        let total = slices.iter().map(|slice| slice.len()).sum();
        socket::write(&self.socket, slices, total)
    }

    fn finish(&self) -> Result<()> {
        SockRef::from(&self.socket).shutdown(Shutdown::Write)
    }
}

impl Transport for Tcp {
    fn shut(&self) {
        // This fails if the peer has already ended the connection.
        let _ = SockRef::from(&self.socket).shutdown(Shutdown::Both);
    }

    fn path(&self) -> Option<&dyn Path> {
        Some(&self.socket)
    }

    fn plain(&self) -> Option<&TcpStream> {
        Some(&self.socket)
    }

    fn peer(&self) -> String {
        let address = || {
            let peer = self.socket.peer_addr();
            peer.map(|peer| canonical(peer).to_string())
        };
        let behind = self.behind.clone();
        behind.unwrap_or_else(|| address().unwrap_or_default())
    }

    fn detach(self: Box<Self>) -> Result<Detached> {
        let (socket, behind) = (self.socket.into_std()?, self.behind);
        Ok(Box::new(move || {
            let socket = TcpStream::from_std(socket)?;
            Ok(Box::new(Self { socket, behind }))
        }))
    }
}

impl Path for TcpStream {
    fn info(&self) -> Result<PathInfo> {
        sys::tcp_info(self.as_fd())
    }

    fn prepare(
        &self,
        congestion_control: CongestionControl,
        keepalive: KeepaliveConfig,
    ) -> Result<()> {
        socket::prepare_carrier(self, congestion_control, keepalive)
    }

    fn follow(&self, keepalive: KeepaliveConfig) -> Result<()> {
        socket::detect_death(self, keepalive)
    }

    fn bound_queue(&self, bytes: u32) -> Result<()> {
        SockRef::from(self).set_tcp_notsent_lowat(bytes)
    }

    fn probe(&self) -> Result<Box<dyn PathProbe>> {
        Ok(Box::new(TcpProbe(self.as_fd().try_clone_to_owned()?)))
    }
}

/// A duplicate of a TCP socket's descriptor, for TCP_INFO.
#[derive(Debug)]
struct TcpProbe(OwnedFd);

impl PathProbe for TcpProbe {
    fn info(&self) -> Option<PathInfo> {
        sys::tcp_info(self.0.as_fd()).ok()
    }

    fn congestion_control(&self) -> Option<String> {
        let name = SockRef::from(&self.0).tcp_congestion().ok()?;
        let name = String::from_utf8_lossy(&name);
        Some(name.trim_end_matches('\0').to_owned())
    }
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;

    use muxtunnel_testkit::socket::pair;

    use super::*;
    use crate::io::duplex::readable;

    #[tokio::test]
    async fn a_short_read_waits_for_more_and_still_sees_the_end() {
        let (near, far) = pair().await;
        let near = Tcp::boxed(near);
        let mut bytes = [0; 8];
        for part in [b"one", b"two"] {
            far.writable().await.unwrap();
            far.try_write(part).unwrap();
            readable(&*near).await.unwrap();
            let length = near.try_read(&mut bytes).unwrap();
            assert_eq!(&bytes[..length], part);
        }
        far.try_write(b"end").unwrap();
        drop(far);
        let mut all = Vec::new();
        loop {
            readable(&*near).await.unwrap();
            match near.try_read(&mut bytes) {
                Ok(0) => break,
                Ok(length) => all.extend_from_slice(&bytes[..length]),
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
            }
        }
        assert_eq!(all, b"end");
    }
}
