//! Watches of the API server. Each watched kind is a stream of references to objects that have to
//! be reconciled. The stream also fills the [cache](crate::caches) of its kind.
//!
//! kube's `Controller` has one back-off for all its watches, so one failing kind delays the watches
//! of all other kinds (kube 5.0, controller/mod.rs). Here each kind has its own back-off. Errors of
//! a watch are logged. If no watch gets an answer, [`crate::health`] reports that the operator is
//! not ready. An object that cannot be decoded does not fail its watch ([`crate::undecoded`]).

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{self, BoxStream, Stream, StreamExt};
use kube::runtime::WatchStreamExt;
use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};
use tracing::{debug, warn};

use crate::caches::Feed;
use crate::labels;
use crate::undecoded::{self, Guarded};
use crate::watch_clock::WatchClock;

/// Number of objects in one answer to a list. All kinds may be listed at the same time, and the
/// caches have the earlier objects until a list is complete, so larger answers would exceed the
/// operator's memory limit.
const PAGE_OBJECTS: u32 = 50;
/// Length of one watch call, in seconds, and so the longest time until the operator detects a
/// connection that is dead without an error.
pub const WATCH_SECONDS: u32 = 50;

/// Maximum number of triggers that wait for the controller of their kind, which takes them at any
/// time.
const QUEUE_MAX: usize = 256;

/// All changes of an object within this time cause a single reconciliation.
const BATCH: Duration = Duration::from_millis(200);

/// The bounds of a type that can be watched.
pub trait Watched:
    Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static
{
}

impl<K> Watched for K where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static
{
}

/// An object of any kind. The order is the order in which objects take the revision of their class.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectId {
    /// The namespace.
    pub namespace: String,
    /// The kind in the API.
    pub kind: String,
    /// The name.
    pub name: String,
}

impl<K: Resource<DynamicType = ()>> From<ObjectRef<K>> for ObjectId {
    fn from(object: ObjectRef<K>) -> Self {
        Self {
            kind: K::kind(&()).into_owned(),
            namespace: object.namespace.unwrap_or_default(),
            name: object.name,
        }
    }
}

/// A queue of triggers for the controller of one kind.
pub fn queue() -> (mpsc::Sender<ObjectId>, mpsc::Receiver<ObjectId>) {
    mpsc::channel(QUEUE_MAX)
}

/// The objects of a queue, as their controller takes them.
pub(crate) fn queued<K>(mut queue: mpsc::Receiver<ObjectId>) -> BoxStream<'static, ObjectRef<K>>
where
    K: Resource<DynamicType = ()> + 'static,
{
    let objects = stream::poll_fn(move |context| queue.poll_recv(context));
    let reference = |object: ObjectId| ObjectRef::new(&object.name).within(&object.namespace);
    objects.map(reference).boxed()
}

/// Watches the objects of `api`. Yields a reference to each object that is new or changed.
pub fn objects<K: Watched>(
    api: Api<Guarded<K>>,
    feed: Feed<K>,
    clock: &Arc<WatchClock>,
) -> BoxStream<'static, ObjectRef<K>> {
    let config = watcher::Config::default();
    let reference = |(object, exists): (Arc<K>, bool)| async move {
        exists.then(|| ObjectRef::from_obj(object.as_ref()))
    };
    changes((api, config), feed, clock, is_asked_alike)
        .filter_map(reference)
        .boxed()
}

/// Watches children of type `K`. Yields the owner of each child that is new, changed or deleted.
pub fn children<K: Watched>(
    api: Api<Guarded<K>>,
    feed: Feed<K>,
    clock: &Arc<WatchClock>,
) -> BoxStream<'static, ObjectId> {
    let config = watcher::Config::default().labels(&labels::children());
    let owner = |child: &K| owner_of(child).into_iter().collect();
    concerned((api, config), feed, clock, |_, _| false, owner)
}

/// Watches all objects of `api`. For each object that is new, changed or deleted, yields each object
/// that `named_by` returns. A change is ignored if both versions are the same by `is_same`. The
/// cache has dropped the fields that the operator does not need.
pub fn targets<K: Watched>(
    api: Api<Guarded<K>>,
    feed: Feed<K>,
    clock: &Arc<WatchClock>,
    is_same: fn(&K, &K) -> bool,
    named_by: impl Fn(&K) -> Vec<ObjectId> + Send + 'static,
) -> BoxStream<'static, ObjectId> {
    let config = watcher::Config::default();
    concerned((api, config), feed, clock, is_same, named_by)
}

/// Yields what `concerns` returns for each object that is new, changed or deleted. A change is
/// ignored if both versions are the same by `is_same`.
fn concerned<K: Watched>(
    (api, config): (Api<Guarded<K>>, watcher::Config),
    feed: Feed<K>,
    clock: &Arc<WatchClock>,
    is_same: fn(&K, &K) -> bool,
    concerns: impl Fn(&K) -> Vec<ObjectId> + Send + 'static,
) -> BoxStream<'static, ObjectId> {
    changes((api, config), feed, clock, is_same)
        .flat_map(move |(object, _)| stream::iter(concerns(&object)))
        .boxed()
}

/// Whether both objects are equal apart from their resource version and generation.
pub fn is_alike<K: Watched + PartialEq>(old: &K, new: &K) -> bool {
    let mut new = new.clone();
    new.meta_mut().resource_version = old.meta().resource_version.clone();
    new.meta_mut().generation = old.meta().generation;
    *old == new
}

/// Whether both objects request the same state. A change of the status does not matter.
pub fn is_asked_alike<K: Watched>(old: &K, new: &K) -> bool {
    let (old, new) = (old.meta(), new.meta());
    old.uid == new.uid
        && old.generation == new.generation
        && old.annotations == new.annotations
        && old.labels == new.labels
        && old.owner_references == new.owner_references
        && old.deletion_timestamp == new.deletion_timestamp
}

/// Yields each object that is new, changed or deleted, and whether it exists, after `feed` has applied
/// the event of the watch. A change is ignored if both versions are the same by `is_same`. A failed
/// watch restarts, and its error is logged here.
fn changes<K: Watched>(
    (api, config): (Api<Guarded<K>>, watcher::Config),
    mut feed: Feed<K>,
    clock: &Arc<WatchClock>,
    is_same: fn(&K, &K) -> bool,
) -> impl Stream<Item = (Arc<K>, bool)> + Send + 'static {
    clock.expect(api.resource_url());
    let cached = feed.cache().store();
    watcher(api, config.timeout(WATCH_SECONDS).page_size(PAGE_OBJECTS))
        .default_backoff()
        .flat_map(move |event| {
            let event = event.inspect_err(|error| {
                warn!(kind = %K::kind(&()), %error, "a watch failed and restarts");
            });
            let event = event.ok().and_then(undecoded::event);
            let old = match &event {
                Some(Event::Apply(object)) => feed.known(object),
                _ => None,
            };
            stream::iter(match event.map(|event| feed.take(event)) {
                Some(Event::Apply(new)) if old.is_some_and(|old| is_same(&old, &new)) => Vec::new(),
                Some(Event::Apply(object)) => vec![(Arc::new(object), true)],
                Some(Event::Delete(object)) => vec![(Arc::new(object), false)],
                // The cache contains the objects of the list only after this event.
                Some(Event::InitDone) => {
                    let all = cached.state().into_iter();
                    all.map(|object| (object, true)).collect()
                }
                Some(Event::Init | Event::InitApply(_)) | None => Vec::new(),
            })
        })
}

/// Yields each object at most once per [`BATCH`]. kube's own debounce restarts with each change, so
/// it never yields an object that changes continuously.
pub fn batched<K>(
    references: impl Stream<Item = ObjectRef<K>> + Send + 'static,
) -> BoxStream<'static, ObjectRef<K>>
where
    K: Resource<DynamicType = ()> + 'static,
{
    stream::unfold(references.boxed(), |mut references| async move {
        let first = references.next().await?;
        let key = |reference: &ObjectRef<K>| (reference.namespace.clone(), reference.name.clone());
        let mut seen = BTreeSet::from([key(&first)]);
        let mut batch = vec![first];
        let end = Instant::now() + BATCH;
        while let Ok(Some(reference)) = timeout_at(end, references.next()).await {
            if seen.insert(key(&reference)) {
                batch.push(reference);
            }
        }
        Some((stream::iter(batch), references))
    })
    .flatten()
    .boxed()
}

/// Finds the owner by label, because ReplicaSets own the pods. The owner may not exist. Such a
/// trigger is harmless, because its reconciliation does nothing.
pub fn owner_of<K: Watched>(child: &K) -> Option<ObjectId> {
    let (kind, name) = labels::owner(child.labels())?;
    debug!(child = %K::kind(&()), of = child.name_any(), kind, name, "a child changed");
    Some(ObjectId {
        kind: kind.to_owned(),
        namespace: child.namespace()?,
        name: name.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{Pod, Service};
    use serde_json::json;

    use super::*;
    use crate::testing::FakeApi;

    #[tokio::test(start_paused = true)]
    async fn an_object_that_never_stops_changing_is_looked_at_all_the_same() {
        let restless = stream::unfold((), |()| async {
            tokio::time::sleep(BATCH / 4).await;
            Some((ObjectRef::<Pod>::new("restless"), ()))
        });
        let begin = Instant::now();
        let batches: Vec<_> = batched(restless).take(3).collect().await;
        assert_eq!(batches.len(), 3);
        assert!(begin.elapsed() <= BATCH * 5);
    }

    /// A reconciliation before the end of the list would not find the object.
    #[tokio::test(start_paused = true)]
    async fn a_listed_object_is_in_the_cache_before_its_trigger() {
        let api = FakeApi::default();
        for number in 0..=PAGE_OBJECTS {
            let service = json!({"apiVersion": "v1", "kind": "Service"});
            api.put(&format!("services/s{number}"), service);
        }
        let feed = Feed::<Service>::default();
        let cached = feed.cache().store();
        let all = Api::all(api.client());
        let itself = |service: &Service| vec![ObjectRef::from_obj(service).into()];
        let mut triggers = targets(all, feed, &Arc::default(), is_asked_alike, itself);
        for _ in 0..=PAGE_OBJECTS {
            let trigger = triggers.next().await.unwrap();
            let object = ObjectRef::new(&trigger.name).within(&trigger.namespace);
            assert!(cached.get(&object).is_some(), "{trigger:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn many_changes_at_once_are_one_look_at_each_object() {
        let changes = ["a", "b", "a", "a", "b"].map(ObjectRef::<Pod>::new);
        let batches: Vec<_> = batched(stream::iter(changes)).collect().await;
        let names: Vec<_> = batches.iter().map(|batch| batch.name.as_str()).collect();
        assert_eq!(names, ["a", "b"]);
    }
}
