//! What this side sends on a stream.
//!
//! The library does not say how much a peer takes: a batch is offered, it takes what it may, and the rest waits here, in no
//! buffer of the session's. So that stalled streams hold little, a stream whose last batch was not taken at once offers half as
//! much next, and all rests together are bounded by [`RESTS_MAX`], beyond which a stream offers [`OFFER_MIN`].
//!
//! What the peer has not acknowledged is bounded by `memory.retain`, beyond which the library takes nothing of any stream, and
//! wakes the stream first that waited last. So bulk has but [`bulk_share`] of it, for which its streams wait in turn, and
//! those with little to send never do.

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

/// What all rests of a connection hold before streams offer [`OFFER_MIN`].
const RESTS_MAX: usize = 8 << 20;
/// The least that a stream offers.
const OFFER_MIN: usize = 8 << 10;
/// The most: one batch.
const OFFER_MAX: usize = 256 << 10;
/// A rest of which less than this part is left is copied.
const FITTED_SHARE: usize = 4;
/// How long the peer has to read what it has acknowledged, before a reset has its library throw that away.
const RESET_PAUSE: Duration = Duration::from_millis(10);

/// What this side sends.
pub(crate) struct Sending<F: Framing> {
    /// `None`: it is reset.
    stream: Option<SendStream>,
    traffic: Rc<Traffic>,
    /// What the library has not taken.
    rest: Bytes,
    /// What it holds of memory, in [`Traffic::rests`].
    rest_bytes: usize,
    /// The place of the next batch among what is not acknowledged; `None`: it is small.
    place: Option<OwnedSemaphorePermit>,
    /// The stream's part of what is unsent.
    unsent: Option<Arc<Unsent>>,
    offer: usize,
    has_sent: bool,
    finished: bool,
    framing: PhantomData<F>,
}

/// A batch, for as long as the library has a piece of it.
struct Batch {
    bytes: Vec<u8>,
    _place: Option<OwnedSemaphorePermit>,
}

impl AsRef<[u8]> for Batch {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Bytes of `retain` that bulk may have sent without acknowledgement.
pub(super) fn bulk_share(retain: u64) -> usize {
    usize::try_from(retain / 8 * 7)
        .unwrap_or(usize::MAX)
        .clamp(OFFER_MAX, Semaphore::MAX_PERMITS)
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
            // It fails where the stream has ended.
            let _ = stream.set_priority(order(priority));
        }
    }

    /// Its number; `None`: it is reset.
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

    /// The same, at once or as soon as there is credit for it.
    pub(crate) fn say_soon(&mut self, message: Vec<u8>) {
        self.set_rest(message.into());
        // Where there is none, or the stream was cut, the next send or wait fails.
        let _ = self.poll_rest(&mut Context::from_waker(Waker::noop()));
    }

    /// Cuts it at once by a code of the protocol itself.
    pub(crate) fn reject(&mut self, code: VarInt) {
        if let Some(mut stream) = self.stream.take() {
            // It fails where the stream has ended.
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

    /// Ready once the library has all of the rest.
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

impl<F: Framing> Sender for Sending<F> {
    async fn capacity(&mut self, wanted: usize) -> Result<usize, Outcome> {
        let taken = poll_fn(|context| self.poll_rest(context)).await;
        taken.map_err(not_written::<F>)?;
        self.place = None;
        let offer = self.offer().min(wanted);
        if offer <= FIRST_READ_BYTES {
            return Ok(offer);
        }
        // It fits: it is at most OFFER_MAX.
        let place = Arc::clone(&self.traffic.unacknowledged).acquire_many_owned(offer as u32);
        tokio::select! {
            biased;
            // It is never closed.
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
        // Of the size that it needs: what is more would be held along with it.
        let mut frame = Vec::with_capacity(head.len() + offered);
        frame.extend(head);
        frame.extend_from_slice(payload.chunk());
        // What was asked for and is not needed is another stream's.
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

impl<F: Framing> Drop for Sending<F> {
    fn drop(&mut self) {
        self.count_rest(0);
        if let Some(stream) = self.stream.as_mut().filter(|_| !self.finished) {
            // The library would finish it, which is for an end alone.
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

/// As the library orders streams: the higher ones first.
const fn order(priority: Priority) -> i32 {
    match priority {
        Priority::Interactive => 1,
        Priority::Auto => 0,
        Priority::Bulk => -1,
    }
}
