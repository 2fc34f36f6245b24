//! Reports the state of a connection's path.

use crate::base::path::{PathInfo, PathProbe};

/// The probe of one connection, for another thread.
#[derive(Debug)]
pub(super) struct Probe {
    pub(super) quic: quinn::Connection,
    pub(super) congestion_control: &'static str,
}

impl PathProbe for Probe {
    fn info(&self) -> Option<PathInfo> {
        if self.quic.close_reason().is_some() {
            return None;
        }
        let path = self.quic.stats().path;
        let packet = u64::from(path.current_mtu.max(1));
        Some(PathInfo {
            rtt: path.rtt,
            rtt_min: path.min_rtt,
            congestion_window: u32::try_from(path.cwnd / packet).unwrap_or(u32::MAX),
            // quinn retransmits the data of each lost packet in another packet.
            retransmits: path.lost_packets,
            ..PathInfo::default()
        })
    }

    fn congestion_control(&self) -> Option<String> {
        Some(self.congestion_control.to_owned())
    }
}
