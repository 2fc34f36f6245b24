//! The native session: QUIC's stream vocabulary over TCP (docs/protocol.md), here on one carrier.
//!
//! Owns the hello, the stream table, both sides' credit and the dirty bits from which frames are made;
//! the contract is [`Session`].
//!
//! Bounds: `streams_max` streams of each side; payload received and not taken, `receive_budget`; one
//! frame of each kind waiting, as a dirty bit, for each stream and for the session; events of one input
//! call. A peer that exceeds one of them ends its session with a code that says which.
//!
//! Read next: `native/stream.rs` for the life of one stream, `native/window.rs` for its credit,
//! `native/input.rs` for what arrives, `native/codec.rs` for the wire.

pub mod codec;
mod input;
mod rtt;
mod stream;
mod window;

pub use codec::DecodeError;
pub use window::{WINDOW_BYTES_MAX, WINDOW_BYTES_MIN};

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use crate::session::ready::ReadyList;
use crate::session::schedule::Schedule;
use crate::session::{
    CarrierId, CreditView, Event, Header, OpenError, Outcome, Reason, Receive, Refusal, ResetCode,
    SendCapacity, Session, SessionError, StreamId, TARGET_LENGTH_MAX, Token, Transmit,
};
use codec::{FEATURES, Frame, HEADER_BYTES, Hello, HelloAck, Parameters, VERSION};
use rtt::Rtt;
use stream::{Phase, Stream};
use window::{SessionWindow, StreamWindow};

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
}

impl Default for NativeConfig {
    /// 4,096 streams in 256 MiB, frames of 1 MiB, 15 s for an open (a peer's dial of 10 s and some
    /// round trips), 5 s for the hello.
    fn default() -> Self {
        Self {
            streams_max: 4096,
            receive_budget: 256 << 20,
            frame_max: codec::FRAME_BYTES_MAX,
            open_timeout: Duration::from_secs(15),
            hello_timeout: Duration::from_secs(5),
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
    /// The peer's hello is due at this moment.
    Hello(Instant),
    Ready,
    Closed,
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

/// An announced payload and whether the stream ends behind it.
#[derive(Debug, Clone, Copy)]
struct Receiving {
    receive: Receive,
    fin: bool,
}

/// The state machine of one native session on [`CarrierId::ONLY`].
#[derive(Debug)]
pub struct NativeSession {
    config: NativeConfig,
    side: Side,
    state: State,
    /// Frames about the session that are due before anything else; at most the hello and a close.
    first: VecDeque<Frame>,
    peer: PeerLimits,
    window: SessionWindow,
    rtt: Rtt,
    pong: Option<u64>,
    streams: BTreeMap<StreamId, Stream>,
    /// How many of them are ours.
    ours: usize,
    /// Open time-outs, and when to see whether a grown window is idle.
    deadlines: BTreeSet<(Instant, StreamId)>,
    control_ready: ReadyList,
    data_ready: Schedule,
    /// Streams that wait for the session's credit.
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
    receiving: Option<Receiving>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum GoAway {
    Due,
    Sent,
}

impl NativeSession {
    /// The session of the side that connected. Its HELLO is ready to be transmitted.
    #[must_use]
    pub fn dial(config: NativeConfig, now: Instant) -> Self {
        let mut session = Self::new(config, Side::Dialler, now);
        session.first.push_back(Frame::Hello(Hello {
            version_min: VERSION,
            version_max: VERSION,
            features: FEATURES,
            carrier: 0,
            session_id: [0; 16],
            token: [0; 32],
            parameters: session.parameters(),
        }));
        session
    }

    /// The session of the side that was connected to.
    #[must_use]
    pub fn accept(config: NativeConfig, identity: Identity, now: Instant) -> Self {
        Self::new(config, Side::Acceptor(identity), now)
    }

    fn new(config: NativeConfig, side: Side, now: Instant) -> Self {
        Self {
            config,
            side,
            state: State::Hello(now + config.hello_timeout),
            first: VecDeque::new(),
            peer: PeerLimits {
                parameters: Parameters::default(),
                data: 0,
                data_queued: 0,
                streams: 0,
                streams_opened: 0,
            },
            window: SessionWindow::new(config.receive_budget),
            rtt: Rtt::default(),
            pong: None,
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
            receiving: None,
        }
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
    fn give_back(&mut self, bytes: u64) {
        self.peer.data_queued -= bytes;
        if bytes > 0 {
            self.wake_blocked();
        }
    }

    /// There is session credit again: those who wait for it may look, in the order in which they came.
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

    /// How many streams the peer may open in all, when it is worth a frame.
    fn streams_due(&self) -> Option<u64> {
        let streams_max = u64::from(self.config.streams_max);
        let limit = self.peer_gone + streams_max;
        let more = limit - self.peer_streams_advertised;
        let step = (streams_max / 8).max(1);
        (more >= step && self.goaway.is_none()).then_some(limit)
    }

    /// The next frame about the session.
    fn next_session_frame(&mut self) -> Option<Frame> {
        if let Some(frame) = self.first.pop_front() {
            return Some(frame);
        }
        if self.state != State::Ready {
            return None;
        }
        if let Some(value) = self.pong.take() {
            return Some(Frame::Pong(value));
        }
        if let Some(value) = self.rtt.take() {
            return Some(Frame::Ping(value));
        }
        if self.goaway == Some(GoAway::Due) {
            self.goaway = Some(GoAway::Sent);
            let last = StreamId(self.peer_last);
            return Some(Frame::GoAway { last });
        }
        if self.window.due() {
            return Some(Frame::MaxData(self.window.advertise()));
        }
        let limit = self.streams_due()?;
        self.peer_streams_advertised = limit;
        Some(Frame::MaxStreams(limit))
    }
}

impl Session for NativeSession {
    fn is_ready(&self) -> bool {
        self.state == State::Ready
    }

    fn open(&mut self, now: Instant, target: &str) -> Result<StreamId, OpenError> {
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
        let state = Stream::opening(stream, target, deadline, window, send_limit);
        self.streams.insert(stream, state);
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
        let mut capacity = state.send_capacity(HEADER_BYTES, frame_max)?;
        if state.is_exhausted() {
            let cause = Outcome::PeerReset(ResetCode::OffsetsExhausted);
            self.cut(stream, ResetCode::OffsetsExhausted, "");
            self.events.push_back(Event::Reset { stream, cause });
            return None;
        }
        let session = self.peer.data.saturating_sub(self.peer.data_queued);
        if capacity.bytes > 0 && session == 0 && !state.blocked {
            state.blocked = true;
            self.blocked.push_back(stream);
        }
        capacity.bytes = capacity.bytes.min(session);
        Some(capacity)
    }

    fn source_ready(&mut self, stream: StreamId, length: usize, token: Token) {
        if let Some(state) = self.streams.get_mut(&stream)
            && state.queue_batch(length, token)
        {
            self.peer.data_queued += length as u64;
            self.data_ready.push(stream, length);
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
        self.goaway.get_or_insert(GoAway::Due);
    }

    fn close(&mut self, error: &SessionError) {
        self.state = State::Closed;
        self.first.clear();
        if let Some(code) = input::close_code(error) {
            self.first.push_back(Frame::SessionClose {
                code: code as u64,
                reason: error.to_string(),
            });
        }
    }

    fn handle_header(
        &mut self,
        now: Instant,
        carrier: CarrierId,
        bytes: &[u8],
    ) -> Result<Header, SessionError> {
        debug_assert!(self.receiving.is_none(), "announced payload is outstanding");
        self.handle_unread(now, carrier, bytes)
    }

    fn receiving(&self, carrier: CarrierId) -> Option<Receive> {
        let receiving = self.receiving?;
        let receive = receiving.receive;
        let stream = receive
            .stream
            .filter(|id| self.streams.get(id).is_some_and(Stream::wants_payload));
        (receive.carrier == carrier).then_some(Receive { stream, ..receive })
    }

    fn payload_moved(&mut self, carrier: CarrierId, length: usize) {
        let Some(receiving) = self.receiving.as_mut() else {
            debug_assert!(false, "no payload is announced");
            return;
        };
        debug_assert!(receiving.receive.carrier == carrier && length <= receiving.receive.length);
        receiving.receive.length = receiving.receive.length.saturating_sub(length);
        if receiving.receive.length == 0 {
            self.end_payload();
        }
    }

    fn handle_rtt(&mut self, carrier: CarrierId, rtt: Duration) {
        debug_assert_eq!(carrier, CarrierId::ONLY);
        self.rtt.set_transport(rtt);
        self.window.set_rtt(self.rtt.path());
    }

    fn handle_carrier_lost(&mut self, carrier: CarrierId) {
        debug_assert_eq!(carrier, CarrierId::ONLY);
        self.receiving = None;
        self.state = State::Closed;
        self.first.clear();
        let streams: Vec<StreamId> = self.streams.keys().copied().collect();
        for stream in streams {
            let state = self.streams.get_mut(&stream);
            let opening = state
                .as_ref()
                .is_some_and(|s| matches!(s.phase, Phase::Opening(_)));
            let news = state.is_some_and(Stream::tell_cut);
            self.retire(stream);
            if opening {
                let refusal = Refusal::new(Reason::General, "the carrier was lost");
                self.events.push_back(Event::OpenFailed { stream, refusal });
            } else if news {
                let cause = Outcome::CarrierLost;
                self.events.push_back(Event::Reset { stream, cause });
            }
        }
    }

    fn handle_timeout(&mut self, now: Instant) -> Result<(), SessionError> {
        if let State::Hello(deadline) = self.state
            && deadline <= now
        {
            return Err(SessionError::HelloTimeout);
        }
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
        match self.state {
            State::Hello(deadline) => Some(deadline),
            State::Ready => self.deadlines.first().map(|(deadline, _)| *deadline),
            State::Closed => None,
        }
    }

    fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    fn poll_transmit(&mut self) -> Option<Transmit> {
        let carrier = CarrierId::ONLY;
        let control = |frame: &Frame| Transmit::Control {
            carrier,
            bytes: codec::encode(frame),
        };
        if let Some(frame) = self.next_session_frame() {
            return Some(control(&frame));
        }
        if self.state != State::Ready {
            return None;
        }
        while let Some(stream) = self.control_ready.front() {
            let Some(state) = self.streams.get_mut(&stream) else {
                self.control_ready.pop();
                continue;
            };
            if let Some(frame) = state.next_control() {
                return Some(control(&frame));
            }
            self.control_ready.pop();
            let fin = state.next_fin();
            self.retire_if_done(stream);
            if let Some(header) = fin {
                let bytes = header.to_vec();
                return Some(Transmit::Control { carrier, bytes });
            }
        }
        while let Some(stream) = self.data_ready.front() {
            let frame_max = self.peer.parameters.frame_max;
            let state = self.streams.get_mut(&stream);
            let Some((header, payload)) = state.and_then(|state| state.next_data(frame_max)) else {
                self.data_ready.forget(stream);
                continue;
            };
            if payload.last {
                self.data_ready.pop();
                if self.streams.get(&stream).is_some_and(Stream::finishing) {
                    self.control_ready.push(stream);
                }
            }
            return Some(Transmit::Data {
                carrier,
                header,
                payload,
            });
        }
        // A stream that is gone just now may have made room for others.
        self.next_session_frame().map(|frame| control(&frame))
    }

    fn wants_transmit(&self) -> bool {
        if !self.first.is_empty() {
            return true;
        }
        self.state == State::Ready
            && (self.pong.is_some()
                || self.rtt.is_due()
                || self.goaway == Some(GoAway::Due)
                || self.window.due()
                || self.streams_due().is_some()
                || !self.control_ready.is_empty()
                || !self.data_ready.is_empty())
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
