//! Caches of the cluster's objects: the objects from a watch, and the operator's own newer writes.
//!
//! A watch delivers changes with a delay. The cache therefore keeps the API server's answer to each
//! own write until the watch delivers the same or a newer version. As a result, the operator
//! repeats no write, and deletes no child that it has just created. Bounds: one entry per object
//! that the operator wrote in the last minute, at most [`own::OWN_WRITES_MAX`] per kind.

mod groups;
mod own;
mod slim;
mod targets;

use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Service, ServiceAccount};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::runtime::reflector::store::Writer;
use kube::runtime::reflector::{ObjectRef, Store};
use kube::runtime::watcher::Event;
use kube::{Client, Resource, ResourceExt};
use muxtunnel_codes::Code;
use muxtunnel_crds::{MuxBenchmark, MuxExit, MuxPeer, MuxRendezvous, MuxTunnel};
use parking_lot::Mutex;
use tokio::time::{Instant, timeout_at};

use crate::apply::Settled;
use crate::failure::Coded;
use crate::labels;
use crate::reader::Reader;
use crate::undecoded;
use crate::watches::Watched;
use groups::Groups;
pub(crate) use groups::{Group, service_of};
use own::{OwnWrites, newest};
use slim::slim;
pub use targets::{Endpoints, Targets};

/// How long reconciliations wait for the first lists of all kinds, from the first reconciliation. A
/// list that the API server does not answer must not delay the other kinds.
pub(crate) const FIRST_LISTS: Duration = Duration::from_secs(5);

/// Why the state of an object is not known.
#[derive(Debug, thiserror::Error)]
pub enum NotKnown {
    /// The API server has not answered the watch of this kind yet.
    #[error("objects of kind {kind} are not known yet: the API server has not answered the watch")]
    Unanswered {
        /// The kind.
        kind: String,
    },
    /// This version of the operator cannot decode the object.
    #[error("{kind} {name} cannot be decoded: {reason}")]
    Undecoded {
        /// Kind of the object.
        kind: String,
        /// Name of the object.
        name: String,
        /// The error of the decoder.
        reason: String,
    },
}

impl Coded for NotKnown {
    fn code(&self) -> Code {
        match self {
            Self::Unanswered { .. } => Code::WatchUnanswered,
            Self::Undecoded { .. } => Code::UnknownValue,
        }
    }
}

/// The access to the API server of the steps that write. Other steps receive the caches alone, and
/// the first step also a [`Reader`].
#[derive(Clone)]
pub struct Cluster {
    /// For writes, and for reads before irreversible writes.
    pub client: Client,
    /// For all other reads.
    pub caches: Caches,
    /// Applied children that the API server stored differently.
    pub settled: Settled,
}

impl Cluster {
    /// Reads of objects that no watch covers.
    pub fn reader(&self) -> Reader {
        Reader::new(self.client.clone())
    }
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
#[derive(Clone)]
pub struct Cache<K: Watched> {
    watched: Store<K>,
    groups: Arc<Mutex<Groups>>,
    own: Arc<Mutex<OwnWrites<K>>>,
}

impl<K: Watched> Cache<K> {
    /// Returns the object with this name.
    pub fn get(&self, namespace: &str, name: &str) -> Result<Option<Arc<K>>, NotKnown> {
        self.known()?;
        let key = (Some(namespace.to_owned()), name.to_owned());
        let watched = self.watched.get(&reference(&key));
        let newest = newest(watched, self.own.lock().get(&key));
        newest.map(decoded).transpose()
    }

    /// The children of `owner`, its kind and name, that have one of `components`, sorted by name.
    pub fn children(
        &self,
        namespace: &str,
        owner: (&str, &str),
        components: &[&str],
    ) -> Result<Vec<Arc<K>>, NotKnown> {
        self.known()?;
        let is_child = |object: &Arc<K>| {
            object.meta().namespace.as_deref() == Some(namespace)
                && labels::is_child_of(object.labels(), owner, components)
        };
        let group = Group::children(namespace, owner);
        let mut keys: BTreeSet<Key> = groups::of(&self.groups.lock(), &group).cloned().collect();
        let own = self.own.lock();
        keys.extend(own.of(&group).cloned());
        let children = keys.iter().filter_map(|key| {
            let watched = self.watched.get(&reference(key));
            newest(watched, own.get(key)).filter(is_child)
        });
        children.map(decoded).collect()
    }

    /// The objects of a group that the watch has delivered.
    pub(crate) fn group(&self, group: &Group) -> Result<Vec<Arc<K>>, NotKnown> {
        self.known()?;
        let groups = self.groups.lock();
        let keys = groups::of(&groups, group);
        Ok(keys
            .filter_map(|key| self.watched.get(&reference(key)))
            .collect())
    }

    /// References to the objects of a group.
    pub(crate) fn references_of(&self, group: &Group) -> Vec<ObjectRef<K>> {
        let groups = self.groups.lock();
        let keys = groups::of(&groups, group);
        keys.map(reference).collect()
    }

    /// Returns `watched`, or the own write of the same object if the write is newer.
    pub fn newest(&self, watched: Arc<K>) -> Arc<K> {
        let own = self.own.lock();
        newest(Some(watched.clone()), own.get(&key(watched.as_ref()))).unwrap_or(watched)
    }

    /// Records that the API server answered a write with `object`.
    pub fn wrote(&self, object: &K) {
        let mut object = object.clone();
        slim(&mut object);
        let (key, uid) = (key(&object), object.uid());
        self.own.lock().keep(key, Some(Arc::new(object)), uid);
    }

    /// Records that the API server deleted `object`.
    pub fn deleted(&self, object: &K) {
        self.own.lock().keep(key(object), None, object.uid());
    }

    /// All objects that the watch has delivered.
    ///
    /// # Errors
    /// [`NotKnown`] before the first list.
    pub(crate) fn all(&self) -> Result<Vec<Arc<K>>, NotKnown> {
        self.known()?;
        Ok(self.watched.state())
    }

    /// The store that kube's applier reads objects from.
    pub fn store(&self) -> Store<K> {
        self.watched.clone()
    }

    /// Waits for the first list.
    pub(crate) async fn first_list(&self) {
        // The watch may end without a list. The task that polls the watch handles this case.
        let _ended = self.watched.wait_until_ready().await;
    }

    fn known(&self) -> Result<(), NotKnown> {
        // Polls only once, because this function does not wait.
        match futures::FutureExt::now_or_never(self.watched.wait_until_ready()) {
            Some(Ok(())) => Ok(()),
            Some(Err(_)) | None => Err(NotKnown::Unanswered {
                kind: K::kind(&()).into_owned(),
            }),
        }
    }
}

/// The object, unless it is a placeholder.
fn decoded<K: Watched>(object: Arc<K>) -> Result<Arc<K>, NotKnown> {
    match undecoded::reason(object.as_ref()) {
        Some(reason) => Err(NotKnown::Undecoded {
            kind: K::kind(&()).into_owned(),
            name: object.name_any(),
            reason: reason.to_owned(),
        }),
        None => Ok(object),
    }
}

/// Fills a [`Cache`] from a watch.
pub struct Feed<K: Watched> {
    writer: Writer<K>,
    cache: Cache<K>,
    list_begun: Instant,
    /// The groups of the objects in a list that is in progress.
    listed: Groups,
    /// Groups of an object in addition to those of its labels.
    more_groups: fn(&K) -> Vec<Group>,
}

impl<K: Watched> Default for Feed<K> {
    fn default() -> Self {
        let writer = Writer::default();
        let cache = Cache {
            watched: writer.as_reader(),
            groups: Arc::default(),
            own: Arc::default(),
        };
        Self {
            writer,
            cache,
            list_begun: Instant::now(),
            listed: Groups::new(),
            more_groups: |_| Vec::new(),
        }
    }
}

impl<K: Watched> Feed<K> {
    /// The cache that this feed fills.
    pub fn cache(&self) -> Cache<K> {
        self.cache.clone()
    }

    /// Adds each object to further groups.
    pub(crate) fn grouped(self, more_groups: fn(&K) -> Vec<Group>) -> Self {
        Self {
            more_groups,
            ..self
        }
    }

    /// The last version of the object that the watch delivered.
    pub fn known(&self, object: &K) -> Option<Arc<K>> {
        self.cache.watched.get(&reference(&key(object)))
    }

    /// Applies one event of the watch to the cache.
    pub fn take(&mut self, event: Event<K>) -> Event<K> {
        let event = event.modify(slim);
        self.group(&event);
        let mut own = self.cache.own.lock();
        match &event {
            Event::Init => self.list_begun = Instant::now(),
            // The list was requested after the dropped writes, so it contains these writes.
            Event::InitDone => own.drop_before(self.list_begun),
            Event::Apply(object) => own.delivered(&key(object), object),
            Event::Delete(object) => own.gone(&key(object), object),
            Event::InitApply(_) => {}
        }
        drop(own);
        event
    }

    /// Applies the event to the objects and to their groups.
    fn group(&mut self, event: &Event<K>) {
        let of = |object: &K| {
            let mut groups = groups::groups(object);
            groups.extend((self.more_groups)(object));
            groups
        };
        let mut groups = self.cache.groups.lock();
        match event {
            Event::Init => self.listed.clear(),
            Event::InitApply(object) => groups::insert(&mut self.listed, of(object), &key(object)),
            Event::InitDone => *groups = std::mem::take(&mut self.listed),
            Event::Apply(object) | Event::Delete(object) => {
                let key = key(object);
                if let Some(old) = self.cache.watched.get(&reference(&key)) {
                    groups::remove(&mut groups, of(&old), &key);
                }
                if matches!(event, Event::Apply(_)) {
                    groups::insert(&mut groups, of(object), &key);
                }
            }
        }
        // Readers of the groups see both changes, or none.
        self.writer.apply_watcher_event(event);
    }
}

/// A watched kind whose objects can be children.
pub trait Cached: Watched + Resource<Scope = NamespaceResourceScope> {
    /// The cache of this kind.
    fn of(caches: &Caches) -> &Cache<Self>;
}

macro_rules! caches {
    ($($field:ident: $kind:ty, $doc:literal;)*) => {
        /// All caches, for one namespace or for all namespaces.
        #[derive(Clone)]
        pub struct Caches {
            $(#[doc = $doc] pub $field: Cache<$kind>,)*
            first_wait: Arc<OnceLock<Instant>>,
        }

        /// The feeds that fill [`Caches`].
        #[derive(Default)]
        pub struct Feeds {
            $(#[doc = $doc] pub $field: Feed<$kind>,)*
            first_wait: Arc<OnceLock<Instant>>,
        }

        impl Feeds {
            /// The caches that these feeds fill.
            pub fn caches(&self) -> Caches {
                Caches {
                    $($field: self.$field.cache(),)*
                    first_wait: self.first_wait.clone(),
                }
            }

            /// Each watched kind, and whether the kind has a placeholder.
            #[cfg(test)]
            pub(crate) fn placeholders() -> Vec<(String, bool)> {
                vec![$((
                    <$kind>::kind(&()).into_owned(),
                    undecoded::has_placeholder::<$kind>(),
                ),)*]
            }
        }

        impl Caches {
            /// Waits for all lists, up to [`FIRST_LISTS`] after the first call. Later, a read of an
            /// unknown kind returns an error.
            pub async fn first_lists(&self) {
                let end = *self.first_wait.get_or_init(Instant::now) + FIRST_LISTS;
                let all = async { futures::join!($(self.$field.first_list(),)*) };
                let _unknown_yet = timeout_at(end, all).await;
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
    tunnels: MuxTunnel, "All MuxTunnels.";
    exits: MuxExit, "All MuxExits.";
    rendezvous: MuxRendezvous, "All MuxRendezvous.";
    peers: MuxPeer, "All MuxPeers.";
    benchmarks: MuxBenchmark, "All benchmarks.";
    deployments: Deployment, "Children of the operator's objects.";
    services: Service, "All Services: children and targets.";
    endpoint_slices: EndpointSlice, "All EndpointSlices: the endpoints of targets.";
    config_maps: ConfigMap, "Children of the operator's objects.";
    service_accounts: ServiceAccount, "Children of the operator's objects.";
    replica_sets: ReplicaSet, "ReplicaSets of children.";
    pods: Pod, "Pods of children.";
    jobs: Job, "Children of the operator's objects.";
    network_policies: NetworkPolicy, "Children of the operator's objects.";
    pod_disruption_budgets: PodDisruptionBudget, "Children of the operator's objects.";
    autoscalers: HorizontalPodAutoscaler, "Children of the operator's objects.";
}

#[cfg(test)]
mod tests;
