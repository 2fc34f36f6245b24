//! The metrics of carriers: their number, and the paths, the throughput and the bottlenecks of each
//! peer.

use muxtunnel_gateway_config::status::Limit;
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

    /// The paths of each peer's carriers.
    pub(super) fn encode_paths(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
    ) -> Result<(), std::fmt::Error> {
        let peers = || self.peers.iter();
        family(
            encoder,
            (
                "muxgate_carrier_rtt_seconds",
                "Smoothed round-trip time, mean of the peer's carriers",
            ),
            peers().filter_map(|(peer, figures)| {
                let rtt = figures.round_trip()?.as_secs_f64();
                Some(gauge(vec![("peer", peer)], rtt))
            }),
        )?;
        family(
            encoder,
            (
                "muxgate_carrier_congestion_control",
                "1: carriers of the peer use the congestion control that the label algorithm names",
            ),
            peers().flat_map(|(peer, figures)| {
                let algorithms = figures.congestion_controls.iter();
                algorithms
                    .map(|algorithm| gauge(vec![("peer", peer), ("algorithm", algorithm)], 1.0))
            }),
        )?;
        family(
            encoder,
            (
                "muxgate_carrier_retransmits",
                "Retransmitted segments; with QUIC and HTTP/3, lost packets",
            ),
            peers()
                .filter(|(_, figures)| figures.has_path() || figures.total.retransmits > 0)
                .map(|(peer, figures)| counter(vec![("peer", peer)], figures.total.retransmits)),
        )
    }

    /// Bytes, credit and bottleneck times of each peer's carriers.
    pub(super) fn encode_peers(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
    ) -> Result<(), std::fmt::Error> {
        let peers = || self.peers.iter();
        family(
            encoder,
            (
                "muxgate_carrier_bytes",
                "Bytes that the carriers of the peer transferred",
            ),
            peers().flat_map(|(peer, figures)| {
                let total = &figures.total;
                [("sent", total.sent), ("received", total.received)].map(|(direction, bytes)| {
                    counter(vec![("peer", peer), ("direction", direction)], bytes)
                })
            }),
        )?;
        family(
            encoder,
            (
                "muxgate_carrier_receive_budget_bytes",
                "Receive memory in use, in bytes: payload that local sockets have not accepted; with JMUX, plus the credit that the peer has not used",
            ),
            peers().map(|(peer, figures)| gauge(vec![("peer", peer)], figures.budget_used as f64)),
        )?;
        family(
            encoder,
            (
                "muxgate_carrier_limited_seconds",
                "Time that the carriers of the peer spent at each bottleneck",
            ),
            peers().flat_map(|(peer, figures)| {
                Limit::ALL.into_iter().map(move |limit| {
                    let seconds = figures.total.limited_seconds.get(&limit).copied();
                    let labels = vec![("peer", peer.as_str()), ("limit", limit.as_str())];
                    (labels, ConstCounter::new(seconds.unwrap_or_default()))
                })
            }),
        )
    }
}
