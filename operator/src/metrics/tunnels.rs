//! The figures of gateways, summed per object: MuxTunnel, MuxExit or MuxRendezvous.
//!
//! The counters of a gateway restart with its process, and the counters of a carrier restart with
//! the carrier. The sums do not restart. Only the leader queries gateways, so only the leader has
//! sums. Bounds: twice the existing objects or [`FORGETS_AT_MIN`], [`PODS_MAX`] pods per object, and
//! [`REASONS_MAX`] reasons per end, because a gateway may report any reason.

use std::collections::BTreeMap;
use std::sync::Arc;

use muxtunnel_gateway_config::status::{Limit, Status};
use parking_lot::Mutex;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use tokio::time::Instant;

use super::{Labels, family};
use crate::caches::{Cache, Caches};
use crate::leader::Leadership;
use crate::watches::Watched;

/// Maximum number of pods of an object whose counters are stored.
const PODS_MAX: usize = 128;
/// Minimum number of objects at which the figures of deleted objects are dropped.
const FORGETS_AT_MIN: usize = 64;
/// Maximum number of reasons or codes of an end. Further reasons are counted as `other`.
const REASONS_MAX: usize = 32;
/// Longest reason, in bytes.
const REASON_LENGTH_MAX: usize = 64;

/// The figures of all objects. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Tunnels(Arc<Mutex<Known>>);

/// An observation of a gateway.
#[derive(Debug, Clone, Copy)]
pub struct Gateway<'a> {
    /// The end of the gateway: `entry`, `exit`, ...
    pub end: &'static str,
    /// The name of the gateway's pod.
    pub pod: &'a str,
    /// The gateway's answer, if it answered.
    pub status: Option<&'a Status>,
}

/// Kind, namespace and name.
type Key = (String, String, String);

#[derive(Debug, Default)]
struct Known {
    tunnels: BTreeMap<Key, Tunnel>,
    caches: Vec<Caches>,
    /// The number of objects at which a further object drops the figures of deleted objects: twice
    /// the number of existing objects, so that a search through all objects is rare.
    forgets_at: usize,
}

#[derive(Debug)]
struct Tunnel {
    since: Instant,
    /// The counters of each pod at the last observation.
    pods: BTreeMap<String, Counters>,
    /// The sums, by end: `entry`, `exit`, ...
    totals: BTreeMap<&'static str, Counters>,
    now: BTreeMap<&'static str, Now>,
}

/// Counters: values that only grow.
#[derive(Debug, Clone, Default)]
struct Counters {
    opened: u64,
    sent: u64,
    received: u64,
    retransmits: u64,
    credit_waits: u64,
    credit_wait_milliseconds: u64,
    /// Closed streams, by reason.
    closed: BTreeMap<String, u64>,
    /// Refusals, by code.
    refused: BTreeMap<String, u64>,
    /// Milliseconds, by bottleneck.
    limited: BTreeMap<String, u64>,
}

/// Values of gauges at the last observation.
#[derive(Debug, Clone, Default)]
struct Now {
    streams: u64,
    carriers: u64,
    /// Round-trip times of the carriers that use TCP.
    rtt_seconds: Vec<f64>,
    receive_budget: u64,
}

impl Tunnels {
    /// Keeps only figures of the objects in these caches.
    pub fn follow(&self, caches: Caches) {
        self.0.lock().caches.push(caches);
    }

    /// Records an observation of the gateways of an object: its kind, namespace and name.
    pub fn seen(&self, [kind, namespace, name]: [&str; 3], gateways: &[Gateway<'_>]) {
        let key = (kind.to_owned(), namespace.to_owned(), name.to_owned());
        let mut known = self.0.lock();
        if !known.tunnels.contains_key(&key) && known.tunnels.len() >= known.forgets_at {
            known.forget();
        }
        let tunnel = known.tunnels.entry(key).or_insert_with(|| Tunnel {
            since: Instant::now(),
            pods: BTreeMap::new(),
            totals: BTreeMap::new(),
            now: BTreeMap::new(),
        });
        tunnel.now.clear();
        let pods: Vec<_> = gateways.iter().map(|gateway| gateway.pod).collect();
        tunnel.pods.retain(|pod, _| pods.contains(&pod.as_str()));
        for gateway in gateways.iter().take(PODS_MAX) {
            if let Some(status) = gateway.status {
                tunnel.take(gateway, status);
            }
        }
    }
}

impl Known {
    /// Drops the figures of deleted objects.
    fn forget(&mut self) {
        let Self {
            tunnels, caches, ..
        } = self;
        tunnels.retain(|(kind, namespace, name), _| {
            let is_there = |caches: &Caches| {
                exists(&caches.tunnels, (kind, namespace, name))
                    || exists(&caches.exits, (kind, namespace, name))
                    || exists(&caches.rendezvous, (kind, namespace, name))
            };
            caches.iter().any(is_there)
        });
        self.forgets_at = (2 * tunnels.len()).max(FORGETS_AT_MIN);
    }
}

/// Whether the cache has the object with this kind, namespace and name.
fn exists<K: Watched>(cache: &Cache<K>, (kind, namespace, name): (&str, &str, &str)) -> bool {
    let found = cache.get(namespace, name);
    kind == K::kind(&()) && found.is_ok_and(|found| found.is_some())
}

impl Tunnel {
    fn take(&mut self, gateway: &Gateway<'_>, status: &Status) {
        let counters = Counters::of(status);
        let total = self.totals.entry(gateway.end).or_default();
        match self.pods.get(gateway.pod) {
            Some(before) => total.add(&counters.since(before)),
            // The values count only if the gateway started after this operator process first
            // recorded the tunnel. Otherwise another operator process has counted them.
            None if status.process.uptime_seconds <= self.since.elapsed().as_secs_f64() => {
                total.add(&counters);
            }
            None => total.add(&Counters::default()),
        }
        self.pods.insert(gateway.pod.to_owned(), counters);
        let now = self.now.entry(gateway.end).or_default();
        now.streams += status.streams.open;
        now.carriers += status.carriers.len() as u64;
        for carrier in &status.carriers {
            now.receive_budget += carrier.receive_budget_used;
            if !carrier.congestion_control.is_empty() {
                now.rtt_seconds.push(carrier.rtt_milliseconds / 1e3);
            }
        }
    }
}

impl Counters {
    fn of(status: &Status) -> Self {
        let mut limited = BTreeMap::new();
        for (limit, seconds) in status.carriers.iter().flat_map(|c| &c.limited_seconds) {
            if *limit != Limit::Other {
                *limited.entry(limit.as_str().to_owned()).or_default() += (seconds * 1e3) as u64;
            }
        }
        Self {
            opened: status.streams.opened,
            sent: status.streams.bytes_sent,
            received: status.streams.bytes_received,
            retransmits: status.carriers.iter().map(|c| c.retransmits).sum(),
            credit_waits: status.credit.waits,
            credit_wait_milliseconds: (status.credit.waited_seconds * 1e3) as u64,
            closed: bounded(&status.streams.closed),
            refused: bounded(&status.streams.refused),
            limited,
        }
    }

    /// The increase since `before`. Counters below `before` indicate a new process. A sum over
    /// carriers may also be lower because a carrier has ended. Such a sum adds nothing.
    fn since(&self, before: &Self) -> Self {
        let is_other = self.opened < before.opened
            || self.sent < before.sent
            || self.received < before.received;
        if is_other {
            return self.clone();
        }
        Self {
            opened: self.opened - before.opened,
            sent: self.sent - before.sent,
            received: self.received - before.received,
            retransmits: self.retransmits.saturating_sub(before.retransmits),
            credit_waits: self.credit_waits.saturating_sub(before.credit_waits),
            credit_wait_milliseconds: self
                .credit_wait_milliseconds
                .saturating_sub(before.credit_wait_milliseconds),
            closed: grown(&self.closed, &before.closed),
            refused: grown(&self.refused, &before.refused),
            limited: grown(&self.limited, &before.limited),
        }
    }

    fn add(&mut self, more: &Self) {
        self.opened = self.opened.saturating_add(more.opened);
        self.sent = self.sent.saturating_add(more.sent);
        self.received = self.received.saturating_add(more.received);
        self.retransmits = self.retransmits.saturating_add(more.retransmits);
        self.credit_waits = self.credit_waits.saturating_add(more.credit_waits);
        self.credit_wait_milliseconds = self
            .credit_wait_milliseconds
            .saturating_add(more.credit_wait_milliseconds);
        add(&mut self.closed, &more.closed);
        add(&mut self.refused, &more.refused);
        add(&mut self.limited, &more.limited);
    }
}

fn grown(now: &BTreeMap<String, u64>, before: &BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    let since = |(reason, count): (&String, &u64)| {
        let before = before.get(reason).copied().unwrap_or(0);
        (reason.clone(), count.saturating_sub(before))
    };
    now.iter().map(since).collect()
}

fn bounded(said: &BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    let mut counts = BTreeMap::new();
    add(&mut counts, said);
    counts
}

fn add(totals: &mut BTreeMap<String, u64>, more: &BTreeMap<String, u64>) {
    for (reason, count) in more {
        let is_known = totals.contains_key(reason);
        let is_odd = reason.len() > REASON_LENGTH_MAX || totals.len() >= REASONS_MAX;
        let reason = if !is_known && is_odd { "other" } else { reason };
        let total = totals.entry(reason.to_owned()).or_default();
        *total = total.saturating_add(*count);
    }
}

/// The objects' part of the metrics page.
#[derive(Debug)]
pub(super) struct Page {
    pub(super) tunnels: Tunnels,
    pub(super) leadership: Leadership,
}

impl Collector for Page {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let mut known = self.tunnels.0.lock();
        if !self.leadership.is_held() {
            known.tunnels.clear();
        }
        known.forget();
        let tunnels = &known.tunnels;
        let sums = |(key, tunnel): (&Key, &Tunnel)| {
            let ends = tunnel.totals.iter();
            let ends = ends.map(|(end, total)| (key.clone(), *end, total.clone()));
            ends.collect::<Vec<_>>()
        };
        let totals: Vec<_> = tunnels.iter().flat_map(sums).collect();
        counters(&mut encoder, &totals)?;
        let observations = |(key, tunnel): (&Key, &Tunnel)| {
            let ends = tunnel.now.iter();
            let ends = ends.map(|(end, now)| (key.clone(), *end, now.clone()));
            ends.collect::<Vec<_>>()
        };
        let observations: Vec<_> = tunnels.iter().flat_map(observations).collect();
        drop(known);
        gauges(&mut encoder, &observations)
    }
}

type OfEnd<T> = (Key, &'static str, T);

fn labels<'a, T>(of: &'a OfEnd<T>, more: &[(&'a str, &'a str)]) -> Labels<'a> {
    let ((kind, namespace, name), end, _) = of;
    let mut labels = vec![
        ("namespace", namespace.as_str()),
        ("kind", kind.as_str()),
        ("name", name.as_str()),
        ("end", end),
    ];
    labels.extend(more);
    labels
}

fn counters(
    encoder: &mut DescriptorEncoder<'_>,
    totals: &[OfEnd<Counters>],
) -> Result<(), std::fmt::Error> {
    let counter = |value| ConstCounter::new(value);
    let help = "Payload bytes from local sockets into carriers (sent), and from carriers into local sockets (received)";
    let payload = totals.iter().flat_map(|of| {
        [
            (labels(of, &[("direction", "sent")]), counter(of.2.sent)),
            (
                labels(of, &[("direction", "received")]),
                counter(of.2.received),
            ),
        ]
    });
    family(encoder, ("tunnel_payload_bytes", help), payload)?;
    let opened = totals
        .iter()
        .map(|of| (labels(of, &[]), counter(of.2.opened)));
    family(encoder, ("tunnel_streams_opened", "Streams opened"), opened)?;
    let closed = totals.iter().flat_map(|of| {
        let reasons = of.2.closed.iter();
        reasons.map(|(reason, count)| (labels(of, &[("reason", reason)]), counter(*count)))
    });
    let help = "Streams closed, by reason; completed is the normal end";
    family(encoder, ("tunnel_streams_closed", help), closed)?;
    let refused = totals.iter().flat_map(|of| {
        let codes = of.2.refused.iter();
        codes.map(|(code, count)| (labels(of, &[("code", code)]), counter(*count)))
    });
    let help = "Requests to open a stream that were refused or failed, by MT code";
    family(encoder, ("tunnel_opens_refused", help), refused)?;
    let again = totals
        .iter()
        .map(|of| (labels(of, &[]), counter(of.2.retransmits)));
    let help = "TCP segments that carriers retransmitted";
    family(encoder, ("tunnel_carrier_retransmits", help), again)?;
    let waits = totals
        .iter()
        .map(|of| (labels(of, &[]), counter(of.2.credit_waits)));
    let help = "Number of times that a stream had payload and waited for credit";
    family(encoder, ("tunnel_credit_waits", help), waits)?;
    let waited = totals.iter().map(|of| {
        let seconds = ConstCounter::new(of.2.credit_wait_milliseconds as f64 / 1e3);
        (labels(of, &[]), seconds)
    });
    let help = "Time that streams waited for credit, added when a wait ends";
    family(encoder, ("tunnel_credit_wait_seconds", help), waited)?;
    let limited = totals.iter().flat_map(|of| {
        let limits = of.2.limited.iter();
        limits.map(|(limit, milliseconds)| {
            let seconds = ConstCounter::new(*milliseconds as f64 / 1e3);
            (labels(of, &[("limit", limit)]), seconds)
        })
    });
    let help = "Time that carriers spent at each bottleneck";
    family(encoder, ("tunnel_carrier_limited_seconds", help), limited)
}

fn gauges(
    encoder: &mut DescriptorEncoder<'_>,
    observations: &[OfEnd<Now>],
) -> Result<(), std::fmt::Error> {
    let gauge = |value: u64| ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX));
    let streams = observations
        .iter()
        .map(|of| (labels(of, &[]), gauge(of.2.streams)));
    family(encoder, ("tunnel_streams_open", "Open streams"), streams)?;
    let carriers = observations
        .iter()
        .map(|of| (labels(of, &[]), gauge(of.2.carriers)));
    family(
        encoder,
        ("tunnel_carriers", "Carriers that are up"),
        carriers,
    )?;
    let rtt = observations.iter().filter_map(|of| {
        let of_all: f64 = of.2.rtt_seconds.iter().sum();
        let mean = of_all / of.2.rtt_seconds.len() as f64;
        mean.is_finite()
            .then(|| (labels(of, &[]), ConstGauge::new(mean)))
    });
    let help = "Smoothed round-trip time, the mean of the carriers that are up";
    family(encoder, ("tunnel_carrier_rtt_seconds", help), rtt)?;
    let used = observations
        .iter()
        .map(|of| (labels(of, &[]), gauge(of.2.receive_budget)));
    let help = "Receive memory in use of all sessions: payload that local sockets have not accepted; with Jmux, plus the credit that the peer has not used";
    family(encoder, ("tunnel_receive_budget_bytes", help), used)
}
