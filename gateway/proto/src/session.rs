//! The contract between a session and its driver.
//!
//! A session owns its streams, their credit and the order of transmission. A session holds no
//! payload and never waits. Its inputs are headers, lengths and decisions. Its outputs are events,
//! frames to transmit and the next timeout.
//!
//! Each protocol implements [`Session`] in its own folder ([`crate::jmux`], [`crate::native`]).
//! This module has what they share: the types of the interface (`types.rs`, `event.rs`,
//! `listener.rs`, `end.rs`), the listener table ([`ListenTable`]), the send order ([`schedule`])
//! and the bound on bulk in flight ([`share`]).

mod assignment;
mod end;
mod event;
mod listen_table;
mod listener;
pub(crate) mod ready;
pub(crate) mod schedule;
pub(crate) mod share;
mod source;
mod types;

pub use assignment::*;
pub use end::*;
pub use event::*;
pub use listen_table::*;
pub use listener::*;
pub use source::Source;
pub use types::*;

use std::fmt::Debug;
use std::time::{Duration, Instant};

/// One mux session over its carriers.
///
/// `now` must not go backwards. After each call that changes the session, the driver drains
/// [`Session::poll_event`]. It then takes frames from [`Session::poll_transmit`] as fast as the
/// carrier accepts them.
pub trait Session: Debug {
    /// Whether streams can be opened: the hello, if the protocol has one, is complete.
    /// [`Event::Ready`] reports the change.
    fn is_ready(&self) -> bool;

    /// Whether the session has ended: its last carrier is gone, and no other carrier can replace
    /// the last one.
    fn is_over(&self) -> bool;

    /// Whether streams survive the loss of their carrier. True only if both ends agreed on this
    /// feature.
    fn resumes(&self) -> bool {
        false
    }

    /// Whether `carrier` has been retired, so that its end is not a loss.
    fn is_retired(&self, carrier: CarrierId) -> bool {
        let _ = carrier;
        false
    }

    /// Whether bulk may leave on `carrier`. If the session has several carriers, the express
    /// carrier takes no bulk while small streams send.
    fn takes_bulk(&self, carrier: CarrierId) -> bool {
        let _ = carrier;
        true
    }

    /// Whether small streams have sent within the last second or two. If the session has several
    /// carriers, one of them then takes no bulk.
    fn has_small(&self) -> bool {
        false
    }

    /// The interface to add and retire carriers. `None`: the session cannot have several carriers.
    fn pool(&mut self) -> Option<&mut dyn Pool> {
        None
    }

    /// The interface to request listeners. `None`: the protocol has no frames for listeners.
    fn listeners(&mut self) -> Option<&mut dyn Listeners> {
        None
    }

    /// Asks the peer for a stream to `target` (a URL, `tcp://host:port`). The answer is
    /// [`Event::Opened`], [`Event::OpenFailed`] or [`Event::OpenReturned`], at the latest after the
    /// open timeout. `priority` applies to the bytes that this side sends. If the protocol can
    /// transmit the priority, `priority` also applies to the bytes that the peer sends. `source`:
    /// the client that the peer announces to the target.
    ///
    /// # Errors
    /// [`OpenError`]: a table or the budget is full, the peer is shutting down or cannot announce a
    /// `source`, or the target is too long. The session has sent nothing.
    fn open(
        &mut self,
        now: Instant,
        target: &str,
        priority: Priority,
        source: Option<Source>,
    ) -> Result<StreamId, OpenError>;

    /// Accepts a stream of [`Event::Incoming`]: its target has been reached at `address`.
    fn accept(&mut self, stream: StreamId, address: &str);

    /// Refuses a stream of [`Event::Incoming`].
    fn refuse(&mut self, stream: StreamId, refusal: Refusal);

    /// How much payload of the local socket the stream accepts now. `None`: the stream accepts no
    /// more.
    fn send_capacity(&self, stream: StreamId) -> Option<SendCapacity>;

    /// Registers interest in credit: the driver has payload for a stream whose capacity is zero.
    /// [`Event::Writable`] reports new capacity. While a batch of the stream waits, no event
    /// reports new capacity: the stream has capacity again once [`Self::poll_transmit`] returns the
    /// batch's last frame. If the driver has no payload at [`Event::Writable`], it calls this
    /// function again, so that the next stream gets the credit.
    fn want_credit(&mut self, stream: StreamId);

    /// The driver has read `length` bytes of the local socket into the buffer `token`; `length` is
    /// at most the capacity. While the session [retains](Payload::retained) the batch, the batch
    /// takes `held` bytes of memory, at least `length`, plus the tables' overhead, which the
    /// session adds. [`Self::poll_transmit`] returns the bytes in order, in frames of `payload_max`
    /// bytes; the last frame may be shorter.
    fn source_ready(&mut self, stream: StreamId, length: usize, held: usize, token: Token);

    /// The local socket took `length` bytes of received payload. The session returns the credit for
    /// these bytes to the peer.
    fn sink_took(&mut self, now: Instant, stream: StreamId, length: usize);

    /// The local socket reached end of file.
    fn finish(&mut self, stream: StreamId);

    /// Cuts the stream in both directions because of `code`. The driver drops what it has buffered
    /// for the stream. The peer sees a reset if the protocol has one.
    fn reset(&mut self, stream: StreamId, code: ResetCode);

    /// Stops accepting streams of the peer; open streams continue. The session informs the peer if
    /// the protocol has a frame for it.
    fn go_away(&mut self);

    /// Ends the session because this side no longer needs it. Only the close frame remains to be
    /// transmitted, if the protocol has one.
    fn shut_down(&mut self);

    /// Ends the session because of `error`. Only the close frame remains to be transmitted, if the
    /// protocol has one.
    fn close(&mut self, error: &SessionError);

    /// Handles the first frame of `bytes`, the unread bytes of `carrier`. Announced payload must
    /// have left the carrier before the driver calls this function again.
    ///
    /// # Errors
    /// [`SessionError`]: the driver must give up the session with [`Self::close`] and
    /// [`Self::handle_carrier_lost`].
    fn handle_header(
        &mut self,
        now: Instant,
        carrier: CarrierId,
        bytes: &[u8],
    ) -> Result<Header, SessionError>;

    /// The rest of the announced payload on `carrier`, and the stream that it belongs to now.
    fn receiving(&self, carrier: CarrierId) -> Option<Receive>;

    /// `length` bytes of the announced payload have left `carrier`.
    fn payload_moved(&mut self, now: Instant, carrier: CarrierId, length: usize);

    /// The transport of `carrier` measured the round trip time `rtt`, without the queues of either
    /// end. The driver calls this function from time to time. The round trip time bounds how far
    /// windows grow.
    fn handle_rtt(&mut self, carrier: CarrierId, rtt: Duration);

    /// Sends a frame on `carrier` that the peer must answer. Returns whether the protocol has such
    /// a frame.
    fn probe(&mut self, carrier: CarrierId) -> bool {
        let _ = carrier;
        false
    }

    /// Sends a frame without effect on `carrier`, so that no device on the path takes the carrier for
    /// unused. Called if [`Self::probe`] returned false.
    fn stir(&mut self, carrier: CarrierId) {
        let _ = carrier;
    }

    /// The kernel accepts no more bytes of `carrier`. Until the next [`Self::poll_transmit`] for
    /// this carrier, its waiting batches may leave on another carrier.
    fn handle_carrier_blocked(&mut self, carrier: CarrierId) {
        let _ = carrier;
    }

    /// The carrier is gone. A session that resumes sends the undelivered bytes over another
    /// carrier, now or when a carrier is added. Any other session resets every stream, except
    /// streams whose two halves have ended and of which the peer has received everything. Opens
    /// without an answer then fail, or are returned if they were never transmitted. The session
    /// then [is over](Self::is_over) and empty.
    fn handle_carrier_lost(&mut self, now: Instant, carrier: CarrierId);

    /// Applies the timeouts that have passed.
    ///
    /// # Errors
    /// [`SessionError`]: the peer sent no hello in time, or the session had no carrier for too
    /// long.
    fn handle_timeout(&mut self, now: Instant) -> Result<(), SessionError>;

    /// When the driver must call [`Self::handle_timeout`] next.
    fn poll_timeout(&self) -> Option<Instant>;

    /// The next event for the application.
    fn poll_event(&mut self) -> Option<Event>;

    /// The next frame for `carrier`. Control frames go first, then streams take turns. The frames
    /// of one batch follow one another, so the driver can transmit the batch in one write.
    fn poll_transmit(&mut self, now: Instant, carrier: CarrierId) -> Option<Transmit>;

    /// Whether the session carries IP packets as well as streams. True only if both ends agreed on
    /// packets.
    fn has_datagrams(&self) -> bool {
        false
    }

    /// Whether datagrams may leave on `carrier` now.
    fn takes_datagrams(&self, carrier: CarrierId) -> bool {
        let _ = carrier;
        false
    }

    /// The header for the datagram that leaves on `carrier` next. The datagram has `length` bytes,
    /// 1 to [`DATAGRAM_BYTES_MAX`]. The session does not retain datagrams, so they are lost with
    /// their carrier. `None`: [`Self::takes_datagrams`] is false, or `length` is out of range.
    fn transmit_datagram(&mut self, carrier: CarrierId, length: usize) -> Option<FrameHeader> {
        let _ = (carrier, length);
        None
    }

    /// Assigns addresses and DNS servers to the peer, whose session reports them as
    /// [`Event::Assigned`]. The acceptor can send an assignment once per session, if both ends
    /// agreed on assignments. Returns whether the session sends the assignment.
    fn assign(&mut self, assignment: &Assignment) -> bool {
        let _ = assignment;
        false
    }

    /// Calls `each` once for each carrier for which [`Self::poll_transmit`] may return a frame. The
    /// driver calls this function after each change, so the cost must be at most proportional to the
    /// number of carriers.
    fn wanting(&self, each: &mut dyn FnMut(CarrierId));

    /// The next batch that the session [retained](Payload::retained) and no longer needs.
    fn poll_released(&mut self) -> Option<Token>;

    /// Whether the peer has received everything that was transmitted, as far as the protocol
    /// reports it.
    fn is_settled(&self) -> bool;

    /// Number of streams in the table.
    fn stream_count(&self) -> usize;

    /// The streams in the table, oldest number first; for tests.
    fn streams(&self) -> Vec<StreamId>;

    /// Bytes of received payload that local sockets have not accepted. With JMUX, plus the credit
    /// that the peer has not used.
    fn receive_budget_used(&self) -> u64;

    /// Bytes of memory and pipes that payload occupies while it waits for transmission or
    /// acknowledgement.
    fn retained_bytes(&self) -> u64;

    /// The distribution of a stream's credit, for status pages, and for tests that check that no
    /// credit is lost.
    fn credit(&self, stream: StreamId) -> Option<CreditView>;
}

/// The calls for carriers in addition to the first carrier.
pub trait Pool {
    /// Adds a connection to the same peer, dialled in the same way as the first connection. The
    /// first frame on the new connection is a hello. `None`: the session has its maximum of
    /// carriers, waits for the hello of the last carrier, or allows only one carrier.
    fn add_carrier(&mut self, now: Instant) -> Option<CarrierId>;

    /// `carrier`, whose hello is not complete, may have reached a peer other than the session's. If
    /// another peer answers, only this carrier ends, even if the session has no other carrier.
    fn may_lead_elsewhere(&mut self, carrier: CarrierId);

    /// Begins to retire `carrier`. Frames that wait for the carrier leave on other carriers. Frames
    /// in flight arrive, so no frame is sent twice. Retirement ends with [`Event::CarrierRetired`],
    /// or when the carrier [is retired](Session::is_retired) and the peer closes it. Returns
    /// whether retirement begins: only the side that dialled can retire, one carrier at a time, and
    /// another carrier must remain.
    fn retire_carrier(&mut self, carrier: CarrierId) -> bool;

    /// This side could use `count` carriers for the payload that it sends. If the peer is the side
    /// that dials, the session sends the peer this number. The peer reports it as
    /// [`Event::CarriersWanted`].
    fn want_carriers(&mut self, count: u32);
}

/// Listeners that the dialling side requests of its peer.
pub trait Listeners {
    /// Asks the peer to listen on `address` (`ADDRESS:PORT`) of the peer's host. The peer opens a
    /// stream of `priority` to [`listen_target`] for each connection. The answer is
    /// [`ListenEvent::Listening`] or [`ListenEvent::Ended`]. Only the side that dialled can ask.
    ///
    /// # Errors
    /// [`ListenError`]: the listener cannot be requested. The session has sent nothing.
    fn listen(&mut self, address: &str, priority: Priority) -> Result<ListenId, ListenError>;

    /// Gives up a listener that this side requested.
    fn unlisten(&mut self, listen: ListenId);

    /// This side listens on `address` for the request of [`ListenEvent::Asked`].
    fn listening(&mut self, listen: ListenId, address: &str);

    /// This side does not listen for the request of [`ListenEvent::Asked`], or has stopped.
    fn end_listen(&mut self, listen: ListenId, refusal: Refusal);
}

/// Calls of [`Pool`] and [`Listeners`], with defaults for a session that does not implement them.
impl dyn Session + '_ {
    /// See [`Pool::add_carrier`].
    pub fn add_carrier(&mut self, now: Instant) -> Option<CarrierId> {
        self.pool()?.add_carrier(now)
    }

    /// See [`Pool::may_lead_elsewhere`].
    pub fn may_lead_elsewhere(&mut self, carrier: CarrierId) {
        if let Some(pool) = self.pool() {
            pool.may_lead_elsewhere(carrier);
        }
    }

    /// See [`Pool::retire_carrier`].
    pub fn retire_carrier(&mut self, carrier: CarrierId) -> bool {
        self.pool().is_some_and(|pool| pool.retire_carrier(carrier))
    }

    /// See [`Pool::want_carriers`].
    pub fn want_carriers(&mut self, count: u32) {
        if let Some(pool) = self.pool() {
            pool.want_carriers(count);
        }
    }

    /// See [`Listeners::listen`].
    ///
    /// # Errors
    /// [`ListenError`].
    pub fn listen(&mut self, address: &str, priority: Priority) -> Result<ListenId, ListenError> {
        let listeners = self.listeners().ok_or(ListenError::Unsupported)?;
        listeners.listen(address, priority)
    }

    /// See [`Listeners::unlisten`].
    pub fn unlisten(&mut self, listen: ListenId) {
        if let Some(listeners) = self.listeners() {
            listeners.unlisten(listen);
        }
    }

    /// See [`Listeners::listening`].
    pub fn listening(&mut self, listen: ListenId, address: &str) {
        if let Some(listeners) = self.listeners() {
            listeners.listening(listen, address);
        }
    }

    /// See [`Listeners::end_listen`].
    pub fn end_listen(&mut self, listen: ListenId, refusal: Refusal) {
        if let Some(listeners) = self.listeners() {
            listeners.end_listen(listen, refusal);
        }
    }
}
