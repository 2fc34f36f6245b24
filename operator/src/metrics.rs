//! What `/metrics` of the operator says of its work, and of the conditions of tunnels. What tunnels carry is said by
//! their gateways.
//!
//! `docs/metrics.md` has all names; a test compares. Bounds: labels are kinds, codes, verbs, resources and
//! statuses, which are few; and the tunnels that there are, six series each.

mod queue;
pub mod requests;

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::Resource;
use kube::runtime::controller::Action;
use kube::runtime::reflector::Store;
use muxtunnel_codes::Code;
use muxtunnel_crds::MuxTunnel;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

use crate::failure::Coded;
use crate::health::WatchClock;
use crate::leader::Leadership;
pub(crate) use queue::Queue;
use requests::RequestLabels;

/// What `/metrics` is.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Upper bounds of a reconciliation's time, in seconds; a gateway may take two to answer.
const RECONCILE_SECONDS: [f64; 9] = [0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0];
/// Upper bounds of a request's time, in seconds.
const REQUEST_SECONDS: [f64; 9] = [0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 2.0, 10.0];

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReconcileLabels {
    kind: String,
    result: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ErrorLabels {
    kind: String,
    code: String,
}

type Histograms<L> = Family<L, Histogram, fn() -> Histogram>;

/// The figures. Clones share them.
#[derive(Debug, Clone)]
pub struct Metrics {
    registry: Arc<Registry>,
    reconciles: Histograms<ReconcileLabels>,
    errors: Family<ErrorLabels, Counter>,
    requests: Histograms<RequestLabels>,
    known: Known,
}

/// What is looked at when the page is asked for. Clones share it.
#[derive(Debug, Clone, Default)]
struct Known(Arc<Mutex<Looked>>);

#[derive(Debug, Default)]
struct Looked {
    /// The tunnels, a store for each namespace that is watched by itself.
    tunnels: Vec<Store<MuxTunnel>>,
    /// Kinds, and what waits of each: one for each namespace that is watched by itself.
    queues: Vec<(String, Queue)>,
}

impl Known {
    fn lock(&self) -> MutexGuard<'_, Looked> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Metrics {
    /// Figures that are all zero. `leadership` and `watches` are looked at when they are asked for.
    #[must_use]
    pub fn new(leadership: Leadership, watches: Arc<WatchClock>) -> Self {
        let reconciles: Histograms<_> =
            Family::new_with_constructor(|| Histogram::new(RECONCILE_SECONDS));
        let requests: Histograms<_> =
            Family::new_with_constructor(|| Histogram::new(REQUEST_SECONDS));
        let errors = Family::default();
        let mut registry = Registry::with_prefix("muxtunnel");
        registry.register_with_unit(
            "operator_reconcile",
            "Time of looks at an object, by kind and result",
            Unit::Seconds,
            reconciles.clone(),
        );
        registry.register(
            "operator_reconcile_errors",
            "Looks at an object that ended early and are tried again, by kind and MT code",
            Family::clone(&errors),
        );
        registry.register_with_unit(
            "operator_api_request",
            "Time until the API server answered, by verb, resource and class of the status",
            Unit::Seconds,
            requests.clone(),
        );
        let known = Known::default();
        registry.register_collector(Box::new(Now {
            leadership,
            watches,
            known: known.clone(),
        }));
        Self {
            registry: Arc::new(registry),
            reconciles,
            errors,
            requests,
            known,
        }
    }

    /// Says the conditions of these tunnels from now on.
    pub(crate) fn say_tunnels(&self, tunnels: Store<MuxTunnel>) {
        self.known.lock().tunnels.push(tunnels);
    }

    /// Says how many objects of a kind wait, which the new queue counts.
    pub(crate) fn queue<K: Resource<DynamicType = ()>>(&self) -> Queue {
        let queue = Queue::default();
        let entry = (K::kind(&()).into_owned(), queue.clone());
        self.known.lock().queues.push(entry);
        queue
    }

    /// The page as of now.
    ///
    /// # Errors
    /// None that a `String` can give.
    pub fn render(&self) -> Result<String, std::fmt::Error> {
        let mut page = String::new();
        text::encode(&mut page, &self.registry)?;
        Ok(page)
    }

    /// One look at an object of that kind.
    ///
    /// # Errors
    /// Those of `look`.
    pub async fn look<E: Coded>(
        &self,
        kind: &str,
        look: impl Future<Output = Result<Action, E>>,
    ) -> Result<Action, E> {
        let begin = Instant::now();
        let result = look.await;
        let code = result.as_ref().err().map(Coded::code);
        self.reconciled(kind, begin.elapsed(), code);
        result
    }

    /// `code`: why it ended early.
    fn reconciled(&self, kind: &str, time: Duration, code: Option<Code>) {
        let labels = ReconcileLabels {
            kind: kind.to_owned(),
            result: if code.is_some() { "error" } else { "success" }.to_owned(),
        };
        self.reconciles
            .get_or_create(&labels)
            .observe(time.as_secs_f64());
        if let Some(code) = code {
            let labels = ErrorLabels {
                kind: kind.to_owned(),
                code: code.to_string(),
            };
            self.errors.get_or_create(&labels).inc();
        }
    }

    fn answered(&self, labels: &RequestLabels, time: Duration) {
        self.requests
            .get_or_create(labels)
            .observe(time.as_secs_f64());
    }
}

/// What is only looked at when it is asked for.
#[derive(Debug)]
struct Now {
    leadership: Leadership,
    watches: Arc<WatchClock>,
    known: Known,
}

impl Collector for Now {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let leads = i64::from(self.leadership.is_held());
        let help = "Whether this process holds the Lease, so that it writes";
        family(
            &mut encoder,
            ("operator_leader", help),
            [(vec![], ConstGauge::new(leads))],
        )?;
        // With several namespaces a resource has a watch in each: the one that is worst off.
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
        let help = "Time since the API server last answered the beginning of a watch";
        family(&mut encoder, ("operator_watch_age_seconds", help), ages)?;
        let (depths, tunnels) = self.looked();
        let depths = depths
            .iter()
            .map(|(kind, depth)| (vec![("kind", kind.as_str())], ConstGauge::new(*depth)));
        let help = "Objects that changed, or were asked for, and whose look has not begun";
        family(&mut encoder, ("operator_queue_depth", help), depths)?;
        let conditions = tunnels.iter().flat_map(|tunnel| conditions(tunnel));
        let help = "Conditions of MuxTunnels: 1 is True, 0 False or Unknown";
        family(&mut encoder, ("tunnel_condition", help), conditions)
    }
}

impl Now {
    /// How many objects of each kind wait, and all tunnels.
    fn looked(&self) -> (BTreeMap<String, i64>, Vec<Arc<MuxTunnel>>) {
        let looked = self.known.lock();
        let mut depths = BTreeMap::new();
        for (kind, queue) in &looked.queues {
            *depths.entry(kind.clone()).or_default() += queue.depth();
        }
        let tunnels = looked.tunnels.iter().flat_map(Store::state);
        (depths, tunnels.collect())
    }
}

/// A sample for each condition of a tunnel.
fn conditions(tunnel: &MuxTunnel) -> impl Iterator<Item = (Labels<'_>, ConstGauge<i64>)> {
    let conditions = tunnel.status.iter().flat_map(|status| &status.conditions);
    conditions.map(move |condition| {
        let metadata = tunnel.meta();
        let labels = vec![
            (
                "namespace",
                metadata.namespace.as_deref().unwrap_or_default(),
            ),
            ("tunnel", metadata.name.as_deref().unwrap_or_default()),
            ("condition", condition.type_.as_str()),
            ("code", code(condition)),
        ];
        (
            labels,
            ConstGauge::new(i64::from(condition.status == "True")),
        )
    })
}

/// The number that the message of each of our conditions begins with.
fn code(condition: &Condition) -> &str {
    let first = condition.message.split_whitespace().next();
    first
        .filter(|word| word.starts_with("MT"))
        .unwrap_or_default()
}

type Labels<'a> = Vec<(&'a str, &'a str)>;

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
