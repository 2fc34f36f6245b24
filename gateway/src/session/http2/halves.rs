//! The two halves of a stream.

use std::cell::RefCell;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use h2::client::ResponseFuture;
use h2::{Reason, RecvStream, SendStream};
use muxtunnel_proto::{Outcome, ResetCode};

use super::Traffic;
use super::inflow::Inflow;
use crate::session::bridge::link::{Payload, Receiver, Sender};
use crate::session::connect::answer;
use crate::session::shell::now;

/// A stream is busy if it received more than 1/`BUSY_PART` of all payload.
const BUSY_PART: u64 = 64;

/// The half that this side sends.
pub(crate) struct Sending {
    stream: SendStream<Payload>,
    traffic: Rc<Traffic>,
    finished: bool,
}

impl Sending {
    pub(super) fn new(stream: SendStream<Payload>, traffic: Rc<Traffic>) -> Self {
        Self {
            stream,
            traffic,
            finished: false,
        }
    }

    /// Whether the peer has sent its complete answer and needs no more of the request (RFC 9113,
    /// section 8.1). Go's server and nghttpx reset with NO_ERROR if a target ends first.
    fn is_unneeded(&mut self) -> bool {
        let mut context = Context::from_waker(Waker::noop());
        let reset = self.stream.poll_reset(&mut context);
        matches!(reset, Poll::Ready(Ok(Reason::NO_ERROR)))
    }
}

impl Sender for Sending {
    async fn capacity(&mut self, wanted: usize) -> Result<usize, Outcome> {
        let wanted = wanted.min(self.traffic.backlog.batch_max());
        self.stream.reserve_capacity(wanted);
        loop {
            let capacity = self.stream.capacity();
            if capacity > 0 {
                return Ok(capacity.min(wanted));
            }
            match poll_fn(|context| self.stream.poll_capacity(context)).await {
                Some(Ok(_)) => {}
                // The peer does not need the end of this half. The library refuses further payload.
                _ if self.is_unneeded() => return Ok(wanted),
                Some(Err(error)) => return Err(outcome(&error)),
                None => return Err(Outcome::PeerReset(ResetCode::Cancelled)),
            }
        }
    }

    async fn send(&mut self, payload: Payload) -> Result<(), Outcome> {
        let sent = self.stream.send_data(payload, false);
        self.traffic.sample();
        sent.map_err(|error| outcome(&error))
    }

    fn rest(&mut self) {
        // Reserved capacity is not available to other streams of the connection.
        self.stream.reserve_capacity(0);
    }

    fn finish(&mut self) -> Result<(), Outcome> {
        self.finished = true;
        let end = Payload::empty();
        match self.stream.send_data(end, true) {
            Err(_) if self.is_unneeded() => Ok(()),
            finished => finished.map_err(|error| outcome(&error)),
        }
    }

    async fn stopped(&mut self) -> Outcome {
        match poll_fn(|context| self.stream.poll_reset(context)).await {
            // This reset is not a cut: the peer's half is complete, or its receiver reports the
            // cut. If this side sends further payload, the stream is cut.
            Ok(Reason::NO_ERROR) => std::future::pending().await,
            Ok(reason) => Outcome::PeerReset(reset_code(reason)),
            Err(error) => outcome(&error),
        }
    }

    fn reset(&mut self, _: ResetCode) {
        // Section 8.5: CONNECT_ERROR reports an error of the TCP connection, including a reset.
        self.stream.send_reset(Reason::CONNECT_ERROR);
    }
}

/// The half that the peer sends.
pub(crate) struct Receiving {
    stream: Incoming,
    traffic: Rc<Traffic>,
}

enum Incoming {
    /// The peer has not answered the request.
    Unanswered(ResponseFuture),
    Open(Rc<RefCell<Inflow>>),
    Refused,
}

impl Receiving {
    pub(super) fn new(stream: RecvStream, traffic: Rc<Traffic>) -> Self {
        let stream = traffic.receives(stream);
        Self { stream, traffic }
    }

    /// The half that follows the answer.
    pub(super) fn answered(answer: ResponseFuture, traffic: Rc<Traffic>) -> Self {
        let stream = Incoming::Unanswered(answer);
        Self { stream, traffic }
    }

    /// Waits for the answer, unless it has already arrived.
    ///
    /// # Errors
    /// The peer refused the stream, or the stream was cut.
    async fn opened(&mut self) -> Result<&RefCell<Inflow>, Outcome> {
        if let Incoming::Unanswered(answer) = &mut self.stream {
            let answer = answer.await.map_err(|error| outcome(&error))?;
            let (head, body) = answer.into_parts();
            self.stream = match answer::read(&head) {
                Ok(()) => self.traffic.receives(body),
                Err(refusal) => {
                    tracing::debug!(reason = %refusal.description, "A connection closed before it was accepted");
                    Incoming::Refused
                }
            };
        }
        match &self.stream {
            Incoming::Open(inflow) => Ok(inflow),
            Incoming::Unanswered(_) | Incoming::Refused => {
                Err(Outcome::PeerReset(ResetCode::Cancelled))
            }
        }
    }
}

impl Drop for Receiving {
    fn drop(&mut self) {
        if let Incoming::Open(inflow) = &self.stream {
            let id = inflow.borrow().id();
            self.traffic.incoming.borrow_mut().remove(&id);
        }
    }
}

impl Receiver for Receiving {
    type Payload = Bytes;

    async fn receive(&mut self) -> Result<Option<Bytes>, Outcome> {
        let traffic = Rc::clone(&self.traffic);
        let inflow = self.opened().await?;
        match poll_fn(|context| inflow.borrow_mut().poll_receive(context)).await {
            Some(Ok(payload)) => {
                inflow.borrow_mut().came += payload.len() as u64;
                traffic.came(payload.len());
                Ok(Some(payload))
            }
            Some(Err(error)) => Err(outcome(&error)),
            None => Ok(None),
        }
    }

    fn took(&mut self, bytes: usize) {
        if let Incoming::Open(inflow) = &self.stream {
            inflow.borrow_mut().took(bytes);
        }
    }

    fn stop(&mut self, _: ResetCode) {
        // The other half sends the stream's only reset.
    }
}

impl Traffic {
    /// Adds `stream` to the streams on which the peer may send, until the returned value is
    /// dropped.
    fn receives(&self, stream: RecvStream) -> Incoming {
        let inflow = Rc::new(RefCell::new(Inflow::new(stream)));
        let id = inflow.borrow().id();
        self.incoming.borrow_mut().insert(id, Rc::clone(&inflow));
        Incoming::Open(inflow)
    }

    pub(super) fn scheme(&self) -> &'static str {
        match self.transport.proof() {
            Some(_) => "https",
            None => "http",
        }
    }

    fn came(&self, bytes: usize) {
        self.received.set(self.received.get() + bytes as u64);
        self.received_wake.notify_one();
    }

    /// Number of bytes of received payload that no local end has taken.
    pub(super) fn held(&self) -> u64 {
        let incoming = self.incoming.borrow();
        let flows = incoming.values();
        flows.map(|flow| flow.borrow_mut().held()).sum()
    }

    /// How many streams received more than 1/[`BUSY_PART`] of `received` since the last call.
    pub(super) fn busy(&self, received: u64) -> u32 {
        let incoming = self.incoming.borrow();
        let came = incoming
            .values()
            .map(|flow| std::mem::take(&mut flow.borrow_mut().came));
        let busy = came.filter(|came| *came > received / BUSY_PART).count();
        u32::try_from(busy).unwrap_or(u32::MAX)
    }

    /// Samples the path after a write, since the path's rate bounds the unsent bytes.
    fn sample(&self) {
        if let Some(path) = self.transport.path() {
            // If the path cannot be read, the connection also fails and reports the error.
            let _ = self.backlog.sample(path, now());
        }
    }
}

/// The reason why a stream was cut.
fn outcome(error: &h2::Error) -> Outcome {
    match error.reason() {
        Some(reason) if !error.is_go_away() => Outcome::PeerReset(reset_code(reason)),
        _ => Outcome::CarrierLost,
    }
}

fn reset_code(reason: Reason) -> ResetCode {
    match reason {
        Reason::CONNECT_ERROR | Reason::CANCEL | Reason::NO_ERROR => ResetCode::Cancelled,
        reason => ResetCode::Other(u32::from(reason).try_into().unwrap_or(u16::MAX)),
    }
}
