//! A mux: many streams between this gateway and one peer.
//!
//! The roles know this trait alone. [`Driver`](super::driver::Driver) is a mux of our own protocols, over one carrier or
//! several; a protocol that has framing and flow control of its own (HTTP/2, QUIC, SSH) is another one beside it. What not
//! every one has is behind a trait of its own: carriers that come and go ([`CarrierPool`]), listeners that one side asks
//! the other for ([`Listeners`]).

#[cfg(test)]
pub(crate) mod memory;

use std::pin::Pin;
use std::rc::Rc;
use std::time::Instant;

use muxtunnel_gateway_config::status::CarrierTransport;
use muxtunnel_proto::{
    Assignment, ListenError, ListenEvent, ListenId, OpenError, Priority, Refusal, Source,
};

use super::handover::Place;
use crate::base::path::PathInfo;
use crate::base::telemetry::CarrierStats;
use crate::io::carrier::Carrier;
use crate::io::local_socket::LocalAddress;
use crate::io::transport::{Proof, Standing};
use crate::io::tun::Offloads;
use crate::net::dial::Dialled;
use crate::session::end::SessionEnd;
use crate::stream::early_data::Connection;
use crate::stream::packet::Packet;

/// A future that stays on its thread.
pub(crate) type Local<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// The way to a target: a connection, or why there is none.
pub(crate) type Dial = Local<'static, Result<Dialled, Refusal>>;

/// Called for each open of the peer's with the target as the peer wrote it, the name or key that the peer
/// proved to have, and what the target is to be told.
pub(crate) type Dialler = Box<dyn Fn(String, Option<Rc<str>>, Option<Source>) -> Dial>;

/// Called where an open came to nothing.
pub(crate) type Refused = Box<dyn FnOnce(OpenEnd)>;

/// Hears what is said of listeners.
pub(crate) type Hears = Box<dyn Fn(ListenEvent)>;

/// How an open ended that came to nothing.
pub(crate) enum OpenEnd {
    /// By the peer's refusal.
    Refused(Refusal),
    /// The stream was cut before the answer.
    Abandoned,
    /// The peer goes away and did not take it, or the session ended before it left: it may be opened on another
    /// session.
    Returned(Connection),
}

/// A mux did not begin an open.
pub(crate) struct NotOpened {
    /// Why.
    pub(crate) error: OpenError,
    /// As it was: it may be opened on another mux.
    pub(crate) connection: Connection,
}

/// How far a mux has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Progress {
    /// The hello is not over.
    Hello,
    /// Streams can be opened.
    Ready,
    /// The peer takes no more streams; those that are open go on.
    GoingAway,
}

/// Why a session did not take a connection that has proved who it is.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoCarrier {
    /// The session takes no more, or has ended.
    #[error("the session takes no more carriers")]
    Refused(Carrier),
    /// Its other end is somebody else than that of the session's first carrier.
    #[error("the other end is not who the session's first carrier led to")]
    Stranger(Carrier),
    /// The connection failed.
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

/// The carriers of a session in numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PoolState {
    /// They are up, and are to stay.
    pub(crate) up: usize,
    /// So many of these are to be replaced.
    pub(crate) outdated: usize,
    /// As many could be used for what this side sends...
    pub(super) sends: usize,
    /// ...and for what the peer sends, as it says.
    pub(super) peer_sends: usize,
}

impl Default for PoolState {
    fn default() -> Self {
        Self {
            up: 0,
            outdated: 0,
            sends: 1,
            peer_sends: 1,
        }
    }
}

impl PoolState {
    /// As many could be used; for an honest peer at most the protocol's bound.
    pub(crate) fn wanted(self) -> usize {
        self.sends.max(self.peer_sends)
    }
}

/// Many streams with one peer. Streams of the peer's go to the dialler that the mux was made with.
pub(crate) trait Mux {
    /// Opens a stream of `priority` to `target` (`tcp://host:port`) for `client` and runs it as a task of its own. What
    /// the client sends meanwhile goes along where the protocol gives credit for it. If the peer does not
    /// agree, `refused` is called, and the client is told or reset, unless the peer leaves the open to another one.
    ///
    /// # Errors
    /// There is no stream, for a reason on this side. `refused` is not called.
    fn open(
        &self,
        target: &str,
        priority: Priority,
        client: Connection,
        refused: Refused,
    ) -> Result<(), Box<NotOpened>>;

    /// Runs it to its end; then every stream has been reset and every carrier is closed. To be called once.
    fn run(&self) -> Local<'_, SessionEnd>;

    /// Runs a task whose panic ends the mux, and nothing else.
    fn guard<'a>(&'a self, task: Local<'a, ()>) -> Local<'a, ()>;

    /// The peer opens no more streams here; those that are open go on.
    fn go_away(&self);

    /// This side opens no more streams; those that are open go on.
    fn leave(&self);

    /// Tells the peer, resets every stream and ends [`Self::run`].
    fn shut_down(&self);

    /// Resets every stream, refuses every open and ends [`Self::run`], since the other end will not be heard of again.
    fn give_up(&self, reason: String);

    /// How far it has come.
    fn progress(&self) -> Progress;

    /// Waits until it has come to `wanted`.
    fn reached(&self, wanted: Progress) -> Local<'_, ()>;

    /// Whether it takes no more of anything: [`Self::run`] is about to return, or has.
    fn has_ended(&self) -> bool;

    /// Streams that are open or being opened.
    fn stream_count(&self) -> usize;

    /// Waits until no stream is open and all that was to be sent is with the kernel.
    fn idle(&self) -> Local<'_, ()>;

    /// After [`Self::run`]: waits until every stream has delivered what came and reset its socket, for a bounded time.
    fn streams_gone(&self) -> Local<'_, ()>;

    /// The other end's address, as it was seen last.
    fn peer(&self) -> Rc<str>;

    /// Who the other end has proved to be; `None`: it proved nothing.
    fn identity(&self) -> Option<Rc<str>>;

    /// Whether nothing carries it, and that may yet change.
    fn waits(&self) -> bool;

    /// Applies `standing` to what the other end has proved: what is not trusted any more ends.
    fn verify_again(&self, standing: &dyn Fn(&Proof) -> Standing);

    /// Resets the open streams whose target, as it was written and as it was dialled, is `denied`.
    fn cut_denied(&self, denied: &dyn Fn(&str, &LocalAddress) -> bool);

    /// Its carriers, where they may come and go.
    fn carriers(&self) -> Option<&dyn CarrierPool>;

    /// The listeners that one side asks the other for, where the protocol has a word for that.
    fn listeners(&self) -> Option<&dyn Listeners>;

    /// IP packets beside streams, where both ends have agreed on that; not before it is [`Progress::Ready`].
    fn datagrams(&self) -> Option<&dyn Datagrams> {
        None
    }
}

impl dyn Mux {
    /// Whether streams could be opened at some time.
    pub(crate) fn was_ready(&self) -> bool {
        self.progress() >= Progress::Ready
    }

    /// Which of several is to take a stream: the least. One without a carrier only where all are.
    pub(crate) fn load(&self) -> (bool, usize) {
        let is_down = |carriers: &dyn CarrierPool| carriers.numbers().up == 0;
        (self.carriers().is_some_and(is_down), self.stream_count())
    }
}

/// One carrier, as far as it decides which of several is to go.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CarrierFigures {
    /// When it was made.
    pub(crate) since: Instant,
    pub(crate) transport: CarrierTransport,
    /// Bytes that it sent.
    pub(crate) sent: u64,
    /// Bytes that it received.
    pub(crate) received: u64,
    /// `None`: nothing is known of it.
    pub(crate) path: Option<PathInfo>,
}

impl CarrierFigures {
    pub(super) fn of(stats: &CarrierStats, since: Instant) -> Self {
        Self {
            since,
            transport: stats.transport,
            sent: stats.sent(),
            received: stats.received(),
            path: stats.path_info(),
        }
    }
}

/// The carriers of one mux.
pub(crate) trait CarrierPool {
    /// Adds a connection: to begin with, or as one more. `unread`: what has been read of it. The result waits until its
    /// hello is over, and says whether it is up; it goes on without being waited for.
    ///
    /// # Errors
    /// [`NoCarrier`]; the session goes on without it.
    fn add(
        &self,
        carrier: Carrier,
        unread: Vec<u8>,
        place: Option<Place>,
    ) -> Result<Local<'static, bool>, NoCarrier>;

    /// The same for one more that was dialled by another way than the others: it may reach another peer, which does not know
    /// the session. That ends this carrier alone, also where it is the only one.
    ///
    /// # Errors
    /// As [`Self::add`].
    fn add_by_another_way(&self, carrier: Carrier) -> Result<Local<'static, bool>, NoCarrier> {
        self.add(carrier, Vec::new(), None)
    }

    /// Begins to take one out of the session in order: one that is to be replaced, else the one that came
    /// last. Returns whether it does.
    fn retire_one(&self) -> bool;

    /// Those that are up.
    fn figures(&self) -> Vec<CarrierFigures>;

    /// Those of which `which` holds are to be replaced.
    fn outdate(&self, which: &dyn Fn(&CarrierFigures) -> bool);

    /// Whether streams outlive their carrier.
    fn resumes(&self) -> bool;

    /// How many there are, and are to be.
    fn numbers(&self) -> PoolState;

    /// Waits until `is` holds of the numbers.
    fn until<'a>(&'a self, is: &'a dyn Fn(&PoolState) -> bool) -> Local<'a, ()>;
}

impl dyn CarrierPool + '_ {
    /// Waits until fewer than `wanted` are up.
    pub(crate) async fn lacks(&self, wanted: usize) {
        self.until(&|numbers| numbers.up < wanted).await;
    }

    /// Waits until one is up.
    pub(crate) async fn has_one(&self) {
        self.until(&|numbers| numbers.up > 0).await;
    }
}

/// Hears a packet of the peer's, which nobody has looked at: at most
/// [`DATAGRAM_BYTES_MAX`](muxtunnel_proto::DATAGRAM_BYTES_MAX) bytes.
pub(crate) type HearsPacket = Box<dyn Fn(&[u8])>;

/// Hears what the peer assigns to this side.
pub(crate) type HearsAssignment = Box<dyn Fn(&Rc<Assignment>)>;

/// The IP packets of one mux. They may be lost, and never wait for credit.
pub(crate) trait Datagrams {
    /// `hears` gets each packet that comes from now on; the first one counts. Before that they are dropped. `offloads`: which
    /// of them it takes joined.
    fn hear(&self, hears: HearsPacket, offloads: Offloads);

    /// Sends a packet of the flow of this hash, in order with the others of the flow. What there is no room for is dropped.
    fn send(&self, flow: u32, packet: Packet);

    /// How long packets may be that are not cut; `None`: as long as they like.
    fn limit(&self) -> Option<PacketLimit>;

    /// Tells the peer of its addresses and of resolvers, once, on the side that was connected to. Returns whether the peer is
    /// told, as far as that is known: it may be of a version that has no word for it.
    fn assign(&self, assignment: Assignment) -> bool;

    /// `hears` gets what the peer assigns, at most once, at once where that has come; the first one counts.
    fn hear_assignment(&self, hears: HearsAssignment);
}

/// What a carrier's path takes at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PacketLimit {
    /// Of an IP packet.
    pub(crate) bytes: usize,
    /// It is known how much that is: no search for more goes on.
    pub(crate) is_known: bool,
}

/// The listeners of one mux.
pub(crate) trait Listeners {
    /// `hears` gets what is said of them from now on; the first one counts. Where nobody hears, the peer is refused.
    fn hear(&self, hears: Hears);

    /// Asks the peer to listen on `address`.
    ///
    /// # Errors
    /// [`ListenError`]: it cannot be asked.
    fn listen(&self, address: &str, priority: Priority) -> Result<ListenId, ListenError>;

    /// The peer need not listen any more.
    fn unlisten(&self, listen: ListenId);

    /// Tells the peer that this side listens.
    fn listening(&self, listen: ListenId, address: &str);

    /// Tells the peer that this side does not listen, or not any more.
    fn end_listen(&self, listen: ListenId, refusal: Refusal);
}
