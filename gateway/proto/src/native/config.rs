//! What a native session is told: its bounds, its name; and the codes that it ends with.

use std::time::Duration;

use super::codec;

/// Why a session ends: the code of SESSION_CLOSE. Names and numbers of RFC 9000, section 20.1, where
/// it has one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub enum SessionCode {
    /// The gateway shuts down, or has no more use for the session.
    NoError = 0x00,
    /// More payload than was granted.
    FlowControlError = 0x03,
    /// More streams than were granted.
    StreamLimitError = 0x04,
    /// A frame for a stream that cannot have it.
    StreamStateError = 0x05,
    /// A final size that is not the one that was, or more payload behind it.
    FinalSizeError = 0x06,
    /// A frame that is not well formed.
    FrameEncodingError = 0x07,
    /// A frame that this moment does not allow.
    ProtocolViolation = 0x0a,
    /// No hello in time.
    HelloTimeout = 0x100,
    /// No version that both sides speak.
    VersionUnsupported = 0x101,
    /// The session to be joined is not known here.
    UnknownSession = 0x102,
    /// More listeners than a session has.
    ListenLimitError = 0x103,
}

/// Bounds of one session.
#[derive(Debug, Clone, Copy)]
pub struct NativeConfig {
    /// Most streams of each side at once.
    pub streams_max: u32,
    /// Bytes of payload received and not taken by local sockets; at least 1 MiB.
    pub receive_budget: u64,
    /// Longest payload of one STREAM frame that is taken, 16 KiB to 1 MiB.
    pub frame_max: u32,
    /// How long an open may stay unanswered.
    pub open_timeout: Duration,
    /// How long the other side's hello may take.
    pub hello_timeout: Duration,
    /// Whether streams outlive their carrier, where the other side agrees. Then what is transmitted is
    /// kept until it is acknowledged, and there may be several carriers.
    pub resume: bool,
    /// Bytes of memory of what is transmitted and not acknowledged, and of what is transmitted next. The
    /// last batch that fits may exceed it by what it holds beyond its payload.
    pub retain: u64,
    /// Whether the side that dials tells its targets who the clients are, where the other side agrees.
    pub sources: bool,
    /// Whether IP packets go beside streams, and the acceptor tells the dialler its addresses, where the other side agrees.
    pub datagrams: bool,
    /// How long a session with streams may be without a carrier.
    pub resume_timeout: Duration,
    /// Whether the dialler may ask the acceptor to listen, where the other side agrees.
    pub listen: bool,
    /// How long the local socket of a stream may take nothing of what came for it while the peer has used up the
    /// session's credit; then the stream is reset. `None`: for ever.
    pub stall_timeout: Option<Duration>,
}

impl Default for NativeConfig {
    /// 4,096 streams in 256 MiB, frames of 1 MiB, 15 s for an open (a peer's dial of 10 s and some
    /// round trips), 5 s for the hello;
    /// resumed within 30 s out of 64 MiB; no sources, no datagrams; 60 s for a stalled stream.
    fn default() -> Self {
        Self {
            streams_max: 4096,
            receive_budget: 256 << 20,
            frame_max: codec::FRAME_BYTES_MAX,
            open_timeout: Duration::from_secs(15),
            hello_timeout: Duration::from_secs(5),
            resume: true,
            retain: 64 << 20,
            sources: false,
            datagrams: false,
            resume_timeout: Duration::from_secs(30),
            listen: true,
            stall_timeout: Some(Duration::from_secs(60)),
        }
    }
}

/// What an acceptor gives a session: both from a cryptographic random source.
#[derive(Clone, Copy)]
pub struct Identity {
    /// The session's name.
    pub session_id: [u8; 16],
    /// What another carrier must show to join it.
    pub token: [u8; 32],
}

impl std::fmt::Debug for Identity {
    /// Without the token.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Identity")
            .field("session_id", &self.session_id)
            .finish_non_exhaustive()
    }
}
