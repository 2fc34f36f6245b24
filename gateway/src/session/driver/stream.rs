//! One stream's local socket: its [`source`] (socket to carrier) and its sink (carrier to socket).
//!
//! The sink writes payload that [`super::carrier_in`] could not pass on at once. There are four
//! reasons: a full local socket, an unanswered open, missing earlier payload, or a rate limit of
//! the forward. A cut stream delivers the received bytes and then resets the socket, so that the
//! application never mistakes the cut for an end of file.

mod sink;
mod source;

use std::cell::{Cell, RefCell};
use std::io::{ErrorKind, IoSlice};
use std::ops::Deref;
use std::rc::Rc;

use muxtunnel_proto::{Refusal, Source, StreamId};
use tokio::net::TcpStream;
use tokio::sync::Notify;

use super::Driver;
use crate::base::closing::Reason;
use crate::base::pace::{Pace, Turn};
use crate::base::telemetry::Telemetry;
use crate::ingress::listener::answer::Answer;
use crate::io::local_end::LocalEnd;
use crate::session::mux::{OpenEnd, Refused, is_failed_dial};
use crate::stream::account::Local;
use crate::stream::batch::Batch;
use crate::stream::buffers::Pool;
use crate::stream::early_data::{Connection, Early};
use crate::stream::inbox::Inbox;
use crate::stream::life::Cut;
use crate::stream::local_stream::{End, LocalStream};
use crate::stream::pipe::{Filled, Pipe};
use crate::stream::reassembly::Reassembly;

pub(crate) struct StreamIo {
    pub(super) id: StreamId,
    local: LocalStream,
    /// Callback for a failed open; kept until the peer answers the open.
    refused: Cell<Option<Refused>>,
    /// How the client is told the outcome of the open.
    answer: Cell<Answer>,
    /// Data about the client, which another session needs if the open is returned.
    source: Option<Source>,
    /// Whether the client has another target, if the peer cannot dial this one.
    has_next: bool,
    /// Why the peer could not dial the target, if the connection is returned for another one.
    failed: RefCell<Option<Refusal>>,
    batch: RefCell<Option<Ready>>,
    /// The client's bytes that were read or sent before the open was answered.
    early: Early,
    inbox: RefCell<Inbox>,
    reassembly: RefCell<Reassembly>,
    source_wake: Notify,
    sink_wake: Notify,
}

impl Deref for StreamIo {
    type Target = LocalStream;

    fn deref(&self) -> &LocalStream {
        &self.local
    }
}

/// The payload that a stream received before it had a socket.
#[derive(Default)]
pub(super) struct Arrived {
    pub(super) inbox: Inbox,
    pub(super) reassembly: Reassembly,
    pub(super) finished: bool,
}

/// A batch that waits until a carrier takes it.
pub(super) enum Ready {
    /// In memory, with room for its headers.
    Buffer(Batch),
    /// In a pipe, for one packet.
    Pipe(Pipe),
}

impl StreamIo {
    /// Creates a stream whose open was sent to the peer. The stream runs immediately, so the
    /// client's first bytes can follow the open.
    pub(super) fn opening(id: StreamId, client: Connection, refused: Refused) -> Self {
        let Connection {
            socket,
            local,
            early,
            answer,
            source,
            has_next,
        } = client;
        Self {
            refused: Cell::new(Some(refused)),
            early: Early::new(early),
            answer: Cell::new(answer),
            source,
            has_next,
            ..Self::accepted(id, socket, local, Arrived::default())
        }
    }

    /// Creates a stream of the peer, with the payload that arrived while its target was dialled.
    pub(super) fn accepted(
        id: StreamId,
        socket: Box<dyn LocalEnd>,
        local: Local,
        arrived: Arrived,
    ) -> Self {
        Self {
            id,
            local: LocalStream::new(socket, local, arrived.finished),
            refused: Cell::new(None),
            answer: Cell::new(Answer::None),
            source: None,
            has_next: false,
            failed: RefCell::default(),
            batch: RefCell::default(),
            early: Early::default(),
            inbox: RefCell::new(arrived.inbox),
            reassembly: RefCell::new(arrived.reassembly),
            source_wake: Notify::new(),
            sink_wake: Notify::new(),
        }
    }

    /// Records that both sides have accepted the stream; the peer reports `address`. The client
    /// receives the answer before any payload. Returns whether the client took the answer. The send
    /// buffer of the client's socket is empty, so a client that does not take the answer is broken.
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

    /// Records that the open failed. The client is told at once, by its protocol's answer or by a
    /// reset. If the client has another target and all its bytes are retained, the connection is
    /// returned instead.
    pub(super) fn refused(&self, refusal: Refusal) {
        if self.has_next && is_failed_dial(refusal.reason) && self.early.is_whole() {
            *self.failed.borrow_mut() = Some(refusal);
            return self.give_back();
        }
        let told = self.answer_refused(Some(refusal.reason));
        self.tell_refused(OpenEnd::Refused(refusal));
        self.end(Cut {
            told,
            ..Cut::at_once(Reason::PeerReset)
        });
    }

    /// Returns the connection, since no peer took the open. If some bytes of the client were sent
    /// and not retained, refuses the open instead.
    pub(super) fn returned(&self) {
        if !self.early.is_whole() {
            let text = "the peer shut down before it accepted the stream, and this gateway did not retain the bytes that it had sent";
            return self.refused(Refusal::new(muxtunnel_proto::Reason::General, text));
        }
        self.give_back();
    }

    fn give_back(&self) {
        self.life.give_back();
        self.wake_source();
        self.sink_wake.notify_one();
    }

    /// Tells the client that its request failed. Returns whether the client's protocol has such an
    /// answer and the client took it.
    fn answer_refused(&self, reason: Option<muxtunnel_proto::Reason>) -> bool {
        let answer = self.answer.take().refused(reason);
        !answer.is_empty() && self.socket.send_at_once(&answer)
    }

    fn tell_refused(&self, end: OpenEnd) {
        if let Some(refused) = self.refused.take() {
            refused(end);
        }
    }

    /// Records that a batch of `length` payload bytes was transmitted. `kept` is the batch, if it
    /// is retained.
    pub(super) fn note_transmitted(&self, kept: Option<&Rc<Batch>>, length: usize) {
        if !self.is_open() {
            self.early.send(kept, length);
        }
    }

    /// After [`run`]: returns the connection of an open that no peer took, or whose dial failed.
    pub(super) fn hand_back(self: Rc<Self>) {
        if !self.life.is_returned() {
            return;
        }
        match Rc::try_unwrap(self) {
            Ok(io) => {
                let waiting = match io.batch.into_inner() {
                    Some(Ready::Buffer(batch)) => Some(batch),
                    // Payload is spliced only after the answer.
                    Some(Ready::Pipe(_)) | None => None,
                };
                let connection = Connection {
                    socket: io.local.socket,
                    local: io.local.account.into_local(),
                    early: io.early.into_bytes(waiting),
                    answer: io.answer.take(),
                    source: io.source,
                    has_next: io.has_next,
                };
                if let Some(refused) = io.refused.into_inner() {
                    refused(match io.failed.into_inner() {
                        Some(refusal) => OpenEnd::Failed(refusal, connection),
                        None => OpenEnd::Returned(connection),
                    });
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

    /// Cuts the stream because the peer cut it or the carrier ended.
    pub(super) fn cut(&self, reason: Reason) {
        if self.life.is_over() {
            return;
        }
        tracing::debug!(stream = self.id.number(), ?reason, "Stream was cut");
        // The client receives no payload of the target before the answer to its request.
        let told = self.answer_refused(None);
        self.end(Cut {
            deliver: !told,
            told,
            ..Cut::at_once(reason)
        });
    }

    /// Cuts the stream, and drops the received bytes that the local socket has not taken.
    pub(super) fn give_up(&self, reason: Reason) {
        self.forget_arrived();
        self.cut(reason);
    }

    /// Ends both halves at once, without calling the broken session.
    pub(super) fn drop_with(&self, reason: Reason) {
        if self.life.is_returned() {
            // The connection moves to another session.
            return;
        }
        let told = self.answer_refused(None);
        self.forget_arrived();
        self.end(Cut {
            told,
            ..Cut::at_once(reason)
        });
    }

    /// Cuts the stream from this side, drops the received bytes that the socket has not taken, and
    /// reports the cut to the peer. `error` is the failure of the local socket, if any.
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

    /// Whether the peer has nothing more to send, and all received bytes are in the local socket or
    /// the inbox.
    fn has_all(&self) -> bool {
        self.life.has_peer_finished() && self.reassembly.borrow().is_empty()
    }

    /// Whether both halves have ended, so that at most received bytes wait for the local socket.
    pub(super) fn has_ended(&self) -> bool {
        self.life.has_source_ended() && self.has_all()
    }

    /// Whether nothing is left to transfer in either direction.
    pub(super) fn is_done(&self) -> bool {
        self.has_ended() && self.inbox.borrow().is_empty()
    }

    /// Whether the peer has not answered the open.
    pub(super) fn is_unanswered(&self) -> bool {
        !self.life.is_open() && !self.life.is_over()
    }

    /// Two facts: whether payload waits for its socket, and whether payload waits for earlier
    /// payload that is missing.
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

    /// Delivers `total` bytes of payload at `offset`; returns how many bytes the socket took at
    /// once. The stream keeps the rest.
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
            // The same error occurs again in the sink, which handles it.
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

    /// Whether payload at `offset` can go through a pipe, to the socket or to the end of the inbox.
    pub(super) fn splices(&self, offset: u64) -> bool {
        self.is_open()
            && !self.life.is_over()
            && self.account.down().is_none()
            && self.socket.plain().is_some()
            && self.reassembly.borrow().is_next(offset)
    }

    /// Moves up to `bytes` from `carrier` into the pipe at the end of the inbox.
    /// [`Filled::Full`]: there is no such pipe, or it has no room.
    ///
    /// # Errors
    /// The error of splice(2).
    pub(super) fn fill_last_pipe(
        &self,
        carrier: &TcpStream,
        bytes: usize,
    ) -> std::io::Result<Filled> {
        match self.inbox.borrow_mut().last_pipe() {
            Some(pipe) => pipe.fill(carrier, bytes),
            None => Ok(Filled::Full),
        }
    }

    /// Number of pipes in the inbox.
    pub(super) fn pipes(&self) -> usize {
        self.inbox.borrow().pipes()
    }

    /// Delivers the next `length` bytes of the stream: the content of `pipe`, or bytes that the last
    /// pipe of the inbox already has. Returns how many bytes the socket took at once. The inbox keeps
    /// the rest.
    pub(super) fn deliver_spliced(
        &self,
        pool: &Rc<Pool>,
        length: usize,
        pipe: Option<Pipe>,
    ) -> usize {
        let mut taken = 0;
        let mut inbox = self.inbox.borrow_mut();
        if let Some(mut pipe) = pipe {
            if inbox.is_empty()
                && let Some(socket) = self.socket.plain()
            {
                // The same error occurs again in the sink, which handles it.
                taken = pipe.drain(socket, usize::MAX).unwrap_or(0);
            }
            if pipe.held() > 0 {
                inbox.push_pipe(pipe);
            }
        }
        self.reassembly.borrow_mut().pass(length, &mut inbox, pool);
        if !inbox.is_empty() {
            self.sink_wake.notify_one();
        }
        taken
    }

    /// Puts a header in front of payload byte `start` of the waiting batch, if the batch has room
    /// for headers.
    pub(super) fn put_header(&self, start: usize, header: &[u8]) {
        if let Some(Ready::Buffer(batch)) = self.batch.borrow_mut().as_mut() {
            batch.put_header(start, header);
        }
    }

    /// Takes the waiting batch, so that the source can read the next batch.
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
        io.report(&driver.telemetry, &driver.peer(), clean);
    }
    io.tell_refused(OpenEnd::Abandoned);
    if io.life.why_cut().is_some_and(|cut| cut.told) {
        io.socket.say_goodbye().await;
    } else {
        io.local.end(clean).await;
    }
}

/// Reports the end of a stream whose [`run`] panicked.
pub(super) fn report_fault(driver: &Driver, io: &StreamIo) {
    if io.is_open() {
        let peer = driver.peer();
        io.account
            .closed(&driver.telemetry, &peer, Reason::Fault, None);
    }
    io.tell_refused(OpenEnd::Abandoned);
}

/// Waits for the stream's turn under its forward's rate limit; `None`: the stream was cut in the
/// meantime.
async fn turn<'a>(pace: &'a Pace, io: &StreamIo, wake: &Notify) -> Option<Turn<'a>> {
    // The turn keeps its place in the queue if another event wakes the stream.
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

/// Cuts the stream because the local socket failed, and reports the cut to the peer.
fn fail(driver: &Rc<Driver>, io: &StreamIo, error: &std::io::Error) -> End {
    tracing::debug!(stream = io.id.number(), %error, "Local socket failed");
    io.abandon(driver, io.account.local_reset(), Some(error.kind()));
    End::Cut
}
