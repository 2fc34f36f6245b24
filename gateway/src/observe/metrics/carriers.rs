//! The metrics of carriers: their number, their paths, their throughput and their bottlenecks.

use muxtunnel_gateway_config::status::{Carrier, Limit};
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::counter::ConstCounter;

use super::{Snapshot, counter, family, gauge};

impl Snapshot {
    pub(super) fn encode_carriers(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
    ) -> Result<(), std::fmt::Error> {
        let carriers = &self.status.carriers;
        family(
            encoder,
            ("muxgate_carriers", "Established carriers"),
            [gauge(vec![], carriers.len() as f64)],
        )?;
        family(
            encoder,
            (
                "muxgate_carriers_lost",
                "Carriers that ended, except retired carriers",
            ),
            [counter(vec![], self.carriers_lost)],
        )?;
        family(
            encoder,
            (
                "muxgate_carriers_retired",
                "Carriers that were closed in order because fewer were needed, or because other carriers replaced them",
            ),
            [counter(vec![], self.carriers_retired)],
        )
    }

    /// The path of each TCP carrier, labelled with its peer.
    pub(super) fn encode_paths(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
    ) -> Result<(), std::fmt::Error> {
        let carriers = &self.status.carriers;
        family(
            encoder,
            ("muxgate_carrier_rtt_seconds", "Smoothed round-trip time"),
            carriers
                .iter()
                .filter(|c| has_path(c))
                .map(|c| gauge(vec![("peer", c.peer.as_str())], c.rtt_milliseconds / 1e3)),
        )?;
        family(
            encoder,
            (
                "muxgate_carrier_congestion_control",
                "1: the carrier uses the congestion control that the label algorithm names",
            ),
            carriers.iter().filter(|c| has_path(c)).map(|c| {
                let algorithm = ("algorithm", c.congestion_control.as_str());
                gauge(vec![("peer", c.peer.as_str()), algorithm], 1.0)
            }),
        )?;
        family(
            encoder,
            (
                "muxgate_carrier_retransmits",
                "Retransmitted segments; with QUIC and HTTP/3, lost packets",
            ),
            carriers
                .iter()
                .filter(|c| has_path(c))
                .map(|c| counter(vec![("peer", c.peer.as_str())], c.retransmits)),
        )
    }

    /// Bytes, credit and bottleneck times of each carrier, labelled with its peer.
    pub(super) fn encode_peers(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
    ) -> Result<(), std::fmt::Error> {
        let carriers = &self.status.carriers;
        family(
            encoder,
            ("muxgate_carrier_bytes", "Bytes that a carrier transferred"),
            carriers.iter().flat_map(|c| {
                [
                    counter(
                        vec![("peer", c.peer.as_str()), ("direction", "sent")],
                        c.bytes_sent,
                    ),
                    counter(
                        vec![("peer", c.peer.as_str()), ("direction", "received")],
                        c.bytes_received,
                    ),
                ]
            }),
        )?;
        family(
            encoder,
            (
                "muxgate_carrier_receive_budget_bytes",
                "Receive memory in use, in bytes: payload that local sockets have not accepted; with JMUX, plus the credit that the peer has not used",
            ),
            carriers.iter().map(|c| {
                gauge(
                    vec![("peer", c.peer.as_str())],
                    c.receive_budget_used as f64,
                )
            }),
        )?;
        family(
            encoder,
            (
                "muxgate_carrier_limited_seconds",
                "Time that a carrier spent at each bottleneck",
            ),
            carriers.iter().flat_map(|c| {
                Limit::ALL.into_iter().map(|limit| {
                    let seconds = c.limited_seconds.get(&limit).copied().unwrap_or_default();
                    let labels = vec![("peer", c.peer.as_str()), ("limit", limit.as_str())];
                    (labels, ConstCounter::new(seconds))
                })
            }),
        )
    }
}

/// Whether the kernel has figures about the carrier's path, as for TCP carriers.
fn has_path(carrier: &Carrier) -> bool {
    !carrier.congestion_control.is_empty()
}
