//! The carriers of the gateway, and the figures of each peer.
//!
//! A peer is the identity that its carriers proved: a reconnect, another address and a further carrier
//! belong to the same peer. The counters of a peer include its ended carriers, so that they do not
//! decrease. Bound: [`PEERS_MAX`] peers. One more peer replaces a peer that has no carrier.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use muxtunnel_gateway_config::GatewayKey;
use muxtunnel_gateway_config::status::{self, Limit};
use parking_lot::Mutex;

use crate::base::carrier_history::{CarrierHistory, Gateway, Sample};
use crate::base::counters::Counter;
use crate::base::path::{PathInfo, PathProbe};

/// Maximum number of peers with counters of ended carriers.
const PEERS_MAX: usize = 1024;

#[derive(Debug, Default)]
pub(super) struct Carriers {
    present: BTreeMap<u64, Arc<CarrierStats>>,
    /// The counters of the ended carriers of each peer.
    ended: BTreeMap<String, PeerCounters>,
}

/// The counters of the carriers of one peer.
#[derive(Debug, Clone, Default)]
pub(crate) struct PeerCounters {
    pub(crate) sent: u64,
    pub(crate) received: u64,
    pub(crate) retransmits: u64,
    pub(crate) limited_seconds: BTreeMap<Limit, f64>,
}

/// The figures of the carriers of one peer.
#[derive(Debug, Clone, Default)]
pub(crate) struct PeerFigures {
    /// The counters, including ended carriers.
    pub(crate) total: PeerCounters,
    /// The bytes of the receive budget in use.
    pub(crate) budget_used: u64,
    /// The algorithms of congestion control in force.
    pub(crate) congestion_controls: BTreeSet<String>,
    /// The sum of the round trips, and the number of carriers with a round trip.
    round_trips: (Duration, u32),
}

impl PeerFigures {
    /// The mean round trip of the carriers that have one.
    pub(crate) fn round_trip(&self) -> Option<Duration> {
        let (sum, count) = self.round_trips;
        sum.checked_div(count)
    }

    /// Whether the kernel, or the library of the transport, has figures of the path.
    pub(crate) fn has_path(&self) -> bool {
        self.round_trips.1 > 0
    }

    fn add(&mut self, carrier: &CarrierStats) {
        self.total.add(carrier);
        self.budget_used += carrier.budget_used.load(Relaxed);
        if let (Some(algorithm), Some(info)) = (carrier.congestion_control(), carrier.path_info()) {
            self.congestion_controls.insert(algorithm);
            let (sum, count) = self.round_trips;
            self.round_trips = (sum + info.rtt, count + 1);
        }
    }
}

impl PeerCounters {
    fn add(&mut self, carrier: &CarrierStats) {
        self.sent += carrier.sent.get();
        self.received += carrier.received.get();
        let now = carrier.path_info().map_or(0, |info| info.retransmits);
        self.retransmits += now.max(carrier.retransmits.load(Relaxed));
        for (limit, seconds) in &carrier.history.lock().seconds {
            *self.limited_seconds.entry(*limit).or_default() += seconds;
        }
    }
}

impl Carriers {
    pub(super) fn add(&mut self, stats: &Arc<CarrierStats>) {
        self.present.insert(stats.id, Arc::clone(stats));
    }

    pub(super) fn remove(&mut self, stats: &CarrierStats) {
        if self.present.remove(&stats.id).is_none() {
            return;
        }
        let peer = stats.peer_name();
        if self.ended.len() >= PEERS_MAX && !self.ended.contains_key(peer) {
            let present: BTreeSet<_> = self.present().map(|one| one.peer_name()).collect();
            let mut gone = self.ended.keys().filter(|peer| !present.contains(&***peer));
            let gone = gone.next().or(self.ended.keys().next()).cloned();
            self.ended.remove(&gone.unwrap_or_default());
        }
        self.ended.entry(peer.to_owned()).or_default().add(stats);
    }

    pub(super) fn present(&self) -> impl Iterator<Item = &Arc<CarrierStats>> {
        self.present.values()
    }

    pub(super) fn peers(&self) -> BTreeMap<String, PeerFigures> {
        let ended = self.ended.iter().map(|(peer, total)| {
            let figures = PeerFigures {
                total: total.clone(),
                ..PeerFigures::default()
            };
            (peer.clone(), figures)
        });
        let mut peers: BTreeMap<_, _> = ended.collect();
        for carrier in self.present() {
            let peer = peers.entry(carrier.peer_name().to_owned());
            peer.or_default().add(carrier);
        }
        peers
    }
}

/// Counters of one carrier, and access to the carrier's path.
#[derive(Debug)]
pub(crate) struct CarrierStats {
    pub(super) id: u64,
    /// `addr:port` of the peer.
    pub(crate) peer: String,
    /// The identity that the peer proved.
    pub(super) identity: Option<String>,
    /// The public key that this side presented, if this side has accepted the carrier.
    pub(super) presented: Option<GatewayKey>,
    pub(crate) transport: status::CarrierTransport,
    since: Instant,
    /// The probe of the path; `None`: the path is unknown.
    path: Option<Box<dyn PathProbe>>,
    pub(crate) sent: Counter,
    pub(crate) received: Counter,
    streams: AtomicU64,
    budget_used: AtomicU64,
    /// The latest known number, because an ended connection has no figures.
    retransmits: AtomicU64,
    history: Mutex<CarrierHistory>,
}

impl CarrierStats {
    pub(super) fn new(
        id: u64,
        (peer, identity, presented): (String, Option<String>, Option<GatewayKey>),
        transport: status::CarrierTransport,
        path: Option<Box<dyn PathProbe>>,
    ) -> Self {
        Self {
            id,
            peer,
            identity,
            presented,
            transport,
            since: Instant::now(),
            path,
            sent: Counter::default(),
            received: Counter::default(),
            streams: AtomicU64::new(0),
            budget_used: AtomicU64::new(0),
            retransmits: AtomicU64::new(0),
            history: Mutex::default(),
        }
    }

    pub(crate) fn set_session(&self, streams: u64, budget_used: u64) {
        self.streams.store(streams, Relaxed);
        self.budget_used.store(budget_used, Relaxed);
    }

    pub(super) fn sample(&self, gateway: &Gateway, now: Instant) {
        let Some(path) = self.path_info() else {
            return;
        };
        self.retransmits.store(path.retransmits, Relaxed);
        let sample = Sample {
            at: now,
            path,
            received: self.received.get(),
            budget_used: self.budget_used.load(Relaxed),
        };
        self.history.lock().add(gateway, sample);
    }

    pub(crate) fn path_info(&self) -> Option<PathInfo> {
        self.path.as_ref()?.info()
    }

    /// The peer's identity; empty if the peer proved none.
    fn peer_name(&self) -> &str {
        self.identity.as_deref().unwrap_or_default()
    }

    fn congestion_control(&self) -> Option<String> {
        self.path.as_ref()?.congestion_control()
    }

    pub(super) fn status(&self) -> status::Carrier {
        let info = self.path_info().unwrap_or_default();
        let history = self.history.lock();
        let verdict = history.verdict;
        status::Carrier {
            peer: self.peer.clone(),
            transport: self.transport,
            uptime_seconds: self.since.elapsed().as_secs_f64(),
            rtt_milliseconds: info.rtt.as_secs_f64() * 1e3,
            rtt_min_milliseconds: info.rtt_min.as_secs_f64() * 1e3,
            congestion_control: self.congestion_control().unwrap_or_default(),
            bytes_sent: self.sent.get(),
            bytes_received: self.received.get(),
            retransmits: info.retransmits,
            congestion_window: info.congestion_window,
            streams: self.streams.load(Relaxed),
            receive_budget_used: self.budget_used.load(Relaxed),
            sent_bytes_per_second: verdict.map_or(0, |verdict| verdict.sent),
            received_bytes_per_second: verdict.map_or(0, |verdict| verdict.received),
            limit: verdict.map(|verdict| verdict.limit),
            limit_advice: verdict.map(|verdict| verdict.advice.to_owned()),
            limited_seconds: history.seconds.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn carrier(id: u64, identity: &str) -> Arc<CarrierStats> {
        let peer = (format!("192.0.2.1:{id}"), Some(identity.to_owned()), None);
        let transport = status::CarrierTransport::default();
        let carrier = CarrierStats::new(id, peer, transport, None);
        carrier.sent.add(10);
        Arc::new(carrier)
    }

    #[test]
    fn a_peer_keeps_its_counters_when_its_carriers_end_and_return() {
        let mut carriers = Carriers::default();
        for id in 0..100 {
            let carrier = carrier(id, "office");
            carriers.add(&carrier);
            let figures = carriers.peers();
            assert_eq!(figures.len(), 1);
            assert_eq!(figures["office"].total.sent, (id + 1) * 10);
            carriers.remove(&carrier);
            carriers.remove(&carrier);
        }
        assert_eq!(carriers.peers()["office"].total.sent, 1000);
        assert_eq!(carriers.present().count(), 0);
    }

    #[test]
    fn the_number_of_peers_is_bounded_and_peers_with_carriers_stay() {
        let mut carriers = Carriers::default();
        let stays = carrier(0, "a-stays");
        let before = carrier(1, "a-stays");
        carriers.add(&stays);
        carriers.add(&before);
        carriers.remove(&before);
        for id in 2..2 * PEERS_MAX as u64 {
            let carrier = carrier(id, &format!("peer-{id:05}"));
            carriers.add(&carrier);
            carriers.remove(&carrier);
        }
        let figures = carriers.peers();
        assert_eq!(figures.len(), PEERS_MAX);
        assert_eq!(figures["a-stays"].total.sent, 20);
    }
}
