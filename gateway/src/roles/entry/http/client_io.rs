//! The client's socket, as hyper sees it during one request.
//!
//! Hyper reads exactly one request, and then the end of the stream. The bytes after the request
//! stay here for the next request, and the end of the client's half stays in the socket. Below
//! hyper's response, this module writes informational responses, which hyper's server cannot send.

use std::cell::Cell;
use std::io::IoSlice;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use hyper::body::{Buf, Bytes};
use hyper::{HeaderMap, StatusCode};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;

use super::body_end::BodyEnd;
use super::{HEAD_BYTES_MAX, is_forwarded};
use crate::ingress::listener::http::forwarded::{BodyFraming, PSEUDONYM};
use crate::io::duplex::ByteStream;
use crate::io::local_socket::LocalSocket;

/// What the exchange learns about the client's side.
#[derive(Debug, Default)]
pub(super) struct ClientState {
    /// The whole request has been read.
    pub(super) is_received: Cell<bool>,
    /// The client ended its half before the end of its request.
    pub(super) is_cut: Cell<bool>,
    /// The response contains `Connection: close`.
    pub(super) closes: Cell<bool>,
    /// Hyper has written all data and has requested the shutdown of the socket. The socket stays
    /// open. The caller closes it later.
    pub(super) is_flushed: Cell<bool>,
}

pub(super) struct ClientIo {
    socket: ByteStream<Rc<LocalSocket>>,
    /// The rest of the rewritten head.
    head: Bytes,
    /// Bytes that were read from the socket and that hyper has not read.
    early: Bytes,
    body: BodyEnd,
    state: Rc<ClientState>,
    informational: Arc<Informational>,
}

impl ClientIo {
    pub(super) fn new(
        socket: Rc<LocalSocket>,
        head: Vec<u8>,
        early: Vec<u8>,
        framing: BodyFraming,
        state: Rc<ClientState>,
        informational: Arc<Informational>,
    ) -> Self {
        let body = BodyEnd::new(framing);
        state.is_received.set(body.is_over());
        Self {
            socket: ByteStream(socket),
            head: head.into(),
            early: early.into(),
            body,
            state,
            informational,
        }
    }

    /// The socket, and the bytes that the client sent after its request.
    pub(super) fn into_rest(self) -> (Rc<LocalSocket>, Vec<u8>) {
        (self.socket.0, self.early.into())
    }

    /// Records that hyper reads `bytes`. Returns how many of them belong to the request.
    fn take(&mut self, bytes: &[u8]) -> usize {
        let taken = self.body.take(bytes);
        self.state.is_received.set(self.body.is_over());
        taken
    }
}

impl AsyncRead for ClientIo {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        if !self.head.is_empty() {
            let length = self.head.len().min(buffer.remaining());
            buffer.put_slice(&self.head[..length]);
            self.head.advance(length);
            return Poll::Ready(Ok(()));
        }
        if self.body.is_over() {
            return Poll::Ready(Ok(()));
        }
        if !self.early.is_empty() {
            let length = self.early.len().min(buffer.remaining());
            let next = self.early.slice(..length);
            let taken = self.take(&next);
            buffer.put_slice(&next[..taken]);
            self.early.advance(taken);
            return Poll::Ready(Ok(()));
        }
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.socket).poll_read(cx, buffer))?;
        let next = &buffer.filled()[before..];
        if next.is_empty() {
            self.state.is_cut.set(true);
            return Poll::Ready(Ok(()));
        }
        let taken = self.take(next);
        self.early = Bytes::copy_from_slice(&next[taken..]);
        buffer.set_filled(before + taken);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for ClientIo {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<std::io::Result<usize>> {
        let this = &mut *self;
        ready!(this.informational.poll_write(cx, &mut this.socket))?;
        Pin::new(&mut this.socket).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        self.state.is_flushed.set(true);
        Poll::Ready(Ok(()))
    }
}

/// The informational responses (1xx) that wait for the client, at most [`HEAD_BYTES_MAX`] bytes.
/// Further ones are dropped while the client does not read.
#[derive(Debug, Default)]
pub(super) struct Informational {
    waiting: Mutex<Vec<u8>>,
    arrived: Notify,
}

impl Informational {
    pub(super) fn push(&self, status: StatusCode, fields: &HeaderMap) {
        let message = message(status, fields);
        let mut waiting = self.waiting.lock();
        if waiting.len() + message.len() <= HEAD_BYTES_MAX {
            waiting.extend(message);
            self.arrived.notify_one();
        }
    }

    /// Writes the responses as they arrive. Never returns unless the socket has failed.
    pub(super) async fn write_to(&self, socket: Rc<LocalSocket>) -> std::io::Result<()> {
        let mut socket = ByteStream(socket);
        loop {
            self.arrived.notified().await;
            std::future::poll_fn(|cx| self.poll_write(cx, &mut socket)).await?;
        }
    }

    /// Ready when no response waits.
    fn poll_write(
        &self,
        cx: &mut Context<'_>,
        socket: &mut ByteStream<Rc<LocalSocket>>,
    ) -> Poll<std::io::Result<()>> {
        let mut waiting = self.waiting.lock();
        while !waiting.is_empty() {
            let written = ready!(Pin::new(&mut *socket).poll_write(cx, &waiting))?;
            waiting.drain(..written);
        }
        Poll::Ready(Ok(()))
    }
}

/// An informational response for the client. A 100 (Continue) without fields stays as short as
/// clients expect it.
fn message(status: StatusCode, fields: &HeaderMap) -> Vec<u8> {
    let reason = status.canonical_reason().unwrap_or_default();
    let mut message = format!("HTTP/1.1 {} {reason}\r\n", status.as_str()).into_bytes();
    for (name, value) in fields.iter().filter(|(name, _)| is_forwarded(name, fields)) {
        message.extend(name.as_str().bytes());
        message.extend(b": ");
        message.extend(value.as_bytes());
        message.extend(b"\r\n");
    }
    if status != StatusCode::CONTINUE || !fields.is_empty() {
        message.extend(format!("via: 1.1 {PSEUDONYM}\r\n").bytes());
    }
    message.extend(b"\r\n");
    message
}
