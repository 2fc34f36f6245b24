//! Metrics of IP packets.

use std::fmt;

use super::{Page, Snapshot, by, directions};

impl Snapshot {
    pub(super) fn encode_packets(&self, page: &mut Page<'_>) -> fmt::Result {
        let Some(packets) = &self.status.packets else {
            return Ok(());
        };
        page.family(
            "muxgate_packets",
            "IP packets carried",
            directions(packets.sent, packets.received, &[]),
        )?;
        page.family(
            "muxgate_packet_bytes",
            "Bytes of carried IP packets",
            directions(packets.bytes_sent, packets.bytes_received, &[]),
        )?;
        page.family(
            "muxgate_packet_drops",
            "IP packets dropped",
            by("reason", &packets.drops, &[]),
        )?;
        let help = "IP packets marked by ECN";
        page.counter("muxgate_packet_marks", help, packets.marks)?;
        let help = "IP packets handed to the session of another worker";
        page.counter("muxgate_packet_handovers", help, packets.handed)?;
        let help = "Sessions that carry IP packets";
        page.gauge("muxgate_packet_sessions", help, packets.sessions.into())
    }
}
