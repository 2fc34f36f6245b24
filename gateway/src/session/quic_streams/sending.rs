//! The half of a stream that this side sends.
//!
//! The library does not report how many bytes a peer takes. So a stream offers a batch, the library
//! takes a part, and the rest waits here, outside the session's buffers. If the library did not
//! take a batch at once, the stream offers half as much next time. So the rests of stalled streams
//! stay small. [`RESTS_MAX`] bounds all rests together. Above this bound, each stream offers
//! [`OFFER_MIN`].
//!
//! `memory.retain` bounds the unacknowledged bytes. At that bound the library takes nothing from
//! any stream. When there is room again, the library first wakes the stream that began to wait
//! last. So bulk streams may use only [`bulk_share`], and queue for their parts of this share.
//! Streams with little to send never wait for the share.

use std::future::poll_fn;
use std::marker::PhantomData;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::{Buf, Bytes};
use muxtunnel_proto::{FIRST_READ_BYTES, Outcome, Priority, ResetCode};
use quinn::{SendStream, StoppedError, VarInt, WriteError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::{Framing, Traffic};
use crate::session::bridge::link::{Held, Payload, Sender, Unsent};

/// If all rests of a connection together have more bytes than this, each stream offers
/// [`OFFER_MIN`].
const RESTS_MAX: usize = 8 << 20;
/// Minimum number of bytes that a stream offers.
const OFFER_MIN: usize = 8 << 10;
/// Maximum number of bytes that a stream offers: one batch.
const OFFER_MAX: usize = 256 << 10;
/// A rest is copied if it is smaller than its batch divided by this number.
const FITTED_SHARE: usize = 4;
/// Minimum pause before a reset of a stream that has sent payload. The peer's library may have
/// acknowledged bytes that the peer has not read yet, and a reset makes the library discard these
/// bytes.
const RESET_PAUSE: Duration = Duration::from_millis(10);

/// The half of a stream that this side sends.
pub(crate) struct Sending<F: Framing> {
    /// The library's stream; `None`: the stream is reset.
    stream: Option<SendStream>,
    traffic: Rc<Traffic>,
    /// Bytes that the library has not taken yet.
    rest: Bytes,
    /// Number of bytes of memory that the rest holds, as counted in [`Traffic::rests`].
    rest_bytes: usize,
    /// Permits of the next batch from [`Traffic::unacknowledged`], one per byte; `None`: the batch
    /// is small and needs no permits.
    place: Option<OwnedSemaphorePermit>,
    /// The stream's count of unsent payload.
    unsent: Option<Arc<Unsent>>,
    offer: usize,
    has_sent: bool,
    finished: bool,
    framing: PhantomData<F>,
}

/// A batch, which exists until the library has dropped all of its pieces.
struct Batch {
    bytes: Vec<u8>,
    _place: Option<OwnedSemaphorePermit>,
}

impl AsRef<[u8]> for Batch {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Maximum number of unacknowledged bytes of all bulk streams, if `retain` is the maximum for all
/// streams.
pub(super) fn bulk_share(retain: u64) -> usize {
    usize::try_from(retain / 8 * 7)
        .unwrap_or(usize::MAX)
        .clamp(OFFER_MAX, Semaphore::MAX_PERMITS)
}

/// A piece that the library holds until the peer acknowledges it.
struct Piece {
    bytes: Bytes,
    _held: Option<Held>,
}

impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl<F: Framing> Sending<F> {
    pub(super) fn new(stream: SendStream, traffic: Rc<Traffic>) -> Self {
        Self {
            stream: Some(stream),
            traffic,
            rest: Bytes::new(),
            rest_bytes: 0,
            place: None,
            unsent: None,
            offer: OFFER_MAX,
            has_sent: false,
            finished: false,
            framing: PhantomData,
        }
    }

    pub(crate) fn set_priority(&self, priority: Priority) {
        if let Some(stream) = &self.stream {
            // This fails if the stream has ended.
            let _ = stream.set_priority(order(priority));
        }
    }

    /// The stream's number; `None`: the stream is reset.
    pub(crate) fn id(&self) -> Option<u64> {
        let stream = self.stream.as_ref();
        stream.map(|stream| VarInt::from(stream.id()).into_inner())
    }

    /// Sends a `message` of the protocol itself, before all payload.
    ///
    /// # Errors
    /// The stream was cut.
    pub(crate) async fn say(&mut self, message: Vec<u8>) -> Result<(), WriteError> {
        self.set_rest(message.into());
        poll_fn(|context| self.poll_rest(context)).await
    }

    /// Works as [`Self::say`], but returns at once. The stream sends the message when it has
    /// credit.
    pub(crate) fn say_soon(&mut self, message: Vec<u8>) {
        self.set_rest(message.into());
        // Without credit, the message waits in the rest. If the stream was cut, the next send or
        // wait reports the failure.
        let _ = self.poll_rest(&mut Context::from_waker(Waker::noop()));
    }

    /// Cuts the half at once with a code that the protocol itself defines.
    pub(crate) fn reject(&mut self, code: VarInt) {
        if let Some(mut stream) = self.stream.take() {
            // This fails if the stream has ended.
            let _ = stream.reset(code);
        }
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

    /// Completes once the library has taken the whole rest.
    fn poll_rest(&mut self, context: &mut Context<'_>) -> Poll<Result<(), WriteError>> {
        while !self.rest.is_empty() {
            let Some(stream) = &mut self.stream else {
                return Poll::Ready(Err(WriteError::ClosedStream));
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

    /// Copies a small rest, since the rest keeps its whole batch in memory.
    fn fit_rest(&mut self) {
        if self.rest.is_empty() {
            self.rest = Bytes::new();
            self.count_rest(0);
        } else if self.rest.len() < self.rest_bytes / FITTED_SHARE {
            self.rest = Bytes::copy_from_slice(&self.rest);
            self.count_rest(self.rest.len());
        }
    }

    /// Maximum number of bytes of the next batch.
    fn offer(&self) -> usize {
        let free = RESTS_MAX.saturating_sub(self.traffic.rests.get());
        self.offer.min(free).max(OFFER_MIN)
    }
}

impl<F: Framing> Sender for Sending<F> {
    async fn capacity(&mut self, wanted: usize) -> Result<usize, Outcome> {
        let taken = poll_fn(|context| self.poll_rest(context)).await;
        taken.map_err(not_written::<F>)?;
        self.place = None;
        let offer = self.offer().min(wanted);
        if offer <= FIRST_READ_BYTES {
            return Ok(offer);
        }
        // The cast is safe: `offer` is at most OFFER_MAX.
        let place = Arc::clone(&self.traffic.unacknowledged).acquire_many_owned(offer as u32);
        tokio::select! {
            biased;
            // The semaphore is never closed.
            place = place => self.place = place.ok(),
            outcome = self.stopped() => return Err(outcome),
        }
        Ok(offer)
    }

    async fn send(&mut self, payload: Payload) -> Result<(), Outcome> {
        self.has_sent = true;
        self.unsent = payload.unsent().cloned();
        let offered = payload.remaining();
        let mut head = Vec::new();
        F::begin(offered, &mut head);
        // Allocated with the exact size, since the library would also hold spare capacity.
        let mut frame = Vec::with_capacity(head.len() + offered);
        frame.extend(head);
        frame.extend_from_slice(payload.chunk());
        // Unneeded permits return to the other streams.
        let place = self.place.take();
        let place = place.and_then(|mut place| place.split(offered.min(place.num_permits())));
        self.set_rest(Bytes::from_owner(Batch {
            bytes: frame,
            _place: place,
        }));
        drop(payload);
        let taken = poll_fn(|context| match self.poll_rest(context) {
            Poll::Ready(taken) => Poll::Ready(taken.map(|()| true)),
            Poll::Pending => Poll::Ready(Ok(false)),
        });
        match taken.await.map_err(not_written::<F>)? {
            true if offered >= self.offer => self.offer = (self.offer * 2).min(OFFER_MAX),
            true => {}
            false => self.offer = (self.offer / 2).max(OFFER_MIN),
        }
        Ok(())
    }

    fn rest(&mut self) {
        self.place = None;
    }

    fn finish(&mut self) -> Result<(), Outcome> {
        self.finished = true;
        let Some(stream) = self.stream.as_mut().filter(|_| self.rest.is_empty()) else {
            return Err(Outcome::PeerReset(ResetCode::Cancelled));
        };
        // This fails if the stream was cut, which the other half notices.
        let _ = stream.finish();
        let arrived = stream.stopped();
        let held = Unsent::hold(&self.traffic.unsent);
        drop(self.traffic.tasks.spawn(async move {
            // The connection must not be closed before the peer has received the end of the stream.
            let _ = arrived.await;
            drop(held);
        }));
        Ok(())
    }

    async fn stopped(&mut self) -> Outcome {
        if let Err(error) = poll_fn(|context| self.poll_rest(context)).await {
            return not_written::<F>(error);
        }
        let Some(stream) = &self.stream else {
            return Outcome::PeerReset(ResetCode::Cancelled);
        };
        let code = match stream.stopped().await {
            Ok(code) => code.and_then(F::reset_code),
            Err(StoppedError::ConnectionLost(_)) => return Outcome::CarrierLost,
            Err(StoppedError::ZeroRttRejected) => Some(ResetCode::Cancelled),
        };
        match code {
            Some(code) => Outcome::PeerReset(code),
            None => std::future::pending().await,
        }
    }

    fn reset(&mut self, code: ResetCode) {
        let Some(mut stream) = self.stream.take() else {
            return;
        };
        let code = F::code(code);
        if !self.has_sent {
            // This fails if the stream has ended.
            let _ = stream.reset(code);
            return;
        }
        let pause = RESET_PAUSE.max(self.traffic.connection.quic().rtt());
        drop(self.traffic.tasks.spawn(async move {
            tokio::time::sleep(pause).await;
            let _ = stream.reset(code);
        }));
    }
}

impl<F: Framing> Drop for Sending<F> {
    fn drop(&mut self) {
        self.count_rest(0);
        if let Some(stream) = self.stream.as_mut().filter(|_| !self.finished) {
            // Without this call the library would finish the stream, which would look like a
            // regular end.
            let _ = stream.reset(F::code(ResetCode::Cancelled));
        }
    }
}

fn not_written<F: Framing>(error: WriteError) -> Outcome {
    match error {
        WriteError::Stopped(code) => {
            Outcome::PeerReset(F::reset_code(code).unwrap_or(ResetCode::Cancelled))
        }
        WriteError::ConnectionLost(_) => Outcome::CarrierLost,
        WriteError::ClosedStream | WriteError::ZeroRttRejected => {
            Outcome::PeerReset(ResetCode::Cancelled)
        }
    }
}

/// Maps a priority to the library's order, in which higher values are sent first.
const fn order(priority: Priority) -> i32 {
    match priority {
        Priority::Interactive => 1,
        Priority::Auto => 0,
        Priority::Bulk => -1,
    }
}
