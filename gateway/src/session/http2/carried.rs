//! A transport for the library. The transport first delivers bytes that were already read, and
//! counts all bytes. The [`Meter`] sees all frames.

use std::cell::RefCell;
use std::io::{IoSlice, Result};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::PREFACE;
use super::ahead::Ahead;
use super::heads::{HEAD_BYTES, Incoming, Outgoing};
use super::meter::{Meter, Verdict};
use crate::base::telemetry::CarrierStats;
use crate::io::duplex::ByteStream;
use crate::io::transport::{Side, Transport};
use crate::session::shell::now;

/// Minimum room of a buffer that is filled directly. A smaller buffer might not have room for the
/// head of a frame.
const LEAST: usize = 64;

pub(super) struct Carried {
    stream: ByteStream<Rc<dyn Transport>>,
    /// Bytes that were read while the transport took no bytes.
    ahead: Ahead,
    /// Bytes that were read from the transport and that the library may not process yet: at most the
    /// bytes of one read and a head.
    unread: Vec<u8>,
    /// Bytes that a small buffer had no room for, at most [`LEAST`].
    sifted: Vec<u8>,
    /// Whether the peer has ended the stream.
    ended: bool,
    incoming: Incoming,
    outgoing: Outgoing,
    meter: Rc<RefCell<Meter>>,
    stats: Arc<CarrierStats>,
}

impl Carried {
    pub(super) fn new(
        (side, transport): (Side, Rc<dyn Transport>),
        unread: Vec<u8>,
        meter: &Rc<RefCell<Meter>>,
        (stats, ahead_max): (Arc<CarrierStats>, usize),
    ) -> Self {
        stats.received.add(unread.len());
        let (received, sent) = match side {
            Side::Accepts => (PREFACE.len(), 0),
            Side::Dials => (0, PREFACE.len()),
        };
        Self {
            stream: ByteStream(transport),
            ahead: Ahead::new(ahead_max),
            unread,
            sifted: Vec::new(),
            ended: false,
            incoming: Incoming::new(received),
            outgoing: Outgoing::new(sent),
            meter: Rc::clone(meter),
            stats,
        }
    }

    /// Fills `buffer`, which has room for at least [`LEAST`] bytes.
    fn poll_fill(
        &mut self,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<Result<()>> {
        let start = buffer.filled().len();
        loop {
            if self.meter.borrow().is_shut() {
                return Poll::Pending;
            }
            // The beginning of a head waits for the rest of the head.
            let needs_more = self.unread.len() < HEAD_BYTES && !self.ended;
            let length = self.unread.len().min(buffer.remaining());
            buffer.put_slice(&self.unread[..length]);
            self.unread.drain(..length);
            let before = buffer.filled().len();
            let mut is_idle = false;
            if needs_more {
                match self.poll_source(context, buffer) {
                    Poll::Ready(read) => read?,
                    Poll::Pending => is_idle = true,
                }
                let received = buffer.filled().len() - before;
                self.stats.received.add(received);
                self.ended = received == 0 && !is_idle;
            }
            self.sift(buffer, start);
            let is_over = self.ended && self.unread.is_empty();
            if buffer.filled().len() > start || is_over {
                return Poll::Ready(Ok(()));
            }
            if is_idle {
                return Poll::Pending;
            }
        }
    }

    fn poll_source(
        &mut self,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<Result<()>> {
        match self.ahead.take(buffer) {
            Some(read) => Poll::Ready(read),
            None => Pin::new(&mut self.stream).poll_read(context, buffer),
        }
    }

    /// Reads ahead, since the transport takes no bytes. While the meter holds frames back, nothing
    /// is read.
    fn read_ahead(&mut self, context: &mut Context<'_>) {
        if !self.ended && !self.meter.borrow().is_shut() {
            let before = || self.incoming.after(&self.unread);
            if self.ahead.fill(context, &mut self.stream, before) {
                // The library may be able to read now, but it waits for further bytes.
                context.waker().wake_by_ref();
            }
        }
    }

    /// Keeps the bytes of `buffer` from `start` on that the library may process now. Moves the
    /// others back to `unread`.
    fn sift(&mut self, buffer: &mut ReadBuf<'_>, start: usize) {
        let now = now();
        let mut meter = self.meter.borrow_mut();
        let bytes = &mut buffer.filled_mut()[start..];
        let (mut at, mut removed) = (0, 0);
        loop {
            let (next, head) = self.incoming.next(bytes, at);
            if removed > 0 {
                bytes.copy_within(at..next, at - removed);
            }
            at = next;
            let Some(head) = head else {
                // No rest of the head follows the end of the stream.
                if self.ended {
                    bytes.copy_within(at.., at - removed);
                    at = bytes.len();
                }
                break;
            };
            let is_last = at + HEAD_BYTES + head.length >= bytes.len();
            let verdict = match self.incoming.is_in_block() && head.is_empty_data() {
                true => Verdict::Passes,
                false => meter.receives(head, is_last, now),
            };
            match verdict {
                Verdict::Passes => self.incoming.pass(head),
                Verdict::Removed => {
                    at += HEAD_BYTES;
                    removed += HEAD_BYTES;
                }
                Verdict::Waits => break,
            }
        }
        self.unread.splice(..0, bytes[at..].iter().copied());
        buffer.set_filled(start + at - removed);
    }

    fn deliver(&mut self, buffer: &mut ReadBuf<'_>) {
        let length = self.sifted.len().min(buffer.remaining());
        buffer.put_slice(&self.sifted[..length]);
        self.sifted.drain(..length);
    }

    /// Shows the meter the first `length` bytes of `slices`, which the transport took.
    fn sent(&mut self, slices: &[IoSlice<'_>], mut length: usize) {
        let now = now();
        let mut meter = self.meter.borrow_mut();
        meter.takes(true);
        for slice in slices {
            let taken = length.min(slice.len());
            self.outgoing
                .read(&slice[..taken], |head, code| meter.sends(head, code, now));
            length -= taken;
        }
    }
}

impl AsyncRead for Carried {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<Result<()>> {
        let this = self.get_mut();
        if this.sifted.is_empty() {
            if buffer.remaining() >= LEAST {
                return this.poll_fill(context, buffer);
            }
            let mut bytes = [0; LEAST];
            let mut small = ReadBuf::new(&mut bytes);
            ready!(this.poll_fill(context, &mut small))?;
            this.sifted.extend_from_slice(small.filled());
        }
        this.deliver(buffer);
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
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        match &written {
            Poll::Ready(Ok(length)) => {
                self.stats.sent.add(*length);
                self.sent(slices, *length);
            }
            Poll::Ready(Err(_)) => {}
            Poll::Pending => {
                self.meter.borrow_mut().takes(false);
                self.read_ahead(context);
            }
        }
        written
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        if flushed.is_pending() {
            self.read_ahead(context);
        }
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests;
