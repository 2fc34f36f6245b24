//! The metrics of carriers: their number, and the paths, the throughput and the bottlenecks of each
//! peer.

use std::fmt;

use muxtunnel_gateway_config::status::Limit;
use prometheus_client::metrics::counter::ConstCounter;

use super::{Page, Snapshot, counter, directions, gauge};

impl Snapshot {
    pub(super) fn encode_carriers(&self, page: &mut Page<'_>) -> fmt::Result {
        let carriers = self.status.carriers.len() as f64;
        page.gauge("muxgate_carriers", "Established carriers", carriers)?;
        let help = "Carriers that ended, except retired carriers";
        page.counter("muxgate_carriers_lost", help, self.carriers_lost)?;
        let help = "Carriers that were closed in order because fewer were needed, or because other carriers replaced them";
        page.counter("muxgate_carriers_retired", help, self.carriers_retired)
    }

    /// The paths of each peer's carriers.
    pub(super) fn encode_paths(&self, page: &mut Page<'_>) -> fmt::Result {
        let peers = || self.peers.iter();
        page.family(
            "muxgate_carrier_rtt_seconds",
            "Smoothed round-trip time, mean of the peer's carriers",
            peers().filter_map(|(peer, figures)| {
                let rtt = figures.round_trip()?.as_secs_f64();
                Some(gauge(vec![("peer", peer)], rtt))
            }),
        )?;
        page.family(
            "muxgate_carrier_congestion_control",
            "1: carriers of the peer use the congestion control that the label algorithm names",
            peers().flat_map(|(peer, figures)| {
                let algorithms = figures.congestion_controls.iter();
                algorithms
                    .map(|algorithm| gauge(vec![("peer", peer), ("algorithm", algorithm)], 1.0))
            }),
        )?;
        page.family(
            "muxgate_carrier_retransmits",
            "Retransmitted segments; with QUIC and HTTP/3, lost packets",
            peers()
                .filter(|(_, figures)| figures.has_path() || figures.total.retransmits > 0)
                .map(|(peer, figures)| counter(vec![("peer", peer)], figures.total.retransmits)),
        )
    }

    /// Bytes, credit and bottleneck times of each peer's carriers.
    pub(super) fn encode_peers(&self, page: &mut Page<'_>) -> fmt::Result {
        let peers = || self.peers.iter();
        page.family(
            "muxgate_carrier_bytes",
            "Bytes that the carriers of the peer transferred",
            peers().flat_map(|(peer, figures)| {
                let total = &figures.total;
                directions(total.sent, total.received, &[("peer", peer.as_str())])
            }),
        )?;
        page.family(
            "muxgate_carrier_receive_budget_bytes",
            "Receive memory in use, in bytes: payload that local sockets have not accepted; with JMUX, plus the credit that the peer has not used",
            peers().map(|(peer, figures)| gauge(vec![("peer", peer)], figures.budget_used as f64)),
        )?;
        page.family(
            "muxgate_carrier_limited_seconds",
            "Time that the carriers of the peer spent at each bottleneck",
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
