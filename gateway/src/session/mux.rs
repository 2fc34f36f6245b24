//! A mux: many streams between this gateway and one peer.
//!
//! The roles use only this trait, and [`Shell`](super::shell::Shell) implements it for all protocols.
//! Optional features have separate traits. [`CarrierPool`] adds and removes carriers. [`Listeners`] are
//! requested by one side from the other. [`Datagrams`] carry IP packets.

#[cfg(test)]
pub(crate) mod memory;

use std::pin::Pin;
use std::rc::Rc;
use std::time::{Duration, Instant};

use muxtunnel_codes::Code;
use muxtunnel_gateway_config::status::CarrierTransport;
use muxtunnel_proto::{
    Assignment, ListenError, ListenEvent, ListenId, OpenError, Priority, Reason, Refusal, Source,
};

use super::handover::Place;
use crate::base::path::PathInfo;
use crate::base::telemetry::CarrierStats;
use crate::io::carrier::Carrier;
use crate::io::key_refusal::KeyRefusal;
use crate::io::local_socket::LocalAddress;
use crate::io::proof::{Proof, Standing};
use crate::io::tun::Offloads;
use crate::net::dial::Dialled;
use crate::session::end::SessionEnd;
use crate::stream::early_data::Connection;
use crate::stream::packet::Packet;

/// A future that stays on its thread.
pub(crate) type Local<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// The future of a dial: returns a connection to the target, or the reason why the dial failed.
pub(crate) type Dial = Local<'static, Result<Dialled, Refusal>>;

/// Called for each open of the peer, with three arguments: the target as the peer sent it, the name
/// or key that the peer proved, and the data about the client to pass to the target.
pub(crate) type Dialler = Box<dyn Fn(String, Option<Rc<str>>, Option<Source>) -> Dial>;

pub(crate) type Refused = Box<dyn FnOnce(OpenEnd)>;

/// Receives the events of listeners.
pub(crate) type Hears = Box<dyn Fn(ListenEvent)>;

/// Why an open failed.
pub(crate) enum OpenEnd {
    /// The peer refused the open.
    Refused(Refusal),
    /// The stream was cut before the answer.
    Abandoned,
    /// The peer is shutting down and did not take the open, or the session ended before the open
    /// was sent. Another session may open the stream.
    Returned(Connection),
    /// The peer could not dial the target, and the connection has another target
    /// ([`Connection::has_next`]). The peer received none of the client's bytes, or they are in the
    /// connection.
    Failed(Refusal, Connection),
}

/// Whether a dial failed, so that a dial of another target may succeed. A target that the rules do
/// not permit was not dialled.
pub(crate) const fn is_failed_dial(reason: Reason) -> bool {
    match reason {
        Reason::General
        | Reason::NetworkUnreachable
        | Reason::HostUnreachable
        | Reason::ConnectionRefused
        | Reason::TimedOut => true,
        Reason::NotAllowed | Reason::AddressType | Reason::Other(_) => false,
    }
}

/// An open that a mux did not start.
pub(crate) struct NotOpened {
    pub(crate) error: OpenError,
    /// The unchanged connection; another mux may open a stream for it.
    pub(crate) connection: Connection,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Progress {
    /// The hello is incomplete.
    Hello,
    /// Streams can be opened.
    Ready,
    /// The peer takes no further streams; open streams continue.
    GoingAway,
}

/// Why a session did not take an authenticated connection.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoCarrier {
    /// The session has reached its limit of carriers, or has ended.
    #[error("the session has ended, or has reached its limit of carriers")]
    Refused(Carrier),
    /// The peer's identity differs from the identity on the session's first carrier.
    #[error("the peer's identity differs from the identity on the session's first carrier")]
    Stranger(Carrier),
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

impl NoCarrier {
    /// The code of the report of an entry.
    pub(crate) fn code(&self) -> Code {
        let refused = match self {
            Self::Io(error) => KeyRefusal::code_of(error),
            Self::Refused(_) | Self::Stranger(_) => None,
        };
        refused.unwrap_or(Code::CarrierConnecting)
    }
}

/// The current and the requested number of a session's carriers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PoolState {
    /// Number of carriers that are up and remain in the session.
    pub(crate) up: usize,
    /// Number of these carriers that are marked for replacement.
    pub(crate) outdated: usize,
    /// Number of carriers that this side could use for the bytes that it sends.
    pub(super) sends: usize,
    /// Number of carriers that the peer could use for the bytes that it sends, as it reports.
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
    /// Number of carriers that the session could use. For an honest peer, this number is at most
    /// the protocol's limit.
    pub(crate) fn wanted(self) -> usize {
        self.sends.max(self.peer_sends)
    }
}

/// Many streams with one peer. The mux passes the peer's opens to the dialler with which it was
/// created.
pub(crate) trait Mux {
    /// Opens a stream of `priority` to `target` (`tcp://host:port`) for `client`, and runs it as a
    /// separate task. Bytes that the client sends before the answer are also sent if the protocol
    /// gives credit for them. If the peer refuses, the mux calls `refused`, and answers or resets
    /// the client unless another session may take the open.
    ///
    /// # Errors
    /// This side cannot open a stream. `refused` is not called.
    fn open(
        &self,
        target: &str,
        priority: Priority,
        client: Connection,
        refused: Refused,
    ) -> Result<(), Box<NotOpened>>;

    /// Runs the mux to its end. When the function returns, every carrier is closed, and the streams
    /// are cut or only deliver their received bytes. Call this function once.
    fn run(&self) -> Local<'_, SessionEnd>;

    /// Runs a task whose panic ends only the mux.
    fn guard<'a>(&'a self, task: Local<'a, ()>) -> Local<'a, ()>;

    /// Tells the peer to open no further streams; open streams continue.
    fn go_away(&self);

    /// Stops this side from opening further streams; open streams continue.
    fn leave(&self);

    /// Announces the end to the peer, cuts the open streams and ends [`Self::run`].
    fn shut_down(&self);

    /// Cuts the open streams, refuses every open and ends [`Self::run`], since the peer no longer
    /// responds.
    fn give_up(&self, reason: String);

    fn progress(&self) -> Progress;

    /// Waits until the mux has reached `wanted`.
    fn reached(&self, wanted: Progress) -> Local<'_, ()>;

    /// Whether the end of the mux has begun: [`Self::run`] returns once the carriers are closed.
    fn has_ended(&self) -> bool;

    /// Number of streams that are open or being opened.
    fn stream_count(&self) -> usize;

    /// Waits until no stream is open and the kernel holds all bytes to send, or until the mux has
    /// ended.
    fn idle(&self) -> Local<'_, ()>;

    /// Call after [`Self::run`]. Waits until every stream has delivered its received bytes and
    /// ended its socket, for at most `within`.
    fn streams_gone(&self, within: Duration) -> Local<'_, ()>;

    /// The peer's most recent address.
    fn peer(&self) -> Rc<str>;

    /// The identity that the peer proved; `None`: the peer proved no identity.
    fn identity(&self) -> Option<Rc<str>>;

    /// Whether the mux has no carrier and may still get a carrier.
    fn waits(&self) -> bool;

    /// Whether the peer is likely to answer: the mux has a carrier, and on none of its carriers an
    /// answer of the peer is overdue. If this is `false`, an exit prefers another session of the
    /// same peer.
    fn answers(&self) -> bool;

    /// Requests an answer of the peer, if the protocol has such a request. Until the answer,
    /// [`Self::owes_an_answer`] is `true`.
    fn ask(&self) {}

    /// Whether the peer has not yet answered the request of [`Self::ask`]. New connections then
    /// prefer another session. Packets stay, because a live peer answers within one round trip.
    fn owes_an_answer(&self) -> bool {
        false
    }

    /// Checks the peer's proofs against `standing`, and ends the carriers that are no longer
    /// trusted.
    fn verify_again(&self, standing: &dyn Fn(&Proof) -> Standing);

    /// Resets the open streams whose target `denied` rejects. `denied` receives the target as
    /// configured and the address that was dialled.
    fn cut_denied(&self, denied: &dyn Fn(&str, &LocalAddress) -> bool);

    /// The mux's carriers, if the protocol permits adding and removing them.
    fn carriers(&self) -> Option<&dyn CarrierPool>;

    /// Listeners that one side requests from the other, if the protocol supports them.
    fn listeners(&self) -> Option<&dyn Listeners>;

    /// IP packets in addition to streams, if both ends agreed on them; `None` before
    /// [`Progress::Ready`].
    fn datagrams(&self) -> Option<&dyn Datagrams> {
        None
    }
}

impl dyn Mux {
    /// Whether the mux has ever been able to open streams.
    pub(crate) fn was_ready(&self) -> bool {
        self.progress() >= Progress::Ready
    }

    /// Whether the mux has no carrier.
    pub(crate) fn is_down(&self) -> bool {
        let is_down = |carriers: &dyn CarrierPool| carriers.numbers().up == 0;
        self.carriers().is_some_and(is_down)
    }

    /// Sort key for choosing the mux of a stream; the lowest key wins. A mux without a carrier is
    /// chosen only if no mux has a carrier.
    pub(crate) fn load(&self) -> (bool, usize) {
        (self.is_down(), self.stream_count())
    }
}

/// Figures of one carrier, from which the carrier to retire is chosen.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CarrierFigures {
    pub(crate) since: Instant,
    pub(crate) transport: CarrierTransport,
    /// Bytes sent.
    pub(crate) sent: u64,
    /// Bytes received.
    pub(crate) received: u64,
    /// Data about the path; `None`: the path is unknown.
    pub(crate) path: Option<PathInfo>,
}

impl CarrierFigures {
    pub(super) fn of(stats: &CarrierStats, since: Instant) -> Self {
        Self {
            since,
            transport: stats.transport,
            sent: stats.sent.get(),
            received: stats.received.get(),
            path: stats.path_info(),
        }
    }
}

pub(crate) trait CarrierPool {
    /// Adds a connection, as the first carrier or a further carrier. `unread` contains bytes that
    /// were already read from the connection. The returned future completes once the hello is
    /// complete, and returns whether the carrier is up. The carrier continues even if nothing
    /// awaits that future.
    ///
    /// # Errors
    /// [`NoCarrier`]; the session continues without the connection.
    fn add(
        &self,
        carrier: Carrier,
        unread: Vec<u8>,
        place: Option<Place>,
    ) -> Result<Local<'static, bool>, NoCarrier>;

    /// Works as [`Self::add`], for a carrier that was dialled by another route. The route may reach
    /// a peer that does not have the session. Then only this carrier ends, even if it is the
    /// session's only carrier.
    ///
    /// # Errors
    /// The errors of [`Self::add`].
    fn add_by_another_way(&self, carrier: Carrier) -> Result<Local<'static, bool>, NoCarrier> {
        self.add(carrier, Vec::new(), None)
    }

    /// Starts the orderly retirement of one carrier: of a carrier marked for replacement, otherwise
    /// of the newest carrier. Returns whether a carrier could be retired.
    fn retire_one(&self) -> bool;

    /// Figures of the carriers that are up.
    fn figures(&self) -> Vec<CarrierFigures>;

    /// Marks the carriers that match `which` for replacement.
    fn outdate(&self, which: &dyn Fn(&CarrierFigures) -> bool);

    /// Whether streams outlive their carrier.
    fn resumes(&self) -> bool;

    /// The current and the requested number of carriers.
    fn numbers(&self) -> PoolState;

    /// Waits until `is` holds for the numbers.
    fn until<'a>(&'a self, is: &'a dyn Fn(&PoolState) -> bool) -> Local<'a, ()>;
}

impl dyn CarrierPool + '_ {
    /// Waits until fewer than `wanted` carriers are up.
    pub(crate) async fn lacks(&self, wanted: usize) {
        self.until(&|numbers| numbers.up < wanted).await;
    }

    /// Waits until a carrier is up.
    pub(crate) async fn has_one(&self) {
        self.until(&|numbers| numbers.up > 0).await;
    }
}

/// Receives a packet of the peer. The packet is unchecked and has at most
/// [`DATAGRAM_BYTES_MAX`](muxtunnel_proto::DATAGRAM_BYTES_MAX) bytes.
pub(crate) type HearsPacket = Box<dyn Fn(&[u8])>;

/// Receives the peer's assignment to this side.
pub(crate) type HearsAssignment = Box<dyn Fn(&Rc<Assignment>)>;

/// The IP packets of one mux. Packets may be lost, and never wait for credit.
pub(crate) trait Datagrams {
    /// Sets the receiver of packets; only the first call has an effect. Earlier packets are
    /// dropped. `offloads` specifies which joined packets the receiver accepts.
    fn hear(&self, hears: HearsPacket, offloads: Offloads);

    /// Sends a packet of the flow with hash `flow`, in order with the flow's other packets. If
    /// there is no room for the packet, the mux drops it.
    fn send(&self, flow: u32, packet: Packet);

    /// Length of the longest packet that is not cut; `None`: there is no limit.
    fn limit(&self) -> Option<PacketLimit>;

    /// Assigns addresses and DNS servers to the peer. Only the accepting side assigns addresses,
    /// and only once. Returns false if the peer is known to have a version without assignments.
    fn assign(&self, assignment: Assignment) -> bool;

    /// Sets the receiver of the peer's assignment; only the first call has an effect. `hears` runs at
    /// most once, immediately if the assignment has arrived.
    fn hear_assignment(&self, hears: HearsAssignment);
}

/// The packet size of a carrier's path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PacketLimit {
    /// Maximum length of an IP packet in bytes.
    pub(crate) bytes: usize,
    /// Whether the search for a greater size has ended.
    pub(crate) is_known: bool,
}

pub(crate) trait Listeners {
    /// Sets the receiver of events; only the first call has an effect. Without a receiver, the
    /// peer's requests are refused.
    fn hear(&self, hears: Hears);

    /// Requests that the peer listens on `address`.
    ///
    /// # Errors
    /// [`ListenError`]: the request cannot be sent.
    fn listen(&self, address: &str, priority: Priority) -> Result<ListenId, ListenError>;

    /// Tells the peer to stop listening.
    fn unlisten(&self, listen: ListenId);

    /// Tells the peer that this side listens.
    fn listening(&self, listen: ListenId, address: &str);

    /// Tells the peer that this side does not listen, or has stopped listening.
    fn end_listen(&self, listen: ListenId, refusal: Refusal);
}
