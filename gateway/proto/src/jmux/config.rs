//! The bounds of a JMUX session.

use std::time::Duration;

use super::codec::PACKET_SIZE_DEFAULT;

/// Bounds of one session.
#[derive(Debug, Clone, Copy)]
pub struct JmuxConfig {
    /// Maximum number of concurrent streams.
    pub streams_max: u32,
    /// Upper bound of granted credit plus buffered payload, in bytes. At least `streams_max` x
    /// [`WINDOW_BYTES_MIN`](super::credit::WINDOW_BYTES_MIN), so that every stream can have a window.
    pub receive_budget: u64,
    /// Size in bytes of the largest frame that this side sends, and that it offers to receive. The
    /// size includes the header: 9..=65,535.
    pub packet_max: u16,
    /// Maximum time until an open is answered. jetsocat does not answer an open with an unsupported
    /// scheme.
    pub open_timeout: Duration,
}

impl Default for JmuxConfig {
    /// 4,096 streams, a budget of 256 MiB, and jetsocat's packet size. An open may take 15 s,
    /// because a peer may dial for 10 s and the messages take some round trips.
    fn default() -> Self {
        Self {
            streams_max: 4096,
            receive_budget: 256 << 20,
            packet_max: PACKET_SIZE_DEFAULT,
            open_timeout: Duration::from_secs(15),
        }
    }
}
