//! One session: its streams, their credit, and what may be sent next.
//!
//! Owns the stream table, the receive budget and the dirty bits from which frames are made. In come
//! headers, lengths and decisions; out go events, frames to transmit and the next timeout (see the
//! driver's contract in `lib.rs`). It never holds payload and never waits.
//!
//! Bounds: `streams_max` streams; `ORPHANS_MAX` + `streams_max` answers to frames that belong to no stream;
//! [`ids::QUARANTINE_MAX`] ids of 4 bytes whose CLOSE has not come back; events of one input call.
//! Granted credit plus what is buffered never exceeds `receive_budget`.
//!
//! Read next: `session/stream.rs` for the life of one stream, `session/credit.rs` for its window.

mod credit;
mod ids;
mod input;
mod ready;
mod stream;
mod types;

pub use credit::{WINDOW_BYTES_MAX, WINDOW_BYTES_MIN};
pub use types::*;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Instant;

use crate::codec::jmux::{self, EXTENSION_ABORT, PACKET_SIZE_MIN};
use crate::codec::{ChannelId, Control};
use credit::{Budget, RecvWindow};
use ids::Ids;
use ready::ReadyList;
use stream::{Offer, Phase, Stream};

/// Most answers to frames that belong to no stream (refused opens, late successes) waiting for the
/// carrier. A peer that sends more without reading the answers ends its session.
const ORPHANS_MAX: usize = 1024;

/// The state machine of one JMUX session. One carrier, [`CarrierId::ONLY`].
#[derive(Debug)]
pub struct Session {
    config: SessionConfig,
    budget: Budget,
    ids: Ids,
    streams: BTreeMap<StreamId, Stream>,
    /// Opens that wait for an answer, by deadline.
    deadlines: BTreeSet<(Instant, StreamId)>,
    control_ready: ReadyList,
    data_ready: ReadyList,
    orphans: VecDeque<Control>,
    events: VecDeque<Event>,
    /// The announced payload that has not left the carrier yet.
    receiving: Option<Receive>,
}

impl Session {
    /// A session without streams.
    #[must_use]
    pub fn new(config: SessionConfig) -> Self {
        Self {
            budget: Budget::new(config.receive_budget, config.streams_max),
            config,
            ids: Ids::default(),
            streams: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            control_ready: ReadyList::default(),
            data_ready: ReadyList::default(),
            orphans: VecDeque::new(),
            events: VecDeque::new(),
            receiving: None,
        }
    }

    /// Asks the peer for a stream to `target` (a URL, `tcp://host:port`). Answered by
    /// [`Event::Opened`] or [`Event::OpenFailed`], at the latest after `open_timeout`.
    ///
    /// # Errors
    /// [`OpenError`]: the table or the budget is full, or the target is too long. Nothing was sent.
    pub fn open(&mut self, now: Instant, target: &str) -> Result<StreamId, OpenError> {
        if target.len() > jmux::TARGET_LENGTH_MAX {
            return Err(OpenError::TargetTooLong {
                length: target.len(),
            });
        }
        let recv = self.admit()?;
        let offer = Offer {
            window: u32::try_from(recv.credit()).unwrap_or(u32::MAX),
            packet_max: self.config.packet_max,
        };
        let deadline = now + self.config.open_timeout;
        let stream = self.insert(|id| Stream::opening(id, target, recv, offer, deadline));
        self.deadlines.insert((deadline, stream));
        self.control_ready.push(stream);
        Ok(stream)
    }

    /// Takes up a stream of [`Event::Incoming`]: its target has been reached.
    pub fn accept(&mut self, stream: StreamId) {
        if let Some(state) = self.streams.get_mut(&stream)
            && state.accept()
        {
            self.control_ready.push(stream);
        }
    }

    /// Declines a stream of [`Event::Incoming`].
    pub fn refuse(&mut self, stream: StreamId, refusal: Refusal) {
        let Some(state) = self.streams.get(&stream) else {
            return;
        };
        if !matches!(state.phase, Phase::Accepting) {
            return;
        }
        let recipient = state.peer;
        self.retire(stream);
        // No OPEN is taken while ORPHANS_MAX wait, so at most streams_max come on top of them.
        self.orphans.push_back(open_failed(recipient, refusal));
    }

    /// How much payload of the local socket the stream takes now; `None`: it takes none any more.
    /// Zero bytes: wait for [`Event::Writable`], or for the last batch to be transmitted.
    #[must_use]
    pub fn send_capacity(&self, stream: StreamId) -> Option<SendCapacity> {
        self.streams.get(&stream)?.send_capacity()
    }

    /// `length` bytes of the local socket are in the driver's hands under `token`, at most the
    /// capacity. They come out of [`Self::poll_transmit`] in order, cut into frames of
    /// `payload_max` bytes, the last one shorter.
    pub fn source_ready(&mut self, stream: StreamId, length: usize, token: Token) {
        if let Some(state) = self.streams.get_mut(&stream) {
            state.queue_batch(length, token);
            self.data_ready.push(stream);
        }
    }

    /// The local socket took `length` bytes of received payload; credit for them goes back.
    pub fn sink_took(&mut self, stream: StreamId, length: usize) {
        let Some(state) = self.streams.get_mut(&stream) else {
            return;
        };
        if state.sink_took(length as u64, &mut self.budget) {
            self.control_ready.push(stream);
        }
        self.retire_if_done(stream);
    }

    /// The local socket has no more to send (end of file).
    pub fn finish(&mut self, stream: StreamId) {
        if let Some(state) = self.streams.get_mut(&stream) {
            state.finish();
            self.control_ready.push(stream);
        }
    }

    /// The local socket failed, or its stream is to be cut. What is buffered for it is dropped by
    /// the driver. The peer learns it as an abort where it understands one.
    pub fn reset(&mut self, stream: StreamId) {
        let Some(state) = self.streams.get_mut(&stream) else {
            return;
        };
        match state.phase {
            Phase::Opening { sent, .. } => {
                // A late success finds no stream and is answered by CLOSE.
                if sent {
                    self.ids.quarantine(stream);
                }
                self.retire(stream);
            }
            Phase::Accepting => self.refuse(stream, Refusal::new(Reason::General, "cancelled")),
            Phase::Open => {
                state.abort();
                self.control_ready.push(stream);
                self.retire_if_done(stream);
            }
        }
    }

    /// The carrier is gone: every stream is reset, every open fails. The session is empty after.
    pub fn handle_carrier_lost(&mut self, carrier: CarrierId) {
        debug_assert_eq!(carrier, CarrierId::ONLY);
        self.receiving = None;
        self.orphans.clear();
        let streams: Vec<StreamId> = self.streams.keys().copied().collect();
        for stream in streams {
            let event = match self.streams.get(&stream).map(|state| state.phase) {
                Some(Phase::Opening { .. }) => Event::OpenFailed {
                    stream,
                    refusal: Refusal::new(Reason::General, "the carrier was lost"),
                },
                _ => Event::Reset {
                    stream,
                    cause: Outcome::CarrierLost,
                },
            };
            self.retire(stream);
            self.events.push_back(event);
        }
    }

    /// Lets opens fail whose answer is overdue.
    pub fn handle_timeout(&mut self, now: Instant) {
        while let Some(&(deadline, stream)) = self.deadlines.first() {
            if deadline > now {
                break;
            }
            self.deadlines.remove(&(deadline, stream));
            self.reset(stream);
            let refusal = Refusal::new(
                Reason::TimedOut,
                "the other side did not answer the open in time",
            );
            self.events.push_back(Event::OpenFailed { stream, refusal });
        }
    }

    /// When [`Self::handle_timeout`] wants to be called next.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.deadlines.first().map(|(deadline, _)| *deadline)
    }

    /// The next event for the application side.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// The next frame for the carrier. Frames of one batch come one after another, so that a batch
    /// read into packet-sized slots leaves in one write; streams take turns, a batch each, and
    /// control frames go first.
    pub fn poll_transmit(&mut self) -> Option<Transmit> {
        let carrier = CarrierId::ONLY;
        if let Some(control) = self.orphans.pop_front() {
            return Some(Transmit::Control {
                carrier,
                bytes: jmux::encode(&control),
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
                bytes: jmux::encode(&control),
            });
        }
        while let Some(stream) = self.data_ready.front() {
            let Some(state) = self.streams.get_mut(&stream) else {
                self.data_ready.pop();
                continue;
            };
            let Some((header, payload)) = state.next_data() else {
                self.data_ready.pop();
                continue;
            };
            if payload.last {
                self.data_ready.pop();
                if state.finishing() {
                    self.control_ready.push(stream);
                }
            }
            return Some(Transmit::Data {
                carrier,
                header,
                payload,
            });
        }
        None
    }

    /// Whether [`Self::poll_transmit`] may have something.
    #[must_use]
    pub fn wants_transmit(&self) -> bool {
        !(self.orphans.is_empty() && self.control_ready.is_empty() && self.data_ready.is_empty())
    }

    /// Streams in the table.
    #[must_use]
    pub fn stream_count(&self) -> usize {
        self.streams.len()
    }

    /// The streams in the table, oldest number first.
    pub fn streams(&self) -> impl Iterator<Item = StreamId> + '_ {
        self.streams.keys().copied()
    }

    /// Bytes of the receive budget that are granted or buffered.
    #[must_use]
    pub fn receive_budget_used(&self) -> u64 {
        self.budget.reserved()
    }

    /// Where the credit of a stream is; for status pages and for proofs of conservation.
    #[must_use]
    pub fn credit(&self, stream: StreamId) -> Option<CreditView> {
        self.streams.get(&stream).map(Stream::credit)
    }

    /// The initial window for one more stream.
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

    /// Removes a stream whose CLOSE is sent and whose payload has all been taken or dropped.
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
            self.budget.release(state.recv.reserved());
            if let Phase::Opening { deadline, .. } = state.phase {
                self.deadlines.remove(&(deadline, stream));
            }
        }
    }
}

fn open_failed(recipient: ChannelId, refusal: Refusal) -> Control {
    Control::OpenFailed {
        recipient,
        reason: refusal.reason.code(),
        description: refusal.description,
    }
}
