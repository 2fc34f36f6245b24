//! QUIC between two MuxTunnel gateways: each stream is a bidirectional QUIC stream.
//!
//! [`crate::io::quic`] handles the connections. This module defines the messages. An open and its
//! answer begin a stream ([`wire`]); unframed payload follows. Each side also has a unidirectional
//! control stream. On this stream the side announces how many streams it takes, its shutdown, and,
//! on an entry, the listeners that it requests ([`control`], [`listens`]). Datagrams carry IP
//! packets ([`packets`]). A cut is always RESET_STREAM and STOP_SENDING with the native protocol's
//! codes, never an end of the stream.
//!
//! Memory: the windows limit a peer's unread bytes to `memory.receive` in total plus one batch for
//! each local end that has not taken its batch. `memory.retain` bounds sent bytes that are not
//! acknowledged. See docs/limits.md.

mod answers;
mod ask;
mod control;
mod listens;
mod packets;
mod reading;
pub(crate) mod wire;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use muxtunnel_gateway_config::SessionConfig;
use muxtunnel_proto::{
    Assignment, ListenTable, Priority, Reason, Refusal, ResetCode, SessionError, patience,
};
use quinn::{ConnectionError, VarInt};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::base::tasks::joined;
use crate::io::key_refusal::KeyRefusal;
use crate::io::quic::CloseCode;
use crate::io::transport::Side;
use crate::session::bridge::link::{Below, Hears, Link, Listens, NoStream, Opened, Opening};
use crate::session::end::SessionEnd;
use crate::session::hello::HELLO_MAX;
use crate::session::mux::Local;
use crate::session::packets::PacketQueue;
use crate::session::quic_streams::{self, Requests, Traffic};
use answers::Answers;
use ask::Asked;
use control::{Heard, Hearing, Saying};
use reading::{Bare, Cut, Reading};
use wire::Message;

/// Maximum time to read the first message on a stream, counted from its first byte, on ordinary
/// paths.
const OPEN_MAX: Duration = Duration::from_secs(5);

/// The peer did not send a hello in time.
const NO_HELLO: SessionEnd = SessionEnd::Protocol(SessionError::HelloTimeout);

/// The halves of a stream.
pub(crate) type Sending = quic_streams::Sending<Bare>;
pub(crate) type Receiving = quic_streams::Receiving<Bare>;

pub(crate) struct Quic {
    side: Side,
    traffic: Rc<Traffic>,
    /// Maximum number of concurrent streams that this side takes.
    streams_max: u32,
    peer_streams_max: Cell<u32>,
    listens: RefCell<ListenTable>,
    /// The packets to send; `None`: this side carries no packets.
    packets: Option<Rc<PacketQueue>>,
    carries_packets: Cell<bool>,
    answers: Rc<Answers>,
    /// The assignment that the control stream sends next.
    assignment: RefCell<Option<Rc<Assignment>>>,
    /// Whether an assignment was passed to the control stream, or received.
    has_assigned: Cell<bool>,
    goes_away: Cell<bool>,
    /// Notified when the control stream may have something to send.
    control_due: Notify,
    closing: Notify,
}

impl Quic {
    /// Creates a link. `side` tells whether this side dialled or accepted the connection.
    ///
    /// # Errors
    /// `below` is not a QUIC connection.
    pub(crate) fn new(side: Side, below: Below, config: &SessionConfig) -> std::io::Result<Self> {
        let packets = config.packets.then(|| Rc::clone(&below.packets));
        Ok(Self {
            side,
            packets,
            carries_packets: Cell::new(false),
            answers: Rc::default(),
            traffic: Traffic::new(side, below, config, "QUIC")?,
            streams_max: config.streams_max,
            peer_streams_max: Cell::new(0),
            listens: RefCell::new(ListenTable::new(side == Side::Dials)),
            assignment: RefCell::default(),
            has_assigned: Cell::new(false),
            goes_away: Cell::new(false),
            control_due: Notify::new(),
            closing: Notify::new(),
        })
    }

    async fn drive(&self, hears: &dyn Hears<Self>) -> Result<SessionEnd, SessionEnd> {
        let quic = self.traffic.connection.quic();
        let greets_by = Instant::now() + patience(HELLO_MAX, quic.rtt());
        // Opening the control stream waits for the peer's credit.
        let saying = Saying::begin(quic, self.streams_max, self.packets.is_some());
        let saying = tokio::time::timeout_at(greets_by, saying).await;
        let mut saying = saying.map_err(|_| NO_HELLO)??;
        let mut hearing = Hearing::new(quic, &self.traffic.overhead);
        let mut has_left = false;
        let mut asking = Requests::default();
        let mut carrying = JoinSet::new();
        loop {
            if saying.is_done()
                && let Some(message) = self.next_message(&mut has_left)
            {
                saying.say(&message);
            }
            tokio::select! {
                biased;
                said = saying.flush(), if !saying.is_done() => said?,
                heard = hearing.next() => match heard? {
                    Heard::Hello { streams_max, packets } => {
                        self.peer_streams_max.set(streams_max);
                        if packets {
                            self.carry_packets(&mut carrying);
                        }
                        hears.ready();
                    }
                    Heard::GoingAway => hears.going_away(),
                    Heard::Listen(word) => self.heard_of_listener(word, hears)?,
                    Heard::Assign(assignment) => self.heard_assignment(assignment)?,
                },
                asked = asking.next() => hears.asked(asked),
                never = self.traffic.tasks.fail() => match never {},
                room = self.traffic.has_room() => {
                    room.map_err(end_of)?;
                    hears.room();
                }
                stream = self.traffic.accept() => {
                    let halves = stream.map_err(end_of)?;
                    asking.read(Asked::read(halves, Rc::clone(&self.traffic)));
                }
                carried = carrying.join_next(), if !carrying.is_empty() => {
                    carried.and_then(joined);
                }
                () = self.control_due.notified() => {}
                () = self.take_assignment(), if !self.has_assigned.get() => {}
                () = self.closing.notified() => {
                    self.traffic.close(CloseCode::Done, "").await;
                    return Ok(SessionEnd::Closed);
                }
                () = tokio::time::sleep_until(greets_by), if !hearing.has_heard() => {
                    return Err(NO_HELLO);
                }
            }
        }
    }
}

impl Quic {
    /// The next message to send on the control stream, if there is one. `has_left` records whether
    /// the GOAWAY was already returned.
    fn next_message(&self, has_left: &mut bool) -> Option<Message> {
        if let Some(word) = self.listens.borrow_mut().take() {
            return Some(Message::Listen(word));
        }
        if let Some(assignment) = self.assignment.take() {
            return Some(Message::Assign((*assignment).clone()));
        }
        let leaves = self.goes_away.get() && !*has_left;
        *has_left |= leaves;
        leaves.then_some(Message::GoAway)
    }

    /// Passes the assignment of the session to the control stream. Each connection sends the
    /// assignment, because the first connection may be lost before the peer receives it.
    async fn take_assignment(&self) {
        match (&self.packets, self.side) {
            (Some(packets), Side::Accepts) => {
                let assignment = packets.assignment().await;
                self.has_assigned.set(true);
                self.assignment.replace(Some(assignment));
            }
            _ => std::future::pending().await,
        }
    }

    fn heard_assignment(&self, assignment: Assignment) -> Result<(), SessionEnd> {
        if self.side == Side::Accepts || self.has_assigned.replace(true) {
            return Err(violation(
                "only the acceptor may assign addresses, and only once",
            ));
        }
        if let Some(packets) = &self.packets {
            packets.assign(assignment);
        }
        Ok(())
    }

    /// Starts to carry packets, if the peer also carries packets.
    fn carry_packets(&self, carrying: &mut JoinSet<()>) {
        let quic = self.traffic.connection.quic();
        let Some(packets) = &self.packets else {
            return;
        };
        if quic.max_datagram_size().is_none() {
            return;
        }
        self.carries_packets.set(true);
        packets.agree(true);
        let shared = || (Rc::clone(&self.traffic), Rc::clone(packets));
        carrying.spawn_local(packets::send(shared(), Rc::clone(&self.answers)));
        carrying.spawn_local(packets::receive(shared()));
    }
}

impl Link for Quic {
    type Sender = Sending;
    type Receiver = Receiving;
    type Ask = Asked;

    fn open(&self, target: &str, priority: Priority) -> Option<Opening<Self>> {
        let stream = self.traffic.open()?;
        let (answers, traffic) = (Rc::clone(&self.answers), Rc::clone(&self.traffic));
        let open = Message::Open {
            priority,
            target: target.to_owned(),
        };
        Some(Box::pin(async move {
            let (mut sender, mut receiver): (Sending, Receiving) = stream.map_err(not_opened)?;
            sender.set_priority(priority);
            let said = sender.say(open.encode()).await;
            said.map_err(|error| not_answered(error.into()))?;
            answers.sent(&traffic);
            let answer = Reading::default().next(receiver.stream()).await;
            match answer.map_err(not_answered)? {
                Message::Opened { address } => Ok(Opened {
                    sender,
                    receiver,
                    address,
                }),
                Message::Refused(refusal) => Err(NoStream::Refused(refusal)),
                other => Err(NoStream::Refused(Refusal::new(
                    Reason::General,
                    format!("the peer answered an open with {other:?}"),
                ))),
            }
        }))
    }

    fn run<'a>(&'a self, hears: &'a dyn Hears<Self>) -> Local<'a, SessionEnd> {
        Box::pin(async move {
            match self.drive(hears).await {
                Ok(end) => end,
                Err(end) => {
                    if let SessionEnd::Protocol(error) = &end {
                        let text = error.to_string();
                        self.traffic.close(CloseCode::Violation, &text).await;
                    }
                    end
                }
            }
        })
    }

    fn streams_max(&self) -> usize {
        self.peer_streams_max.get() as usize
    }

    fn is_full(&self) -> bool {
        self.traffic.is_full()
    }

    fn held(&self) -> u64 {
        self.traffic.held()
    }

    fn packet_bytes_max(&self) -> Option<usize> {
        let quic = self.traffic.connection.quic();
        let carried = self.carries_packets.get();
        carried.then(|| quic.max_datagram_size()).flatten()
    }

    fn answers(&self) -> bool {
        self.answers.arrive(&self.traffic)
    }

    fn round_trip(&self) -> Duration {
        self.traffic.connection.quic().rtt()
    }

    fn go_away(&self) {
        self.goes_away.set(true);
        self.control_due.notify_one();
    }

    fn shut_down(&self) {
        self.closing.notify_one();
    }

    fn listens(&self) -> Option<&dyn Listens> {
        Some(self)
    }
}

/// Why the stream was not opened, if the connection ended before the answer.
fn not_opened(error: ConnectionError) -> NoStream {
    match error {
        ConnectionError::ApplicationClosed(close) if is_orderly(close.error_code) => {
            NoStream::NotTaken
        }
        _ => NoStream::Lost,
    }
}

/// Why the stream was not opened, if it was cut before the answer.
fn not_answered(cut: Cut) -> NoStream {
    match cut {
        Cut::Peer(ResetCode::NotTaken) => NoStream::NotTaken,
        Cut::Peer(ResetCode::Refused(reason)) => {
            NoStream::Refused(Refusal::new(reason, "the peer refused the open"))
        }
        Cut::Peer(code) => {
            let text = format!("the peer reset the open, code {}", code.code());
            NoStream::Refused(Refusal::new(Reason::General, text))
        }
        Cut::Malformed(error) => {
            let text = format!("invalid answer of the peer to an open: {error}");
            NoStream::Refused(Refusal::new(Reason::General, text))
        }
        Cut::Connection(error) => not_opened(error),
    }
}

/// Whether a connection that the peer closed with this code has processed none of its unanswered
/// opens.
fn is_orderly(code: VarInt) -> bool {
    [CloseCode::Done, CloseCode::GoingAway]
        .map(VarInt::from)
        .contains(&code)
}

fn end_of(error: ConnectionError) -> SessionEnd {
    match error {
        ConnectionError::LocallyClosed => SessionEnd::Closed,
        ConnectionError::ApplicationClosed(close) => {
            let reason = String::from_utf8_lossy(&close.reason).into_owned();
            let going_away = VarInt::from(CloseCode::GoingAway);
            match close.error_code {
                code if code == going_away => {
                    SessionEnd::Finished(SessionError::ClosedByPeer { code: 0, reason })
                }
                code if code == VarInt::from(CloseCode::Done) => SessionEnd::Closed,
                code if code == VarInt::from(CloseCode::Dropped) => SessionEnd::Closed,
                code => SessionEnd::Protocol(SessionError::ClosedByPeer {
                    code: code.into_inner(),
                    reason,
                }),
            }
        }
        error => KeyRefusal::of_quic(error).into(),
    }
}

fn violation(problem: impl Into<String>) -> SessionEnd {
    SessionEnd::Protocol(SessionError::Violation {
        code: None,
        problem: problem.into(),
    })
}

#[cfg(test)]
mod tests;
