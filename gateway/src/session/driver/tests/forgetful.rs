//! A session that forgets what it has sent, so that a test can have it transmitted again.

use std::cell::RefCell;
use std::collections::VecDeque;

use muxtunnel_proto::{
    CarrierId, CreditView, FrameHeader, Header, NativeSession, Payload, Pool, Priority, Receive,
    Refusal, ResetCode, SendCapacity, SessionError, Source, StreamId, Token, Transmit,
};

use super::*;

/// State that a test shares with its session.
#[derive(Debug, Default)]
pub(super) struct Wishes {
    pub(super) sent: Vec<(FrameHeader, Payload)>,
    pub(super) again: VecDeque<(FrameHeader, Payload)>,
    pub(super) released: VecDeque<Token>,
    /// Whether the next header causes a panic.
    pub(super) panics: bool,
}

/// A native session that retains all sent payload, and transmits it again when a test requests
/// this.
#[derive(Debug)]
pub(super) struct Forgetful {
    pub(super) inner: NativeSession,
    pub(super) wishes: Rc<RefCell<Wishes>>,
}

impl Session for Forgetful {
    fn poll_transmit(&mut self, now: Instant, carrier: CarrierId) -> Option<Transmit> {
        let mut wishes = self.wishes.borrow_mut();
        if let Some((header, payload)) = wishes.again.pop_front() {
            return Some(Transmit::Again {
                carrier,
                header,
                payload,
            });
        }
        let mut transmit = self.inner.poll_transmit(now, carrier);
        if let Some(Transmit::Data {
            header, payload, ..
        }) = &mut transmit
        {
            payload.retained = true;
            wishes.sent.push((*header, payload.clone()));
        }
        transmit
    }

    fn wanting(&self, each: &mut dyn FnMut(CarrierId)) {
        match self.wishes.borrow().again.is_empty() {
            true => self.inner.wanting(each),
            false => each(CarrierId::FIRST),
        }
    }

    fn poll_released(&mut self) -> Option<Token> {
        self.wishes.borrow_mut().released.pop_front()
    }

    fn is_ready(&self) -> bool {
        self.inner.is_ready()
    }

    fn is_over(&self) -> bool {
        self.inner.is_over()
    }

    fn pool(&mut self) -> Option<&mut dyn Pool> {
        self.inner.pool()
    }

    fn is_retired(&self, carrier: CarrierId) -> bool {
        self.inner.is_retired(carrier)
    }

    fn takes_bulk(&self, carrier: CarrierId) -> bool {
        self.inner.takes_bulk(carrier)
    }

    fn has_small(&self) -> bool {
        self.inner.has_small()
    }

    fn open(
        &mut self,
        now: Instant,
        target: &str,
        priority: Priority,
        source: Option<Source>,
    ) -> Result<StreamId, OpenError> {
        self.inner.open(now, target, priority, source)
    }

    fn accept(&mut self, stream: StreamId, address: &str) {
        self.inner.accept(stream, address);
    }

    fn refuse(&mut self, stream: StreamId, refusal: Refusal) {
        self.inner.refuse(stream, refusal);
    }

    fn send_capacity(&self, stream: StreamId) -> Option<SendCapacity> {
        self.inner.send_capacity(stream)
    }

    fn want_credit(&mut self, stream: StreamId) {
        self.inner.want_credit(stream);
    }

    fn source_ready(&mut self, stream: StreamId, length: usize, held: usize, token: Token) {
        self.inner.source_ready(stream, length, held, token);
    }

    fn sink_took(&mut self, now: Instant, stream: StreamId, length: usize) {
        self.inner.sink_took(now, stream, length);
    }

    fn finish(&mut self, stream: StreamId) {
        self.inner.finish(stream);
    }

    fn reset(&mut self, stream: StreamId, code: ResetCode) {
        self.inner.reset(stream, code);
    }

    fn go_away(&mut self) {
        self.inner.go_away();
    }

    fn shut_down(&mut self) {
        self.inner.shut_down();
    }

    fn close(&mut self, error: &SessionError) {
        self.inner.close(error);
    }

    fn handle_header(
        &mut self,
        now: Instant,
        carrier: CarrierId,
        bytes: &[u8],
    ) -> Result<Header, SessionError> {
        assert!(!self.wishes.borrow().panics, "a fault of the session");
        self.inner.handle_header(now, carrier, bytes)
    }

    fn receiving(&self, carrier: CarrierId) -> Option<Receive> {
        self.inner.receiving(carrier)
    }

    fn payload_moved(&mut self, now: Instant, carrier: CarrierId, length: usize) {
        self.inner.payload_moved(now, carrier, length);
    }

    fn handle_rtt(&mut self, carrier: CarrierId, rtt: Duration) {
        self.inner.handle_rtt(carrier, rtt);
    }

    fn probe(&mut self, carrier: CarrierId) -> bool {
        self.inner.probe(carrier)
    }

    fn handle_carrier_blocked(&mut self, carrier: CarrierId) {
        self.inner.handle_carrier_blocked(carrier);
    }

    fn handle_carrier_lost(&mut self, now: Instant, carrier: CarrierId) {
        self.inner.handle_carrier_lost(now, carrier);
    }

    fn handle_timeout(&mut self, now: Instant) -> Result<(), SessionError> {
        self.inner.handle_timeout(now)
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.inner.poll_timeout()
    }

    fn poll_event(&mut self) -> Option<muxtunnel_proto::Event> {
        self.inner.poll_event()
    }

    fn is_settled(&self) -> bool {
        self.inner.is_settled()
    }

    fn stream_count(&self) -> usize {
        self.inner.stream_count()
    }

    fn streams(&self) -> Vec<StreamId> {
        self.inner.streams()
    }

    fn receive_budget_used(&self) -> u64 {
        self.inner.receive_budget_used()
    }

    fn retained_bytes(&self) -> u64 {
        self.inner.retained_bytes()
    }

    fn credit(&self, stream: StreamId) -> Option<CreditView> {
        self.inner.credit(stream)
    }
}
