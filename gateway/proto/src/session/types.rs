//! What crosses the border between a session and its driver.

use std::ops::Range;

use super::Source;
use crate::{jmux, native};

/// A stream, as this side numbers it. In JMUX it is the local channel id (32 bits), in the native
/// protocol the number that both sides know (48 bits).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub(crate) u64);

impl StreamId {
    /// The number, for logs.
    #[must_use]
    pub const fn number(self) -> u64 {
        self.0
    }
}

/// Who goes first among the streams of a session, in what each side sends.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Priority {
    /// By what it sends: ahead of bulk while that is little.
    #[default]
    Auto,
    /// Ahead of bulk, however much it sends.
    Interactive,
    /// Bulk from its first byte.
    Bulk,
}

impl Priority {
    /// The number on the wire of the native protocol.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::Auto => 0,
            Self::Interactive => 1,
            Self::Bulk => 2,
        }
    }

    /// The class of a number on the wire; one that is not known says nothing.
    #[must_use]
    pub const fn from_code(code: u8) -> Self {
        match code {
            1 => Self::Interactive,
            2 => Self::Bulk,
            _ => Self::Auto,
        }
    }
}

/// A carrier connection of a session, as this side numbers it: in the order in which they were added,
/// never used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct CarrierId(pub(crate) u32);

impl CarrierId {
    /// The carrier that a session begins with; of a JMUX session, the only one.
    pub const FIRST: Self = Self(0);

    /// The number, for logs.
    #[must_use]
    pub const fn number(self) -> u32 {
        self.0
    }
}

/// The driver's name of a buffer (or pipe) that holds payload to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Token(pub u64);

/// What [`super::Session::handle_header`] found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Header {
    /// Not a whole header or control frame: read until there are `needed` bytes.
    Incomplete {
        /// Bytes in all, counted from the first unread one; at most 65,535.
        needed: usize,
    },
    /// A control frame was handled; skip its bytes.
    Control {
        /// Bytes of the frame.
        consumed: usize,
    },
    /// A payload header; skip its bytes, then move the payload.
    Payload {
        /// Bytes of the header.
        consumed: usize,
        /// What follows.
        receive: Receive,
    },
}

/// Announced payload that is still on the carrier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Receive {
    /// Where it arrives.
    pub carrier: CarrierId,
    /// Where in its stream the next byte of it belongs. Over several carriers, what is before it may
    /// come later.
    pub offset: u64,
    /// Bytes left of it.
    pub length: usize,
    /// The stream whose socket it is for; `None`: throw it away (the stream is closed).
    pub stream: Option<StreamId>,
}

/// A frame to write to a carrier.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Transmit {
    /// A whole control frame.
    Control {
        /// The carrier.
        carrier: CarrierId,
        /// The frame's bytes.
        bytes: Vec<u8>,
    },
    /// A header, to be followed by payload of the driver's.
    Data {
        /// The carrier.
        carrier: CarrierId,
        /// The header's bytes.
        header: FrameHeader,
        /// The payload behind it.
        payload: Payload,
    },
    /// The same, of a batch that was transmitted before: a part of one frame that a lost carrier did
    /// not deliver. The header goes in front of these bytes alone; the buffer's other frames stay as
    /// they are.
    Again {
        /// The carrier.
        carrier: CarrierId,
        /// The header's bytes.
        header: FrameHeader,
        /// The payload behind it.
        payload: Payload,
    },
}

/// Most bytes of a payload header of any protocol.
pub const HEADER_BYTES_MAX: usize = 16;

/// The header of a payload frame, in place: every protocol's fits [`HEADER_BYTES_MAX`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameHeader {
    bytes: [u8; HEADER_BYTES_MAX],
    length: u8,
}

impl FrameHeader {
    pub(crate) fn new<const N: usize>(header: [u8; N]) -> Self {
        const { assert!(N <= HEADER_BYTES_MAX) };
        let mut bytes = [0; HEADER_BYTES_MAX];
        bytes[..N].copy_from_slice(&header);
        Self {
            bytes,
            length: N as u8,
        }
    }
}

impl std::ops::Deref for FrameHeader {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }
}

/// Payload in the driver's hands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Payload {
    /// Its stream.
    pub stream: StreamId,
    /// Its buffer.
    pub token: Token,
    /// Which bytes of what was announced by `source_ready`.
    pub range: Range<usize>,
    /// It is the batch's last frame; the stream takes the next batch.
    pub last: bool,
    /// It may be asked for again: the batch has to be kept until [`super::Session::poll_released`] names
    /// its token.
    pub retained: bool,
}

/// What a stream takes from its local socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SendCapacity {
    /// Bytes; zero while a batch waits or credit is used up.
    pub bytes: u64,
    /// Header of a payload frame, bytes.
    pub header_bytes: usize,
    /// Payload of one full frame, bytes.
    pub payload_max: usize,
    /// The batch may be asked for again: [`Payload::retained`].
    pub retained: bool,
    /// More than half of what may be retained is: a batch should take no more memory than it has bytes.
    pub retain_scarce: bool,
}

/// Where the credit of one stream is, bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CreditView {
    /// The peer's number of the stream.
    pub peer: u64,
    /// We may still send.
    pub send: u64,
    /// The peer may still send.
    pub recv: u64,
    /// Received, not taken by the local socket.
    pub buffered: u64,
    /// Taken, not given back yet.
    pub owed: u64,
}

/// What the application side must know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The session is established: streams can be opened.
    Ready,
    /// The carrier's hello is over. The first one's comes with [`Event::Ready`].
    CarrierUp {
        /// The carrier.
        carrier: CarrierId,
    },
    /// The carrier is of no more use: close it once what waits for it is transmitted. Nothing of it is
    /// read any more. Then it is lost, as any that ends.
    CarrierEnded {
        /// The carrier.
        carrier: CarrierId,
        /// For people.
        reason: String,
    },
    /// The carrier was retired in order: close it. Nothing of it is read any more.
    CarrierRetired {
        /// The carrier.
        carrier: CarrierId,
    },
    /// What the peer sends could use this many carriers. Any number; who dials has a bound of its own.
    CarriersWanted {
        /// Carriers.
        count: u32,
    },
    /// The peer takes no more streams; those that are open go on.
    GoAway,
    /// The peer asks for a stream: answer by `accept` or `refuse`.
    Incoming {
        /// The stream.
        stream: StreamId,
        /// Destination URL as the peer wrote it.
        target: String,
        /// What the target is to be told before anything else.
        source: Option<Source>,
    },
    /// Our open succeeded; payload may flow.
    Opened {
        /// The stream.
        stream: StreamId,
        /// What the peer connected to; empty where the protocol does not say.
        address: String,
    },
    /// Our open failed; the stream is gone.
    OpenFailed {
        /// The stream.
        stream: StreamId,
        /// Why.
        refusal: Refusal,
    },
    /// The peer goes away, and did not and will not take our open, or the session ended before the open left: nothing
    /// of the stream has come anywhere, and it may be opened on another session. Here it is gone.
    OpenReturned {
        /// The stream.
        stream: StreamId,
    },
    /// The peer asks this side to listen: answer by `listening` or `end_listen`.
    ListenAsked {
        /// The listener.
        listen: ListenId,
        /// `ADDRESS:PORT` as the peer wrote it.
        address: String,
        /// Of its streams.
        priority: Priority,
    },
    /// The peer does not want it any more.
    ListenGivenUp {
        /// The listener.
        listen: ListenId,
    },
    /// The peer listens.
    Listening {
        /// The listener.
        listen: ListenId,
        /// On what, as the peer says it.
        address: String,
    },
    /// The peer does not listen, or not any more; it may be asked again.
    ListenEnded {
        /// The listener.
        listen: ListenId,
        /// Why.
        refusal: Refusal,
    },
    /// There is credit again.
    Writable {
        /// The stream.
        stream: StreamId,
    },
    /// The peer has no more payload: once all of it is delivered, shut the local socket's write side.
    Finished {
        /// The stream.
        stream: StreamId,
    },
    /// The stream was cut: deliver what came, then reset the local socket.
    Reset {
        /// The stream.
        stream: StreamId,
        /// By what.
        cause: Outcome,
    },
}

/// Longest address that can be asked to be listened on, bytes.
pub const LISTEN_ADDRESS_LENGTH_MAX: usize = 64;

/// A listener that one side asked the other for, by a number that is used once in a session; at least 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ListenId(pub(crate) u32);

impl ListenId {
    /// The number, for logs.
    #[must_use]
    pub const fn number(self) -> u32 {
        self.0
    }
}

const LISTEN_TARGET: &str = "listen://";

/// What the streams of a listener ask for: who asked to listen knows where they lead.
#[must_use]
pub fn listen_target(listen: ListenId) -> String {
    format!("{LISTEN_TARGET}{}", listen.0)
}

/// The listener whose stream asks for `target`.
#[must_use]
pub fn listen_of_target(target: &str) -> Option<ListenId> {
    let number = target.strip_prefix(LISTEN_TARGET)?;
    let canonical = number.bytes().all(|b| b.is_ascii_digit()) && !number.starts_with('0');
    let listen = number.parse().ok().filter(|_| canonical);
    listen.map(ListenId)
}

/// Why a listener could not be asked for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ListenError {
    /// The hello is not over.
    #[error("the session is not established yet")]
    NotReady,
    /// The protocol has no word for it, or the peer did not agree to it.
    #[error("the other side does not listen for its peers; is it an older version?")]
    Unsupported,
    /// As many as may be are asked for.
    #[error("the session asks for as many listeners as it may")]
    TooMany,
    /// It would not fit a LISTEN.
    #[error("the address has {length} bytes, 1 to {LISTEN_ADDRESS_LENGTH_MAX} are possible")]
    AddressTooLong {
        /// Bytes.
        length: usize,
    },
}

/// What cut a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It was cut for this reason, by the peer but for [`ResetCode::OffsetsExhausted`].
    PeerReset(ResetCode),
    /// Its carrier ended.
    CarrierLost,
    /// The peer sent more than its credit, or raised ours beyond what the protocol can count.
    PeerBrokeCredit,
    /// Its local socket took nothing for too long while other streams waited for the session's credit: nothing of
    /// what came is delivered.
    Stalled,
}

/// Why an open stream is cut: the code of RESET_STREAM and STOP_SENDING (docs/protocol.md). JMUX
/// names no reason; there it is [`ResetCode::Cancelled`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResetCode {
    /// The local socket was reset or failed.
    Cancelled,
    /// No byte moved for the idle time-out.
    IdleTimeout,
    /// One half had ended and no byte moved for the half-open time-out.
    HalfOpenTimeout,
    /// The gateway shuts down.
    Draining,
    /// The open was not answered in time.
    OpenTimeout,
    /// 2^48 bytes have been sent on the stream.
    OffsetsExhausted,
    /// It was never opened, since that side goes away: it may be opened elsewhere.
    NotTaken,
    /// Its socket took nothing for too long while other streams waited for the session's credit.
    Stalled,
    /// It was never opened: the refusal, as answered to an open.
    Refused(Reason),
    /// Any other number.
    Other(u16),
}

impl ResetCode {
    /// The number on the wire of the native protocol.
    #[must_use]
    pub fn code(self) -> u16 {
        match self {
            Self::Cancelled => 1,
            Self::IdleTimeout => 2,
            Self::HalfOpenTimeout => 3,
            Self::Draining => 4,
            Self::OpenTimeout => 5,
            Self::OffsetsExhausted => 6,
            Self::NotTaken => 7,
            Self::Stalled => 8,
            Self::Refused(reason) => REFUSED | (reason.code().min(0xff) as u16),
            Self::Other(code) => code,
        }
    }

    /// The class of a number on the wire.
    #[must_use]
    pub fn from_code(code: u16) -> Self {
        match code {
            1 => Self::Cancelled,
            2 => Self::IdleTimeout,
            3 => Self::HalfOpenTimeout,
            4 => Self::Draining,
            5 => Self::OpenTimeout,
            6 => Self::OffsetsExhausted,
            7 => Self::NotTaken,
            8 => Self::Stalled,
            0x100..=0x1ff => Self::Refused(Reason::from_code(u32::from(code & 0xff))),
            code => Self::Other(code),
        }
    }
}

/// Codes of refused opens: this, and SOCKS5's reply number.
const REFUSED: u16 = 0x100;

/// Why a stream was not opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The class.
    pub reason: Reason,
    /// For people.
    pub description: String,
}

impl Refusal {
    /// A refusal.
    #[must_use]
    pub fn new(reason: Reason, description: impl Into<String>) -> Self {
        Self {
            reason,
            description: description.into(),
        }
    }
}

/// Classes of refusal: SOCKS5's reply numbers (RFC 1928, section 6), which JMUX uses too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// 1.
    General,
    /// 2: not allowed by the rules.
    NotAllowed,
    /// 3.
    NetworkUnreachable,
    /// 4: host unreachable, or a name without addresses.
    HostUnreachable,
    /// 5.
    ConnectionRefused,
    /// 6 (TTL expired there, timed out here).
    TimedOut,
    /// 8: address or scheme not supported.
    AddressType,
    /// Any other number.
    Other(u32),
}

impl Reason {
    /// The number on the wire.
    #[must_use]
    pub const fn code(self) -> u32 {
        match self {
            Self::General => 1,
            Self::NotAllowed => 2,
            Self::NetworkUnreachable => 3,
            Self::HostUnreachable => 4,
            Self::ConnectionRefused => 5,
            Self::TimedOut => 6,
            Self::AddressType => 8,
            Self::Other(code) => code,
        }
    }

    /// The class of a number on the wire.
    #[must_use]
    pub const fn from_code(code: u32) -> Self {
        match code {
            1 => Self::General,
            2 => Self::NotAllowed,
            3 => Self::NetworkUnreachable,
            4 => Self::HostUnreachable,
            5 => Self::ConnectionRefused,
            6 => Self::TimedOut,
            8 => Self::AddressType,
            code => Self::Other(code),
        }
    }
}

/// Why an open was not even sent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// The hello is not over.
    #[error("the session is not established yet")]
    NotReady,
    /// The peer said that it goes away.
    #[error("the other side is shutting down and takes no more streams")]
    GoingAway,
    /// Our table is full.
    #[error("the session is at its limit of {streams_max} streams")]
    TooManyStreams {
        /// The limit.
        streams_max: u32,
    },
    /// The peer's table is full.
    #[error("the other side takes no more than {streams_max} streams at once")]
    PeerStreamLimit {
        /// Its limit.
        streams_max: u64,
    },
    /// Every byte of the receive budget is granted.
    #[error(
        "the session's receive budget of {receive_budget} bytes has no room for another stream"
    )]
    BudgetExhausted {
        /// Bytes.
        receive_budget: u64,
    },
    /// The peer cannot tell targets who their clients are.
    #[error("the other side does not tell targets who their clients are")]
    NoSources,
    /// It would not fit an OPEN that peers accept.
    #[error("the target has {length} bytes, at most {TARGET_LENGTH_MAX} are possible")]
    TargetTooLong {
        /// Bytes.
        length: usize,
    },
}

/// Longest target URL, bytes, in both protocols.
pub const TARGET_LENGTH_MAX: usize = 1024;

/// Why a session cannot go on. The driver gives up the carrier.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SessionError {
    /// The carrier's bytes are not JMUX.
    #[error(transparent)]
    Jmux(#[from] jmux::DecodeError),
    /// The peer makes us answer faster than it reads.
    #[error("the peer sent more than 1024 frames that need an answer without reading the answers")]
    TooManyOrphans,
    /// The carrier's bytes are not the native protocol.
    #[error(transparent)]
    Native(#[from] native::DecodeError),
    /// The peer broke a rule of the native protocol.
    #[error("{code:?}: {problem}")]
    Violation {
        /// What it is told.
        code: native::SessionCode,
        /// Which rule, and how.
        problem: String,
    },
    /// No hello came.
    #[error("the other side did not say hello in time; does it speak the native protocol?")]
    HelloTimeout,
    /// There was no carrier for too long, or the peer did not say how much of a lost one it received.
    #[error("the session could not be resumed in time")]
    ResumeTimeout,
    /// The peer ended the session.
    #[error("the peer ended the session, code {code:#x}: {reason}")]
    ClosedByPeer {
        /// [`native::SessionCode`] as a number.
        code: u64,
        /// Its words.
        reason: String,
    },
}
