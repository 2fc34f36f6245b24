//! The metrics of carriers: how many there are, their paths, and what each of them moved and waited for.

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
            ("muxgate_carriers", "Carriers up"),
            [gauge(vec![], carriers.len() as f64)],
        )?;
        family(
            encoder,
            (
                "muxgate_carriers_lost",
                "Carriers that have ended, but for those that were retired",
            ),
            [counter(vec![], self.carriers_lost)],
        )?;
        family(
            encoder,
            (
                "muxgate_carriers_retired",
                "Carriers that ended in order, since fewer were needed",
            ),
            [counter(vec![], self.carriers_retired)],
        )
    }

    /// The path of each carrier, by its other end, as far as the kernel knows it.
    pub(super) fn encode_paths(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
    ) -> Result<(), std::fmt::Error> {
        let carriers = &self.status.carriers;
        family(
            encoder,
            (
                "muxgate_carrier_rtt_seconds",
                "Smoothed round-trip time (TCP_INFO)",
            ),
            carriers
                .iter()
                .filter(|c| has_path(c))
                .map(|c| gauge(vec![("peer", c.peer.as_str())], c.rtt_milliseconds / 1e3)),
        )?;
        family(
            encoder,
            (
                "muxgate_carrier_congestion_control",
                "1: the congestion control in force",
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
                "Segments retransmitted (TCP_INFO)",
            ),
            carriers
                .iter()
                .filter(|c| has_path(c))
                .map(|c| counter(vec![("peer", c.peer.as_str())], c.retransmits)),
        )
    }

    /// What each carrier moved, holds and waited for, by its other end.
    pub(super) fn encode_peers(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
    ) -> Result<(), std::fmt::Error> {
        let carriers = &self.status.carriers;
        family(
            encoder,
            ("muxgate_carrier_bytes", "Bytes on a carrier"),
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
                "Credit granted plus payload buffered",
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
                "Time by what limited a carrier",
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

/// Whether the kernel knows something of its path: it runs on TCP.
fn has_path(carrier: &Carrier) -> bool {
    !carrier.congestion_control.is_empty()
}
