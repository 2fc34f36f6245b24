//! Creates the frames to transmit, one per call: control frames from dirty bits, then payload.

use std::time::Instant;

use super::carrier::State as CarrierState;
use super::codec::{self, Frame, stream_header};
use super::log::{Again, Sent};
use super::rtt;
use super::{Carrier, NativeSession, State, Stream};
use crate::session::schedule::SMALL_MEMORY;
use crate::session::{CarrierId, FrameHeader, Payload, StreamId, Transmit};

/// The memory of small streams that have sent.
#[derive(Debug)]
pub(super) struct SmallLately {
    /// The first of these streams. If it becomes bulk, the memory ends.
    stream: StreamId,
    /// They count as active until this time.
    pub(super) until: Instant,
}

impl NativeSession {
    /// The carrier of control frames, opens and small streams.
    pub(super) fn express(&self) -> Option<CarrierId> {
        let mut up = self.carriers.iter().filter(|(_, carrier)| carrier.is_up());
        up.next().map(|(id, _)| *id)
    }

    pub(super) fn next_transmit(&mut self, now: Instant, id: CarrierId) -> Option<Transmit> {
        let carrier = self.carriers.get_mut(&id)?;
        carrier.blocked = false;
        if let Some(frame) = carrier.first.pop_front() {
            let bytes = codec::encode(&frame);
            return Some(Transmit::Control { carrier: id, bytes });
        }
        if self.state != State::Ready {
            return None;
        }
        if !carrier.is_up() {
            return self.next_parting(id);
        }
        if let Some(frame) = next_passing(carrier, self.agreed.resume) {
            return Some(self.pass(id, &frame));
        }
        if let Some(transmit) = self.next_control(id) {
            return Some(transmit);
        }
        // Payload must not overtake the frames that a lost carrier did not deliver.
        if self.carriers.get(&id)?.again.front().is_some() {
            return None;
        }
        if self.data_ready.is_empty(id)
            && let Some(stream) = self.stealable(id)
        {
            self.data_ready.transfer(stream, id);
        }
        while let Some(stream) = self.data_ready.front(id) {
            let Some(sent) = self.streams.get_mut(&stream).and_then(Stream::next_data) else {
                self.data_ready.forget(stream);
                continue;
            };
            if self.data_ready.pop(id) {
                self.small_sent(now, stream);
            } else {
                // The first bytes of each bulk stream are small, and mean nothing.
                self.small.take_if(|small| small.stream == stream);
            }
            if self.streams.get(&stream).is_some_and(Stream::finishing) {
                self.control_ready.push(stream);
            }
            let (header, payload) = self.frame(sent);
            if self.agreed.resume
                && let Some(carrier) = self.carriers.get_mut(&id)
            {
                carrier.log.push(Again::Payload(sent));
            }
            return Some(Transmit::Data {
                carrier: id,
                header,
                payload,
            });
        }
        // The last batch may have ended its stream, or the removal of a stream may have raised a
        // limit of the session. Each of these changes needs a control frame.
        self.next_control(id)
    }

    /// Records that a small stream has sent. The time moves in steps, so that the session's next
    /// deadline does not change with each frame.
    fn small_sent(&mut self, now: Instant, stream: StreamId) {
        let (least, until) = (now + SMALL_MEMORY, now + 2 * SMALL_MEMORY);
        let small = self.small.get_or_insert(SmallLately { stream, until });
        if small.until < least {
            small.until = until;
        }
    }

    /// Calls `each` with the carriers that have something to transmit.
    pub(super) fn each_wanting(&self, each: &mut dyn FnMut(CarrierId)) {
        // Two are enough: at least one of the two waits for another carrier than `id`.
        let mut movable = self.movable().map(|(from, _)| from);
        let waits_for = [movable.next(), movable.next()];
        for (&id, carrier) in &self.carriers {
            let mut others = waits_for.iter().flatten().filter(|from| **from != id);
            let steals = others.next().is_some() && self.may_steal(id);
            if self.has_transmit(id, carrier, steals) {
                each(id);
            }
        }
    }

    /// `steals`: the carrier may send a stream that waits for another carrier.
    fn has_transmit(&self, id: CarrierId, carrier: &Carrier, steals: bool) -> bool {
        if !carrier.first.is_empty() {
            return true;
        }
        if self.state != State::Ready {
            return false;
        }
        let answers =
            carrier.pong.is_some() || carrier.probe || (self.agreed.resume && carrier.is_ack_due());
        if !carrier.is_up() {
            let retiring = |said| carrier.state == CarrierState::Retiring { said };
            return retiring(false) || (retiring(true) && answers);
        }
        answers
            || self.has_control(id, carrier)
            || (carrier.again.is_empty() && (steals || !self.data_ready.is_empty(id)))
    }

    fn has_control(&self, id: CarrierId, carrier: &Carrier) -> bool {
        if carrier.log.is_full() {
            return false;
        }
        if !carrier.again.is_empty() || self.lost.is_due() {
            return true;
        }
        self.express() == Some(id)
            && (self.rtt.is_due()
                || self.wanted.is_due()
                || self.departure.is_due()
                || self.assigning.is_due()
                || self.window.due()
                || self.streams_due().is_some()
                || (self.lost.is_empty()
                    && (self.listens.is_due() || !self.control_ready.is_empty())))
    }

    /// The next control frame, which is sent before payload.
    fn next_control(&mut self, id: CarrierId) -> Option<Transmit> {
        let carrier = self.carriers.get_mut(&id)?;
        if carrier.log.is_full() {
            return None;
        }
        if let Some(frame) = self.lost.next_frame() {
            return Some(self.tell(id, frame));
        }
        if let Some(again) = carrier.again.pop_front() {
            return Some(self.repeat(id, again));
        }
        if self.express() != Some(id) {
            return None;
        }
        if let Some(value) = self.rtt.take() {
            return Some(self.pass(id, &Frame::Ping(value)));
        }
        if let Some(frame) = self.wanted.take() {
            return Some(self.pass(id, &frame));
        }
        if let Some(frame) = self.next_session_frame() {
            return Some(self.keep(id, codec::encode(&frame)));
        }
        // The frames that a lost carrier did not deliver may include an OPEN. The OPEN must precede
        // the stream's other frames and later OPENs.
        if !self.lost.is_empty() {
            return None;
        }
        // The answer to a LISTEN must precede the streams of the listener.
        if let Some(word) = self.listens.take() {
            return Some(self.keep(id, codec::encode(&word.into())));
        }
        while let Some(stream) = self.control_ready.front() {
            let Some(state) = self.streams.get_mut(&stream) else {
                self.control_ready.pop();
                continue;
            };
            let unannounced = state.is_unannounced();
            if let Some(frame) = state.next_control() {
                let waiting = state.waiting().filter(|_| unannounced);
                if let Some(length) = waiting {
                    self.schedule(stream, length);
                }
                return Some(self.keep(id, codec::encode(&frame)));
            }
            self.control_ready.pop();
            let fin = state.next_fin();
            self.retire_if_done(stream);
            if let Some(header) = fin {
                return Some(self.keep(id, header.to_vec()));
            }
        }
        // The removal of a stream may have raised a limit of the session.
        let frame = self.next_session_frame()?;
        Some(self.keep(id, codec::encode(&frame)))
    }

    /// The next frame about the session.
    fn next_session_frame(&mut self) -> Option<Frame> {
        if let Some(last) = self.departure.take() {
            return Some(Frame::GoAway { last });
        }
        if let Some(assignment) = self.assigning.take() {
            return Some(Frame::Assign(assignment));
        }
        if self.window.due() {
            return Some(Frame::MaxData(self.window.advertise()));
        }
        let limit = self.streams_due()?;
        self.ids.advertise(limit);
        Some(Frame::MaxStreams(limit))
    }

    /// Total number of streams that the peer may open, if the change is worth a frame.
    fn streams_due(&self) -> Option<u64> {
        let due = self.ids.due(self.config.streams_max.into());
        due.filter(|_| !self.departure.has_begun())
    }

    /// Retains a control frame, to be sent again if its carrier is lost.
    fn keep(&mut self, id: CarrierId, bytes: Vec<u8>) -> Transmit {
        if self.agreed.resume
            && let Some(carrier) = self.carriers.get_mut(&id)
        {
            carrier.log.push(Again::Control(bytes.clone()));
        }
        Transmit::Control { carrier: id, bytes }
    }

    /// CARRIER_LOST is sent again as soon as the carrier that transmitted it is lost. Other frames
    /// retained for that carrier wait until the carrier is settled. If CARRIER_LOST waited too, two
    /// sides that lose carriers in different order would wait for each other.
    fn tell(&mut self, id: CarrierId, frame: Frame) -> Transmit {
        let transmit = self.pass(id, &frame);
        if let Some(carrier) = self.carriers.get(&id) {
            self.lost.note_told(id, carrier.log.sent(), frame);
        }
        transmit
    }

    /// Transmits a control frame that has a meaning only on this carrier.
    pub(super) fn pass(&mut self, id: CarrierId, frame: &Frame) -> Transmit {
        let bytes = codec::encode(frame);
        if self.agreed.resume
            && let Some(carrier) = self.carriers.get_mut(&id)
        {
            carrier.log.push_passing(bytes.len());
        }
        Transmit::Control { carrier: id, bytes }
    }

    /// Sends again a frame that a lost carrier did not deliver.
    fn repeat(&mut self, id: CarrierId, again: Again) -> Transmit {
        let transmit = match &again {
            Again::Control(bytes) => Transmit::Control {
                carrier: id,
                bytes: bytes.clone(),
            },
            Again::Payload(sent) => {
                let (header, payload) = self.frame(*sent);
                Transmit::Again {
                    carrier: id,
                    header,
                    payload,
                }
            }
        };
        if let Some(carrier) = self.carriers.get_mut(&id) {
            carrier.log.push(again);
        }
        transmit
    }

    fn frame(&self, sent: Sent) -> (FrameHeader, Payload) {
        let header = stream_header(sent.stream, sent.offset, sent.length, false);
        let payload = Payload {
            stream: sent.stream,
            token: sent.token,
            range: sent.start..sent.start + sent.length as usize,
            last: true,
            retained: self.agreed.resume,
        };
        (FrameHeader::new(header), payload)
    }

    /// Queues the batch of `stream` on a carrier.
    pub(super) fn schedule(&mut self, stream: StreamId, length: usize) {
        let answered = self.streams.get(&stream).is_some_and(Stream::is_answered);
        let Some(express) = self.express().filter(|_| answered || self.lost.is_empty()) else {
            return self.wait_for_carrier(stream, length);
        };
        let id = if self.data_ready.is_small(stream, length) {
            express
        } else {
            self.home(stream, express)
        };
        match self.lost.get_mut(id) {
            Some(lost) => lost.waiting.push((stream, length)),
            None => self.data_ready.push(id, stream, length),
        }
    }

    /// The carrier for the bulk of `stream`. Once the stream is answered, this is the carrier with
    /// the fewest bulk streams, except the express carrier.
    fn home(&mut self, stream: StreamId, express: CarrierId) -> CarrierId {
        let Some(state) = self.streams.get_mut(&stream) else {
            return express;
        };
        if let Some(home) = state.home
            && (self.carriers.get(&home).is_some_and(Carrier::is_up) || self.lost.contains(home))
        {
            return home;
        }
        state.home = None;
        if self.carriers.len() == 1 || !state.is_answered() {
            return express;
        }
        let others = self.carriers.iter_mut().filter(|(_, other)| other.is_up());
        let others = others.filter(|(id, _)| **id != express);
        let Some((id, carrier)) = others.min_by_key(|(_, carrier)| carrier.homes) else {
            return express;
        };
        carrier.homes += 1;
        state.home = Some(*id);
        *id
    }

    /// Decrements the number of bulk streams on `home` after a stream has ended or moved.
    pub(super) fn leave_home(&mut self, home: Option<CarrierId>) {
        if let Some(carrier) = home.and_then(|home| self.carriers.get_mut(&home)) {
            carrier.homes -= 1;
        }
    }

    /// A bulk stream that waits for another carrier and may send on `id` instead.
    fn stealable(&self, id: CarrierId) -> Option<StreamId> {
        let mut others = self.movable().filter(|(from, _)| *from != id);
        let (_, stream) = others.next().filter(|_| self.may_steal(id))?;
        Some(stream)
    }

    /// While small streams send, the express carrier takes no bulk of other carriers. Otherwise small
    /// streams would wait behind the bulk.
    fn may_steal(&self, id: CarrierId) -> bool {
        self.small.is_none() || self.express() != Some(id)
    }

    /// Bulk streams that may send on another carrier, because the kernel accepts no more bytes of
    /// their own: at most one for each carrier. Nothing is movable without another carrier.
    fn movable(&self) -> impl Iterator<Item = (CarrierId, StreamId)> {
        let may = |stream| self.streams.get(&stream).is_some_and(Stream::is_answered);
        let are_several = self.carriers.len() > 1;
        let blocked = self.carriers.iter();
        let blocked = blocked.filter(move |(_, carrier)| are_several && carrier.blocked);
        blocked.filter_map(move |(id, _)| Some((*id, self.data_ready.movable(*id, may)?)))
    }
}

/// The next frame that has a meaning only on this carrier.
pub(super) fn next_passing(carrier: &mut Carrier, resume: bool) -> Option<Frame> {
    if let Some(value) = carrier.pong.take() {
        return Some(Frame::Pong(value));
    }
    if std::mem::take(&mut carrier.probe) {
        return Some(Frame::Ping(rtt::PROBE));
    }
    (resume && carrier.is_ack_due()).then(|| carrier.acknowledge())
}
