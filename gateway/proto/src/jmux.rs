//! The JMUX session: Devolutions' protocol over a single carrier. This module owns the stream
//! table, the receive budget, and the dirty bits that determine which frames are sent. The module
//! implements [`Session`].
//!
//! Bounds:
//! - `streams_max` streams
//! - `ORPHANS_MAX` + `streams_max` answers to frames that belong to no stream
//! - [`ids::QUARANTINE_MAX`] ids of 4 bytes for which CLOSE has not arrived
//! - the events of one input call
//!
//! Granted credit plus buffered payload never exceeds `receive_budget`.
//!
//! Read next: `jmux/stream.rs` for the life of one stream, `jmux/credit.rs` for its window,
//! `jmux/codec.rs` for the wire format.

pub mod codec;
mod config;
mod credit;
mod ids;
mod input;
mod stream;

pub use codec::DecodeError;
pub use config::JmuxConfig;
pub use credit::{WINDOW_BYTES_MAX, WINDOW_BYTES_MIN};

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use crate::patience::patience;
use crate::session::ready::ReadyList;
use crate::session::schedule::Schedule;
use crate::session::share::BulkShare;
use crate::session::{
    CarrierId, CreditView, Event, FrameHeader, Header, OpenError, Outcome, Priority, Reason,
    Receive, Refusal, ResetCode, SendCapacity, Session, SessionError, Source, StreamId,
    TARGET_LENGTH_MAX, Token, Transmit,
};
use codec::{ChannelId, Control, Decoded, EXTENSION_ABORT, PACKET_SIZE_MIN};
use credit::{Budget, RecvWindow};
use ids::Ids;
use input::open_failed;
use stream::{Offer, Phase, Stream};

/// Maximum number of queued answers to frames that belong to no stream, such as refused opens and
/// late answers. If a peer sends more such frames without reading the answers, this side ends the
/// session. By default, a gateway waits for at most 4,096 answers.
const ORPHANS_MAX: usize = 8192;

/// The state machine of one JMUX session. Its only carrier is [`CarrierId::FIRST`].
#[derive(Debug)]
pub struct JmuxSession {
    config: JmuxConfig,
    budget: Budget,
    bulk: BulkShare,
    /// The round trip time of the transport; zero: unknown.
    rtt: Duration,
    ids: Ids,
    streams: BTreeMap<StreamId, Stream>,
    /// Opens without an answer, by deadline.
    deadlines: BTreeSet<(Instant, StreamId)>,
    control_ready: ReadyList,
    data_ready: Schedule,
    orphans: VecDeque<Control>,
    events: VecDeque<Event>,
    /// The announced payload that has not been read from the carrier yet.
    receiving: Option<Receive>,
    /// Whether a probe, and an answer to the peer's probe, must be sent.
    probe: bool,
    answer: bool,
    /// Whether the peer has used an extension of this wire format. Such a peer answers probes, and
    /// jetsocat does not.
    answers: bool,
    /// The session is over and sends no more frames.
    closed: bool,
}

impl JmuxSession {
    /// Creates a session without streams. The session is ready at once, because JMUX has no hello.
    #[must_use]
    pub fn new(config: JmuxConfig) -> Self {
        Self {
            budget: Budget::new(config.receive_budget, config.streams_max),
            bulk: BulkShare::new(credit::BULK_BYTES_MIN),
            rtt: Duration::ZERO,
            config,
            ids: Ids::default(),
            streams: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            control_ready: ReadyList::default(),
            data_ready: Schedule::default(),
            orphans: VecDeque::new(),
            events: VecDeque::from([Event::Ready]),
            receiving: None,
            probe: false,
            answer: false,
            answers: false,
            closed: false,
        }
    }

    /// Sets the number before that of this side's first stream. Tests use this function, because no
    /// test opens 2^32 streams. Call it before the first open.
    #[must_use]
    #[doc(hidden)]
    pub fn with_last_id(mut self, last: u32) -> Self {
        self.ids.start_at(last);
        self
    }
}

impl Session for JmuxSession {
    fn is_ready(&self) -> bool {
        true
    }

    fn is_over(&self) -> bool {
        self.closed
    }

    fn open(
        &mut self,
        now: Instant,
        target: &str,
        priority: Priority,
        source: Option<Source>,
    ) -> Result<StreamId, OpenError> {
        if source.is_some() {
            return Err(OpenError::NoSources);
        }
        if target.len() > TARGET_LENGTH_MAX {
            return Err(OpenError::TargetTooLong {
                length: target.len(),
            });
        }
        let recv = self.admit()?;
        let offer = Offer {
            window: u32::try_from(recv.credit()).unwrap_or(u32::MAX),
            packet_max: self.config.packet_max,
        };
        let deadline = now + patience(self.config.open_timeout, self.rtt);
        let stream = self.insert(|id| Stream::opening(id, target, recv, offer, deadline));
        self.data_ready.set_priority(stream, priority);
        self.deadlines.insert((deadline, stream));
        self.control_ready.push(stream);
        Ok(stream)
    }

    fn accept(&mut self, stream: StreamId, _address: &str) {
        if let Some(state) = self.streams.get_mut(&stream)
            && state.accept()
        {
            self.control_ready.push(stream);
        }
    }

    fn refuse(&mut self, stream: StreamId, refusal: Refusal) {
        let Some(state) = self.streams.get(&stream) else {
            return;
        };
        if !matches!(state.phase, Phase::Accepting) {
            return;
        }
        let recipient = state.peer;
        self.retire(stream);
        // While ORPHANS_MAX answers are queued, the session accepts no OPEN. So at most streams_max
        // further answers are queued.
        self.orphans.push_back(open_failed(recipient, refusal));
    }

    fn send_capacity(&self, stream: StreamId) -> Option<SendCapacity> {
        self.streams.get(&stream)?.send_capacity()
    }

    /// Does nothing: the session reports new credit of every stream without a request.
    fn want_credit(&mut self, _: StreamId) {}

    fn source_ready(&mut self, stream: StreamId, length: usize, _held: usize, token: Token) {
        if let Some(state) = self.streams.get_mut(&stream)
            && state.queue_batch(length, token)
        {
            self.data_ready.push(CarrierId::FIRST, stream, length);
        }
    }

    fn sink_took(&mut self, now: Instant, stream: StreamId, length: usize) {
        let Some(state) = self.streams.get_mut(&stream) else {
            return;
        };
        if state.sink_took(now, length as u64, &mut self.bulk, &mut self.budget) {
            self.control_ready.push(stream);
        }
        self.retire_if_done(stream);
    }

    fn finish(&mut self, stream: StreamId) {
        if let Some(state) = self.streams.get_mut(&stream) {
            state.finish();
            self.control_ready.push(stream);
        }
    }

    fn reset(&mut self, stream: StreamId, _code: ResetCode) {
        let Some(state) = self.streams.get_mut(&stream) else {
            return;
        };
        match state.phase {
            Phase::Opening { sent, .. } => {
                // An OPEN SUCCESS that arrives later belongs to no stream, so this side answers it
                // with CLOSE.
                if sent {
                    self.ids.quarantine(stream);
                }
                self.retire(stream);
            }
            Phase::Accepting => self.refuse(stream, Refusal::new(Reason::General, "cancelled")),
            Phase::Open => {
                state.abort();
                self.data_ready.forget(stream);
                self.control_ready.push(stream);
                self.retire_if_done(stream);
            }
        }
    }

    /// JMUX has no GOAWAY frame, so the application refuses the peer's opens.
    fn go_away(&mut self) {}

    /// JMUX has no close frame, so the session only ends the carrier.
    fn shut_down(&mut self) {
        self.closed = true;
    }

    /// JMUX has no close frame, so the session only ends the carrier.
    fn close(&mut self, _error: &SessionError) {
        self.closed = true;
    }

    fn handle_rtt(&mut self, carrier: CarrierId, rtt: Duration) {
        debug_assert_eq!(carrier, CarrierId::FIRST);
        self.bulk.set_rtt(Some(rtt));
        self.rtt = rtt;
    }

    fn probe(&mut self, carrier: CarrierId) -> bool {
        debug_assert_eq!(carrier, CarrierId::FIRST);
        self.probe |= self.answers;
        self.answers
    }

    /// Sends a probe, which jetsocat ignores, and which a gateway answers.
    fn stir(&mut self, carrier: CarrierId) {
        debug_assert_eq!(carrier, CarrierId::FIRST);
        self.probe = true;
    }

    fn handle_carrier_lost(&mut self, _now: Instant, carrier: CarrierId) {
        debug_assert_eq!(carrier, CarrierId::FIRST);
        self.closed = true;
        self.receiving = None;
        self.orphans.clear();
        let streams: Vec<StreamId> = self.streams.keys().copied().collect();
        for stream in streams {
            let Some(state) = self.streams.get(&stream) else {
                continue;
            };
            let event = match state.phase {
                Phase::Opening { sent: false, .. } => Some(Event::OpenReturned { stream }),
                Phase::Opening { sent: true, .. } => Some(Event::OpenFailed {
                    stream,
                    refusal: Refusal::new(Reason::General, "the carrier was lost"),
                }),
                // At most, received payload waits for the local socket.
                Phase::Open if state.close_received() => None,
                Phase::Accepting | Phase::Open => Some(Event::Reset {
                    stream,
                    cause: Outcome::CarrierLost,
                }),
            };
            self.retire(stream);
            self.events.extend(event);
        }
    }

    fn handle_timeout(&mut self, now: Instant) -> Result<(), SessionError> {
        while let Some(&(deadline, stream)) = self.deadlines.first() {
            if deadline > now {
                break;
            }
            self.deadlines.remove(&(deadline, stream));
            self.reset(stream, ResetCode::OpenTimeout);
            let refusal =
                Refusal::new(Reason::TimedOut, "the peer did not answer the open in time");
            self.events.push_back(Event::OpenFailed { stream, refusal });
        }
        Ok(())
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.deadlines.first().map(|(deadline, _)| *deadline)
    }

    fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    fn poll_transmit(&mut self, _: Instant, carrier: CarrierId) -> Option<Transmit> {
        if self.closed {
            return None;
        }
        debug_assert_eq!(carrier, CarrierId::FIRST);
        let answers = std::mem::take(&mut self.answer);
        if answers || std::mem::take(&mut self.probe) {
            let probe = Control::Probe {
                recipient: self.any_channel(),
                is_answer: answers,
            };
            return Some(Transmit::Control {
                carrier,
                bytes: codec::encode(&probe),
            });
        }
        if let Some(control) = self.orphans.pop_front() {
            return Some(Transmit::Control {
                carrier,
                bytes: codec::encode(&control),
            });
        }
        while let Some(stream) = self.control_ready.front() {
            let control = self.streams.get_mut(&stream).and_then(Stream::next_control);
            let Some(control) = control else {
                self.control_ready.pop();
                continue;
            };
            if matches!(control, Control::Close { .. }) {
                self.control_ready.pop();
                self.retire_if_done(stream);
            }
            return Some(Transmit::Control {
                carrier,
                bytes: codec::encode(&control),
            });
        }
        while let Some(stream) = self.data_ready.front(carrier) {
            let state = self.streams.get_mut(&stream);
            let Some((header, payload)) = state.and_then(Stream::next_data) else {
                self.data_ready.forget(stream);
                continue;
            };
            if payload.last {
                self.data_ready.pop(carrier);
                if self.streams.get(&stream).is_some_and(Stream::finishing) {
                    self.control_ready.push(stream);
                }
            }
            return Some(Transmit::Data {
                carrier,
                header: FrameHeader::new(header),
                payload,
            });
        }
        None
    }

    fn wanting(&self, each: &mut dyn FnMut(CarrierId)) {
        let quiet = self.orphans.is_empty()
            && !self.probe
            && !self.answer
            && self.control_ready.is_empty()
            && self.data_ready.is_empty(CarrierId::FIRST);
        if !(self.closed || quiet) {
            each(CarrierId::FIRST);
        }
    }

    fn poll_released(&mut self) -> Option<Token> {
        None
    }

    /// Always true, because JMUX has no acknowledgements.
    fn is_settled(&self) -> bool {
        true
    }

    fn stream_count(&self) -> usize {
        self.streams.len()
    }

    fn streams(&self) -> Vec<StreamId> {
        self.streams.keys().copied().collect()
    }

    fn receive_budget_used(&self) -> u64 {
        self.budget.reserved()
    }

    fn retained_bytes(&self) -> u64 {
        0
    }

    fn credit(&self, stream: StreamId) -> Option<CreditView> {
        self.streams.get(&stream).map(Stream::credit)
    }

    fn handle_header(
        &mut self,
        _now: Instant,
        carrier: CarrierId,
        bytes: &[u8],
    ) -> Result<Header, SessionError> {
        debug_assert!(self.receiving.is_none(), "announced payload is outstanding");
        match codec::decode(bytes)? {
            Decoded::Incomplete { needed } => Ok(Header::Incomplete { needed }),
            Decoded::Control { control, consumed } => {
                self.handle_control(control)?;
                Ok(Header::Control { consumed })
            }
            Decoded::Data {
                recipient,
                length,
                consumed,
            } => {
                let receive = self.announce(carrier, StreamId(recipient.0.into()), length);
                Ok(Header::Payload { consumed, receive })
            }
        }
    }

    fn receiving(&self, carrier: CarrierId) -> Option<Receive> {
        let receive = self
            .receiving
            .filter(|receive| receive.carrier == carrier)?;
        let stream = receive.stream.filter(|stream| {
            self.streams
                .get(stream)
                .is_some_and(|state| !state.closing())
        });
        Some(Receive { stream, ..receive })
    }

    fn payload_moved(&mut self, _: Instant, carrier: CarrierId, length: usize) {
        let Some(receive) = self
            .receiving
            .as_mut()
            .filter(|receive| receive.carrier == carrier)
        else {
            debug_assert!(false, "no payload is announced");
            return;
        };
        debug_assert!(length <= receive.length);
        receive.length = receive.length.saturating_sub(length);
        receive.offset += length as u64;
        if receive.length == 0 {
            self.receiving = None;
        }
    }
}

impl JmuxSession {
    /// The peer's number of an open channel. jetsocat logs a warning about an unknown channel.
    fn any_channel(&self) -> ChannelId {
        let mut streams = self.streams.values();
        let open = streams.find(|stream| stream.phase == Phase::Open && !stream.closing());
        open.map_or(codec::NO_CHANNEL, |stream| stream.peer)
    }

    /// Reserves the initial window of one more stream.
    fn admit(&mut self) -> Result<RecvWindow, OpenError> {
        if self.streams.len() >= self.config.streams_max as usize {
            return Err(OpenError::TooManyStreams {
                streams_max: self.config.streams_max,
            });
        }
        let bytes = self
            .budget
            .reserve_initial()
            .ok_or(OpenError::BudgetExhausted {
                receive_budget: self.config.receive_budget,
            })?;
        Ok(RecvWindow::new(bytes))
    }

    fn insert(&mut self, make: impl FnOnce(StreamId) -> Stream) -> StreamId {
        let streams = &self.streams;
        let id = self.ids.allocate(|id| streams.contains_key(&id));
        self.streams.insert(id, make(id));
        id
    }

    /// Removes a stream whose CLOSE is sent and whose payload has been taken or dropped.
    fn retire_if_done(&mut self, stream: StreamId) {
        let Some(state) = self.streams.get(&stream) else {
            return;
        };
        if state.done() {
            if !state.close_received() {
                self.ids.quarantine(stream);
            }
            self.retire(stream);
        }
    }

    fn retire(&mut self, stream: StreamId) {
        if let Some(state) = self.streams.remove(&stream) {
            self.data_ready.forget(stream);
            self.budget.release(state.recv.reserved());
            if let Phase::Opening { deadline, .. } = state.phase {
                self.deadlines.remove(&(deadline, stream));
            }
        }
    }
}
