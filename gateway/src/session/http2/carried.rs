//! A transport for the library. The transport first delivers bytes that were already read, and
//! counts all bytes.

use std::io::{IoSlice, Result};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::base::telemetry::CarrierStats;
use crate::io::duplex::ByteStream;
use crate::io::transport::Transport;

pub(super) struct Carried {
    stream: ByteStream<Rc<dyn Transport>>,
    /// Bytes that were already read from the transport.
    unread: Vec<u8>,
    stats: Arc<CarrierStats>,
}

impl Carried {
    pub(super) fn new(
        transport: Rc<dyn Transport>,
        unread: Vec<u8>,
        stats: Arc<CarrierStats>,
    ) -> Self {
        Self {
            stream: ByteStream(transport),
            unread,
            stats,
        }
    }
}

impl AsyncRead for Carried {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<Result<()>> {
        let before = buffer.filled().len();
        if self.unread.is_empty() {
            ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        } else {
            let length = self.unread.len().min(buffer.remaining());
            buffer.put_slice(&self.unread[..length]);
            self.unread.drain(..length);
        }
        self.stats.add_received(buffer.filled().len() - before);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Carried {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<Result<usize>> {
        self.poll_write_vectored(context, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<Result<usize>> {
        let length = ready!(Pin::new(&mut self.stream).poll_write_vectored(context, slices))?;
        self.stats.add_sent(length);
        Poll::Ready(Ok(length))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
