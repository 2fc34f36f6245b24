//! A Unix socket: a carrier between two processes on one machine.

use std::io::{IoSlice, Result};
use std::net::Shutdown;
use std::task::{Context, Poll};

use muxtunnel_gateway_config::UNIX_PREFIX;
use muxtunnel_gateway_config::status::CarrierTransport;
use socket2::SockRef;
use tokio::net::UnixStream;

use super::{Detached, Transport};
use crate::io::duplex::Duplex;

/// A connected socket, and its path: the path to which this side connected, or the path on which it
/// listens.
#[derive(Debug)]
pub(crate) struct Unix {
    socket: UnixStream,
    path: String,
}

impl Unix {
    pub(crate) fn boxed(socket: UnixStream, path: &str) -> Box<dyn Transport> {
        let path = path.to_owned();
        Box::new(Self { socket, path })
    }
}

impl Duplex for Unix {
    fn poll_readable(&self, context: &mut Context<'_>) -> Poll<Result<()>> {
        self.socket.poll_read_ready(context)
    }

    fn poll_writable(&self, context: &mut Context<'_>) -> Poll<Result<()>> {
        self.socket.poll_write_ready(context)
    }

    fn try_read(&self, bytes: &mut [u8]) -> Result<usize> {
        self.socket.try_read(bytes)
    }

    fn try_write(&self, slices: &[IoSlice<'_>]) -> Result<usize> {
        self.socket.try_write_vectored(slices)
    }

    fn finish(&self) -> Result<()> {
        SockRef::from(&self.socket).shutdown(Shutdown::Write)
    }
}

impl Transport for Unix {
    fn shut(&self) {
        // This fails if the peer has already ended the connection.
        let _ = SockRef::from(&self.socket).shutdown(Shutdown::Both);
    }

    fn runs_on(&self) -> CarrierTransport {
        CarrierTransport::Unix
    }

    fn peer(&self) -> String {
        format!("{UNIX_PREFIX}{}", self.path)
    }

    fn detach(self: Box<Self>) -> Result<Detached> {
        let (socket, path) = (self.socket.into_std()?, self.path);
        Ok(Box::new(move || {
            let socket = UnixStream::from_std(socket)?;
            Ok(Box::new(Self { socket, path }))
        }))
    }
}
