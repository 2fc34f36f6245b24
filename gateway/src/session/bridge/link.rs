//! A connection of a protocol that has streams of its own: what its library gives, whatever it is.
//!
//! A protocol implements these traits in a module of its own and knows no local end, account or role.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use bytes::Buf;
use muxtunnel_gateway_config::status::CarrierTransport;
use muxtunnel_proto::{ListenError, ListenEvent, ListenId, Outcome, Priority, Refusal, ResetCode};
use tokio::sync::Notify;

use crate::base::path::PathProbe;
use crate::base::telemetry::CarrierStats;
use crate::io::carrier::Carrier;
use crate::io::transport::{Path, Proof, Transport};
use crate::io::{quic, ssh};
use crate::session::end::SessionEnd;
use crate::session::mux::Local;
use crate::session::packets::PacketQueue;
use crate::stream::buffers::Buffer;

/// What an open comes to.
pub(crate) type Opening<L> = Local<'static, Result<Opened<L>, NoStream>>;

/// One connection to the peer.
pub(crate) trait Link: 'static {
    /// What this side sends on a stream.
    type Sender: Sender;
    /// What the peer sends on it.
    type Receiver: Receiver;
    /// The peer asks for a stream.
    type Ask: Ask<Sender = Self::Sender, Receiver = Self::Receiver>;

    /// Asks the peer for a stream of `priority` to `target` (`tcp://host:port`), and waits for the answer. A future that is
    /// dropped takes the question back. `None`: [`Self::is_full`].
    fn open(&self, target: &str, priority: Priority) -> Option<Opening<Self>>;

    /// Runs it to its end. To be called once.
    fn run<'a>(&'a self, hears: &'a dyn Hears<Self>) -> Local<'a, SessionEnd>;

    /// Streams that the peer allows this side at once, as far as it has said so.
    fn streams_max(&self) -> usize;

    /// The peer takes no more streams for now, whatever it has said; [`Hears::room`] ends that.
    fn is_full(&self) -> bool {
        false
    }

    /// Payload that came and that no local end has taken, bytes.
    fn held(&self) -> u64;

    /// Bytes of the longest packet that it carries now; `None`: it carries none.
    fn packet_bytes_max(&self) -> Option<usize> {
        None
    }

    /// The peer is to open no more streams; those that are open go on.
    fn go_away(&self);

    /// Tells the peer, and ends [`Self::run`].
    fn shut_down(&self);

    /// The listeners that are asked for on it; `None`: the protocol has no word for them.
    fn listens(&self) -> Option<&dyn Listens> {
        None
    }
}

/// Listeners that one side asks the other for, as [`Listeners`](crate::session::mux::Listeners) has them. The stream of a
/// connection that came asks for [`listen_target`](muxtunnel_proto::listen_target).
pub(crate) trait Listens {
    /// Asks the peer to listen on `address`; the answer is heard ([`Hears::listened`]).
    ///
    /// # Errors
    /// It cannot be asked.
    fn listen(
        &self,
        listen: ListenId,
        address: &str,
        priority: Priority,
    ) -> Result<(), ListenError>;

    /// The peer need not listen any more.
    fn unlisten(&self, listen: ListenId);

    /// This side listens on `address`, as the peer asked.
    fn listening(&self, listen: ListenId, address: &str);

    /// This side does not listen, or not any more.
    fn end_listen(&self, listen: ListenId, refusal: &Refusal);
}

/// What a link is made of.
pub(crate) struct Below {
    pub(crate) under: Under,
    /// What has been read of it.
    pub(crate) unread: Vec<u8>,
    pub(crate) stats: Arc<CarrierStats>,
    /// What the session has sent and the library has not passed on.
    pub(crate) unsent: Arc<Unsent>,
    /// The session's.
    pub(crate) packets: Rc<PacketQueue>,
}

/// A carrier that a link and its session share.
#[derive(Clone)]
pub(crate) enum Under {
    Bytes(Rc<dyn Transport>),
    Quic(quic::Connection),
    Ssh(ssh::Connection),
}

impl From<Carrier> for Under {
    fn from(carrier: Carrier) -> Self {
        match carrier {
            Carrier::Bytes(transport) => Self::Bytes(transport.into()),
            Carrier::Quic(connection) => Self::Quic(connection),
            Carrier::Ssh(connection) => Self::Ssh(connection),
        }
    }
}

impl Under {
    /// What its other end has proved.
    pub(crate) fn proof(&self) -> Option<&Proof> {
        match self {
            Self::Bytes(transport) => transport.proof(),
            Self::Quic(connection) => connection.proof(),
            Self::Ssh(connection) => Some(connection.proof()),
        }
    }

    /// What it runs on.
    pub(crate) fn runs_on(&self) -> CarrierTransport {
        match self {
            Self::Bytes(transport) => transport.runs_on(),
            Self::Quic(_) => CarrierTransport::Quic,
            Self::Ssh(connection) => connection.runs_on(),
        }
    }

    /// Asks for the path below from another thread; `None`: nothing is known of it.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn probe(&self) -> std::io::Result<Option<Box<dyn PathProbe>>> {
        match self {
            Self::Bytes(transport) => transport.path().map(Path::probe).transpose(),
            Self::Quic(connection) => Ok(Some(connection.probe())),
            Self::Ssh(connection) => connection.probe(),
        }
    }

    /// Ends it for good.
    pub(crate) fn shut(&self) {
        match self {
            Self::Bytes(transport) => transport.shut(),
            Self::Quic(connection) => connection.shut(),
            Self::Ssh(connection) => connection.shut(),
        }
    }
}

/// Hears of one connection.
pub(crate) trait Hears<L: Link + ?Sized> {
    /// Streams can be opened.
    fn ready(&self);

    /// The peer takes no more streams; those that are open go on.
    fn going_away(&self);

    /// The peer takes one stream more, behind [`Link::is_full`].
    fn room(&self);

    /// The peer asks for a stream.
    fn asked(&self, ask: L::Ask);

    /// The peer speaks of a listener.
    fn listened(&self, event: ListenEvent);
}

/// A stream that the peer agreed on.
pub(crate) struct Opened<L: Link + ?Sized> {
    pub(crate) sender: L::Sender,
    pub(crate) receiver: L::Receiver,
    /// The address that the peer reached, where it says so; else empty.
    pub(crate) address: String,
}

/// Why an open came to nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum NoStream {
    /// The peer refused it.
    Refused(Refusal),
    /// The peer did not look at it, since it goes away: it may be opened elsewhere.
    NotTaken,
    /// The connection ended before the answer.
    Lost,
}

/// A stream that the peer asks for. One that is dropped is refused.
pub(crate) trait Ask: 'static {
    type Sender: Sender;
    type Receiver: Receiver;

    /// Where it is to lead, as the driver writes it (`tcp://host:port`).
    fn target(&self) -> &str;

    /// The peer has what it asked for, at `address`.
    ///
    /// # Errors
    /// It is gone meanwhile.
    fn accept(self, address: &str) -> Result<(Self::Sender, Self::Receiver), Outcome>;

    /// The peer does not get it.
    fn refuse(self, refusal: &Refusal);

    /// Waits until the peer does not want it any more.
    fn abandoned(&mut self) -> impl Future<Output = ()>;
}

/// The half of a stream that this side sends. All that waits may be dropped and called again.
pub(crate) trait Sender: 'static {
    /// Waits until something may be sent; returns how many bytes, 1 to `wanted`. What is not used is given back by
    /// [`Self::send`] and [`Self::rest`].
    ///
    /// # Errors
    /// The stream was cut.
    fn capacity(&mut self, wanted: usize) -> impl Future<Output = Result<usize, Outcome>>;

    /// Sends `payload`, which is no longer than the capacity.
    ///
    /// # Errors
    /// The stream was cut.
    fn send(&mut self, payload: Payload) -> impl Future<Output = Result<(), Outcome>>;

    /// Nothing is to be sent for now.
    fn rest(&mut self);

    /// Nothing more will be sent.
    ///
    /// # Errors
    /// The stream was cut.
    fn finish(&mut self) -> Result<(), Outcome>;

    /// Waits until the peer takes no more.
    fn stopped(&mut self) -> impl Future<Output = Outcome>;

    /// Cuts it.
    fn reset(&mut self, code: ResetCode);
}

/// The half of a stream that the peer sends. All that waits may be dropped and called again.
pub(crate) trait Receiver: 'static {
    type Payload: Buf;

    /// Waits for payload, in order; `None`: there is no more.
    ///
    /// # Errors
    /// The stream was cut. What had come before was returned.
    fn receive(&mut self) -> impl Future<Output = Result<Option<Self::Payload>, Outcome>>;

    /// The local end took so many bytes of what was received: the peer may send as many more.
    fn took(&mut self, bytes: usize);

    /// Cuts it.
    fn stop(&mut self, code: ResetCode);
}

/// Payload in a buffer of the worker's, until the library has passed it on.
#[derive(Debug)]
pub(crate) struct Payload {
    buffer: Buffer,
    begin: usize,
    end: usize,
    held: Option<Held>,
}

impl Payload {
    /// None, for the end of a stream.
    pub(crate) fn empty() -> Self {
        Self {
            buffer: Vec::new().into(),
            begin: 0,
            end: 0,
            held: None,
        }
    }

    /// Messages of the protocol itself.
    pub(crate) fn of(bytes: Vec<u8>) -> Self {
        Self {
            begin: 0,
            end: bytes.len(),
            buffer: bytes.into(),
            held: None,
        }
    }

    /// The first `length` bytes of `buffer`.
    pub(crate) fn new(buffer: Buffer, length: usize, unsent: &Arc<Unsent>) -> Self {
        Self {
            begin: 0,
            end: length.min(buffer.len()),
            buffer,
            held: Some(Unsent::hold(unsent)),
        }
    }

    /// The stream's part of what is unsent.
    pub(crate) fn unsent(&self) -> Option<&Arc<Unsent>> {
        self.held.as_ref().map(|held| &held.0)
    }
}

/// The payload of a session, or of a stream, that libraries hold; some of them on another thread.
#[derive(Debug, Default)]
pub(crate) struct Unsent {
    count: AtomicUsize,
    wake: Notify,
    /// What it is a part of.
    whole: Option<Arc<Self>>,
}

/// One that counts as unsent, until it is dropped.
#[derive(Debug)]
pub(crate) struct Held(Arc<Unsent>);

impl Drop for Held {
    fn drop(&mut self) {
        self.0.remove();
    }
}

impl Unsent {
    /// A stream's part of `whole`.
    pub(crate) fn part_of(whole: &Arc<Self>) -> Arc<Self> {
        Arc::new(Self {
            whole: Some(Arc::clone(whole)),
            ..Self::default()
        })
    }

    /// One more.
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

    /// Whether there is none.
    pub(crate) fn is_none(&self) -> bool {
        self.count.load(Relaxed) == 0
    }

    /// Waits until there is none.
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
