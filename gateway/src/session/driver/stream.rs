//! One stream's local socket: its [`source`] (socket -> carrier) and its sink (carrier -> socket).
//!
//! The sink writes what [`super::carrier_in`] could not pass on at once: the local socket was full,
//! the open was not answered, or payload before it came later on another carrier. A stream that is cut
//! delivers what came and then resets the socket, so that its application never takes a cut for an
//! end of file.

mod sink;
mod source;

use std::cell::{Cell, RefCell};
use std::io::{ErrorKind, IoSlice};
use std::rc::Rc;
use std::time::{Duration, Instant};

use muxtunnel_proto::{Refusal, Source, StreamId};
use tokio::sync::Notify;

use super::Driver;
use super::incoming::Arrived;
use crate::base::closing::Reason;
use crate::base::pace::{Pace, Turn};
use crate::base::telemetry::Telemetry;
use crate::ingress::listener::answer::Answer;
use crate::io::local_end::LocalEnd;
use crate::session::mux::{OpenEnd, Refused};
use crate::stream::account::{Account, Local};
use crate::stream::batch::Batch;
use crate::stream::buffers::Pool;
use crate::stream::early_data::{Connection, Early};
use crate::stream::inbox::Inbox;
use crate::stream::life::{Cut, Life};
use crate::stream::pipe::{Pipe, Pipes};
use crate::stream::reassembly::Reassembly;

/// How long a cut stream's socket may take to accept what had come for it.
const CUT_DELIVERY_MAX: Duration = Duration::from_secs(10);

/// How one direction ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Clean,
    Cut,
}

pub(super) struct StreamIo {
    pub(super) id: StreamId,
    socket: Box<dyn LocalEnd>,
    /// Whom to tell if our open fails, until it is answered.
    refused: Cell<Option<Refused>>,
    /// How the client hears of it.
    answer: Cell<Answer>,
    /// For another open.
    source: Option<Source>,
    life: Life,
    pub(super) account: Account,
    batch: RefCell<Option<Ready>>,
    /// Until the open is answered.
    early: Early,
    inbox: RefCell<Inbox>,
    reassembly: RefCell<Reassembly>,
    source_wake: Notify,
    sink_wake: Notify,
}

/// A batch that waits for its turn on a carrier.
pub(super) enum Ready {
    /// In memory, with room for its headers.
    Buffer(Batch),
    /// In the kernel, and where it may be asked for again, once more.
    Pipe(Pipe, Option<Pipe>),
}

impl StreamIo {
    /// A stream that the peer has been asked for. It runs at once, so that what the client sends
    /// first can go along with the open.
    pub(super) fn opening(id: StreamId, client: Connection, refused: Refused) -> Self {
        let Connection {
            socket,
            local,
            early,
            answer,
            source,
        } = client;
        Self {
            refused: Cell::new(Some(refused)),
            early: Early::new(early),
            answer: Cell::new(answer),
            source,
            ..Self::accepted(id, socket, local, Arrived::default())
        }
    }

    /// A stream of the peer's, and what came while its target was dialled.
    pub(super) fn accepted(
        id: StreamId,
        socket: Box<dyn LocalEnd>,
        local: Local,
        arrived: Arrived,
    ) -> Self {
        Self {
            id,
            socket,
            refused: Cell::new(None),
            answer: Cell::new(Answer::None),
            source: None,
            life: Life::new(arrived.finished),
            account: Account::new(local),
            batch: RefCell::default(),
            early: Early::default(),
            inbox: RefCell::new(arrived.inbox),
            reassembly: RefCell::new(arrived.reassembly),
            source_wake: Notify::new(),
            sink_wake: Notify::new(),
        }
    }

    /// Both sides agree on the stream; the peer reports `address`. The client is told before it gets payload.
    /// Returns whether it could be: its socket is empty, so one that takes no answer is broken.
    pub(super) fn opened(&self, telemetry: &Telemetry, address: &str) -> bool {
        let answer = self.answer.take().granted(address);
        let told = answer.is_empty() || self.socket.send_at_once(&answer);
        self.life.open();
        self.account.opened(telemetry);
        self.refused.take();
        self.early.forget();
        self.source_wake.notify_one();
        self.sink_wake.notify_one();
        told
    }

    /// The open failed: the client learns it at once, by its protocol's answer or a reset.
    pub(super) fn refused(&self, refusal: Refusal) {
        let told = self.answer_refused(Some(refusal.reason));
        self.tell_refused(OpenEnd::Refused(refusal));
        self.end(Cut {
            told,
            ..Cut::at_once(Reason::PeerReset)
        });
    }

    /// Nobody took the open: the connection goes back to whom it came from, if nothing of it is lost.
    pub(super) fn returned(&self) {
        if !self.early.is_whole() {
            let text = "the exit shuts down, and what was sent to it is not kept";
            return self.refused(Refusal::new(muxtunnel_proto::Reason::General, text));
        }
        self.life.give_back();
        self.wake_source();
        self.sink_wake.notify_one();
    }

    /// The client hears that nothing comes of its request. Returns whether it was to hear something, and could.
    fn answer_refused(&self, reason: Option<muxtunnel_proto::Reason>) -> bool {
        let answer = self.answer.take().refused(reason);
        !answer.is_empty() && self.socket.send_at_once(&answer)
    }

    fn tell_refused(&self, end: OpenEnd) {
        if let Some(refused) = self.refused.take() {
            refused(end);
        }
    }

    /// A batch of `length` payload bytes is transmitted; `kept`: where that is so.
    pub(super) fn note_transmitted(&self, kept: Option<&Rc<Batch>>, length: usize) {
        if !self.is_open() {
            self.early.send(kept, length);
        }
    }

    /// After [`run`]: an open that nobody took goes back.
    pub(super) fn hand_back(self: Rc<Self>) {
        if !self.life.is_returned() {
            return;
        }
        match Rc::try_unwrap(self) {
            Ok(io) => {
                let waiting = match io.batch.into_inner() {
                    Some(Ready::Buffer(batch)) => Some(batch),
                    // Nothing is spliced before the answer.
                    Some(Ready::Pipe(..)) | None => None,
                };
                let connection = Connection {
                    socket: io.socket,
                    local: io.account.into_local(),
                    early: io.early.into_bytes(waiting),
                    answer: io.answer.take(),
                    source: io.source,
                };
                if let Some(refused) = io.refused.into_inner() {
                    refused(OpenEnd::Returned(connection));
                }
            }
            Err(io) => {
                debug_assert!(false, "a stream that has ended is in use");
                io.tell_refused(OpenEnd::Abandoned);
            }
        }
    }

    pub(super) fn wake_source(&self) {
        self.source_wake.notify_one();
    }

    pub(super) fn peer_finished(&self) {
        self.life.finish_peer();
        self.sink_wake.notify_one();
    }

    /// The peer cut it, or the carrier ended.
    pub(super) fn cut(&self, reason: Reason) {
        if self.life.is_over() {
            return;
        }
        tracing::debug!(stream = self.id.number(), ?reason, "Stream was cut");
        // Before the answer to a request nothing of the target's is delivered.
        let told = self.answer_refused(None);
        self.end(Cut {
            deliver: !told,
            told,
            ..Cut::at_once(reason)
        });
    }

    /// Ends both halves at once; the session is broken, and is not told.
    pub(super) fn drop_with(&self, reason: Reason) {
        if self.life.is_returned() {
            // It is on its way to another session.
            return;
        }
        let told = self.answer_refused(None);
        self.forget_arrived();
        self.end(Cut {
            told,
            ..Cut::at_once(reason)
        });
    }

    /// Cuts it from this side, because nothing can be delivered any more: the peer must learn it.
    /// `error`: what the local socket failed with.
    pub(super) fn abandon(&self, driver: &Rc<Driver>, reason: Reason, error: Option<ErrorKind>) {
        self.end(Cut {
            error,
            ..Cut::at_once(reason)
        });
        self.forget_arrived();
        driver.update(|session| session.reset(self.id, reason.reset_code()));
    }

    fn forget_arrived(&self) {
        self.inbox.borrow_mut().clear();
        self.reassembly.borrow_mut().clear();
    }

    /// The peer has no more to send, and the local socket or the inbox has all that it sent.
    fn has_all(&self) -> bool {
        self.life.has_peer_finished() && self.reassembly.borrow().is_empty()
    }

    /// Nothing is left to be carried in either direction.
    pub(super) fn is_done(&self) -> bool {
        self.life.has_source_ended() && self.has_all() && self.inbox.borrow().is_empty()
    }

    /// Whether both sides agree on it.
    pub(super) fn is_open(&self) -> bool {
        self.life.is_open()
    }

    pub(super) fn half_open(&self) -> bool {
        self.life.has_source_ended() || self.life.has_peer_finished()
    }

    /// Whether it was cut, and what came is still delivered.
    fn delivers(&self) -> bool {
        self.life.why_cut().is_some_and(|cut| cut.deliver)
    }

    /// How long, as far as was asked before, nothing has happened: no byte, no end of a half, no open.
    pub(super) fn quiet_for(&self, now: Instant) -> Duration {
        self.account.quiet_for(now, self.life.steps())
    }

    /// Whether payload waits for its socket, and whether some waits behind a gap.
    #[cfg(test)]
    pub(super) fn holds(&self) -> (bool, bool) {
        let gap = !self.reassembly.borrow().is_empty();
        (!self.inbox.borrow().is_empty(), gap)
    }

    fn end(&self, cut: Cut) {
        if self.life.is_returned() {
            return;
        }
        self.life.cut(cut);
        self.batch.take();
        self.source_wake.notify_one();
        self.sink_wake.notify_one();
    }

    /// Passes payload of `total` bytes on, which belongs at `offset`; returns how much of it the socket
    /// took at once. The rest is kept.
    pub(super) fn deliver(
        &self,
        pool: &Rc<Pool>,
        offset: u64,
        mut slices: &mut [IoSlice<'_>],
        total: usize,
    ) -> usize {
        if self.life.is_over() && !self.delivers() {
            return 0;
        }
        let mut reassembly = self.reassembly.borrow_mut();
        if !reassembly.is_next(offset) {
            reassembly.keep(offset, slices);
            return 0;
        }
        let mut inbox = self.inbox.borrow_mut();
        let mut taken = 0;
        if inbox.is_empty() && self.is_open() && self.account.down().is_none() {
            // An error shows again in the sink, which deals with it.
            taken = self.socket.try_write(slices).unwrap_or(0);
            IoSlice::advance_slices(&mut slices, taken);
        }
        slices.iter().for_each(|slice| inbox.push(pool, slice));
        reassembly.pass(total, &mut inbox, pool);
        if !inbox.is_empty() {
            self.sink_wake.notify_one();
        }
        taken
    }

    /// Whether payload that belongs at `offset` can go to the socket, or behind what waits for it, in one of
    /// `pipes`.
    pub(super) fn splices(&self, offset: u64, pipes: &Pipes) -> bool {
        self.is_open()
            && !self.life.is_over()
            && self.account.down().is_none()
            && self.socket.plain().is_some()
            && self.inbox.borrow().pipes() < pipes.a_stream()
            && self.reassembly.borrow().is_next(offset)
    }

    /// Passes on what `pipe` holds, which comes next; returns how much of it the socket took at once. The
    /// rest is kept.
    pub(super) fn deliver_spliced(&self, pool: &Rc<Pool>, mut pipe: Pipe) -> usize {
        let (length, mut taken) = (pipe.held(), 0);
        let mut inbox = self.inbox.borrow_mut();
        if inbox.is_empty()
            && let Some(socket) = self.socket.plain()
        {
            // An error shows again in the sink, which deals with it.
            taken = pipe.drain(socket, usize::MAX).unwrap_or(0);
        }
        if pipe.held() > 0 {
            inbox.push_pipe(pipe);
        }
        self.reassembly.borrow_mut().pass(length, &mut inbox, pool);
        if !inbox.is_empty() {
            self.sink_wake.notify_one();
        }
        taken
    }

    /// Puts a header in front of payload byte `start` of the batch that waits, where there is a place for
    /// it.
    pub(super) fn put_header(&self, start: usize, header: &[u8]) {
        if let Some(Ready::Buffer(batch)) = self.batch.borrow_mut().as_mut() {
            batch.put_header(start, header);
        }
    }

    /// The batch is on its way: the source may read the next.
    pub(super) fn take_batch(&self) -> Option<Ready> {
        let batch = self.batch.take()?;
        self.source_wake.notify_one();
        Some(batch)
    }
}

/// Runs a stream to its end.
pub(super) async fn run(driver: &Rc<Driver>, io: &Rc<StreamIo>) {
    let (source, sink) = tokio::join!(source::run(driver, io), sink::run(driver, io));
    if io.life.is_returned() {
        return;
    }
    let clean = source == End::Clean && sink == End::Clean && !io.life.is_over();
    if io.is_open() {
        report(driver, io, clean);
    }
    io.tell_refused(OpenEnd::Abandoned);
    if io.life.why_cut().is_some_and(|cut| cut.told) {
        io.socket.say_goodbye().await;
    } else if clean {
        io.socket.end_in_order();
    } else {
        delivered(io).await;
    }
}

/// Of a stream whose [`run`] panicked.
pub(super) fn report_fault(driver: &Driver, io: &StreamIo) {
    if io.is_open() {
        let peer = driver.peer();
        io.account
            .closed(&driver.telemetry, &peer, Reason::Fault, None);
    }
    io.tell_refused(OpenEnd::Abandoned);
}

fn report(driver: &Driver, io: &StreamIo, clean: bool) {
    let cut = io.life.why_cut();
    let reason = match cut {
        Some(cut) => cut.reason,
        None if clean => Reason::Completed,
        None => Reason::CarrierLost,
    };
    let error = cut.and_then(|cut| cut.error);
    io.account
        .closed(&driver.telemetry, &driver.peer(), reason, error);
}

/// Waits for the stream's turn where its forward has a rate limit; `None`: it was cut meanwhile.
async fn turn<'a>(pace: &'a Pace, io: &StreamIo, wake: &Notify) -> Option<Turn<'a>> {
    // The turn keeps its place in the queue when something else wakes the stream.
    let mut turn = Box::pin(pace.turn());
    loop {
        tokio::select! {
            biased;
            turn = &mut turn => return Some(turn),
            () = wake.notified() => {}
        }
        if io.life.is_over() {
            return None;
        }
    }
}

/// The local socket failed: the peer must learn that the stream was cut.
fn fail(driver: &Rc<Driver>, io: &StreamIo, error: &std::io::Error) -> End {
    tracing::debug!(stream = io.id.number(), %error, "Local socket failed");
    io.abandon(driver, io.account.local_reset(), Some(error.kind()));
    End::Cut
}

/// Waits until the other end of the local socket has what was written, where that is to arrive: the reset that is next
/// throws the send buffer away.
async fn delivered(io: &StreamIo) {
    if io.delivers() {
        let _ = tokio::time::timeout(CUT_DELIVERY_MAX, io.socket.delivered()).await;
    }
}
