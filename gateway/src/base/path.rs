//! What a carrier's transport knows of its path, whatever it is made of.
//!
//! The names are those of TCP_INFO (tcp(7)), since a TCP connection is the usual path; a transport that has no such figure
//! leaves it at zero or `None`.

use std::fmt::Debug;
use std::time::Duration;

/// A path as of now.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct PathInfo {
    /// Smoothed round-trip time.
    pub(crate) rtt: Duration,
    /// Least round-trip time seen.
    pub(crate) rtt_min: Duration,
    /// Bytes a second that the peer acknowledged of late; the most that was measured, where less was
    /// offered than the path could take. 0: not known.
    pub(crate) rate: u64,
    /// Whether that rate is of a time when less was offered than the path could take.
    pub(crate) app_limited: bool,
    /// Bytes in the send buffer that have not been sent once.
    pub(crate) queued: u32,
    /// Congestion window, segments.
    pub(crate) congestion_window: u32,
    /// Segments retransmitted.
    pub(crate) retransmits: u64,
    /// Segments that came before one that was sent earlier: that one was lost, as a rule. 0 before Linux 5.4.
    pub(crate) out_of_order: u64,
    /// Segments sent and not acknowledged.
    pub(crate) unacknowledged: u32,
    /// Bytes that the peer has acknowledged.
    pub(crate) acknowledged: u64,
    /// `None`: not known, as on kernels before Linux 4.10.
    pub(crate) sending: Option<SendTimes>,
}

/// What the time since the connection came up went to, as its sender.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct SendTimes {
    /// Something was to be sent or not acknowledged yet; the next two included.
    pub(crate) busy: Duration,
    /// More was to be sent than the peer's receive window had room for.
    pub(crate) window_limited: Duration,
    /// All was sent, more was there, and the send buffer had no room for it.
    pub(crate) send_buffer_limited: Duration,
}

/// Asks for a path from another thread than its transport's. It may outlive the transport.
pub(crate) trait PathProbe: Debug + Send + Sync {
    /// The path as of now; `None`: it is gone.
    fn info(&self) -> Option<PathInfo>;

    /// The name of its congestion control; `None`: it is not known.
    fn congestion_control(&self) -> Option<String>;
}
