//! The contract between a session and its driver.
//!
//! A session owns its streams, their credit and what may be sent next; it never holds payload and
//! never waits. In come headers, lengths and decisions; out go events, frames to transmit and the
//! next timeout. Each protocol is one implementation in a folder of its own ([`crate::jmux`],
//! [`crate::native`]); what they share is here: the types that cross (`types.rs`, `event.rs`, `listener.rs`, `end.rs`), listeners
//! ([`ListenTable`]), who may send next
//! ([`schedule`]) and how much may be on its way ([`share`]).

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
/// `now` must not go backwards. After any call that changes something the driver drains
/// [`Session::poll_event`], then takes [`Session::poll_transmit`] as fast as the carrier takes
/// frames.
pub trait Session: Debug {
    /// Whether streams can be opened: the hello, where there is one, is over. Told by
    /// [`Event::Ready`].
    fn is_ready(&self) -> bool;

    /// Whether it came to its end: its last carrier is gone, and no other can take its place.
    fn is_over(&self) -> bool;

    /// Whether streams outlive their carrier, as both ends have agreed.
    fn resumes(&self) -> bool {
        false
    }

    /// Whether `carrier` may end without being lost.
    fn is_retired(&self, carrier: CarrierId) -> bool {
        let _ = carrier;
        false
    }

    /// Whether bulk may leave on `carrier`: of several, one is kept free while small streams send.
    fn takes_bulk(&self, carrier: CarrierId) -> bool {
        let _ = carrier;
        true
    }

    /// Its carriers, where there may be several.
    fn pool(&mut self) -> Option<&mut dyn Pool> {
        None
    }

    /// The listeners that one side asks the other for, where the protocol has a word for that.
    fn listeners(&mut self) -> Option<&mut dyn Listeners> {
        None
    }

    /// Asks the peer for a stream to `target` (a URL, `tcp://host:port`). Answered by
    /// [`Event::Opened`], [`Event::OpenFailed`] or [`Event::OpenReturned`], at the latest after the open timeout. `priority` is
    /// of what this side sends, and of what the peer does where the protocol can tell it. `source`: what the
    /// peer is to tell the target, if anything.
    ///
    /// # Errors
    /// [`OpenError`]: a table or the budget is full, the peer goes away or tells targets nothing, or the
    /// target is too long. Nothing was sent.
    fn open(
        &mut self,
        now: Instant,
        target: &str,
        priority: Priority,
        source: Option<Source>,
    ) -> Result<StreamId, OpenError>;

    /// Takes up a stream of [`Event::Incoming`]: its target has been reached at `address`.
    fn accept(&mut self, stream: StreamId, address: &str);

    /// Declines a stream of [`Event::Incoming`].
    fn refuse(&mut self, stream: StreamId, refusal: Refusal);

    /// How much payload of the local socket the stream takes now; `None`: it takes none any more.
    fn send_capacity(&self, stream: StreamId) -> Option<SendCapacity>;

    /// There is payload for the stream, and its capacity is zero bytes: told by [`Event::Writable`] once it takes some. Or
    /// there is none after all, for capacity of which it was told so.
    /// While its last batch waits to be transmitted, that is told by [`Self::poll_transmit`] alone.
    fn want_credit(&mut self, stream: StreamId);

    /// `length` bytes of the local socket are in the driver's hands under `token`, at most the
    /// capacity. While it is [retained](Payload::retained) the batch takes `held` bytes of memory, at least
    /// `length`, and the tables' part, which the session knows. They come out of [`Self::poll_transmit`] in order, cut into frames of
    /// `payload_max` bytes, the last one shorter.
    fn source_ready(&mut self, stream: StreamId, length: usize, held: usize, token: Token);

    /// The local socket took `length` bytes of received payload; credit for them goes back.
    fn sink_took(&mut self, now: Instant, stream: StreamId, length: usize);

    /// The local socket has no more to send (end of file).
    fn finish(&mut self, stream: StreamId);

    /// The stream is to be cut in both directions, because of `code`. What is buffered for it is
    /// dropped by the driver. The peer learns it as a cut where it understands one.
    fn reset(&mut self, stream: StreamId, code: ResetCode);

    /// No stream of the peer's is taken any more; those that are open go on. The peer is told where
    /// the protocol has a word for it.
    fn go_away(&mut self);

    /// This side has no more use for the session: what is left to transmit is the word that says so,
    /// where the protocol has one.
    fn shut_down(&mut self);

    /// The session ends because of `error`: what is left to transmit is the word that says so, where
    /// the protocol has one.
    fn close(&mut self, error: &SessionError);

    /// Handles the frame that `bytes`, the unread ones of `carrier`, begin with. Not to be called
    /// while announced payload is outstanding.
    ///
    /// # Errors
    /// [`SessionError`]: the session must be given up, by [`Self::close`] and
    /// [`Self::handle_carrier_lost`].
    fn handle_header(
        &mut self,
        now: Instant,
        carrier: CarrierId,
        bytes: &[u8],
    ) -> Result<Header, SessionError>;

    /// What is left of the announced payload on `carrier`, and whose it is by now.
    fn receiving(&self, carrier: CarrierId) -> Option<Receive>;

    /// `length` bytes of the announced payload have left `carrier`.
    fn payload_moved(&mut self, carrier: CarrierId, length: usize);

    /// The round trip time of `carrier` is `rtt` by its transport, without what waits in queues of
    /// either end. Told from time to time; bounds how far windows grow.
    fn handle_rtt(&mut self, carrier: CarrierId, rtt: Duration);

    /// Sends a frame on `carrier` that the peer has to answer; returns whether the protocol has one.
    fn probe(&mut self, carrier: CarrierId) -> bool {
        let _ = carrier;
        false
    }

    /// The kernel takes no more of `carrier` for now: what waits for it may leave on another one. Until
    /// the next [`Self::poll_transmit`] for it.
    fn handle_carrier_blocked(&mut self, carrier: CarrierId) {
        let _ = carrier;
    }

    /// The carrier is gone. What it did not deliver goes on over another one, now or when one is added.
    /// Where the session cannot do that, every stream is reset, every open fails or, where it never left, is
    /// returned, and the session [is over](Self::is_over) and empty after.
    fn handle_carrier_lost(&mut self, now: Instant, carrier: CarrierId);

    /// Lets what is overdue fail.
    ///
    /// # Errors
    /// [`SessionError`]: the peer did not say hello in time, or the session was without a carrier for
    /// too long.
    fn handle_timeout(&mut self, now: Instant) -> Result<(), SessionError>;

    /// When [`Self::handle_timeout`] wants to be called next.
    fn poll_timeout(&self) -> Option<Instant>;

    /// The next event for the application side.
    fn poll_event(&mut self) -> Option<Event>;

    /// The next frame for `carrier`. Frames of one batch come one after another, so that a batch
    /// read into packet-sized slots leaves in one write; control frames go first, then streams
    /// take turns.
    fn poll_transmit(&mut self, carrier: CarrierId) -> Option<Transmit>;

    /// Whether IP packets go beside streams, as both ends have agreed.
    fn has_datagrams(&self) -> bool {
        false
    }

    /// Whether datagrams leave on `carrier` now.
    fn takes_datagrams(&self, carrier: CarrierId) -> bool {
        let _ = carrier;
        false
    }

    /// A datagram of `length` bytes, 1 to [`DATAGRAM_BYTES_MAX`], leaves on `carrier` next, behind this header. It is
    /// not kept: what is lost with the carrier is lost. `None`: [`Self::takes_datagrams`] does not hold, or it has another
    /// length.
    fn transmit_datagram(&mut self, carrier: CarrierId, length: usize) -> Option<FrameHeader> {
        let _ = (carrier, length);
        None
    }

    /// Tells the peer of its addresses and of resolvers, once a session, where both ends have agreed on that; the peer hears
    /// [`Event::Assigned`]. On the side that was connected to. Returns whether the peer is told.
    fn assign(&mut self, assignment: &Assignment) -> bool {
        let _ = assignment;
        false
    }

    /// Whether [`Self::poll_transmit`] may have something for `carrier`.
    fn wants_transmit(&self, carrier: CarrierId) -> bool;

    /// The next batch that was [retained](Payload::retained) and is not needed any more.
    fn poll_released(&mut self) -> Option<Token>;

    /// Whether the peer has all that was transmitted, as far as the protocol lets it say so.
    fn is_settled(&self) -> bool;

    /// Streams in the table.
    fn stream_count(&self) -> usize;

    /// The streams in the table, oldest number first; for proofs.
    fn streams(&self) -> Vec<StreamId>;

    /// Bytes of the receive budget that are granted or buffered.
    fn receive_budget_used(&self) -> u64;

    /// Bytes of memory, or of pipes, of what was transmitted or is to be, and may be asked for again.
    fn retained_bytes(&self) -> u64;

    /// Where the credit of a stream is; for status pages and for proofs of conservation.
    fn credit(&self, stream: StreamId) -> Option<CreditView>;
}

/// Carriers beyond the first one.
pub trait Pool {
    /// Another connection to the same peer is there, dialled where the first one was dialled. Its hello
    /// comes first. `None`: the session takes no more, takes no other before the last one's hello is over,
    /// or is of one carrier alone.
    fn add_carrier(&mut self, now: Instant) -> Option<CarrierId>;

    /// `carrier`, whose hello is not over, may have another peer than the other carriers. An answer of that peer ends this
    /// carrier alone, also where it is the only one.
    fn may_lead_elsewhere(&mut self, carrier: CarrierId);

    /// Begins to take `carrier` out of the session in order: what waits for it leaves on others, what is
    /// on its way comes, and nothing goes again. Ends with [`Event::CarrierRetired`], or when it
    /// [is retired](Session::is_retired) and the peer closes it. Returns whether it begins: on the side that
    /// dialled, with another carrier, one at a time.
    fn retire_carrier(&mut self, carrier: CarrierId) -> bool;

    /// What this side sends could use `count` carriers. Where the peer dials them, it is told, by
    /// [`Event::CarriersWanted`].
    fn want_carriers(&mut self, count: u32);
}

/// Listeners that one side asks the other for.
pub trait Listeners {
    /// Asks the peer to listen on `address` (`ADDRESS:PORT`), of its own host, and to open a stream of
    /// `priority` to [`listen_target`] for each connection. Answered by [`ListenEvent::Listening`] or
    /// [`ListenEvent::Ended`]. On the side that dialled.
    ///
    /// # Errors
    /// [`ListenError`]: it cannot be asked for. Nothing was sent.
    fn listen(&mut self, address: &str, priority: Priority) -> Result<ListenId, ListenError>;

    /// Gives a listener up that was asked for.
    fn unlisten(&mut self, listen: ListenId);

    /// What [`ListenEvent::Asked`] asks for is listened on.
    fn listening(&mut self, listen: ListenId, address: &str);

    /// What [`ListenEvent::Asked`] asks for is not listened on, or not any more.
    fn end_listen(&mut self, listen: ListenId, refusal: Refusal);
}

/// What a session that has no [`Pool`] or no [`Listeners`] answers to those who ask all sessions alike.
impl dyn Session + '_ {
    /// [`Pool::add_carrier`].
    pub fn add_carrier(&mut self, now: Instant) -> Option<CarrierId> {
        self.pool()?.add_carrier(now)
    }

    /// [`Pool::may_lead_elsewhere`].
    pub fn may_lead_elsewhere(&mut self, carrier: CarrierId) {
        if let Some(pool) = self.pool() {
            pool.may_lead_elsewhere(carrier);
        }
    }

    /// [`Pool::retire_carrier`].
    pub fn retire_carrier(&mut self, carrier: CarrierId) -> bool {
        self.pool().is_some_and(|pool| pool.retire_carrier(carrier))
    }

    /// [`Pool::want_carriers`].
    pub fn want_carriers(&mut self, count: u32) {
        if let Some(pool) = self.pool() {
            pool.want_carriers(count);
        }
    }

    /// [`Listeners::listen`].
    ///
    /// # Errors
    /// [`ListenError`].
    pub fn listen(&mut self, address: &str, priority: Priority) -> Result<ListenId, ListenError> {
        let listeners = self.listeners().ok_or(ListenError::Unsupported)?;
        listeners.listen(address, priority)
    }

    /// [`Listeners::unlisten`].
    pub fn unlisten(&mut self, listen: ListenId) {
        if let Some(listeners) = self.listeners() {
            listeners.unlisten(listen);
        }
    }

    /// [`Listeners::listening`].
    pub fn listening(&mut self, listen: ListenId, address: &str) {
        if let Some(listeners) = self.listeners() {
            listeners.listening(listen, address);
        }
    }

    /// [`Listeners::end_listen`].
    pub fn end_listen(&mut self, listen: ListenId, refusal: Refusal) {
        if let Some(listeners) = self.listeners() {
            listeners.end_listen(listen, refusal);
        }
    }
}
