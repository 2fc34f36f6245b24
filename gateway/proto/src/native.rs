//! The native session: QUIC's stream vocabulary over TCP (docs/protocol.md), on one carrier or several.
//!
//! Owns the hello, the stream table, both sides' credit and the dirty bits from which frames are made;
//! the contract is [`Session`](crate::session::Session).
//!
//! The oldest carrier is the express one: control frames, opens and small streams go there, bulk goes to
//! the others where there are any. Where both sides agreed on RESUME, what is transmitted is kept until
//! it is acknowledged, and goes again over another carrier when its own is lost.
//!
//! Bounds: `streams_max` streams of each side; payload received and not taken, `receive_budget`; payload
//! transmitted and not acknowledged, `retain`, and 1 MiB of control frames a carrier; [`CARRIERS_MAX`]
//! carriers; one frame of each kind waiting, as a dirty bit, for each stream and for the session; events
//! of one input call. A peer that exceeds one of them ends its session with a code that says which.
//!
//! Read next: `native/contract.rs` for what the driver calls, `native/stream.rs` for the life of one stream, `native/window.rs` for its credit,
//! `native/stalled.rs` for those who take it from the others,
//! `native/carrier.rs` and `native/log.rs` for what both ends have of a carrier, `native/input.rs` for
//! what arrives, `native/transmit.rs` for what leaves, `native/ids.rs` for the numbers of streams, `native/departure.rs`
//! for GOAWAY, `native/retention.rs` for what is kept, `native/resume.rs` and `native/lost.rs` for carriers that are
//! lost, `native/pool.rs` for those that are asked for and retired, `native/listen.rs` for listeners that
//! are asked for, `native/datagram.rs` for IP packets, `native/assign.rs` for the addresses of their networks, `native/codec.rs` for the wire.

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

use crate::session::ready::ReadyList;
use crate::session::schedule::Schedule;
use crate::session::{CarrierId, Event, FIRST_READ_BYTES, ListenTable, ResetCode, StreamId};
use assign::Assigning;
use carrier::Carrier;
use codec::{
    ASSIGN_FEATURE, DATAGRAM_FEATURE, Frame, Hello, LISTEN_FEATURE, Parameters, RESUME, SOURCE,
    VERSION,
};
use departure::Departure;
use ids::StreamIds;
use lost::LostCarriers;
use pool::Wanted;
use retention::Retention;
use rtt::Rtt;
use stalled::Stalled;
use stream::{Phase, Stream, Unsent};
use window::{SessionWindow, StreamWindow};

/// Most carriers of a session at once, those that were lost and are not settled included.
pub const CARRIERS_MAX: usize = 16;

/// Bytes of memory that a batch takes beyond its payload while it may be wanted again, rounded up: its entries in
/// the tables of the session and of the driver, and the allocator's. They count, so that small frames have a bound.
pub const RETAINED_OVERHEAD_BYTES: u64 = 256;

/// Which side of the carrier this is. The dialler's streams have even ids, the acceptor's odd ones.
#[derive(Debug, Clone, Copy)]
enum Side {
    Dialler,
    Acceptor(Identity),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// The first carrier's hello is not over.
    Hello,
    Ready,
    /// What is left to transmit is SESSION_CLOSE.
    Closed,
}

/// What another carrier shows to join the session; known once it is ready.
#[derive(Clone, Copy)]
struct Ticket {
    session_id: [u8; 16],
    token: [u8; 32],
}

/// Without the token.
impl std::fmt::Debug for Ticket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ticket")
            .field("session_id", &self.session_id)
            .finish_non_exhaustive()
    }
}

/// The features that both sides have agreed on.
#[derive(Debug, Clone, Copy, Default)]
struct Agreed {
    resume: bool,
    listen: bool,
    sources: bool,
    datagrams: bool,
    assign: bool,
}

/// What the peer takes.
#[derive(Debug)]
struct PeerLimits {
    parameters: Parameters,
    data: u64,
    /// Of all streams, what is queued or sent.
    data_queued: u64,
    streams: u64,
    streams_opened: u64,
}

/// Announced payload that is still on its carrier.
#[derive(Debug, Clone, Copy)]
struct Receiving {
    stream: StreamId,
    offset: u64,
    /// At least 1.
    length: u64,
}

/// The state machine of one native session.
#[derive(Debug)]
pub struct NativeSession {
    config: NativeConfig,
    side: Side,
    state: State,
    carriers: BTreeMap<CarrierId, Carrier>,
    lost: LostCarriers,
    /// The next carrier, here and on the wire.
    next_carrier: u32,
    next_number: u32,
    agreed: Agreed,
    listens: ListenTable,
    assigning: Assigning,
    /// Carriers that the acceptor asks for.
    wanted: Wanted,
    ticket: Option<Ticket>,
    peer: PeerLimits,
    window: SessionWindow,
    stalled: Stalled,
    retention: Retention,
    rtt: Rtt,
    streams: BTreeMap<StreamId, Stream>,
    ids: StreamIds,
    /// Open time-outs, and when to see whether a window is idle.
    deadlines: BTreeSet<(Instant, StreamId)>,
    control_ready: ReadyList,
    data_ready: Schedule,
    /// Streams that wait for the session's credit, or for `retain`.
    blocked: VecDeque<StreamId>,
    departure: Departure,
    events: VecDeque<Event>,
}

impl NativeSession {
    /// The session of the side that connected. Its HELLO is ready to be transmitted on
    /// [`CarrierId::FIRST`].
    #[must_use]
    pub fn dial(config: NativeConfig, now: Instant) -> Self {
        Self::new(config, Side::Dialler, now)
    }

    /// The session of the side that was connected to by [`CarrierId::FIRST`].
    #[must_use]
    pub fn accept(config: NativeConfig, identity: Identity, now: Instant) -> Self {
        Self::new(config, Side::Acceptor(identity), now)
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
            deadlines: BTreeSet::new(),
            control_ready: ReadyList::default(),
            data_ready: Schedule::default(),
            blocked: VecDeque::new(),
            departure: Departure::default(),
            events: VecDeque::new(),
        };
        session.insert_carrier(now);
        session
    }

    /// A connection that begins with a hello.
    fn insert_carrier(&mut self, now: Instant) -> CarrierId {
        let id = CarrierId(self.next_carrier);
        self.next_carrier += 1;
        let deadline = now + self.config.hello_timeout;
        let mut carrier = Carrier::new(now, deadline);
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

    /// What is offered, or agreed to.
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

    /// The round trip time that windows are grown by.
    #[must_use]
    pub fn round_trip_time(&self) -> Duration {
        self.rtt.get()
    }

    fn new_window(&mut self, now: Instant) -> StreamWindow {
        let initial = window::initial(self.config.receive_budget);
        StreamWindow::new(now, initial, &mut self.window)
    }

    /// The window of `stream` is a first one, which it keeps for as long as the stream consumes.
    fn check_idle(&mut self, now: Instant, stream: StreamId) {
        if let Some(state) = self.streams.get_mut(&stream) {
            let check = now + window::IDLE;
            state.idle_check = Some(check);
            self.deadlines.insert((check, stream));
        }
    }

    /// Cuts a stream; what it will never send goes back to the session's credit.
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

    /// Session credit that a cut stream had taken and will not use.
    fn give_back(&mut self, unsent: Unsent) {
        self.peer.data_queued -= unsent.bytes;
        if self.agreed.resume {
            self.retention.give_back(unsent.held);
        }
        self.wake_blocked();
    }

    /// Payload bytes that all streams together may queue now: what the peer takes, and what may be kept of it.
    fn session_credit(&self) -> u64 {
        let credit = self.peer.data.saturating_sub(self.peer.data_queued);
        if self.agreed.resume {
            credit.min(self.retention.room(self.config.retain))
        } else {
            credit
        }
    }

    /// There is session credit again, or room in `retain`: as many streams as it is for may take it, in the order in which
    /// they asked.
    fn wake_blocked(&mut self) {
        self.wake(self.session_credit().div_ceil(FIRST_READ_BYTES as u64));
    }

    /// A stream that may have been woken has taken what it takes, or nothing: what it leaves is for the next one.
    fn wake_next(&mut self) {
        self.wake(self.session_credit().min(1));
    }

    /// Wakes `count` of those that wait and still can send.
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
