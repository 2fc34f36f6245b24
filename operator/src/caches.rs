//! What the operator knows of the cluster without asking: the objects that its watches brought, and what
//! it has written itself since.
//!
//! A watch lags behind. What the API server answered to an own write is therefore kept until the watch
//! has brought that or something newer, so that no write is done twice and nothing is deleted that was
//! only just made. Bounds: an entry a write of the last minute, at most [`OWN_WRITES_MAX`] a kind.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Service, ServiceAccount};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointSlice};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::core::ObjectMeta;
use kube::runtime::reflector::store::Writer;
use kube::runtime::reflector::{ObjectRef, Store};
use kube::runtime::watcher::Event;
use kube::{Client, Resource, ResourceExt};
use muxtunnel_crds::{MuxBenchmark, MuxTunnel};
use parking_lot::{Mutex, MutexGuard};
use tokio::time::{Instant, timeout};

use crate::apply::Settled;
use crate::labels;
use crate::watches::Watched;

/// Own writes of a kind that are kept. One more drops the oldest, which costs a request at most.
const OWN_WRITES_MAX: usize = 4096;
/// How long an own write is kept at most: a watch restarts well before.
const OWN_WRITE_AGE_MAX: Duration = Duration::from_secs(60);
/// How long the first reconciliation of an object waits for all kinds to be known. One that never answers must
/// not keep the others waiting.
const FIRST_LISTS: Duration = Duration::from_secs(5);

/// Label of an EndpointSlice: the Service that it is of.
const SERVICE_NAME: &str = "kubernetes.io/service-name";

/// A kind whose objects are not known: its watch was never answered.
#[derive(Debug, thiserror::Error)]
#[error("no {kind} is known yet: its watch has not been answered")]
pub struct NotKnown {
    kind: String,
}

/// The API server, as a controller sees it.
#[derive(Clone)]
pub struct Cluster {
    /// For writes, and for reads before a write that cannot be undone.
    pub client: Client,
    /// For all other reads.
    pub caches: Caches,
    /// What applied children became, where that is something else.
    pub settled: Settled,
}

/// Namespace and name.
pub(crate) type Key = (Option<String>, String);

pub(crate) fn key<K: Resource>(object: &K) -> Key {
    (object.meta().namespace.clone(), object.name_any())
}

fn reference<K: Watched>((namespace, name): &Key) -> ObjectRef<K> {
    let reference = ObjectRef::new(name);
    match namespace {
        Some(namespace) => reference.within(namespace),
        None => reference,
    }
}

/// The objects of one kind.
pub struct Cache<K: Watched> {
    watched: Store<K>,
    own: Arc<Mutex<BTreeMap<Key, OwnWrite<K>>>>,
}

impl<K: Watched> Clone for Cache<K> {
    fn clone(&self) -> Self {
        Self {
            watched: self.watched.clone(),
            own: self.own.clone(),
        }
    }
}

struct OwnWrite<K> {
    /// `None`: deleted.
    object: Option<Arc<K>>,
    uid: Option<String>,
    at: Instant,
}

impl<K: Watched> Cache<K> {
    /// The object of that name.
    ///
    /// # Errors
    /// [`NotKnown`].
    pub fn get(&self, namespace: &str, name: &str) -> Result<Option<Arc<K>>, NotKnown> {
        self.known()?;
        let key = (Some(namespace.to_owned()), name.to_owned());
        let watched = self.watched.get(&reference(&key));
        Ok(newest(watched, self.lock().get(&key)))
    }

    /// The children of `instance` that have one of `components`, by name.
    ///
    /// # Errors
    /// [`NotKnown`].
    pub fn children(
        &self,
        namespace: &str,
        instance: &str,
        components: &[&str],
    ) -> Result<Vec<Arc<K>>, NotKnown> {
        self.known()?;
        let is_child = |object: &K| {
            object.meta().namespace.as_deref() == Some(namespace)
                && labels::is_child_of(object.labels(), instance, components)
        };
        let mut found: BTreeMap<Key, Arc<K>> = self
            .watched
            .state_filter(is_child)
            .into_iter()
            .map(|object| (key(object.as_ref()), object))
            .collect();
        for (key, own) in self.lock().iter() {
            let of_interest = found.contains_key(key)
                || own.object.as_ref().is_some_and(|object| is_child(object));
            if !of_interest {
                continue;
            }
            match newest(self.watched.get(&reference(key)), Some(own)) {
                Some(object) if is_child(&object) => found.insert(key.clone(), object),
                _ => found.remove(key),
            };
        }
        let mut found: Vec<_> = found.into_values().collect();
        found.sort_by_key(|object| object.name_any());
        Ok(found)
    }

    /// `watched`, or what was written to it since.
    #[must_use]
    pub fn newest(&self, watched: Arc<K>) -> Arc<K> {
        let own = self.lock();
        newest(Some(watched.clone()), own.get(&key(watched.as_ref()))).unwrap_or(watched)
    }

    /// The API server answered a write with `object`.
    pub fn wrote(&self, object: &K) {
        let mut object = object.clone();
        slim(&mut object);
        let (key, uid) = (key(&object), object.uid());
        self.keep(key, Some(Arc::new(object)), uid);
    }

    /// The API server deleted `object`.
    pub fn deleted(&self, object: &K) {
        self.keep(key(object), None, object.uid());
    }

    fn keep(&self, key: Key, object: Option<Arc<K>>, uid: Option<String>) {
        let at = Instant::now();
        let mut own = self.lock();
        own.retain(|_, own| at.duration_since(own.at) < OWN_WRITE_AGE_MAX);
        if own.len() >= OWN_WRITES_MAX {
            let oldest = own.iter().min_by_key(|(_, own)| own.at);
            if let Some(oldest) = oldest.map(|(key, _)| key.clone()) {
                own.remove(&oldest);
            }
        }
        own.insert(key, OwnWrite { object, uid, at });
    }

    /// References to all objects that the watch has brought.
    #[must_use]
    pub fn references(&self) -> Vec<ObjectRef<K>> {
        let objects = self.watched.state();
        objects
            .iter()
            .map(|object| ObjectRef::from_obj(object.as_ref()))
            .collect()
    }

    /// What kube's applier takes objects from.
    #[must_use]
    pub fn store(&self) -> Store<K> {
        self.watched.clone()
    }

    /// Waits until the first list is there.
    async fn first_list(&self) {
        // The task that polls the watch notices if it ended without a list.
        let _ended = self.watched.wait_until_ready().await;
    }

    fn known(&self) -> Result<(), NotKnown> {
        // Ready at once, or not ready: nothing is waited for.
        match futures::FutureExt::now_or_never(self.watched.wait_until_ready()) {
            Some(Ok(())) => Ok(()),
            Some(Err(_)) | None => Err(NotKnown {
                kind: K::kind(&()).into_owned(),
            }),
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Key, OwnWrite<K>>> {
        self.own.lock()
    }
}

/// The Services of all watched namespaces, and what is behind them: one that a tunnel names may be in another than the
/// tunnel.
#[derive(Clone)]
pub struct Targets(Arc<[(Option<String>, Caches)]>);

/// What is behind a Service.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Endpoints {
    /// Whether one of its endpoints is ready.
    pub ready: bool,
    /// The numbers of its TCP ports at the endpoints, by the name of the Service's port.
    pub ports: BTreeMap<String, BTreeSet<u16>>,
}

impl Endpoints {
    fn of(slices: &[Arc<EndpointSlice>]) -> Self {
        let mut found = Self::default();
        for slice in slices {
            found.ready |= !slice.endpoints.is_empty();
            for port in slice.ports.iter().flatten() {
                let is_tcp = matches!(port.protocol.as_deref(), None | Some("TCP"));
                let number = port.port.and_then(|number| u16::try_from(number).ok());
                let Some(number) = number.filter(|_| is_tcp) else {
                    continue;
                };
                let name = port.name.clone().unwrap_or_default();
                found.ports.entry(name).or_default().insert(number);
            }
        }
        found
    }
}

/// The Service that a slice is of.
pub(crate) fn service_of(slice: &EndpointSlice) -> Option<&str> {
    slice.labels().get(SERVICE_NAME).map(String::as_str)
}

impl Targets {
    /// Those of each watched namespace; `None`: of all.
    pub fn new(scopes: impl IntoIterator<Item = (Option<String>, Caches)>) -> Self {
        Self(scopes.into_iter().collect())
    }

    /// What is behind the Service of that name; `None` where that cannot be known.
    #[must_use]
    pub fn endpoints(&self, namespace: &str, name: &str) -> Option<Endpoints> {
        let slices = &self.scope(namespace)?.endpoint_slices;
        slices.known().ok()?;
        let is_of_it = |slice: &EndpointSlice| {
            slice.meta().namespace.as_deref() == Some(namespace) && service_of(slice) == Some(name)
        };
        Some(Endpoints::of(&slices.watched.state_filter(is_of_it)))
    }

    fn scope(&self, namespace: &str) -> Option<&Caches> {
        let watches = |scope: &Option<String>| scope.as_deref().is_none_or(|own| own == namespace);
        let mut scopes = self.0.iter();
        scopes.find_map(|(scope, caches)| watches(scope).then_some(caches))
    }

    /// The Service of that name; `None`, too, where nobody watches its namespace.
    ///
    /// # Errors
    /// [`NotKnown`].
    pub fn get(&self, namespace: &str, name: &str) -> Result<Option<Arc<Service>>, NotKnown> {
        match self.scope(namespace) {
            Some(caches) => caches.services.get(namespace, name),
            None => Ok(None),
        }
    }
}

/// Which of the two is newer. The API server counts resource versions up.
fn newest<K: Watched>(watched: Option<Arc<K>>, own: Option<&OwnWrite<K>>) -> Option<Arc<K>> {
    let Some(own) = own.filter(|own| own.at.elapsed() < OWN_WRITE_AGE_MAX) else {
        return watched;
    };
    match (&own.object, watched) {
        (Some(own), Some(watched)) if version(watched.as_ref()) >= version(own.as_ref()) => {
            Some(watched)
        }
        (Some(own), _) => Some(own.clone()),
        // Another of that name, or one that a finalizer holds.
        (None, Some(watched)) => {
            let is_other = watched.uid() != own.uid;
            (is_other || watched.meta().deletion_timestamp.is_some()).then_some(watched)
        }
        (None, None) => None,
    }
}

fn version<K: Resource>(object: &K) -> u64 {
    let version = object.meta().resource_version.as_deref();
    version.and_then(|text| text.parse().ok()).unwrap_or(0)
}

impl<K: Watched> fmt::Debug for Cache<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cache").finish_non_exhaustive()
    }
}

/// Fills a [`Cache`] from a watch.
pub struct Feed<K: Watched> {
    writer: Writer<K>,
    cache: Cache<K>,
    list_begun: Instant,
}

impl<K: Watched> Default for Feed<K> {
    fn default() -> Self {
        let writer = Writer::default();
        let cache = Cache {
            watched: writer.as_reader(),
            own: Arc::default(),
        };
        Self {
            writer,
            cache,
            list_begun: Instant::now(),
        }
    }
}

impl<K: Watched> Feed<K> {
    /// What is filled.
    #[must_use]
    pub fn cache(&self) -> Cache<K> {
        self.cache.clone()
    }

    /// The object as the watch has brought it before.
    #[must_use]
    pub fn known(&self, object: &K) -> Option<Arc<K>> {
        self.cache.watched.get(&reference(&key(object)))
    }

    /// Takes one event of the watch.
    pub fn take(&mut self, event: Event<K>) -> Event<K> {
        let event = event.modify(slim);
        self.writer.apply_watcher_event(&event);
        let mut own = self.cache.lock();
        match &event {
            Event::Init => self.list_begun = Instant::now(),
            // The list was asked for after these had been written.
            Event::InitDone => own.retain(|_, own| own.at >= self.list_begun),
            Event::Apply(object) => {
                let key = key(object);
                let is_old = |own: &OwnWrite<K>| match &own.object {
                    Some(own) => version(object) >= version(own.as_ref()),
                    None => object.uid() != own.uid,
                };
                if own.get(&key).is_some_and(is_old) {
                    own.remove(&key);
                }
            }
            Event::Delete(object) => {
                let key = key(object);
                if own.get(&key).is_some_and(|own| own.uid == object.uid()) {
                    own.remove(&key);
                }
            }
            Event::InitApply(_) => {}
        }
        drop(own);
        event
    }
}

/// Without what nobody here reads. Field managers alone are half of many an object.
fn slim<K: Watched>(object: &mut K) {
    let is_child = labels::is_child(object.labels());
    let meta: &mut ObjectMeta = object.meta_mut();
    meta.managed_fields = None;
    if let Some(slice) = (object as &mut dyn Any).downcast_mut::<EndpointSlice>() {
        return slim_slice(slice);
    }
    let meta: &mut ObjectMeta = object.meta_mut();
    // Of objects that are not ours, targets' Services above all, only names, ports and owners are read.
    let kind = K::kind(&());
    if !is_child && kind != MuxTunnel::kind(&()) && kind != MuxBenchmark::kind(&()) {
        meta.annotations = None;
        meta.labels = None;
    }
    // Of a ReplicaSet without pods, only its owner is read.
    if let Some(set) = (object as &mut dyn Any).downcast_mut::<ReplicaSet>()
        && let Some(spec) = &mut set.spec
        && spec.replicas == Some(0)
    {
        spec.template = None;
    }
}

/// That one endpoint is ready is all that is to be known of a thousand.
fn slim_slice(slice: &mut EndpointSlice) {
    let meta = &mut slice.metadata;
    meta.annotations = None;
    meta.owner_references = None;
    if let Some(labels) = &mut meta.labels {
        labels.retain(|key, _| key == SERVICE_NAME);
    }
    slice.endpoints.retain(|endpoint| {
        let conditions = endpoint.conditions.as_ref();
        conditions
            .and_then(|conditions| conditions.ready)
            .unwrap_or(true)
    });
    slice.endpoints.truncate(1);
    for endpoint in &mut slice.endpoints {
        *endpoint = Endpoint::default();
    }
}

/// A kind that is watched, and can be a child.
pub trait Cached: Watched + Resource<Scope = NamespaceResourceScope> {
    /// Its objects.
    fn of(caches: &Caches) -> &Cache<Self>;
}

macro_rules! caches {
    ($($field:ident: $kind:ty, $doc:literal;)*) => {
        /// All that the controllers know, of one namespace or of all.
        #[derive(Clone)]
        pub struct Caches {
            $(#[doc = $doc] pub $field: Cache<$kind>,)*
        }

        /// What fills [`Caches`].
        #[derive(Default)]
        pub struct Feeds {
            $(#[doc = $doc] pub $field: Feed<$kind>,)*
        }

        impl Feeds {
            /// What is filled.
            #[must_use]
            pub fn caches(&self) -> Caches {
                Caches { $($field: self.$field.cache(),)* }
            }
        }

        impl Caches {
            /// Waits a little until everything is known. A caller that needs a kind that is not known gets an error.
            pub async fn first_lists(&self) {
                let all = async { futures::join!($(self.$field.first_list(),)*) };
                let _unknown_yet = timeout(FIRST_LISTS, all).await;
            }
        }

        $(impl Cached for $kind {
            fn of(caches: &Caches) -> &Cache<Self> {
                &caches.$field
            }
        })*
    };
}

caches! {
    tunnels: MuxTunnel, "All of them.";
    benchmarks: MuxBenchmark, "All of them.";
    deployments: Deployment, "Our children.";
    services: Service, "All of them: our children, and targets.";
    endpoint_slices: EndpointSlice, "All of them: what is behind targets.";
    config_maps: ConfigMap, "Our children.";
    service_accounts: ServiceAccount, "Our children.";
    replica_sets: ReplicaSet, "Those of our children.";
    pods: Pod, "Those of our children.";
    jobs: Job, "Our children.";
    network_policies: NetworkPolicy, "Our children.";
    pod_disruption_budgets: PodDisruptionBudget, "Our children.";
    autoscalers: HorizontalPodAutoscaler, "Our children.";
}

#[cfg(test)]
mod tests;
