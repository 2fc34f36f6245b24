//! [`Session`] for the native session. This module implements the short calls. Longer calls are in
//! the module of their subject.

use std::time::{Duration, Instant};

use super::codec::HEADER_BYTES;
use super::stream::{Open, Phase, Stream};
use super::{
    CARRIERS_MAX, Carrier, NativeSession, RETAINED_OVERHEAD_BYTES, SessionCode, Side, State,
    carrier, input,
};
use crate::session::{
    Assignment, CarrierId, CreditView, Event, FrameHeader, Header, ListenError, ListenId,
    Listeners, OpenError, Outcome, Pool, Priority, Reason, Receive, Refusal, ResetCode,
    SendCapacity, Session, SessionError, Source, StreamId, TARGET_LENGTH_MAX, Token, Transmit,
};

impl Session for NativeSession {
    fn is_ready(&self) -> bool {
        self.state == State::Ready
    }

    fn is_over(&self) -> bool {
        self.state == State::Closed && self.carriers.is_empty()
    }

    fn resumes(&self) -> bool {
        self.agreed.resume
    }

    fn is_retired(&self, carrier: CarrierId) -> bool {
        let carrier = self.carriers.get(&carrier);
        carrier.is_some_and(|carrier| carrier.state == carrier::State::Retired)
    }

    fn pool(&mut self) -> Option<&mut dyn Pool> {
        Some(self)
    }

    fn listeners(&mut self) -> Option<&mut dyn Listeners> {
        Some(self)
    }

    fn takes_bulk(&self, carrier: CarrierId) -> bool {
        let is_up = |id: &CarrierId| self.carriers.get(id).is_some_and(Carrier::is_up);
        let mut others = self.carriers.keys().filter(|id| **id != carrier);
        let kept = self.has_small() && self.express() == Some(carrier);
        is_up(&carrier) && !(kept && others.any(is_up))
    }

    fn has_small(&self) -> bool {
        self.small.is_some()
    }

    fn open(
        &mut self,
        now: Instant,
        target: &str,
        priority: Priority,
        source: Option<Source>,
    ) -> Result<StreamId, OpenError> {
        if target.is_empty() || target.len() > TARGET_LENGTH_MAX {
            return Err(OpenError::TargetTooLong {
                length: target.len(),
            });
        }
        if self.state != State::Ready {
            return Err(OpenError::NotReady);
        }
        if self.departure.is_heard() || self.ids.is_used_up() {
            return Err(OpenError::GoingAway);
        }
        if source.is_some() && !self.agreed.sources {
            return Err(OpenError::NoSources);
        }
        let streams_max = self.config.streams_max;
        if self.ids.ours() >= streams_max as usize {
            return Err(OpenError::TooManyStreams { streams_max });
        }
        if self.peer.streams_opened >= self.peer.streams {
            let streams_max = self.peer.parameters.initial_max_streams;
            return Err(OpenError::PeerStreamLimit { streams_max });
        }
        let stream = self.ids.open();
        self.peer.streams_opened += 1;
        let deadline = now + self.patience(self.config.open_timeout);
        let window = self.new_window(now);
        let send_window = self.peer.parameters.initial_max_stream_data;
        let open = Open {
            target: target.to_owned(),
            priority,
            source,
        };
        let state = Stream::opening(stream, open, deadline, window, send_window);
        self.streams.insert(stream, state);
        self.data_ready.set_priority(stream, priority);
        self.deadlines.insert((deadline, stream));
        self.check_idle(now, stream);
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

    fn send_capacity(&self, stream: StreamId) -> Option<SendCapacity> {
        let state = self.streams.get(&stream)?;
        let frame_max = self.peer.parameters.frame_max;
        let mut capacity = state.send_capacity(HEADER_BYTES, frame_max, self.agreed.resume)?;
        capacity.bytes = capacity.bytes.min(self.session_credit());
        capacity.retain_scarce =
            self.agreed.resume && self.retention.bytes() > self.config.retain / 2;
        Some(capacity)
    }

    fn want_credit(&mut self, stream: StreamId) {
        let waits = self.session_credit() == 0;
        let Some(state) = self.streams.get_mut(&stream) else {
            return;
        };
        if state.is_exhausted() {
            let cause = Outcome::OffsetsExhausted;
            self.cut(stream, ResetCode::OffsetsExhausted, "");
            self.events.push_back(Event::Reset { stream, cause });
        } else if waits && state.has_credit() && !state.blocked {
            state.blocked = true;
            self.blocked.push_back(stream);
        } else if !waits {
            self.wake_next();
        }
    }

    fn source_ready(&mut self, stream: StreamId, length: usize, held: usize, token: Token) {
        debug_assert!(
            length as u64 <= self.session_credit(),
            "beyond the session's credit"
        );
        let held = held.max(length) as u64 + RETAINED_OVERHEAD_BYTES;
        if let Some(state) = self.streams.get_mut(&stream)
            && state.queue_batch(length, held, token)
        {
            let unannounced = state.is_unannounced();
            self.peer.data_queued += length as u64;
            if self.agreed.resume {
                self.retention.keep(held);
            }
            self.wake_next();
            // The batch of an unannounced stream is scheduled when its OPEN or OPENED is sent.
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
        state
            .window
            .consume(now, length as u64, rtt, &mut self.window);
        let unwatched = state.idle_check.is_none();
        if state.credit_due() {
            self.control_ready.push(stream);
            self.rtt.want(now);
        }
        if unwatched {
            self.check_idle(now, stream);
        }
        self.retire_if_done(stream);
    }

    fn finish(&mut self, stream: StreamId) {
        if let Some(state) = self.streams.get_mut(&stream) {
            state.finish();
            self.control_ready.push(stream);
            self.wake_next();
        }
    }

    fn reset(&mut self, stream: StreamId, code: ResetCode) {
        self.cut(stream, code, "");
    }

    fn go_away(&mut self) {
        self.departure.begin(self.ids.peer_last());
    }

    fn shut_down(&mut self) {
        self.say_last(Some(SessionCode::NoError as u64), String::new());
    }

    fn close(&mut self, error: &SessionError) {
        let in_order = SessionCode::NoError as u64;
        self.closed_in_order =
            matches!(error, SessionError::ClosedByPeer { code, .. } if *code == in_order);
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

    fn payload_moved(&mut self, now: Instant, carrier: CarrierId, length: usize) {
        self.move_payload(now, carrier, length);
    }

    fn handle_rtt(&mut self, carrier: CarrierId, rtt: Duration) {
        self.rtt.set_transport(rtt);
        self.window.set_rtt(self.rtt.path());
        let hello = self.patience(self.config.hello_timeout);
        if let Some(carrier) = self.carriers.get_mut(&carrier) {
            carrier.allow_hello(hello);
        }
    }

    fn handle_carrier_blocked(&mut self, carrier: CarrierId) {
        if let Some(carrier) = self.carriers.get_mut(&carrier) {
            carrier.blocked = true;
        }
    }

    fn probe(&mut self, carrier: CarrierId) -> bool {
        let up = self
            .carriers
            .get_mut(&carrier)
            .filter(|carrier| carrier.is_up());
        up.map(|carrier| carrier.probe = true).is_some()
    }

    fn handle_carrier_lost(&mut self, now: Instant, carrier: CarrierId) {
        self.lose(now, carrier);
    }

    fn handle_timeout(&mut self, now: Instant) -> Result<(), SessionError> {
        self.check_carriers(now)?;
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
                let text = "the peer did not answer the open in time";
                let refusal = Refusal::new(Reason::TimedOut, text);
                self.events.push_back(Event::OpenFailed { stream, refusal });
            } else {
                state.idle_check = state.window.shrink(now, &mut self.window);
                self.deadlines
                    .extend(state.idle_check.map(|check| (check, stream)));
            }
        }
        self.check_stalled(now);
        self.small.take_if(|small| small.until <= now);
        Ok(())
    }

    fn poll_timeout(&self) -> Option<Instant> {
        if self.state == State::Closed {
            return None;
        }
        let carriers = self.carriers.values().filter_map(Carrier::deadline);
        let streams = self.deadlines.first().map(|(deadline, _)| *deadline);
        let others = self
            .resume_deadline()
            .into_iter()
            .chain(self.next_stall_check())
            .chain(self.small.as_ref().map(|small| small.until));
        carriers.chain(streams).chain(others).min()
    }

    fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    fn poll_transmit(&mut self, now: Instant, carrier: CarrierId) -> Option<Transmit> {
        self.next_transmit(now, carrier)
    }

    fn has_datagrams(&self) -> bool {
        self.state == State::Ready && self.agreed.datagrams
    }

    fn takes_datagrams(&self, carrier: CarrierId) -> bool {
        self.has_datagrams() && self.express() == Some(carrier)
    }

    fn transmit_datagram(&mut self, carrier: CarrierId, length: usize) -> Option<FrameHeader> {
        self.datagram(carrier, length)
    }

    fn assign(&mut self, assignment: &Assignment) -> bool {
        self.assign_once(assignment)
    }

    fn wanting(&self, each: &mut dyn FnMut(CarrierId)) {
        self.each_wanting(each);
    }

    fn poll_released(&mut self) -> Option<Token> {
        self.retention.pop_released()
    }

    fn is_settled(&self) -> bool {
        let settled = |carrier: &Carrier| carrier.again.is_empty() && carrier.log.is_settled();
        self.lost.is_settled() && self.carriers.values().all(settled)
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

    fn retained_bytes(&self) -> u64 {
        self.retention.bytes()
    }

    fn credit(&self, stream: StreamId) -> Option<CreditView> {
        self.streams.get(&stream).map(Stream::credit)
    }
}

impl Pool for NativeSession {
    fn add_carrier(&mut self, now: Instant) -> Option<CarrierId> {
        let room = self.carriers.len() + self.lost.len() < CARRIERS_MAX;
        // The hellos must arrive in the order of the carriers' numbers.
        let waits = matches!(self.side, Side::Dialler)
            && self
                .carriers
                .values()
                .any(|carrier| carrier.state.is_hello());
        let may = self.state == State::Ready && self.agreed.resume && room && !waits;
        may.then(|| self.insert_carrier(now))
    }

    fn may_lead_elsewhere(&mut self, carrier: CarrierId) {
        if let Some(carrier) = self.carriers.get_mut(&carrier) {
            carrier.elsewhere = true;
        }
    }

    fn retire_carrier(&mut self, carrier: CarrierId) -> bool {
        self.begin_to_retire(carrier)
    }

    fn want_carriers(&mut self, count: u32) {
        self.ask_for_carriers(count);
    }
}

impl Listeners for NativeSession {
    fn listen(&mut self, address: &str, priority: Priority) -> Result<ListenId, ListenError> {
        self.ask_to_listen(address, priority)
    }

    fn unlisten(&mut self, listen: ListenId) {
        self.listens.give_up(listen);
    }

    fn listening(&mut self, listen: ListenId, address: &str) {
        self.listens.answer(listen, address);
    }

    fn end_listen(&mut self, listen: ListenId, refusal: Refusal) {
        self.listens.refuse(listen, refusal);
    }
}
