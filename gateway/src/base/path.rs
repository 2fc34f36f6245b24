//! The figures of a carrier's transport about its path, for any transport.
//!
//! The fields correspond to those of TCP_INFO (tcp(7)), since most paths are TCP connections. A
//! transport that lacks a figure reports zero or `None` for the figure.

use std::fmt::Debug;
use std::time::Duration;

/// A peer that owes an answer for this long, and for [`ROUND_TRIPS_MAX`] round trips, does not
/// answer.
pub(crate) const ANSWER_MAX: Duration = Duration::from_millis(500);
/// See [`ANSWER_MAX`]. Transports retransmit or probe after about three round trips, so two
/// retransmissions may be lost.
pub(crate) const ROUND_TRIPS_MAX: u32 = 10;
/// Number of retransmissions or probes in a row without an answer after which a peer may count as
/// one that does not answer.
const UNANSWERED_MAX: u32 = 2;

/// The current state of a path.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct PathInfo {
    /// Smoothed round trip time.
    pub(crate) rtt: Duration,
    /// Minimum round trip time.
    pub(crate) rtt_min: Duration,
    /// Recently acknowledged bytes per second; 0: unknown. While the application offers less than
    /// the path can take, the value is the highest measurement.
    pub(crate) rate: u64,
    /// Whether `rate` was measured while the application offered less than the path can take.
    pub(crate) app_limited: bool,
    /// Number of bytes in the send buffer that have not been sent yet.
    pub(crate) queued: u32,
    /// Congestion window in segments.
    pub(crate) congestion_window: u32,
    /// Number of retransmitted segments.
    pub(crate) retransmits: u64,
    /// Number of segments that arrived before an earlier segment. Usually the earlier segment was
    /// lost. 0 before Linux 5.4.
    pub(crate) out_of_order: u64,
    /// Number of segments that were sent and not acknowledged.
    pub(crate) unacknowledged: u32,
    /// Number of bytes that the peer has acknowledged.
    pub(crate) acknowledged: u64,
    /// Number of consecutive retransmissions or probes that the peer has not answered. 0: the
    /// transport does not report the number.
    pub(crate) unanswered: u32,
    /// Time since the peer's last acknowledgement; `None`: unknown.
    pub(crate) silent: Option<Duration>,
    /// How the sender spent its time; `None`: unknown, as on kernels before Linux 4.10.
    pub(crate) sending: Option<SendTimes>,
}

impl PathInfo {
    /// Whether the peer has not answered for longer than the path needs.
    pub(crate) fn is_overdue(&self) -> bool {
        let needed = ANSWER_MAX.max(self.rtt * ROUND_TRIPS_MAX);
        self.unanswered >= UNANSWERED_MAX && self.silent.is_some_and(|silent| silent >= needed)
    }
}

/// How the sender spent the time since the connection came up.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct SendTimes {
    /// Time with bytes to send or unacknowledged bytes; includes `window_limited` and
    /// `send_buffer_limited`.
    pub(crate) busy: Duration,
    /// Time in which the peer's receive window had no room.
    pub(crate) window_limited: Duration,
    /// Time in which the send buffer had no room although all bytes in it were sent.
    pub(crate) send_buffer_limited: Duration,
}

/// Queries a path from a thread other than the thread of its transport. The probe may outlive the
/// transport.
pub(crate) trait PathProbe: Debug + Send + Sync {
    /// The current state; `None`: the path no longer exists.
    fn info(&self) -> Option<PathInfo>;

    /// The name of the congestion control; `None`: unknown.
    fn congestion_control(&self) -> Option<String>;
}
