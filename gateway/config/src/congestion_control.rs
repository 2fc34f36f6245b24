//! The congestion control of carriers.

use serde::{Deserialize, Serialize};

/// Congestion control of carriers. Auto: Cubic with protocols QUIC and HTTP3, and on paths with a
/// round-trip time below 1 ms; otherwise the default of the kernel. Cubic: reduces the rate after
/// packet loss. BBR: sets the rate by the measured bandwidth and round-trip time. For carriers over
/// TCP, the kernel must support BBR. Default: Auto.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub enum CongestionControl {
    /// Cubic with protocols QUIC and HTTP3, and on paths with a round-trip time below 1 ms;
    /// otherwise the default of the kernel.
    #[default]
    Auto,
    /// CUBIC, which reduces the rate after packet loss. The usual default of Linux.
    Cubic,
    /// BBR, which sets the rate by the measured bandwidth and round-trip time. For carriers over
    /// TCP, the kernel must support BBR.
    #[serde(rename = "BBR")]
    Bbr,
}
