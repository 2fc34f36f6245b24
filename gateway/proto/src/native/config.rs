//! The bounds and the identity of a native session, and the codes that it ends with.

use std::time::Duration;

use super::codec;

/// Why a session ends: the code of SESSION_CLOSE. If RFC 9000, section 20.1, defines a code, the
/// code has the name and number of the RFC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub enum SessionCode {
    /// The gateway shuts down, or no longer needs the session.
    NoError = 0x00,
    /// The peer sent more payload than it was granted.
    FlowControlError = 0x03,
    /// The peer opened more streams than it was granted.
    StreamLimitError = 0x04,
    /// A frame for a stream whose state does not allow it.
    StreamStateError = 0x05,
    /// A second, different final size, or payload beyond the final size.
    FinalSizeError = 0x06,
    /// A malformed frame.
    FrameEncodingError = 0x07,
    /// A frame that the session does not allow now.
    ProtocolViolation = 0x0a,
    /// The hello did not arrive in time.
    HelloTimeout = 0x100,
    /// The sides have no version in common.
    VersionUnsupported = 0x101,
    /// The carrier names a session that does not exist here.
    UnknownSession = 0x102,
    /// More listeners than a session may have.
    ListenLimitError = 0x103,
}

/// Bounds of one session.
#[derive(Debug, Clone, Copy)]
pub struct NativeConfig {
    /// Maximum number of streams of each side at a time.
    pub streams_max: u32,
    /// Maximum payload that is received and not yet taken by local sockets, in bytes; at least
    /// 1 MiB.
    pub receive_budget: u64,
    /// Longest payload of a STREAM frame that this side accepts, 16 KiB to 1 MiB.
    pub frame_max: u32,
    /// Maximum time until an open is answered. This time, and the times for the hello and for a
    /// session without a carrier, grow with long round trips ([`patience()`](crate::patience())).
    pub open_timeout: Duration,
    /// Maximum time until the peer's hello arrives.
    pub hello_timeout: Duration,
    /// Whether streams survive the loss of a carrier, if the peer agrees. Transmitted frames are
    /// then retained until they are acknowledged, and the session may have several carriers.
    pub resume: bool,
    /// Maximum memory for payload that waits for transmission or acknowledgement, in bytes. The
    /// last batch may exceed the maximum: the session checks that the payload of the batch fits,
    /// but counts all memory of the batch.
    pub retain: u64,
    /// Whether an OPEN may carry the address of the client, if the peer agrees.
    pub sources: bool,
    /// Whether the session carries IP packets and assigned addresses, if the peer agrees.
    pub datagrams: bool,
    /// Maximum time for which a session with streams may have no carrier.
    pub resume_timeout: Duration,
    /// Whether the dialler may ask the acceptor to listen, if the peer agrees.
    pub listen: bool,
    /// If the peer has used up the session's credit and the local socket of a stream takes no
    /// payload for this time, the session resets the stream. `None`: no limit.
    pub stall_timeout: Option<Duration>,
}

impl Default for NativeConfig {
    /// 4,096 streams, a receive budget of 256 MiB, and frames of 1 MiB. An open may take 15 s,
    /// because a peer may dial for 10 s and the messages take some round trips. The hello may take
    /// 5 s, and a stream may stall for 60 s. Resumption may take 30 s, and at most 64 MiB are
    /// retained. Listeners are enabled. Sources and datagrams are disabled.
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

/// What an acceptor assigns to a session. Both values come from a cryptographic random source.
#[derive(Clone, Copy)]
pub struct Identity {
    /// The session's id.
    pub session_id: [u8; 16],
    /// The secret with which another carrier joins the session.
    pub token: [u8; 32],
}

impl std::fmt::Debug for Identity {
    /// Omits the token.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Identity")
            .field("session_id", &self.session_id)
            .finish_non_exhaustive()
    }
}
