//! The native session: QUIC's stream vocabulary over one or several TCP carriers
//! (docs/protocol.md).
//!
//! This module owns the hello, the stream table, the credit of both sides and the dirty bits from
//! which frames are made. The module implements [`Session`](crate::session::Session).
//!
//! The oldest carrier is the express carrier: it transports control frames, opens and small
//! streams. Bulk streams use the other carriers, if the session has several. If both sides agreed
//! on RESUME, transmitted frames are retained until the peer acknowledges them. When a carrier is
//! lost, the session sends the retained frames of this carrier again over another carrier.
//!
//! Bounds:
//! - streams of each side: `streams_max`
//! - payload received and not taken: `receive_budget`
//! - payload transmitted and not acknowledged: `retain`
//! - control frames transmitted and not acknowledged: 1 MiB per carrier
//! - carriers: [`CARRIERS_MAX`]
//! - waiting frames: one of each kind, as a dirty bit, for each stream and for the session
//! - events: the events of one input call
//!
//! If a peer exceeds a bound, this side ends the session with a code that names the bound.
//!
//! Read next:
//! - `native/contract.rs` for the calls of the driver
//! - `native/stream.rs` for the life of one stream, `native/window.rs` for its credit,
//!   `native/stalled.rs` for stalled streams that use up the session's credit
//! - `native/carrier.rs` and `native/log.rs` for the state of a carrier
//! - `native/input.rs` for arriving frames, `native/transmit.rs` for departing frames
//! - `native/ids.rs` for stream numbers, `native/departure.rs` for GOAWAY
//! - `native/retention.rs` for the retransmit buffer, `native/resume.rs` and `native/lost.rs` for
//!   lost carriers, `native/pool.rs` for requested and retired carriers
//! - `native/listen.rs` for requested listeners, `native/datagram.rs` for IP packets,
//!   `native/assign.rs` for assigned addresses
//! - `native/codec.rs` for the wire format

mod assign;
mod carrier;
pub mod codec;
mod config;
mod contract;
mod datagram;
mod departure;
mod ids;
mod input;
mod listen;
mod log;
mod lost;
mod pool;
mod ranges;
mod resume;
mod retention;
mod rtt;
mod stalled;
mod stream;
mod transmit;
mod window;

pub use codec::DecodeError;
pub use config::{Identity, NativeConfig, SessionCode};
pub use window::{WINDOW_BYTES_MAX, WINDOW_BYTES_MIN};

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use crate::patience::patience;
use crate::session::ready::ReadyList;
use crate::session::schedule::Schedule;
use crate::session::{CarrierId, Event, FIRST_READ_BYTES, ListenTable, ResetCode, StreamId};
use assign::Assigning;
use carrier::Carrier;
use codec::{
    ASSIGN_FEATURE, DATAGRAM_FEATURE, Frame, Hello, LISTEN_FEATURE, OFFSET_MAX, Parameters, RESUME,
    SOURCE, VERSION,
};
use departure::Departure;
use ids::StreamIds;
use lost::LostCarriers;
use pool::Wanted;
use retention::Retention;
use rtt::Rtt;
use stalled::Stalled;
use stream::{Phase, Stream, Unsent};
use transmit::SmallLately;
use window::{SessionWindow, StreamWindow};

/// Maximum number of carriers of a session at a time, including lost carriers that are not settled
/// (`native/resume.rs`). This is twice the largest pool of a gateway: a session that has lost all
/// carriers of its pool can dial as many again, and an acceptor may not know yet which carriers its
/// peer has lost.
pub const CARRIERS_MAX: usize = 32;

/// Memory overhead of a retained batch in bytes, rounded up: its entries in the tables of the
/// session and the driver, and the allocator's overhead. The session adds this overhead to each
/// batch, so that many small batches cannot exceed the bound on memory.
pub const RETAINED_OVERHEAD_BYTES: u64 = 256;

/// The side of the carrier. The dialler's streams have even ids. The acceptor's streams have odd
/// ids.
#[derive(Debug, Clone, Copy)]
enum Side {
    Dialler,
    Acceptor(Identity),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// The first carrier's hello is not complete.
    Hello,
    Ready,
    /// Only SESSION_CLOSE remains to be transmitted.
    Closed,
}

/// The credentials with which another carrier joins the session. Both sides know the credentials
/// once the session is ready.
#[derive(Clone, Copy)]
struct Ticket {
    session_id: [u8; 16],
    token: [u8; 32],
}

/// Omits the token.
impl std::fmt::Debug for Ticket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ticket")
            .field("session_id", &self.session_id)
            .finish_non_exhaustive()
    }
}

/// The features that both sides agreed on.
#[derive(Debug, Clone, Copy, Default)]
struct Agreed {
    resume: bool,
    listen: bool,
    sources: bool,
    datagrams: bool,
    assign: bool,
}

/// The limits that the peer has granted.
#[derive(Debug)]
struct PeerLimits {
    parameters: Parameters,
    data: u64,
    /// Bytes queued or sent on all streams.
    data_queued: u64,
    streams: u64,
    streams_opened: u64,
}

/// The announced payload that is still on its carrier.
#[derive(Debug, Clone, Copy)]
struct Receiving {
    stream: StreamId,
    offset: u64,
    /// Remaining bytes, at least 1.
    length: u64,
}

/// The state machine of a native session.
#[derive(Debug)]
pub struct NativeSession {
    config: NativeConfig,
    side: Side,
    state: State,
    /// Whether the peer has ended the session in order.
    closed_in_order: bool,
    carriers: BTreeMap<CarrierId, Carrier>,
    lost: LostCarriers,
    /// The [`CarrierId`] of the next carrier. Only this side uses it.
    next_carrier: u32,
    /// The number of the next carrier on the wire. The dialler assigns these numbers. The acceptor
    /// refuses lower numbers.
    next_number: u32,
    agreed: Agreed,
    listens: ListenTable,
    assigning: Assigning,
    /// The carriers that the acceptor asks for.
    wanted: Wanted,
    ticket: Option<Ticket>,
    peer: PeerLimits,
    window: SessionWindow,
    stalled: Stalled,
    retention: Retention,
    rtt: Rtt,
    streams: BTreeMap<StreamId, Stream>,
    ids: StreamIds,
    /// The offset of the first byte of each stream: 0, unless a test begins near the last offset.
    first_offset: u64,
    /// The deadlines of opens, and the times to check whether a window is idle.
    deadlines: BTreeSet<(Instant, StreamId)>,
    control_ready: ReadyList,
    data_ready: Schedule,
    /// Small streams have sent lately.
    small: Option<SmallLately>,
    /// Streams that wait for session credit or for room in `retain`.
    blocked: VecDeque<StreamId>,
    departure: Departure,
    events: VecDeque<Event>,
}

impl NativeSession {
    /// A session of the side that connected. Its HELLO is ready to be transmitted on
    /// [`CarrierId::FIRST`].
    #[must_use]
    pub fn dial(config: NativeConfig, now: Instant) -> Self {
        Self::new(config, Side::Dialler, now)
    }

    /// A session of the side that accepted the connection [`CarrierId::FIRST`].
    #[must_use]
    pub fn accept(config: NativeConfig, identity: Identity, now: Instant) -> Self {
        Self::new(config, Side::Acceptor(identity), now)
    }

    /// Leaves this side `count` numbers for its streams. Tests use this function, because no test
    /// opens 2^47 streams. Call it before the first open.
    #[must_use]
    #[doc(hidden)]
    pub fn with_stream_ids(mut self, count: u64) -> Self {
        self.ids.leave(count);
        self
    }

    /// Leaves each direction of a stream `count` bytes: the payload of a stream starts at an offset
    /// other than 0. Tests use this function for both sides, because no test sends 2^48 bytes. Call
    /// it before the first open.
    #[must_use]
    #[doc(hidden)]
    pub fn with_stream_bytes(mut self, count: u64) -> Self {
        self.first_offset = OFFSET_MAX - count;
        self
    }

    fn new(config: NativeConfig, side: Side, now: Instant) -> Self {
        let first = match side {
            Side::Dialler => 2,
            Side::Acceptor(_) => 1,
        };
        let mut session = Self {
            config,
            side,
            state: State::Hello,
            carriers: BTreeMap::new(),
            lost: LostCarriers::default(),
            next_carrier: 0,
            next_number: 0,
            agreed: Agreed::default(),
            listens: ListenTable::new(matches!(side, Side::Dialler)),
            assigning: Assigning::default(),
            wanted: Wanted::default(),
            ticket: match side {
                Side::Dialler => None,
                Side::Acceptor(Identity { session_id, token }) => {
                    Some(Ticket { session_id, token })
                }
            },
            peer: PeerLimits {
                parameters: Parameters::default(),
                data: 0,
                data_queued: 0,
                streams: 0,
                streams_opened: 0,
            },
            window: SessionWindow::new(config.receive_budget),
            stalled: Stalled::default(),
            retention: Retention::default(),
            rtt: Rtt::default(),
            streams: BTreeMap::new(),
            ids: StreamIds::new(first, config.streams_max.into()),
            closed_in_order: false,
            first_offset: 0,
            deadlines: BTreeSet::new(),
            control_ready: ReadyList::default(),
            data_ready: Schedule::default(),
            small: None,
            blocked: VecDeque::new(),
            departure: Departure::default(),
            events: VecDeque::new(),
        };
        session.insert_carrier(now);
        session
    }

    /// Adds a connection, which begins with a hello.
    fn insert_carrier(&mut self, now: Instant) -> CarrierId {
        let id = CarrierId(self.next_carrier);
        self.next_carrier += 1;
        let mut carrier = Carrier::new(now, self.patience(self.config.hello_timeout));
        if let Side::Dialler = self.side {
            let number = self.next_number;
            self.next_number += 1;
            let joins = self.ticket;
            carrier.number = Some(number);
            carrier.first.push_back(Frame::Hello(Hello {
                version_min: VERSION,
                version_max: VERSION,
                features: self.features(),
                carrier: number,
                session_id: joins.map_or([0; 16], |ticket| ticket.session_id),
                token: joins.map_or([0; 32], |ticket| ticket.token),
                parameters: self.parameters(),
            }));
        }
        self.carriers.insert(id, carrier);
        id
    }

    /// The time limit that is `ordinary` on ordinary paths.
    fn patience(&self, ordinary: Duration) -> Duration {
        patience(ordinary, self.rtt.known())
    }

    /// The features that this side offers or agrees to.
    fn features(&self) -> u32 {
        let of = |is_offered: bool, feature: u32| if is_offered { feature } else { 0 };
        of(self.config.resume, RESUME)
            | of(self.config.listen, LISTEN_FEATURE)
            | of(self.config.sources, SOURCE)
            | of(self.config.datagrams, DATAGRAM_FEATURE)
            | of(self.config.datagrams, ASSIGN_FEATURE)
    }

    fn parameters(&self) -> Parameters {
        Parameters {
            initial_max_data: self.window.advertised(),
            initial_max_stream_data: window::initial(self.config.receive_budget),
            initial_max_streams: self.config.streams_max.into(),
            frame_max: self.config.frame_max,
        }
    }

    /// The round trip time that determines how fast windows grow.
    #[must_use]
    pub fn round_trip_time(&self) -> Duration {
        self.rtt.get()
    }

    fn new_window(&mut self, now: Instant) -> StreamWindow {
        let initial = window::initial(self.config.receive_budget);
        StreamWindow::new(now, self.first_offset, initial, &mut self.window)
    }

    /// Schedules the idle check of `stream`. While the local socket takes payload, the check does
    /// not change the window.
    fn check_idle(&mut self, now: Instant, stream: StreamId) {
        if let Some(state) = self.streams.get_mut(&stream) {
            let check = now + window::IDLE;
            state.idle_check = Some(check);
            self.deadlines.insert((check, stream));
        }
    }

    /// Cuts a stream. The session credit of its unsent batch becomes free again.
    fn cut(&mut self, stream: StreamId, code: ResetCode, reason: &str) {
        let Some(state) = self.streams.get_mut(&stream) else {
            return;
        };
        if let Phase::Opening(deadline) = state.phase {
            self.deadlines.remove(&(deadline, stream));
        }
        if state.is_unsent() {
            self.peer.streams_opened -= 1;
            let unsent = state.cut(code, reason, &mut self.window);
            self.give_back(unsent);
            self.retire(stream);
            return;
        }
        let unsent = state.cut(code, reason, &mut self.window);
        self.data_ready.forget(stream);
        self.control_ready.push(stream);
        self.give_back(unsent);
        self.retire_if_done(stream);
    }

    /// Gives back the session credit that a cut stream reserved for its unsent batch.
    fn give_back(&mut self, unsent: Unsent) {
        self.peer.data_queued -= unsent.bytes;
        if self.agreed.resume {
            self.retention.give_back(unsent.held);
        }
        self.wake_blocked();
    }

    /// Payload bytes that all streams together may queue now: the unused part of the peer's limit.
    /// If streams survive the loss of carriers, at most the free part of `retain`.
    fn session_credit(&self) -> u64 {
        let credit = self.peer.data.saturating_sub(self.peer.data_queued);
        if self.agreed.resume {
            credit.min(self.retention.room(self.config.retain))
        } else {
            credit
        }
    }

    /// Handles new session credit or new room in `retain`. Wakes blocked streams in the order in
    /// which they blocked, as many as can use the credit.
    fn wake_blocked(&mut self) {
        self.wake(self.session_credit().div_ceil(FIRST_READ_BYTES as u64));
    }

    /// Wakes the next blocked stream if credit remains after a woken stream has taken its share.
    fn wake_next(&mut self) {
        self.wake(self.session_credit().min(1));
    }

    /// Wakes `count` blocked streams that can still send.
    fn wake(&mut self, mut count: u64) {
        while count > 0
            && let Some(stream) = self.blocked.pop_front()
        {
            if let Some(state) = self.streams.get_mut(&stream)
                && std::mem::take(&mut state.blocked)
                && state.has_credit()
            {
                self.events.push_back(Event::Writable { stream });
                count -= 1;
            }
        }
    }

    fn retire_if_done(&mut self, stream: StreamId) {
        if self.streams.get(&stream).is_some_and(Stream::done) {
            self.retire(stream);
        }
    }

    fn retire(&mut self, stream: StreamId) {
        let Some(mut state) = self.streams.remove(&stream) else {
            return;
        };
        state.window.release(&mut self.window);
        self.data_ready.forget(stream);
        self.leave_home(state.home);
        if state.blocked {
            self.blocked.retain(|other| *other != stream);
        }
        self.wake_next();
        if let Phase::Opening(deadline) = state.phase {
            self.deadlines.remove(&(deadline, stream));
        }
        if let Some(check) = state.idle_check {
            self.deadlines.remove(&(check, stream));
        }
        self.ids.close(stream);
    }
}
