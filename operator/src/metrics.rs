//! The operator's `/metrics`: its own work, the conditions of objects, and the traffic of their
//! gateways ([`tunnels`]).
//!
//! `docs/metrics.md` lists the names of all metrics, and a test compares this list with `/metrics`.
//! Bounds on the number of series: labels are kinds, codes, verbs, resources and statuses, and each
//! of these has few values. Each existing object adds at most eleven conditions and the series of
//! [`tunnels`].

pub mod classes;
pub mod requests;
pub mod tunnels;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::Resource;
use kube::runtime::controller::Action;
use kube::runtime::reflector::{ObjectRef, Store};
use parking_lot::Mutex;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};
use tokio::time::Instant;

use crate::failure::Coded;
use crate::leader::Leadership;
use crate::watch_clock::WatchClock;
use crate::watches::{ObjectId, Watched};
use classes::Figures;
use tunnels::Tunnels;

/// Content type of `/metrics`.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Upper bounds of the buckets for reconciliations, in seconds. A gateway may need two seconds to
/// answer.
const RECONCILE_SECONDS: [f64; 9] = [0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0];
/// Upper bounds of the buckets for requests, in seconds.
const REQUEST_SECONDS: [f64; 9] = [0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 2.0, 10.0];

/// The names and values of the labels of a series.
type LabelSet<const N: usize> = [(&'static str, String); N];
type Histograms<const N: usize> = Family<LabelSet<N>, Histogram, fn() -> Histogram>;

/// All metrics. Clones share them.
#[derive(Clone)]
pub struct Metrics {
    registry: Arc<Registry>,
    reconciles: Histograms<2>,
    errors: Family<LabelSet<2>, Counter>,
    queue: Family<LabelSet<1>, Gauge>,
    requests: Histograms<3>,
    /// The figures of gateways.
    pub tunnels: Tunnels,
    /// The figures of classes.
    pub classes: Figures,
    judged: Judged,
}

/// Returns the objects of a kind in a watched namespace, with their conditions.
type OfKind = Box<dyn Fn() -> Vec<(ObjectId, Vec<Condition>)> + Send + Sync>;
/// The objects whose conditions are exported. Clones share them.
type Judged = Arc<Mutex<Vec<OfKind>>>;

impl Metrics {
    /// Creates the metrics. `leadership` and `watches` are read at each scrape.
    pub fn new(leadership: Leadership, watches: Arc<WatchClock>) -> Self {
        let reconciles = Histograms::new_with_constructor(|| Histogram::new(RECONCILE_SECONDS));
        let requests = Histograms::new_with_constructor(|| Histogram::new(REQUEST_SECONDS));
        let (errors, queue) = (Family::default(), Family::default());
        let tunnels = Tunnels::default();
        let mut registry = Registry::with_prefix("muxtunnel");
        registry.register_with_unit(
            "operator_reconcile",
            "Duration of an object's reconciliations, by kind and result",
            Unit::Seconds,
            reconciles.clone(),
        );
        registry.register(
            "operator_reconcile_errors",
            "Reconciliations that failed and are retried, by kind and MT code",
            Family::clone(&errors),
        );
        registry.register(
            "operator_queue_depth",
            "Changed objects that wait for a reconciliation",
            Family::clone(&queue),
        );
        registry.register_with_unit(
            "operator_api_request",
            "Time until the API server answered a request, by verb, resource and status class",
            Unit::Seconds,
            requests.clone(),
        );
        let (judged, classes) = (Judged::default(), Figures::default());
        registry.register_collector(Box::new(Now {
            leadership,
            watches,
            judged: judged.clone(),
            classes: classes.clone(),
            tunnels: tunnels.clone(),
        }));
        Self {
            registry: Arc::new(registry),
            reconciles,
            errors,
            queue,
            requests,
            tunnels,
            classes,
            judged,
        }
    }

    /// Exports the conditions of these objects from now on.
    pub(crate) fn judge<K: Watched>(
        &self,
        store: Store<K>,
        conditions: fn(&Arc<K>) -> Vec<Condition>,
    ) {
        let object = move |object: &Arc<K>| {
            let id = ObjectRef::from_obj(object.as_ref()).into();
            (id, conditions(object))
        };
        let all = move || store.state().iter().map(&object).collect();
        self.judged.lock().push(Box::new(all));
    }

    /// Renders the page with the current values.
    ///
    /// # Errors
    /// Never: writing to a `String` does not fail.
    pub fn render(&self) -> Result<String, std::fmt::Error> {
        let mut page = String::new();
        text::encode(&mut page, &self.registry)?;
        Ok(page)
    }

    /// Runs and records one reconciliation of an object of this kind.
    ///
    /// # Errors
    /// The errors of `reconciliation`.
    pub async fn timed<E: Coded>(
        &self,
        kind: &str,
        reconciliation: impl Future<Output = Result<Action, E>>,
    ) -> Result<Action, E> {
        let begin = Instant::now();
        let ended = reconciliation.await;
        let (kind, seconds) = (("kind", kind.to_owned()), begin.elapsed().as_secs_f64());
        let result = if ended.is_ok() { "success" } else { "error" };
        let labels = [kind.clone(), ("result", result.to_owned())];
        self.reconciles.get_or_create(&labels).observe(seconds);
        if let Err(error) = &ended {
            let labels = [kind, ("code", error.code().to_string())];
            self.errors.get_or_create(&labels).inc();
        }
        ended
    }

    /// The queue of objects of type `K`, for one controller. The metric shows the sum of the queues
    /// of all scopes.
    pub fn queue<K: Resource<DynamicType = ()>>(&self) -> Queue {
        let labels = [("kind", K::kind(&()).into_owned())];
        Queue {
            waiting: Arc::default(),
            depth: self.queue.get_or_create(&labels).clone(),
        }
    }
}

/// The objects that wait for a reconciliation. Clones share one set.
#[derive(Debug, Clone)]
pub struct Queue {
    waiting: Arc<Mutex<BTreeSet<ObjectId>>>,
    depth: Gauge,
}

impl Queue {
    /// Adds the object to the queue.
    pub fn joined(&self, object: ObjectId) {
        if self.waiting.lock().insert(object) {
            self.depth.inc();
        }
    }

    /// Removes the object from the queue, because its reconciliation starts, or because it does not
    /// exist.
    pub fn left(&self, object: &ObjectId) {
        if self.waiting.lock().remove(object) {
            self.depth.dec();
        }
    }
}

/// Values that are read only at a scrape.
struct Now {
    leadership: Leadership,
    watches: Arc<WatchClock>,
    judged: Judged,
    classes: Figures,
    tunnels: Tunnels,
}

impl fmt::Debug for Now {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Now").finish_non_exhaustive()
    }
}

impl Collector for Now {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let leads = self.leadership.is_held();
        let help = "1 if this replica holds the Lease and writes objects, otherwise 0";
        let value = [(vec![], ConstGauge::new(i64::from(leads)))];
        family(&mut encoder, ("operator_leader", help), value)?;
        // With several namespaces, a resource has a watch in each namespace. The metric shows the
        // age of the oldest watch.
        let mut ages: BTreeMap<String, Duration> = BTreeMap::new();
        for (path, age) in self.watches.ages(Instant::now()) {
            let oldest = ages
                .entry(requests::resource(&path).to_owned())
                .or_default();
            *oldest = age.max(*oldest);
        }
        let ages = ages.iter().map(|(resource, age)| {
            let labels = vec![("resource", resource.as_str())];
            (labels, ConstGauge::new(age.as_secs_f64()))
        });
        let help = "Time since the API server last answered the start of a watch";
        family(&mut encoder, ("operator_watch_age_seconds", help), ages)?;
        let judged = self.judged.lock();
        let objects: Vec<_> = judged.iter().flat_map(|of_kind| of_kind()).collect();
        drop(judged);
        let conditions = objects.iter().flat_map(conditions);
        let help = "Conditions of MuxTunnels, MuxExits and MuxRendezvous: 1 is True, 0 is False or Unknown";
        family(&mut encoder, ("tunnel_condition", help), conditions)?;
        let classes = self.classes.all();
        let samples = classes
            .iter()
            .filter(|_| leads)
            .map(|(class, state, count)| {
                let labels = vec![("class", class.as_str()), ("state", *state)];
                (labels, ConstGauge::new(*count))
            });
        let help = "Objects of a MuxClass by their state in its roll-out";
        family(&mut encoder, ("class_objects", help), samples)?;
        self.tunnels.encode(&mut encoder, leads)
    }
}

/// One sample per condition of an object.
fn conditions(
    (object, conditions): &(ObjectId, Vec<Condition>),
) -> impl Iterator<Item = (Labels<'_>, ConstGauge<i64>)> {
    conditions.iter().map(|condition| {
        let more = [("condition", &*condition.type_), ("code", code(condition))];
        let labels = labels(object, more);
        let is_true = i64::from(condition.status == "True");
        (labels, ConstGauge::new(is_true))
    })
}

/// The code at the beginning of a condition's message, such as `MT0303`.
fn code(condition: &Condition) -> &str {
    let first = condition.message.split_whitespace().next();
    first
        .filter(|word| word.starts_with("MT"))
        .unwrap_or_default()
}

type Labels<'a> = Vec<(&'a str, &'a str)>;

/// The labels of an object, and `more`.
fn labels<'a, const N: usize>(object: &'a ObjectId, more: [(&'a str, &'a str); N]) -> Labels<'a> {
    let mut labels = vec![
        ("namespace", object.namespace.as_str()),
        ("kind", object.kind.as_str()),
        ("name", object.name.as_str()),
    ];
    labels.extend(more);
    labels
}

/// One metric family: name, help, and its samples.
fn family<'a, M: EncodeMetric>(
    encoder: &mut DescriptorEncoder<'_>,
    (name, help): (&str, &str),
    samples: impl IntoIterator<Item = (Labels<'a>, M)>,
) -> Result<(), std::fmt::Error> {
    let mut samples = samples.into_iter().peekable();
    let Some((_, first)) = samples.peek() else {
        return Ok(());
    };
    let kind = first.metric_type();
    let mut family = encoder.encode_descriptor(name, help, None, kind)?;
    for (labels, metric) in samples {
        if labels.is_empty() {
            return metric.encode(family);
        }
        metric.encode(family.encode_family(&labels)?)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
