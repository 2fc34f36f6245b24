//! The two halves of a stream.
//!
//! The library does not say how much a peer takes: a batch is offered, it takes what it may, and the rest waits here, in no
//! buffer of the session's. So that stalled streams hold little, a stream whose last batch was not taken at once offers half as
//! much next, and all rests together are bounded by [`RESTS_MAX`], beyond which a stream offers [`OFFER_MIN`].

use std::future::poll_fn;
use std::io::IoSlice;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::{Buf, Bytes};
use muxtunnel_proto::{Outcome, Priority, ResetCode};
use quinn::{RecvStream, SendStream, VarInt};

use super::Traffic;
use super::ask::order;
use super::reading::{Cut, Reading};
use super::wire::Message;
use crate::session::bridge::link::{Held, Payload, Receiver, Sender, Unsent};

/// What all rests of a connection hold before streams offer [`OFFER_MIN`].
const RESTS_MAX: usize = 8 << 20;
/// The least that a stream offers.
const OFFER_MIN: usize = 8 << 10;
/// The most: one batch.
const OFFER_MAX: usize = 256 << 10;
/// A rest of which less than this part is left is copied.
const FITTED_SHARE: usize = 4;
/// Pieces of payload that are received at once; each is what one packet brought.
const PIECES_MAX: usize = 64;
/// What local ends of a connection have not taken before streams receive one piece at a time.
const HELD_MAX: u64 = 8 << 20;
/// How long the peer has to read what it has acknowledged, before a reset has its library throw that away.
const RESET_PAUSE: Duration = Duration::from_millis(10);

/// What this side sends.
pub(crate) struct Sending {
    /// `None`: it is reset.
    stream: Option<SendStream>,
    traffic: Rc<Traffic>,
    /// What the library has not taken.
    rest: Bytes,
    /// What it holds of memory, in [`Traffic::rests`].
    rest_bytes: usize,
    /// The stream's part of what is unsent.
    unsent: Option<Arc<Unsent>>,
    offer: usize,
    has_sent: bool,
    finished: bool,
}

/// A piece that the library has until the peer acknowledges it.
struct Piece {
    bytes: Bytes,
    _held: Option<Held>,
}

impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Sending {
    pub(super) fn new(stream: SendStream, traffic: Rc<Traffic>) -> Self {
        Self {
            stream: Some(stream),
            traffic,
            rest: Bytes::new(),
            rest_bytes: 0,
            unsent: None,
            offer: OFFER_MAX,
            has_sent: false,
            finished: false,
        }
    }

    pub(super) fn set_priority(&self, priority: Priority) {
        if let Some(stream) = &self.stream {
            // It fails where the stream has ended.
            let _ = stream.set_priority(order(priority));
        }
    }

    /// Says `message` before all payload.
    ///
    /// # Errors
    /// The stream was cut.
    pub(super) async fn say(&mut self, message: &Message) -> Result<(), Cut> {
        self.set_rest(message.encode().into());
        poll_fn(|context| self.poll_rest(context)).await
    }

    /// The same, at once or as soon as there is credit for it.
    pub(super) fn say_soon(&mut self, message: &Message) {
        self.set_rest(message.encode().into());
        // Where there is none, or the stream was cut, whoever sends or waits next learns it.
        let _ = self.poll_rest(&mut Context::from_waker(Waker::noop()));
    }

    fn set_rest(&mut self, rest: Bytes) {
        self.count_rest(rest.len());
        self.rest = rest;
    }

    fn count_rest(&mut self, bytes: usize) {
        let rests = &self.traffic.rests;
        rests.set(rests.get() - self.rest_bytes + bytes);
        self.rest_bytes = bytes;
    }

    /// Ready once the library has all of the rest.
    fn poll_rest(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Cut>> {
        while !self.rest.is_empty() {
            let Some(stream) = &mut self.stream else {
                return Poll::Ready(Err(Cut::Peer(ResetCode::Cancelled)));
            };
            let piece = Bytes::from_owner(Piece {
                bytes: self.rest.clone(),
                _held: self.unsent.as_ref().map(Unsent::hold),
            });
            let pieces = &mut [piece];
            let written = ready!(pin!(stream.write_chunks(pieces)).poll(context))?;
            self.rest.advance(written.bytes);
            self.fit_rest();
        }
        Poll::Ready(Ok(()))
    }

    /// A rest holds all of its batch, so a small one is copied.
    fn fit_rest(&mut self) {
        if self.rest.is_empty() {
            self.rest = Bytes::new();
            self.count_rest(0);
        } else if self.rest.len() < self.rest_bytes / FITTED_SHARE {
            self.rest = Bytes::copy_from_slice(&self.rest);
            self.count_rest(self.rest.len());
        }
    }

    /// How much may be read now.
    fn offer(&self) -> usize {
        let free = RESTS_MAX.saturating_sub(self.traffic.rests.get());
        self.offer.min(free).max(OFFER_MIN)
    }
}

impl Sender for Sending {
    async fn capacity(&mut self, wanted: usize) -> Result<usize, Outcome> {
        poll_fn(|context| self.poll_rest(context)).await?;
        Ok(self.offer().min(wanted))
    }

    async fn send(&mut self, payload: Payload) -> Result<(), Outcome> {
        self.has_sent = true;
        self.unsent = payload.unsent().cloned();
        let offered = payload.remaining();
        self.set_rest(Bytes::copy_from_slice(payload.chunk()));
        drop(payload);
        let taken = poll_fn(|context| match self.poll_rest(context) {
            Poll::Ready(taken) => Poll::Ready(taken.map(|()| true)),
            Poll::Pending => Poll::Ready(Ok(false)),
        });
        match taken.await? {
            true if offered >= self.offer => self.offer = (self.offer * 2).min(OFFER_MAX),
            true => {}
            false => self.offer = (self.offer / 2).max(OFFER_MIN),
        }
        Ok(())
    }

    fn rest(&mut self) {
        // Nothing is reserved.
    }

    fn finish(&mut self) -> Result<(), Outcome> {
        self.finished = true;
        let Some(stream) = self.stream.as_mut().filter(|_| self.rest.is_empty()) else {
            return Err(Outcome::PeerReset(ResetCode::Cancelled));
        };
        // It fails where the stream was cut, which is seen by the other half.
        let _ = stream.finish();
        let arrived = stream.stopped();
        let held = Unsent::hold(&self.traffic.unsent);
        drop(tokio::task::spawn_local(async move {
            // Until then the connection is not to be closed.
            let _ = arrived.await;
            drop(held);
        }));
        Ok(())
    }

    async fn stopped(&mut self) -> Outcome {
        if let Err(cut) = poll_fn(|context| self.poll_rest(context)).await {
            return cut.into();
        }
        let Some(stream) = &self.stream else {
            return Outcome::PeerReset(ResetCode::Cancelled);
        };
        match stream.stopped().await {
            Ok(Some(code)) => Cut::from(quinn::WriteError::Stopped(code)).into(),
            Ok(None) => std::future::pending().await,
            Err(error) => Cut::from(error).into(),
        }
    }

    fn reset(&mut self, code: ResetCode) {
        let Some(mut stream) = self.stream.take() else {
            return;
        };
        let code = VarInt::from(code.code());
        if !self.has_sent {
            // It fails where the stream has ended.
            let _ = stream.reset(code);
            return;
        }
        let pause = RESET_PAUSE.max(self.traffic.connection.quic().rtt());
        drop(tokio::task::spawn_local(async move {
            tokio::time::sleep(pause).await;
            let _ = stream.reset(code);
        }));
    }
}

impl Drop for Sending {
    fn drop(&mut self) {
        self.count_rest(0);
        if let Some(stream) = self.stream.as_mut().filter(|_| !self.finished) {
            // The library would finish it, which is for an end alone.
            let _ = stream.reset(VarInt::from(ResetCode::Cancelled.code()));
        }
    }
}

/// What the peer sends.
pub(crate) struct Receiving {
    stream: RecvStream,
    traffic: Rc<Traffic>,
    /// Bytes that were received and the local end has not taken.
    held: u64,
}

impl Receiving {
    pub(super) fn new(stream: RecvStream, traffic: Rc<Traffic>) -> Self {
        Self {
            stream,
            traffic,
            held: 0,
        }
    }

    /// The first message.
    ///
    /// # Errors
    /// The stream was cut.
    pub(super) async fn message(&mut self) -> Result<Message, Cut> {
        Reading::default().next(&mut self.stream).await
    }

    fn count(&mut self, held: u64) {
        let all = &self.traffic.held;
        all.set(all.get() - self.held + held);
        self.held = held;
    }
}

impl Drop for Receiving {
    fn drop(&mut self) {
        self.count(0);
    }
}

impl Receiver for Receiving {
    type Payload = Pieces;

    async fn receive(&mut self) -> Result<Option<Pieces>, Outcome> {
        let most = match self.traffic.held.get() < HELD_MAX {
            true => PIECES_MAX,
            false => 1,
        };
        let mut pieces = vec![Bytes::new(); most];
        let read = self.stream.read_chunks(&mut pieces).await;
        let Some(count) = read.map_err(Cut::from)? else {
            return Ok(None);
        };
        pieces.truncate(count);
        let pieces = Pieces::from(pieces);
        self.count(self.held + pieces.remaining() as u64);
        Ok(Some(pieces))
    }

    /// The library has given credit for it when it was received.
    fn took(&mut self, bytes: usize) {
        self.count(self.held.saturating_sub(bytes as u64));
    }

    fn stop(&mut self, code: ResetCode) {
        // It fails where the stream has ended.
        let _ = self.stream.stop(VarInt::from(code.code()));
    }
}

/// What several packets brought.
#[derive(Debug)]
pub(crate) struct Pieces {
    pieces: Vec<Bytes>,
    first: usize,
    remaining: usize,
}

impl From<Vec<Bytes>> for Pieces {
    fn from(pieces: Vec<Bytes>) -> Self {
        Self {
            remaining: pieces.iter().map(Bytes::len).sum(),
            pieces,
            first: 0,
        }
    }
}

impl Buf for Pieces {
    fn remaining(&self) -> usize {
        self.remaining
    }

    fn chunk(&self) -> &[u8] {
        self.pieces.get(self.first).map_or(&[], |piece| piece)
    }

    fn chunks_vectored<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let pieces = self.pieces.get(self.first..).unwrap_or_default();
        let mut count = 0;
        for (slice, piece) in slices.iter_mut().zip(pieces) {
            *slice = IoSlice::new(piece);
            count += 1;
        }
        count
    }

    fn advance(&mut self, bytes: usize) {
        let mut left = bytes.min(self.remaining);
        self.remaining -= left;
        while let Some(piece) = self.pieces.get_mut(self.first) {
            if piece.len() > left {
                piece.advance(left);
                break;
            }
            left -= piece.len();
            *piece = Bytes::new();
            self.first += 1;
        }
    }
}
