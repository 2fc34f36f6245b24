//! The interface to the library of a protocol that has its own streams.
//!
//! Each protocol implements these traits in its own module, which does not depend on local ends,
//! accounts or roles.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use bytes::Buf;
use muxtunnel_proto::{ListenError, ListenEvent, ListenId, Outcome, Priority, Refusal, ResetCode};
use tokio::sync::Notify;

use crate::base::telemetry::CarrierStats;
use crate::session::end::SessionEnd;
use crate::session::mux::Local;
use crate::session::packets::PacketQueue;
use crate::session::shell::under::Under;
use crate::stream::buffers::Buffer;

pub(crate) type Opening<L> = Local<'static, Result<Opened<L>, NoStream>>;

/// One connection to the peer.
pub(crate) trait Link: 'static {
    /// The half of a stream that this side sends.
    type Sender: Sender;
    /// The half of a stream that the peer sends.
    type Receiver: Receiver;
    type Ask: Ask<Sender = Self::Sender, Receiver = Self::Receiver>;

    /// Opens a stream of `priority` to `target` (`tcp://host:port`), and waits for the answer.
    /// Dropping the future cancels the open. `None`: the link is full ([`Self::is_full`]).
    fn open(&self, target: &str, priority: Priority) -> Option<Opening<Self>>;

    /// Runs the connection to its end. Call this function once.
    fn run<'a>(&'a self, hears: &'a dyn Hears<Self>) -> Local<'a, SessionEnd>;

    /// Number of concurrent streams that the peer permits this side, as far as the peer has
    /// announced it.
    fn streams_max(&self) -> usize;

    /// Whether the peer takes no more streams for now, regardless of its announced limit. The link
    /// calls [`Hears::room`] once the peer takes more.
    fn is_full(&self) -> bool {
        false
    }

    /// Bytes of received payload that no local end has taken yet.
    fn held(&self) -> u64;

    /// Length of the longest packet that the link carries now, in bytes; `None`: the link carries
    /// no packets.
    fn packet_bytes_max(&self) -> Option<usize> {
        None
    }

    /// Whether the peer answers, as far as the library knows, see
    /// [`Mux::answers`](crate::session::mux::Mux::answers). The figures of the path are not part of
    /// the result.
    fn answers(&self) -> bool {
        true
    }

    /// Requests an answer of the peer soon, if the protocol has such a request and does not itself
    /// probe a silent peer soon. Returns whether the answer changes [`Self::messages`].
    fn probe(&self) -> bool {
        false
    }

    /// A number that changes with payload of the peer, and with its answer to [`Self::probe`].
    fn messages(&self) -> u64 {
        0
    }

    /// The round trip time to the peer, as far as it is known; zero: unknown.
    fn round_trip(&self) -> Duration;

    /// Tells the peer to open no further streams; open streams continue.
    fn go_away(&self);

    /// Announces the end to the peer, and ends [`Self::run`].
    fn shut_down(&self);

    /// The listeners of the link; `None`: the protocol has no listeners.
    fn listens(&self) -> Option<&dyn Listens> {
        None
    }
}

/// Listeners that one side requests from the other, see
/// [`Listeners`](crate::session::mux::Listeners). A connection to a listener becomes a stream with
/// the target [`listen_target`](muxtunnel_proto::listen_target).
pub(crate) trait Listens {
    /// Requests a listener on `address`; the answer arrives as [`Hears::listened`].
    ///
    /// # Errors
    /// The request cannot be sent.
    fn listen(
        &self,
        listen: ListenId,
        address: &str,
        priority: Priority,
    ) -> Result<(), ListenError>;

    /// Tells the peer to stop listening.
    fn unlisten(&self, listen: ListenId);

    /// Tells the peer that this side listens on `address`.
    fn listening(&self, listen: ListenId, address: &str);

    /// Tells the peer that this side does not listen, or has stopped listening.
    fn end_listen(&self, listen: ListenId, refusal: &Refusal);
}

/// The parts from which a link is built.
pub(crate) struct Below {
    pub(crate) under: Under,
    /// Bytes that were already read from the carrier.
    pub(crate) unread: Vec<u8>,
    pub(crate) stats: Arc<CarrierStats>,
    /// Payload that the session has sent and that the library still holds.
    pub(crate) unsent: Arc<Unsent>,
    pub(crate) packets: Rc<PacketQueue>,
}

/// Receives the events of one connection.
pub(crate) trait Hears<L: Link + ?Sized> {
    /// Streams can be opened.
    fn ready(&self);

    /// The peer takes no further streams; open streams continue.
    fn going_away(&self);

    /// The peer takes at least one more stream after [`Link::is_full`].
    fn room(&self);

    /// The peer opens a stream.
    fn asked(&self, ask: L::Ask);

    /// An event of a listener.
    fn listened(&self, event: ListenEvent);
}

/// A stream that the peer accepted.
pub(crate) struct Opened<L: Link + ?Sized> {
    pub(crate) sender: L::Sender,
    pub(crate) receiver: L::Receiver,
    /// The address that the peer reached, if the peer reports it; otherwise empty.
    pub(crate) address: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum NoStream {
    /// The peer refused the open.
    Refused(Refusal),
    /// The peer shuts down and did not process the open, so another session may open the stream.
    NotTaken,
    /// The connection ended before the peer answered.
    Lost,
}

/// An open from the peer. Dropping the value refuses the open.
pub(crate) trait Ask: 'static {
    type Sender: Sender;
    type Receiver: Receiver;

    /// The target, in the form that the driver uses (`tcp://host:port`).
    fn target(&self) -> &str;

    /// Accepts the open; `address` is the target's address.
    ///
    /// # Errors
    /// The stream has ended in the meantime.
    fn accept(self, address: &str) -> Result<(Self::Sender, Self::Receiver), Outcome>;

    fn refuse(self, refusal: &Refusal);

    /// Waits until the peer cancels the open.
    fn abandoned(&mut self) -> impl Future<Output = ()>;
}

/// The half of a stream that this side sends. A caller may drop the future of a method, and call
/// the method again.
pub(crate) trait Sender: 'static {
    /// Waits until this side may send bytes; returns their number, from 1 to `wanted`.
    /// [`Self::send`] and [`Self::rest`] give unused capacity back, so that other streams can use
    /// it.
    ///
    /// # Errors
    /// The stream was cut.
    fn capacity(&mut self, wanted: usize) -> impl Future<Output = Result<usize, Outcome>>;

    /// Sends `payload`, which must fit the capacity.
    ///
    /// # Errors
    /// The stream was cut.
    fn send(&mut self, payload: Payload) -> impl Future<Output = Result<(), Outcome>>;

    /// Gives the capacity back without sending, since this side has nothing to send for now.
    fn rest(&mut self);

    /// Ends this half.
    ///
    /// # Errors
    /// The stream was cut.
    fn finish(&mut self) -> Result<(), Outcome>;

    /// Waits until the peer takes no more bytes.
    fn stopped(&mut self) -> impl Future<Output = Outcome>;

    /// Cuts the half.
    fn reset(&mut self, code: ResetCode);
}

/// The half of a stream that the peer sends. A caller may drop the future of a method, and call the
/// method again.
pub(crate) trait Receiver: 'static {
    type Payload: Buf;

    /// Waits for the next payload; `None`: the half has ended.
    ///
    /// # Errors
    /// The stream was cut. All payload before the cut was returned.
    fn receive(&mut self) -> impl Future<Output = Result<Option<Self::Payload>, Outcome>>;

    /// Records that the local end took `bytes` bytes, and gives the peer as much new credit.
    fn took(&mut self, bytes: usize);

    /// Cuts the half.
    fn stop(&mut self, code: ResetCode);
}

/// Payload in a worker's buffer. The library holds the buffer until the payload is sent.
#[derive(Debug)]
pub(crate) struct Payload {
    buffer: Buffer,
    begin: usize,
    end: usize,
    held: Option<Held>,
}

impl Payload {
    /// Empty payload, for the end of a stream.
    pub(crate) fn empty() -> Self {
        Self {
            buffer: Vec::new().into(),
            begin: 0,
            end: 0,
            held: None,
        }
    }

    /// A message of the protocol itself, which does not count as unsent payload.
    pub(crate) fn of(bytes: Vec<u8>) -> Self {
        Self {
            begin: 0,
            end: bytes.len(),
            buffer: bytes.into(),
            held: None,
        }
    }

    /// The first `length` bytes of `buffer`, as payload.
    pub(crate) fn new(buffer: Buffer, length: usize, unsent: &Arc<Unsent>) -> Self {
        Self {
            begin: 0,
            end: length.min(buffer.len()),
            buffer,
            held: Some(Unsent::hold(unsent)),
        }
    }

    /// The count that includes this payload while it is unsent; `None`: a message of the protocol.
    pub(crate) fn unsent(&self) -> Option<&Arc<Unsent>> {
        self.held.as_ref().map(|held| &held.0)
    }
}

/// Counts the payloads that the library holds for a session or a stream. The library may drop a
/// payload on another thread.
#[derive(Debug, Default)]
pub(crate) struct Unsent {
    count: AtomicUsize,
    wake: Notify,
    /// The count of the session, if this count belongs to a stream.
    whole: Option<Arc<Self>>,
}

/// One payload, which counts as unsent until this value is dropped.
#[derive(Debug)]
pub(crate) struct Held(Arc<Unsent>);

impl Drop for Held {
    fn drop(&mut self) {
        self.0.remove();
    }
}

impl Unsent {
    /// Creates a stream's count, which also adds to `whole`.
    pub(crate) fn part_of(whole: &Arc<Self>) -> Arc<Self> {
        Arc::new(Self {
            whole: Some(Arc::clone(whole)),
            ..Self::default()
        })
    }

    /// Counts one more payload.
    pub(crate) fn hold(unsent: &Arc<Self>) -> Held {
        unsent.add();
        Held(Arc::clone(unsent))
    }

    fn add(&self) {
        self.count.fetch_add(1, Relaxed);
        if let Some(whole) = &self.whole {
            whole.add();
        }
    }

    fn remove(&self) {
        if self.count.fetch_sub(1, Relaxed) == 1 {
            self.wake.notify_waiters();
        }
        if let Some(whole) = &self.whole {
            whole.remove();
        }
    }

    /// Whether nothing is unsent.
    pub(crate) fn is_none(&self) -> bool {
        self.count.load(Relaxed) == 0
    }

    /// Waits until nothing is unsent.
    pub(crate) async fn none(&self) {
        loop {
            let mut woken = std::pin::pin!(self.wake.notified());
            woken.as_mut().enable();
            if self.is_none() {
                break;
            }
            woken.await;
        }
    }
}

impl Buf for Payload {
    fn remaining(&self) -> usize {
        self.end - self.begin
    }

    fn chunk(&self) -> &[u8] {
        &self.buffer[self.begin..self.end]
    }

    fn advance(&mut self, bytes: usize) {
        self.begin = self.end.min(self.begin + bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payload_is_read_to_its_end_and_no_further() {
        let whole = Arc::new(Unsent::default());
        let unsent = Unsent::part_of(&whole);
        let counts = || (unsent.count.load(Relaxed), whole.count.load(Relaxed));
        let mut payload = Payload::new(b"abcdef".to_vec().into(), 4, &unsent);
        assert_eq!(counts(), (1, 1));
        assert_eq!((payload.remaining(), payload.chunk()), (4, &b"abcd"[..]));
        payload.advance(3);
        assert_eq!((payload.remaining(), payload.chunk()), (1, &b"d"[..]));
        payload.advance(1);
        assert!(!payload.has_remaining());
        drop(payload);
        assert_eq!(counts(), (0, 0));
    }
}
