//! HTTP/3 (RFC 9114): each stream is a CONNECT (section 4.4).
//!
//! quinn handles the connections ([`crate::io::quic`]) and the streams
//! ([`crate::session::quic_streams`]). This module adds HTTP/3: frames ([`frame`], [`data`]),
//! fields ([`qpack`], [`message`]) and the control stream ([`control`]). docs/protocol.md explains
//! why muxgate uses no HTTP/3 library. A cut is always RESET_STREAM and STOP_SENDING, never an end
//! of the stream.
//!
//! Memory: the windows limit a peer's unread bytes to `memory.receive` in total. Fields are limited
//! to [`FIELD_BYTES_MAX`] per message and to [`frame::READING_MAX`] in total; see docs/limits.md.
//! CPU time: [`quic_streams::Overhead`] limits frames without payload.

mod ask;
mod code;
mod control;
mod data;
mod frame;
mod message;
#[cfg(any(test, feature = "oracles"))]
pub(crate) mod oracle;
mod qpack;
mod settings;

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use http::response::Parts;
use muxtunnel_gateway_config::SessionConfig;
use muxtunnel_proto::{Priority, Reason, Refusal, SessionError, patience};
use quinn::{ConnectionError, VarInt, WriteError};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use crate::io::key_refusal::KeyRefusal;
use crate::io::quic::CloseCode;
use crate::io::transport::Side;
use crate::session::bridge::link::{Below, Hears, Link, NoStream, Opened, Opening};
use crate::session::connect::{answer, connect_to};
use crate::session::end::SessionEnd;
use crate::session::hello::HELLO_MAX;
use crate::session::mux::Local;
use crate::session::quic_streams::{self, Broken, Requests, Traffic};
use ask::Asked;
use control::{Heard, Hearing, Saying, Unheard};
use data::Data;
use frame::{Budget, Cut, Frames};

/// Maximum size of the header fields of one request or answer in bytes, both encoded and as counted
/// by RFC 9114 (section 4.2.2).
const FIELD_BYTES_MAX: usize = 16 << 10;
/// The peer has sent no GOAWAY, so it takes requests with any number.
const ALL_TAKEN: u64 = u64::MAX;
/// Difference between the numbers of two successive requests (RFC 9000, section 2.1).
const NUMBER_STEP: u64 = 4;

/// The halves of a stream.
pub(crate) type Sending = quic_streams::Sending<Data>;
pub(crate) type Receiving = quic_streams::Receiving<Data>;

pub(crate) struct Http3 {
    side: Side,
    shared: Rc<Shared>,
    streams_max: usize,
    /// Maximum size of a request's fields, as the peer announced it.
    field_bytes_max: Cell<u64>,
    /// The peer takes no requests with this number or a higher number.
    taken_below: watch::Sender<u64>,
    goes_away: Cell<bool>,
    /// Notified when the control stream may have something to send.
    control_due: Notify,
    closing: Notify,
}

/// State that all requests of one connection share.
struct Shared {
    traffic: Rc<Traffic>,
    budget: Rc<Budget>,
}

impl Http3 {
    /// Creates a link. `side` tells whether this side dialled or accepted the connection.
    ///
    /// # Errors
    /// `below` is not a QUIC connection.
    pub(crate) fn new(side: Side, below: Below, config: &SessionConfig) -> std::io::Result<Self> {
        let traffic = Traffic::new(side, below, config, "HTTP/3")?;
        Ok(Self {
            side,
            shared: Rc::new(Shared {
                budget: Rc::new(Budget::new(&traffic.overhead)),
                traffic,
            }),
            streams_max: config.streams_max as usize,
            field_bytes_max: Cell::new(u64::MAX),
            taken_below: watch::Sender::new(ALL_TAKEN),
            goes_away: Cell::new(false),
            control_due: Notify::new(),
            closing: Notify::new(),
        })
    }

    async fn drive(&self, hears: &dyn Hears<Self>) -> Result<SessionEnd, Unheard> {
        let traffic = &self.shared.traffic;
        let quic = traffic.connection.quic();
        let greets_by = Instant::now() + patience(HELLO_MAX, quic.rtt());
        // Opening the control stream waits for the peer's credit.
        let saying = tokio::time::timeout_at(greets_by, Saying::begin(quic)).await;
        let mut saying = saying.map_err(|_| NO_SETTINGS)??;
        let mut hearing = Hearing::new(quic, self.side, &self.shared.budget);
        let mut asking = Requests::default();
        // The lowest number that the peer has not used for a request.
        let mut next = 0;
        let mut has_left = false;
        loop {
            if saying.is_done() && self.goes_away.get() && !has_left {
                // A client's GOAWAY refers to pushes, which are not used.
                saying.go_away(next);
                has_left = true;
            }
            tokio::select! {
                biased;
                said = saying.flush(), if !saying.is_done() => said?,
                heard = hearing.next() => self.heard(heard?, hears)?,
                asked = asking.next() => hears.asked(asked),
                never = traffic.tasks.fail() => match never {},
                room = traffic.has_room() => {
                    room.map_err(end_of)?;
                    hears.room();
                }
                stream = traffic.accept() => {
                    let (mut sender, mut receiver) = stream.map_err(end_of)?;
                    if has_left {
                        sender.reject(code::REQUEST_REJECTED);
                        receiver.reject(code::REQUEST_REJECTED);
                        continue;
                    }
                    next += NUMBER_STEP;
                    let shared = Rc::clone(&self.shared);
                    asking.read(Asked::read((sender, receiver), shared));
                }
                () = self.control_due.notified() => {}
                () = self.closing.notified() => {
                    traffic.close(CloseCode::Done, "").await;
                    return Ok(SessionEnd::Closed);
                }
                () = tokio::time::sleep_until(greets_by), if !hearing.has_settings() => {
                    return Err(NO_SETTINGS.into());
                }
            }
        }
    }

    /// Opens the stream of a request for `target` and encodes the request's fields; `None`: the
    /// link is full ([`Link::is_full`]).
    fn begin(
        &self,
        target: &str,
        priority: Priority,
    ) -> Option<Result<(Request, Vec<u8>), NoStream>> {
        let request = match connect_to(target) {
            Ok(request) => request,
            Err(refusal) => return Some(Err(NoStream::Refused(refusal))),
        };
        let (fields, size) = message::push_request(&request);
        if size as u64 > self.field_bytes_max.get() {
            let text = "the name of the target makes the request longer than the peer accepts";
            return Some(Err(refused(text.to_owned())));
        }
        if *self.taken_below.borrow() < ALL_TAKEN {
            return Some(Err(NoStream::NotTaken));
        }
        let stream = self.shared.traffic.open()?;
        Some(match stream {
            Ok((sender, receiver)) => {
                sender.set_priority(priority);
                Ok((Request(Some((sender, receiver))), fields))
            }
            Err(error) => Err(not_opened(&error)),
        })
    }

    fn heard(&self, heard: Heard, hears: &dyn Hears<Self>) -> Result<(), Broken> {
        match heard {
            Heard::Settings { field_bytes_max } => {
                self.field_bytes_max.set(field_bytes_max);
                hears.ready();
            }
            // A client's GOAWAY refers to pushes.
            Heard::GoAway(_) if self.side == Side::Accepts => {}
            Heard::GoAway(id) if id > *self.taken_below.borrow() => {
                return Err(control::id_error(
                    "the peer sent a GOAWAY with a greater id than in its previous GOAWAY",
                ));
            }
            Heard::GoAway(id) => {
                self.taken_below.send_replace(id);
                hears.going_away();
            }
        }
        Ok(())
    }
}

impl Link for Http3 {
    type Sender = Sending;
    type Receiver = Receiving;
    type Ask = Asked;

    fn open(&self, target: &str, priority: Priority) -> Option<Opening<Self>> {
        let begun = self.begin(target, priority)?;
        let (shared, taken_below) = (Rc::clone(&self.shared), self.taken_below.subscribe());
        Some(Box::pin(async move {
            let (mut request, fields) = begun?;
            let number = request.number();
            let head = tokio::select! {
                biased;
                head = request.send(fields, &shared) => head?,
                () = leaves(taken_below, number) => return Err(NoStream::NotTaken),
            };
            let address = answer::address(&head);
            answer::read(&head).map_err(NoStream::Refused)?;
            let (sender, receiver) = request.0.take().ok_or(NoStream::Lost)?;
            Ok(Opened {
                sender,
                receiver,
                address,
            })
        }))
    }

    fn run<'a>(&'a self, hears: &'a dyn Hears<Self>) -> Local<'a, SessionEnd> {
        Box::pin(async move {
            let traffic = &self.shared.traffic;
            let end = match self.drive(hears).await {
                Ok(end) | Err(Unheard::Ended(end)) => end,
                Err(Unheard::Broken(broken)) => {
                    traffic.break_off(broken);
                    SessionEnd::Closed
                }
            };
            let Some(broken) = traffic.broken().await else {
                return end;
            };
            SessionEnd::Protocol(SessionError::Violation {
                code: Some(broken.code.into_inner()),
                problem: broken.problem.to_owned(),
            })
        })
    }

    /// Returns this gateway's own limit of streams. QUIC's library applies the peer's limit, but
    /// does not report it.
    fn streams_max(&self) -> usize {
        self.streams_max
    }

    fn is_full(&self) -> bool {
        self.shared.traffic.is_full()
    }

    fn held(&self) -> u64 {
        self.shared.traffic.held()
    }

    fn round_trip(&self) -> Duration {
        self.shared.traffic.connection.quic().rtt()
    }

    fn go_away(&self) {
        self.goes_away.set(true);
        self.control_due.notify_one();
    }

    fn shut_down(&self) {
        self.closing.notify_one();
    }
}

/// An unanswered request. Dropping the value cancels the request.
struct Request(Option<(Sending, Receiving)>);

impl Request {
    fn number(&self) -> u64 {
        let sender = self.0.as_ref().map(|(sender, _)| sender);
        sender.and_then(Sending::id).unwrap_or_default()
    }

    /// Sends the request's `fields`, and waits for the head of the answer.
    async fn send(&mut self, fields: Vec<u8>, shared: &Shared) -> Result<Parts, NoStream> {
        let Some((sender, receiver)) = &mut self.0 else {
            return Err(NoStream::Lost);
        };
        sender.say(fields).await.map_err(not_sent)?;
        let mut frames = Frames::new(&shared.budget);
        loop {
            let frame = frames.next(receiver.stream()).await;
            let frame = frame.map_err(|cut| not_answered(cut, &shared.traffic))?;
            let frame = frame.ok_or_else(|| {
                refused("the peer ended the request's stream without a response".to_owned())
            })?;
            if frame.kind != frame::HEADERS {
                let broken =
                    frame::unexpected("the peer's response does not begin with a HEADERS frame");
                return Err(not_answered(broken.into(), &shared.traffic));
            }
            let fields = qpack::decode(&frame.body).map_err(|unreadable| match unreadable {
                qpack::Unreadable::TooLarge => not_answered(Cut::TooLong, &shared.traffic),
                qpack::Unreadable::Malformed => not_answered(UNREADABLE.into(), &shared.traffic),
            })?;
            let head = message::answer(fields).map_err(|message::Malformed| {
                refused("the response to CONNECT is malformed".to_owned())
            })?;
            // The final answer follows an informational answer (section 4.1).
            if !head.status.is_informational() {
                return Ok(head);
            }
            let counted = shared.budget.overhead.count();
            counted.map_err(|excessive| not_answered(excessive.into(), &shared.traffic))?;
        }
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        if let Some((sender, receiver)) = &mut self.0 {
            sender.reject(code::REQUEST_CANCELLED);
            receiver.reject(code::REQUEST_CANCELLED);
        }
    }
}

/// The peer did not send SETTINGS in time.
const NO_SETTINGS: Broken = Broken {
    code: code::MISSING_SETTINGS,
    problem: "the peer did not send the SETTINGS of HTTP/3 in time",
};

const UNREADABLE: Broken = Broken {
    code: code::QPACK_DECOMPRESSION_FAILED,
    problem: "the peer sent fields that are malformed, or that refer to QPACK's dynamic table, whose capacity is 0",
};

/// Waits until a GOAWAY of the peer excludes the request with this `number`.
async fn leaves(mut taken_below: watch::Receiver<u64>, number: u64) {
    if taken_below
        .wait_for(|below| *below <= number)
        .await
        .is_err()
    {
        // The link has ended, and its connection reports the reason.
        std::future::pending::<()>().await;
    }
}

fn refused(text: String) -> NoStream {
    NoStream::Refused(Refusal::new(Reason::General, text))
}

/// Why the stream was not opened, if the connection ended before the answer. Before the answer,
/// this side has sent only the request. If the peer ended the connection without an error, another
/// session may retry the request.
fn not_opened(error: &ConnectionError) -> NoStream {
    match error {
        ConnectionError::ApplicationClosed(close) if close.error_code == code::NO_ERROR => {
            NoStream::NotTaken
        }
        _ => NoStream::Lost,
    }
}

fn not_sent(error: WriteError) -> NoStream {
    match error {
        WriteError::Stopped(code) => not_taken(code),
        WriteError::ConnectionLost(error) => not_opened(&error),
        WriteError::ClosedStream | WriteError::ZeroRttRejected => NoStream::Lost,
    }
}

fn not_answered(cut: Cut, traffic: &Traffic) -> NoStream {
    match cut {
        Cut::Peer(code) => not_taken(code),
        Cut::TooLong => refused(format!(
            "the fields of the response to CONNECT have more than {FIELD_BYTES_MAX} bytes"
        )),
        Cut::Broken(broken) => {
            traffic.break_off(broken);
            NoStream::Lost
        }
        Cut::Connection(error) => not_opened(&error),
    }
}

/// Why the stream was not opened, if the peer cut it with this code.
fn not_taken(code: VarInt) -> NoStream {
    match code {
        code::REQUEST_REJECTED => NoStream::NotTaken,
        code => refused(format!(
            "the peer reset the request, code {:#x}",
            code.into_inner()
        )),
    }
}

fn end_of(error: ConnectionError) -> SessionEnd {
    match error {
        ConnectionError::LocallyClosed => SessionEnd::Closed,
        ConnectionError::ApplicationClosed(close) if close.error_code == code::NO_ERROR => {
            SessionEnd::Closed
        }
        ConnectionError::ApplicationClosed(close) => {
            SessionEnd::Protocol(SessionError::ClosedByPeer {
                code: close.error_code.into_inner(),
                reason: String::from_utf8_lossy(&close.reason).into_owned(),
            })
        }
        error => KeyRefusal::of_quic(error).into(),
    }
}

#[cfg(test)]
mod tests;
