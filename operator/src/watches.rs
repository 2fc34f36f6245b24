//! What makes objects be reconciled: a stream of references for each watched kind, which fills its
//! [cache](crate::caches) on the way.
//!
//! kube's `Controller` puts one back-off around all its watches, so that one failing kind silences all
//! others (kube 5.0, controller/mod.rs). Here each kind backs off by itself and its errors end here, as
//! log lines; [`crate::health`] tells when one stays silent.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{self, BoxStream, Stream, StreamExt};
use kube::runtime::WatchStreamExt;
use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use tokio::time::{Instant, timeout_at};
use tracing::{debug, warn};

use crate::caches::Feed;
use crate::labels;
use crate::watch_clock::WatchClock;

/// Length of one watch call, in seconds. Bounds how long a connection that died silently goes
/// unnoticed.
pub const WATCH_SECONDS: u32 = 50;

/// Changes of an object within this time are one reconciliation of it.
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

/// Watches the objects of `api` themselves: a reference to each that is new or changed.
pub fn objects<K: Watched>(
    api: Api<K>,
    feed: Feed<K>,
    clock: &Arc<WatchClock>,
) -> BoxStream<'static, ObjectRef<K>> {
    let cache = feed.cache();
    let config = watcher::Config::default();
    changes(api, config, feed, clock)
        .flat_map(move |(event, old)| {
            stream::iter(match event {
                Event::Apply(object)
                    if old.is_some_and(|old| is_asked_alike(old.as_ref(), &object)) =>
                {
                    Vec::new()
                }
                Event::Apply(object) => vec![ObjectRef::from_obj(&object)],
                // Only now the cache holds what the list brought.
                Event::InitDone => cache.references(),
                Event::Delete(_) | Event::Init | Event::InitApply(_) => Vec::new(),
            })
        })
        .boxed()
}

/// Watches our children of type `K`: a reference to the owner of each that is new, changed or gone.
pub fn children<K: Watched, Owner>(
    api: Api<K>,
    feed: Feed<K>,
    clock: &Arc<WatchClock>,
) -> BoxStream<'static, ObjectRef<Owner>>
where
    Owner: Resource<DynamicType = ()> + 'static,
{
    let config = watcher::Config::default().labels(&labels::children());
    events(api, config, feed, clock)
        .filter_map(|event| async move { changed(event).as_ref().and_then(owner_of) })
        .boxed()
}

/// Watches all objects of `api`, ours or not: a reference to the owner of each of ours that is new, changed or gone,
/// and to whatever `named_by` says that names it.
pub fn named<K: Watched, Owner>(
    api: Api<K>,
    feed: Feed<K>,
    clock: &Arc<WatchClock>,
    named_by: impl Fn(&K) -> Vec<ObjectRef<Owner>> + Send + 'static,
) -> BoxStream<'static, ObjectRef<Owner>>
where
    Owner: Resource<DynamicType = ()> + 'static,
{
    events(api, watcher::Config::default(), feed, clock)
        .flat_map(move |event| {
            let changed = changed(event);
            let ours = changed
                .as_ref()
                .filter(|object| labels::is_child(object.labels()));
            let owner = ours.and_then(owner_of);
            let naming = changed.as_ref().map(&named_by).unwrap_or_default();
            stream::iter(owner.into_iter().chain(naming))
        })
        .boxed()
}

/// Watches all objects of `api`: a reference to whatever `named_by` says that is concerned by one that is new, changed or
/// gone. What the cache does not keep of it is no change.
pub fn targets<K: Watched + PartialEq, Owner>(
    api: Api<K>,
    feed: Feed<K>,
    clock: &Arc<WatchClock>,
    named_by: impl Fn(&K) -> Vec<ObjectRef<Owner>> + Send + 'static,
) -> BoxStream<'static, ObjectRef<Owner>>
where
    Owner: Resource<DynamicType = ()> + 'static,
{
    changes(api, watcher::Config::default(), feed, clock)
        .flat_map(move |(event, old)| {
            let concerned = changed(event)
                .filter(|new| old.is_none_or(|old| !is_alike(old.as_ref(), new)))
                .map(|new| named_by(&new));
            stream::iter(concerned.unwrap_or_default())
        })
        .boxed()
}

/// Whether they differ in nothing but their version.
fn is_alike<K: Watched + PartialEq>(old: &K, new: &K) -> bool {
    let mut new = new.clone();
    new.meta_mut().resource_version = old.meta().resource_version.clone();
    new.meta_mut().generation = old.meta().generation;
    *old == new
}

/// Whether the same is asked for by both: a status that was written, by whomever, asks for nothing.
fn is_asked_alike<K: Watched>(old: &K, new: &K) -> bool {
    let (old, new) = (old.meta(), new.meta());
    old.uid == new.uid
        && old.generation == new.generation
        && old.annotations == new.annotations
        && old.labels == new.labels
        && old.owner_references == new.owner_references
        && old.deletion_timestamp == new.deletion_timestamp
}

/// The events of a watch, once `feed` has taken them. One that fails is begun again by itself: errors
/// end here.
fn events<K: Watched>(
    api: Api<K>,
    config: watcher::Config,
    feed: Feed<K>,
    clock: &Arc<WatchClock>,
) -> impl Stream<Item = Event<K>> + Send + 'static {
    changes(api, config, feed, clock).map(|(event, _)| event)
}

/// The same, with what was known before of each object that is new or changed.
fn changes<K: Watched>(
    api: Api<K>,
    config: watcher::Config,
    mut feed: Feed<K>,
    clock: &Arc<WatchClock>,
) -> impl Stream<Item = (Event<K>, Option<Arc<K>>)> + Send + 'static {
    clock.expect(api.resource_url());
    watcher(api, config.timeout(WATCH_SECONDS))
        .default_backoff()
        .filter_map(move |event| {
            let event = match event {
                Ok(event) => {
                    let old = match &event {
                        Event::Apply(object) => feed.known(object),
                        _ => None,
                    };
                    Some((feed.take(event), old))
                }
                Err(error) => {
                    warn!(kind = %K::kind(&()), %error, "a watch failed and is begun again");
                    None
                }
            };
            async move { event }
        })
}

fn changed<K>(event: Event<K>) -> Option<K> {
    match event {
        Event::Apply(child) | Event::InitApply(child) | Event::Delete(child) => Some(child),
        Event::Init | Event::InitDone => None,
    }
}

/// Lets each object through once in [`BATCH`], however often it is named. kube's own debounce restarts with each change,
/// so it never passes on an object that never stops changing.
pub fn batched<K>(
    references: impl Stream<Item = ObjectRef<K>> + Send + 'static,
) -> BoxStream<'static, ObjectRef<K>>
where
    K: Resource<DynamicType = ()> + 'static,
{
    stream::unfold(references.boxed(), |mut references| async move {
        let mut batch = vec![references.next().await?];
        let end = Instant::now() + BATCH;
        while let Ok(Some(reference)) = timeout_at(end, references.next()).await {
            if !batch.contains(&reference) {
                batch.push(reference);
            }
        }
        Some((stream::iter(batch), references))
    })
    .flatten()
    .boxed()
}

/// By label, because pods are owned by ReplicaSets. A reference to an object that does not exist does
/// no harm: nothing is done for it.
fn owner_of<K: Watched, Owner>(child: &K) -> Option<ObjectRef<Owner>>
where
    Owner: Resource<DynamicType = ()>,
{
    let instance = child.labels().get(labels::INSTANCE)?;
    let namespace = child.namespace()?;
    debug!(kind = %K::kind(&()), name = child.name_any(), instance, "a child changed");
    Some(ObjectRef::new(instance).within(&namespace))
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::Pod;

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

    #[tokio::test(start_paused = true)]
    async fn many_changes_at_once_are_one_look_at_each_object() {
        let changes = ["a", "b", "a", "a", "b"].map(ObjectRef::<Pod>::new);
        let batches: Vec<_> = batched(stream::iter(changes)).collect().await;
        let names: Vec<_> = batches.iter().map(|batch| batch.name.as_str()).collect();
        assert_eq!(names, ["a", "b"]);
    }
}
