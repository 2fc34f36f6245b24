//! The payload that the peer sends on one stream.
//!
//! The library keeps each DATA frame by itself, which costs several hundred bytes. Many small frames
//! would therefore take much more memory than the window allows. So small frames that wait are
//! joined.

use std::collections::VecDeque;
use std::task::{Context, Poll, Waker, ready};

use bytes::{Bytes, BytesMut};
use h2::RecvStream;

use super::Traffic;
use super::meter::JOINED_BYTES;

/// Number of small frames of one stream that may wait in the library.
const SMALL_MAX: u32 = 8;

pub(super) struct Inflow {
    stream: RecvStream,
    /// The payload that precedes the payload in `tail`.
    pieces: VecDeque<Bytes>,
    /// The payload of small frames.
    tail: BytesMut,
    /// What follows the payload of `tail`; `None`: the library knows.
    end: Option<Option<h2::Error>>,
    /// Number of small frames since the receiver last waited for payload.
    small: u32,
    /// The task that waits for payload.
    waker: Option<Waker>,
    /// Payload received since the last PONG, in bytes.
    pub(super) came: u64,
}

impl Inflow {
    pub(super) fn new(stream: RecvStream) -> Self {
        Self {
            stream,
            pieces: VecDeque::new(),
            tail: BytesMut::new(),
            end: None,
            small: 0,
            waker: None,
            came: 0,
        }
    }

    pub(super) fn id(&self) -> u32 {
        self.stream.stream_id().as_u32()
    }

    /// Number of bytes that no local end has taken.
    pub(super) fn held(&mut self) -> u64 {
        self.stream.flow_control().used_capacity() as u64
    }

    /// Gives the peer credit for bytes that the local end took.
    pub(super) fn took(&mut self, bytes: usize) {
        // This fails if the stream has ended; then the credit has no effect.
        let _ = self.stream.flow_control().release_capacity(bytes);
    }

    /// The next payload; `None`: the peer's half has ended.
    pub(super) fn poll_receive(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, h2::Error>>> {
        if let Some(piece) = self.pieces.pop_front() {
            return Poll::Ready(Some(Ok(piece)));
        }
        if !self.tail.is_empty() {
            return Poll::Ready(Some(Ok(self.tail.split().freeze())));
        }
        if let Some(end) = self.end.take() {
            return Poll::Ready(end.map(Err));
        }
        self.waker = Some(context.waker().clone());
        let received = ready!(self.stream.poll_data(context));
        self.small = 0;
        Poll::Ready(received)
    }

    /// Handles a small frame that waits in the library.
    fn count_small(&mut self) {
        self.small += 1;
        if self.small >= SMALL_MAX {
            self.small = 0;
            self.join();
        }
    }

    /// Takes all payload that waits in the library.
    fn join(&mut self) {
        let waker = self.waker.clone();
        let mut context = Context::from_waker(waker.as_ref().unwrap_or(Waker::noop()));
        while self.end.is_none()
            && let Poll::Ready(received) = self.stream.poll_data(&mut context)
        {
            match received {
                Some(Ok(payload)) if payload.len() < JOINED_BYTES => {
                    self.tail.extend_from_slice(&payload);
                }
                Some(Ok(payload)) => {
                    if !self.tail.is_empty() {
                        self.pieces.push_back(self.tail.split().freeze());
                    }
                    self.pieces.push_back(payload);
                }
                Some(Err(error)) => self.end = Some(Some(error)),
                None => self.end = Some(None),
            }
        }
    }
}

impl Traffic {
    /// Announces the windows of all streams, as far as they have more room than the peer knows. The
    /// library announces room when a local end takes bytes, if it is at least half of the window
    /// that the peer has left (h2, `FlowControl::unclaimed_capacity`). If the window then shrinks,
    /// the peer may have none left. It sends nothing, so that no local end ever takes bytes.
    pub(super) fn announce_windows(&self) {
        for inflow in self.incoming.borrow().values() {
            inflow.borrow_mut().took(0);
        }
    }

    /// Handles small frames that arrived for these streams.
    pub(super) fn join_small(&self, streams: &[u32]) {
        let incoming = self.incoming.borrow();
        for stream in streams {
            if let Some(inflow) = incoming.get(stream) {
                inflow.borrow_mut().count_small();
            }
        }
    }
}
