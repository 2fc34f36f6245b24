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
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use tokio::time::Instant;

use super::{family, labels};
use crate::caches::{Cache, Caches};
use crate::watches::{ObjectId, Watched};

/// Maximum number of pods of an object whose counters are stored.
const PODS_MAX: usize = 128;
/// Minimum number of objects at which the figures of deleted objects are dropped.
const FORGETS_AT_MIN: usize = 64;
/// Maximum number of reasons or codes of an end. Further reasons are counted as `other`.
const REASONS_MAX: usize = 32;
/// Longest reason, in bytes.
const REASON_LENGTH_MAX: usize = 64;

/// A metric whose values only grow. The values of a metric in seconds are milliseconds.
struct Counter {
    name: &'static str,
    help: &'static str,
    /// The label of its series. Empty: it has one series.
    label: &'static str,
    series: fn(&Status) -> Series,
}

/// The values of a counter, by the value of its label.
type Series = BTreeMap<String, u64>;
/// The series of each of [`COUNTERS`].
type Counters = [Series; COUNTERS.len()];

/// A lower value of one of the first counters shows a new process of the gateway. The others may be
/// lower, because a sum over carriers has lost a carrier.
const OF_PROCESS: usize = 2;
const COUNTERS: [Counter; 8] = [
    Counter {
        name: "tunnel_payload_bytes",
        help: "Payload bytes from local sockets into carriers (sent), and from carriers into local sockets (received)",
        label: "direction",
        series: |status| {
            let (sent, received) = (status.streams.bytes_sent, status.streams.bytes_received);
            series([("sent", sent), ("received", received)])
        },
    },
    Counter {
        name: "tunnel_streams_opened",
        help: "Streams opened",
        label: "",
        series: |status| series([("", status.streams.opened)]),
    },
    Counter {
        name: "tunnel_streams_closed",
        help: "Streams closed, by reason; completed is the normal end",
        label: "reason",
        series: |status| status.streams.closed.clone(),
    },
    Counter {
        name: "tunnel_opens_refused",
        help: "Requests to open a stream that were refused or failed, by MT code",
        label: "code",
        series: |status| status.streams.refused.clone(),
    },
    Counter {
        name: "tunnel_carrier_retransmits",
        help: "TCP segments that carriers retransmitted",
        label: "",
        series: |status| {
            let of_carriers = status.carriers.iter().map(|carrier| carrier.retransmits);
            series([("", of_carriers.sum())])
        },
    },
    Counter {
        name: "tunnel_credit_waits",
        help: "Number of times that a stream had payload and waited for credit",
        label: "",
        series: |status| series([("", status.credit.waits)]),
    },
    Counter {
        name: "tunnel_credit_wait_seconds",
        help: "Time that streams waited for credit, added when a wait ends",
        label: "",
        series: |status| series([("", (status.credit.waited_seconds * 1e3) as u64)]),
    },
    Counter {
        name: "tunnel_carrier_limited_seconds",
        help: "Time that carriers spent at each bottleneck",
        label: "limit",
        series: |status| {
            let limits = status
                .carriers
                .iter()
                .flat_map(|carrier| &carrier.limited_seconds);
            let limits = limits.filter(|(limit, _)| **limit != Limit::Other);
            series(limits.map(|(limit, seconds)| (limit.as_str(), (seconds * 1e3) as u64)))
        },
    },
];

/// The sum of the values of each label.
fn series<'a>(values: impl IntoIterator<Item = (&'a str, u64)>) -> Series {
    let mut series = Series::new();
    for (label, value) in values {
        *series.entry(label.to_owned()).or_default() += value;
    }
    series
}

/// The value of a gauge.
type Value = fn(&Status) -> u64;

/// The name, the description and the value of each gauge but the round-trip time.
const GAUGES: [(&str, &str, Value); 3] = [
    ("tunnel_streams_open", "Open streams", |status| {
        status.streams.open
    }),
    ("tunnel_carriers", "Carriers that are up", |status| {
        status.carriers.len() as u64
    }),
    (
        "tunnel_receive_budget_bytes",
        "Receive memory in use of all sessions: payload that local sockets have not accepted; with Jmux, plus the credit that the peer has not used",
        |status| {
            status
                .carriers
                .iter()
                .map(|carrier| carrier.receive_budget_used)
                .sum()
        },
    ),
];

/// The figures of all objects. Clones share them.
#[derive(Clone, Default)]
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

#[derive(Default)]
struct Known {
    tunnels: BTreeMap<ObjectId, Tunnel>,
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

/// Values of gauges at the last observation.
#[derive(Debug, Clone, Default)]
struct Now {
    /// The values of [`GAUGES`].
    gauges: [u64; GAUGES.len()],
    /// Round-trip times of the carriers that use TCP.
    rtt_seconds: Vec<f64>,
}

impl Tunnels {
    /// Keeps only figures of the objects in these caches.
    pub fn follow(&self, caches: Caches) {
        self.0.lock().caches.push(caches);
    }

    /// Records an observation of the gateways of `object`.
    pub fn seen<'a>(&self, object: ObjectId, gateways: impl Iterator<Item = Gateway<'a>>) {
        let mut known = self.0.lock();
        if !known.tunnels.contains_key(&object) && known.tunnels.len() >= known.forgets_at {
            known.forget();
        }
        let tunnel = known.tunnels.entry(object).or_insert_with(|| Tunnel {
            since: Instant::now(),
            pods: BTreeMap::new(),
            totals: BTreeMap::new(),
            now: BTreeMap::new(),
        });
        tunnel.now.clear();
        let gateways: Vec<_> = gateways.collect();
        let is_there = |pod: &String| gateways.iter().any(|gateway| gateway.pod == pod);
        tunnel.pods.retain(|pod, _| is_there(pod));
        for gateway in gateways.iter().take(PODS_MAX) {
            if let Some(status) = gateway.status {
                tunnel.take(gateway, status);
            }
        }
    }

    /// The objects' part of the metrics page. Only the leader has figures (`leads`).
    pub(super) fn encode(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        leads: bool,
    ) -> Result<(), std::fmt::Error> {
        let mut known = self.0.lock();
        if !leads {
            known.tunnels.clear();
        }
        known.forget();
        for (index, counter) in COUNTERS.iter().enumerate() {
            let samples = known.tunnels.iter().flat_map(|(object, tunnel)| {
                let ends = tunnel.totals.iter();
                ends.flat_map(move |(end, totals)| {
                    let series = totals[index].iter();
                    series.map(move |(value, count)| {
                        let mut labels = labels(object, [("end", *end)]);
                        let own = (!counter.label.is_empty()).then_some((counter.label, &**value));
                        labels.extend(own);
                        (labels, *count)
                    })
                })
            });
            let described = (counter.name, counter.help);
            if counter.name.ends_with("_seconds") {
                let seconds = |count: u64| ConstCounter::new(count as f64 / 1e3);
                let samples = samples.map(|(labels, count)| (labels, seconds(count)));
                family(encoder, described, samples)?;
            } else {
                let samples = samples.map(|(labels, count)| (labels, ConstCounter::new(count)));
                family(encoder, described, samples)?;
            }
        }
        let observations = known.tunnels.iter().flat_map(|(object, tunnel)| {
            let ends = tunnel.now.iter();
            ends.map(move |(end, now)| (labels(object, [("end", *end)]), now))
        });
        let observations: Vec<_> = observations.collect();
        for (index, (name, help, _)) in GAUGES.into_iter().enumerate() {
            let samples = observations.iter().map(|(labels, now)| {
                let value = i64::try_from(now.gauges[index]).unwrap_or(i64::MAX);
                (labels.clone(), ConstGauge::new(value))
            });
            family(encoder, (name, help), samples)?;
        }
        let rtt = observations.iter().filter_map(|(labels, now)| {
            let of_all: f64 = now.rtt_seconds.iter().sum();
            let mean = of_all / now.rtt_seconds.len() as f64;
            (mean.is_finite()).then(|| (labels.clone(), ConstGauge::new(mean)))
        });
        let help = "Smoothed round-trip time, the mean of the carriers that are up";
        family(encoder, ("tunnel_carrier_rtt_seconds", help), rtt)
    }
}

impl Known {
    /// Drops the figures of deleted objects.
    fn forget(&mut self) {
        let Self {
            tunnels, caches, ..
        } = self;
        tunnels.retain(|object, _| {
            let is_there = |caches: &Caches| {
                exists(&caches.tunnels, object)
                    || exists(&caches.exits, object)
                    || exists(&caches.rendezvous, object)
            };
            caches.iter().any(is_there)
        });
        self.forgets_at = (2 * tunnels.len()).max(FORGETS_AT_MIN);
    }
}

/// Whether the cache has the object.
fn exists<K: Watched>(cache: &Cache<K>, object: &ObjectId) -> bool {
    let found = cache.get(&object.namespace, &object.name);
    object.kind == K::kind(&()) && found.is_ok_and(|found| found.is_some())
}

impl Tunnel {
    fn take(&mut self, gateway: &Gateway<'_>, status: &Status) {
        let counters: Counters = COUNTERS.each_ref().map(|counter| {
            let mut counts = Series::new();
            add(&mut counts, &(counter.series)(status));
            counts
        });
        // The values of an unknown pod count only if the gateway started after this operator process
        // first recorded the tunnel. Otherwise another operator process has counted them.
        let is_new = status.process.uptime_seconds <= self.since.elapsed().as_secs_f64();
        let grown = match self.pods.get(gateway.pod) {
            Some(before) => since(&counters, before),
            None if is_new => counters.clone(),
            None => since(&counters, &counters),
        };
        let totals = self.totals.entry(gateway.end).or_default();
        for (total, grown) in totals.iter_mut().zip(&grown) {
            add(total, grown);
        }
        self.pods.insert(gateway.pod.to_owned(), counters);
        let now = self.now.entry(gateway.end).or_default();
        for (sum, (.., value)) in now.gauges.iter_mut().zip(GAUGES) {
            *sum += value(status);
        }
        let tcp = status
            .carriers
            .iter()
            .filter(|carrier| !carrier.congestion_control.is_empty());
        now.rtt_seconds
            .extend(tcp.map(|carrier| carrier.rtt_milliseconds / 1e3));
    }
}

/// The increase of each counter. All values of a new process are an increase.
fn since(now: &Counters, before: &Counters) -> Counters {
    let value = |series: &Series, label: &String| series.get(label).copied().unwrap_or(0);
    let is_lower = |(now, before): (&Series, &Series)| {
        let mut values = before.iter();
        values.any(|(label, before)| value(now, label) < *before)
    };
    if now.iter().zip(before).take(OF_PROCESS).any(is_lower) {
        return now.clone();
    }
    let mut grown = now.clone();
    for (grown, before) in grown.iter_mut().zip(before) {
        for (label, count) in grown {
            *count = count.saturating_sub(value(before, label));
        }
    }
    grown
}

fn add(totals: &mut Series, more: &Series) {
    for (reason, count) in more {
        let is_known = totals.contains_key(reason);
        let is_odd = reason.len() > REASON_LENGTH_MAX || totals.len() >= REASONS_MAX;
        let reason = if !is_known && is_odd { "other" } else { reason };
        let total = totals.entry(reason.to_owned()).or_default();
        *total = total.saturating_add(*count);
    }
}
