//! Metrics of IP packets.

use prometheus_client::encoding::DescriptorEncoder;

use super::{Snapshot, by, counter, family, gauge};

impl Snapshot {
    pub(super) fn encode_packets(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
    ) -> Result<(), std::fmt::Error> {
        let Some(packets) = &self.status.packets else {
            return Ok(());
        };
        let directions = |sent, received| {
            [("sent", sent), ("received", received)]
                .map(|(direction, value)| counter(vec![("direction", direction)], value))
        };
        family(
            encoder,
            ("muxgate_packets", "IP packets carried"),
            directions(packets.sent, packets.received),
        )?;
        family(
            encoder,
            ("muxgate_packet_bytes", "Bytes of carried IP packets"),
            directions(packets.bytes_sent, packets.bytes_received),
        )?;
        family(
            encoder,
            ("muxgate_packet_drops", "IP packets dropped"),
            by("reason", &packets.drops, &[]),
        )?;
        family(
            encoder,
            ("muxgate_packet_marks", "IP packets marked by ECN"),
            [counter(vec![], packets.marks)],
        )?;
        family(
            encoder,
            (
                "muxgate_packet_handovers",
                "IP packets handed to the session of another worker",
            ),
            [counter(vec![], packets.handed)],
        )?;
        family(
            encoder,
            ("muxgate_packet_sessions", "Sessions that carry IP packets"),
            [gauge(vec![], packets.sessions.into())],
        )
    }
}
