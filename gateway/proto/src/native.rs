//! The native session: QUIC's stream vocabulary over TCP (docs/protocol.md), on one carrier or several.
//!
//! Owns the hello, the stream table, both sides' credit and the dirty bits from which frames are made;
//! the contract is [`Session`].
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
//! Read next: `native/stream.rs` for the life of one stream, `native/window.rs` for its credit,
//! `native/carrier.rs` and `native/log.rs` for what both ends have of a carrier, `native/input.rs` for
//! what arrives, `native/transmit.rs` for what leaves, `native/resume.rs` for carriers that are
//! lost, `native/pool.rs` for those that are asked for and retired, `native/codec.rs` for the wire.

mod carrier;
pub mod codec;
mod input;
mod log;
mod pool;
mod ranges;
mod resume;
mod rtt;
mod stream;
mod transmit;
mod window;

pub use codec::DecodeError;
pub use window::{WINDOW_BYTES_MAX, WINDOW_BYTES_MIN};

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use crate::session::ready::ReadyList;
use crate::session::schedule::Schedule;
use crate::session::{
    CarrierId, CreditView, Event, Header, OpenError, Outcome, Priority, Reason, Receive, Refusal,
    ResetCode, SendCapacity, Session, SessionError, StreamId, TARGET_LENGTH_MAX, Token, Transmit,
};
use carrier::{Carrier, Lost};
use codec::{Frame, HEADER_BYTES, Hello, Parameters, RESUME, VERSION};
use pool::Wanted;
use rtt::Rtt;
use stream::{Phase, Stream, Unsent};
use window::{SessionWindow, StreamWindow};

/// Most carriers of a session at once, those that were lost and are not settled included.
pub const CARRIERS_MAX: usize = 16;

/// Why a session ends: the code of SESSION_CLOSE. Names and numbers of RFC 9000, section 20.1, where
/// it has one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub enum SessionCode {
    /// The gateway shuts down, or has no more use for the session.
    NoError = 0x00,
    /// More payload than was granted.
    FlowControlError = 0x03,
    /// More streams than were granted.
    StreamLimitError = 0x04,
    /// A frame for a stream that cannot have it.
    StreamStateError = 0x05,
    /// A final size that is not the one that was, or more payload behind it.
    FinalSizeError = 0x06,
    /// A frame that is not well formed.
    FrameEncodingError = 0x07,
    /// A frame that this moment does not allow.
    ProtocolViolation = 0x0a,
    /// No hello in time.
    HelloTimeout = 0x100,
    /// No version that both sides speak.
    VersionUnsupported = 0x101,
    /// The session to be joined is not known here.
    UnknownSession = 0x102,
}

/// Bounds of one session.
#[derive(Debug, Clone, Copy)]
pub struct NativeConfig {
    /// Most streams of each side at once.
    pub streams_max: u32,
    /// Bytes of payload received and not taken by local sockets; at least 1 MiB.
    pub receive_budget: u64,
    /// Longest payload of one STREAM frame that is taken, 16 KiB to 1 MiB.
    pub frame_max: u32,
    /// How long an open may stay unanswered.
    pub open_timeout: Duration,
    /// How long the other side's hello may take.
    pub hello_timeout: Duration,
    /// Whether streams outlive their carrier, where the other side agrees. Then what is transmitted is
    /// kept until it is acknowledged, and there may be several carriers.
    pub resume: bool,
    /// Bytes of memory of what is transmitted and not acknowledged, and of what is transmitted next. The
    /// last batch that fits may exceed it by what it holds beyond its payload.
    pub retain: u64,
    /// How long a session with streams may be without a carrier.
    pub resume_timeout: Duration,
}

impl Default for NativeConfig {
    /// 4,096 streams in 256 MiB, frames of 1 MiB, 15 s for an open (a peer's dial of 10 s and some
    /// round trips), 5 s for the hello;
    /// resumed within 30 s out of 64 MiB.
    fn default() -> Self {
        Self {
            streams_max: 4096,
            receive_budget: 256 << 20,
            frame_max: codec::FRAME_BYTES_MAX,
            open_timeout: Duration::from_secs(15),
            hello_timeout: Duration::from_secs(5),
            resume: true,
            retain: 64 << 20,
            resume_timeout: Duration::from_secs(30),
        }
    }
}

/// What an acceptor gives a session: both from a cryptographic random source.
#[derive(Clone, Copy)]
pub struct Identity {
    /// The session's name.
    pub session_id: [u8; 16],
    /// What another carrier must show to join it.
    pub token: [u8; 32],
}

impl std::fmt::Debug for Identity {
    /// Without the token.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Identity")
            .field("session_id", &self.session_id)
            .finish_non_exhaustive()
    }
}

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
#[derive(Debug, Clone, Copy)]
struct Ticket {
    session_id: [u8; 16],
    token: [u8; 32],
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
    /// Those that are gone and not settled: the peer has not said how much it received on them.
    lost: BTreeMap<CarrierId, Lost>,
    /// Carriers of which the peer has to learn that they are gone.
    tell_lost: VecDeque<Frame>,
    /// Those that it was told of and has not acknowledged: on which carrier, up to which of its bytes.
    told_lost: Vec<(CarrierId, u64, Frame)>,
    /// The next carrier, here and on the wire.
    next_carrier: u32,
    next_number: u32,
    /// RESUME was agreed on.
    resume: bool,
    /// Carriers that the acceptor asks for.
    wanted: Wanted,
    ticket: Option<Ticket>,
    peer: PeerLimits,
    window: SessionWindow,
    /// Payload that waits to be transmitted or acknowledged, and batches that are not needed any more.
    retained: u64,
    released: VecDeque<Token>,
    rtt: Rtt,
    streams: BTreeMap<StreamId, Stream>,
    /// How many of them are ours.
    ours: usize,
    /// Open time-outs, and when to see whether a grown window is idle.
    deadlines: BTreeSet<(Instant, StreamId)>,
    control_ready: ReadyList,
    data_ready: Schedule,
    /// Streams that wait for the session's credit, or for `retain`.
    blocked: VecDeque<StreamId>,
    next_id: u64,
    /// The peer's last stream, 0 before the first.
    peer_last: u64,
    /// The peer's streams that are gone, and how many it may open in all.
    peer_gone: u64,
    peer_streams_advertised: u64,
    /// GOAWAY is due, or sent.
    goaway: Option<GoAway>,
    /// The peer said GOAWAY.
    peer_goes: bool,
    events: VecDeque<Event>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum GoAway {
    /// The last stream that was taken is this one of the peer's.
    Due(StreamId),
    Sent,
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
        let mut session = Self {
            config,
            side,
            state: State::Hello,
            carriers: BTreeMap::new(),
            lost: BTreeMap::new(),
            tell_lost: VecDeque::new(),
            told_lost: Vec::new(),
            next_carrier: 0,
            next_number: 0,
            resume: false,
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
            retained: 0,
            released: VecDeque::new(),
            rtt: Rtt::default(),
            streams: BTreeMap::new(),
            ours: 0,
            deadlines: BTreeSet::new(),
            control_ready: ReadyList::default(),
            data_ready: Schedule::default(),
            blocked: VecDeque::new(),
            next_id: match side {
                Side::Dialler => 2,
                Side::Acceptor(_) => 1,
            },
            peer_last: 0,
            peer_gone: 0,
            peer_streams_advertised: config.streams_max.into(),
            goaway: None,
            peer_goes: false,
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
        if self.config.resume { RESUME } else { 0 }
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

    fn is_ours(&self, stream: StreamId) -> bool {
        stream.0 % 2 == self.next_id % 2
    }

    fn new_window(&mut self, now: Instant) -> StreamWindow {
        let initial = window::initial(self.config.receive_budget);
        StreamWindow::new(now, initial, &mut self.window)
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
        if self.resume {
            self.retained -= unsent.held;
        }
        if unsent.bytes > 0 {
            self.wake_blocked();
        }
    }

    /// There is session credit again, or room in `retain`: those who wait for it may look, in the order in
    /// which they came.
    fn wake_blocked(&mut self) {
        for stream in std::mem::take(&mut self.blocked) {
            if let Some(state) = self.streams.get_mut(&stream)
                && std::mem::take(&mut state.blocked)
            {
                self.events.push_back(Event::Writable { stream });
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
        if let Phase::Opening(deadline) = state.phase {
            self.deadlines.remove(&(deadline, stream));
        }
        if let Some(look) = state.idle_look {
            self.deadlines.remove(&(look, stream));
        }
        if self.is_ours(stream) {
            self.ours -= 1;
        } else {
            self.peer_gone += 1;
        }
    }
}

impl Session for NativeSession {
    fn is_ready(&self) -> bool {
        self.state == State::Ready
    }

    fn is_over(&self) -> bool {
        self.state == State::Closed && self.carriers.is_empty()
    }

    fn add_carrier(&mut self, now: Instant) -> Option<CarrierId> {
        let room = self.carriers.len() + self.lost.len() < CARRIERS_MAX;
        // Numbers must arrive in order.
        let waits = matches!(self.side, Side::Dialler)
            && self
                .carriers
                .values()
                .any(|carrier| carrier.state.is_hello());
        let may = self.state == State::Ready && self.resume && room && !waits;
        may.then(|| self.insert_carrier(now))
    }

    fn retire_carrier(&mut self, carrier: CarrierId) -> bool {
        self.begin_to_retire(carrier)
    }

    fn is_retired(&self, carrier: CarrierId) -> bool {
        let carrier = self.carriers.get(&carrier);
        carrier.is_some_and(|carrier| carrier.state == carrier::State::Retired)
    }

    fn want_carriers(&mut self, count: u32) {
        self.ask_for_carriers(count);
    }

    fn takes_bulk(&self, carrier: CarrierId) -> bool {
        let is_up = |id: &CarrierId| self.carriers.get(id).is_some_and(Carrier::is_up);
        let mut others = self.carriers.keys().filter(|id| **id != carrier);
        let kept = self.data_ready.small_lately() && self.express() == Some(carrier);
        is_up(&carrier) && !(kept && others.any(is_up))
    }

    fn open(
        &mut self,
        now: Instant,
        target: &str,
        priority: Priority,
    ) -> Result<StreamId, OpenError> {
        if target.is_empty() || target.len() > TARGET_LENGTH_MAX {
            return Err(OpenError::TargetTooLong {
                length: target.len(),
            });
        }
        if self.state != State::Ready {
            return Err(OpenError::NotReady);
        }
        if self.peer_goes || self.next_id > codec::OFFSET_MAX {
            return Err(OpenError::GoingAway);
        }
        let streams_max = self.config.streams_max;
        if self.ours >= streams_max as usize {
            return Err(OpenError::TooManyStreams { streams_max });
        }
        if self.peer.streams_opened >= self.peer.streams {
            let streams_max = self.peer.parameters.initial_max_streams;
            return Err(OpenError::PeerStreamLimit { streams_max });
        }
        let stream = StreamId(self.next_id);
        self.next_id += 2;
        self.peer.streams_opened += 1;
        let deadline = now + self.config.open_timeout;
        let window = self.new_window(now);
        let send_limit = self.peer.parameters.initial_max_stream_data;
        let state = Stream::opening(stream, target, priority, deadline, window, send_limit);
        self.streams.insert(stream, state);
        self.data_ready.set_priority(stream, priority);
        self.ours += 1;
        self.deadlines.insert((deadline, stream));
        self.control_ready.push(stream);
        Ok(stream)
    }

    fn accept(&mut self, stream: StreamId, address: &str) {
        if let Some(state) = self.streams.get_mut(&stream)
            && state.phase == Phase::Accepting
        {
            state.accept(address);
            self.control_ready.push(stream);
        }
    }

    fn refuse(&mut self, stream: StreamId, refusal: Refusal) {
        let state = self.streams.get(&stream);
        if state.is_some_and(|state| state.phase == Phase::Accepting) {
            let code = ResetCode::Refused(refusal.reason);
            self.cut(stream, code, &refusal.description);
        }
    }

    fn send_capacity(&mut self, stream: StreamId) -> Option<SendCapacity> {
        let state = self.streams.get_mut(&stream)?;
        let frame_max = self.peer.parameters.frame_max;
        let mut capacity = state.send_capacity(HEADER_BYTES, frame_max, self.resume)?;
        if state.is_exhausted() {
            let cause = Outcome::PeerReset(ResetCode::OffsetsExhausted);
            self.cut(stream, ResetCode::OffsetsExhausted, "");
            self.events.push_back(Event::Reset { stream, cause });
            return None;
        }
        let mut session = self.peer.data.saturating_sub(self.peer.data_queued);
        if self.resume {
            session = session.min(self.config.retain.saturating_sub(self.retained));
        }
        if capacity.bytes > 0 && session == 0 && !state.blocked {
            state.blocked = true;
            self.blocked.push_back(stream);
        }
        capacity.bytes = capacity.bytes.min(session);
        Some(capacity)
    }

    fn source_ready(&mut self, stream: StreamId, length: usize, held: usize, token: Token) {
        let held = held.max(length) as u64;
        if let Some(state) = self.streams.get_mut(&stream)
            && state.queue_batch(length, held, token)
        {
            let unannounced = state.is_unannounced();
            self.peer.data_queued += length as u64;
            if self.resume {
                self.retained += held;
            }
            // Else it is scheduled with the frame that goes before it.
            if !unannounced {
                self.schedule(stream, length);
            }
        }
    }

    fn sink_took(&mut self, now: Instant, stream: StreamId, length: usize) {
        let Some(state) = self.streams.get_mut(&stream) else {
            return;
        };
        let rtt = self.rtt.get();
        let window = &mut self.window;
        if state.window.consume(now, length as u64, rtt, window) {
            let look = now + window::IDLE;
            state.idle_look = Some(look);
            self.deadlines.insert((look, stream));
        }
        if state.credit_due() {
            self.control_ready.push(stream);
            self.rtt.want(now);
        }
        self.retire_if_done(stream);
    }

    fn finish(&mut self, stream: StreamId) {
        if let Some(state) = self.streams.get_mut(&stream) {
            state.finish();
            self.control_ready.push(stream);
        }
    }

    fn reset(&mut self, stream: StreamId, code: ResetCode) {
        self.cut(stream, code, "");
    }

    fn go_away(&mut self) {
        let last = StreamId(self.peer_last);
        self.goaway.get_or_insert(GoAway::Due(last));
    }

    fn shut_down(&mut self) {
        self.say_last(Some(SessionCode::NoError), String::new());
    }

    fn close(&mut self, error: &SessionError) {
        self.say_last(input::close_code(error), error.to_string());
    }

    fn handle_header(
        &mut self,
        now: Instant,
        carrier: CarrierId,
        bytes: &[u8],
    ) -> Result<Header, SessionError> {
        self.handle_unread(now, carrier, bytes)
    }

    fn receiving(&self, carrier: CarrierId) -> Option<Receive> {
        let receiving = self.carriers.get(&carrier)?.receiving?;
        let stream = self.streams.get(&receiving.stream);
        Some(Receive {
            carrier,
            offset: receiving.offset,
            length: receiving.length as usize,
            stream: stream
                .is_some_and(Stream::wants_payload)
                .then_some(receiving.stream),
        })
    }

    fn payload_moved(&mut self, carrier: CarrierId, length: usize) {
        self.move_payload(carrier, length);
    }

    fn handle_rtt(&mut self, _carrier: CarrierId, rtt: Duration) {
        self.rtt.set_transport(rtt);
        self.window.set_rtt(self.rtt.path());
    }

    fn handle_carrier_blocked(&mut self, carrier: CarrierId) {
        if let Some(carrier) = self.carriers.get_mut(&carrier) {
            carrier.blocked = true;
        }
    }

    fn handle_carrier_lost(&mut self, now: Instant, carrier: CarrierId) {
        self.lose(now, carrier);
    }

    fn handle_timeout(&mut self, now: Instant) -> Result<(), SessionError> {
        self.look_at_carriers(now)?;
        while let Some(&(deadline, stream)) = self.deadlines.first() {
            if deadline > now {
                break;
            }
            self.deadlines.remove(&(deadline, stream));
            let Some(state) = self.streams.get_mut(&stream) else {
                continue;
            };
            if state.phase == Phase::Opening(deadline) {
                self.cut(stream, ResetCode::OpenTimeout, "");
                let text = "the other side did not answer the open in time";
                let refusal = Refusal::new(Reason::TimedOut, text);
                self.events.push_back(Event::OpenFailed { stream, refusal });
            } else {
                state.idle_look = state.window.shrink(now, &mut self.window);
                self.deadlines
                    .extend(state.idle_look.map(|look| (look, stream)));
            }
        }
        Ok(())
    }

    fn poll_timeout(&self) -> Option<Instant> {
        if self.state == State::Closed {
            return None;
        }
        let carriers = self.carriers.values().filter_map(Carrier::deadline);
        let streams = self.deadlines.first().map(|(deadline, _)| *deadline);
        carriers.chain(streams).chain(self.resume_deadline()).min()
    }

    fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    fn poll_transmit(&mut self, carrier: CarrierId) -> Option<Transmit> {
        self.next_transmit(carrier)
    }

    fn wants_transmit(&self, carrier: CarrierId) -> bool {
        self.has_transmit(carrier)
    }

    fn poll_released(&mut self) -> Option<Token> {
        self.released.pop_front()
    }

    fn is_settled(&self) -> bool {
        let settled = |carrier: &Carrier| carrier.again.is_empty() && carrier.log.is_settled();
        let told = self.tell_lost.is_empty() && self.told_lost.is_empty();
        told && self.lost.is_empty() && self.carriers.values().all(settled)
    }

    fn stream_count(&self) -> usize {
        self.streams.len()
    }

    fn streams(&self) -> Vec<StreamId> {
        self.streams.keys().copied().collect()
    }

    fn receive_budget_used(&self) -> u64 {
        self.window.buffered()
    }

    fn credit(&self, stream: StreamId) -> Option<CreditView> {
        self.streams.get(&stream).map(Stream::credit)
    }
}
