//! The metrics of the peers that an exit lists. At most `PEERS_MAX` peers have samples.

use muxtunnel_gateway_config::status::Streams;
use prometheus_client::encoding::DescriptorEncoder;

use super::{Labels, Snapshot, by, counter, family, gauge, payload};

impl Snapshot {
    fn listed(&self) -> impl Iterator<Item = (Labels<'_>, &Streams)> {
        let peers = self.peer_streams.iter();
        peers.map(|(identity, streams)| (vec![("peer", identity.as_str())], streams))
    }

    pub(super) fn encode_listed(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
    ) -> Result<(), std::fmt::Error> {
        family(
            encoder,
            ("muxgate_peer_streams_open", "Open streams of a peer"),
            self.listed()
                .map(|(labels, streams)| gauge(labels, streams.open as f64)),
        )?;
        family(
            encoder,
            ("muxgate_peer_streams_opened", "Opened streams of a peer"),
            self.listed()
                .map(|(labels, streams)| counter(labels, streams.opened)),
        )?;
        family(
            encoder,
            (
                "muxgate_peer_refused",
                "Streams and carriers of a peer that its limits refused, by code",
            ),
            self.listed()
                .flat_map(|(labels, streams)| by("code", &streams.refused, &labels)),
        )?;
        family(
            encoder,
            (
                "muxgate_peer_payload_bytes",
                "Payload bytes of a peer between local sockets and carriers",
            ),
            self.listed()
                .flat_map(|(labels, streams)| payload(streams, &labels)),
        )
    }
}
