//! Watches of the API server in memory: over HTTP as clients begin them, or, where a test decides how far
//! behind they are, straight into the operator's caches.

use std::sync::Arc;
use std::time::Duration;

use futures::stream::{self, StreamExt};
use http::Response;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Bytes, Frame};
use kube::runtime::watcher::Event;
use serde_json::{Value, json};
use tokio::time::{Instant, timeout_at};

use super::{Answer, FakeApi, READ_TIMEOUT, Recorded, Trouble, error, is_in, selector};
use crate::caches::{Caches, Feed, Feeds};
use crate::labels;
use crate::watches::Watched;
use kube::ResourceExt;

impl FakeApi {
    pub(super) fn watch(&self, request: &Recorded) -> Answer {
        let parameter = |name: &str| {
            let pairs = request.query.split('&');
            let mut values = pairs.filter_map(|pair| pair.strip_prefix(name)?.strip_prefix('='));
            values.next().and_then(|value| value.parse::<u64>().ok())
        };
        let from = parameter("resourceVersion").unwrap_or(0);
        let end = Instant::now() + Duration::from_secs(parameter("timeoutSeconds").unwrap_or(290));
        let (resource, query) = (request.path.clone(), request.query.clone());
        let namespace = request.namespace.clone();
        let newest = self.newest.subscribe();
        let events = stream::unfold(
            (self.clone(), newest, from),
            move |(api, mut newest, from)| {
                let (resource, query) = (resource.clone(), query.clone());
                let namespace = namespace.clone();
                async move {
                    loop {
                        newest.borrow_and_update();
                        let trouble = api.lock().troubles.get(&resource).copied();
                        if matches!(trouble, Some(Trouble::Hangs)) {
                            tokio::time::sleep(READ_TIMEOUT).await;
                        }
                        if trouble.is_some() || api.lock().away || from == u64::MAX {
                            return None;
                        }
                        let scope = namespace.as_deref();
                        let next = api.next_event((&resource, scope), &query, from);
                        if let Some((version, event)) = next {
                            let mut line = serde_json::to_vec(&event).unwrap();
                            line.push(b'\n');
                            let frame = Ok::<_, std::io::Error>(Frame::data(Bytes::from(line)));
                            return Some((frame, (api, newest, version)));
                        }
                        timeout_at(end, newest.changed()).await.ok()?.ok()?;
                    }
                }
            },
        );
        Response::new(StreamBody::new(events.boxed()).boxed_unsync())
    }

    /// The first change after `from` that a watch is told of.
    fn next_event(
        &self,
        (resource, namespace): (&str, Option<&str>),
        query: &str,
        from: u64,
    ) -> Option<(u64, Value)> {
        let selector = selector::parse(query);
        let prefix = format!("{resource}/");
        let world = self.lock();
        if from < world.forgotten {
            let text = format!("too old resource version: {from} ({})", world.forgotten);
            let (_, status) = error(410, "Expired", &text);
            // The watch is at its end with that.
            return Some((u64::MAX, json!({"type": "ERROR", "object": status})));
        }
        let begin = world
            .changes
            .partition_point(|change| change.version <= from);
        let matches = |object: &Option<Arc<Value>>| {
            object
                .as_ref()
                .filter(|object| selector.matches(&object["metadata"]["labels"]))
                .cloned()
        };
        world.changes[begin..]
            .iter()
            .filter(|change| change.path.starts_with(&prefix) && is_in(&change.path, namespace))
            .find_map(|change| {
                let (type_, object) = match (matches(&change.old), matches(&change.new)) {
                    (None, None) => return None,
                    (None, Some(new)) => ("ADDED", new),
                    (Some(_), Some(new)) => ("MODIFIED", new),
                    (Some(old), None) => ("DELETED", old),
                };
                let event = json!({"type": type_, "object": *object});
                Some((change.version, event))
            })
    }
}

/// Caches that a test fills by hand, as far as it wants.
pub(crate) struct Watches {
    feeds: Feeds,
    /// `None`: nothing was listed yet.
    seen: Option<u64>,
}

impl Watches {
    /// That know nothing yet.
    pub(crate) fn new() -> Self {
        Self {
            feeds: Feeds::default(),
            seen: None,
        }
    }

    pub(crate) fn caches(&self) -> Caches {
        self.feeds.caches()
    }

    /// Brings everything.
    pub(crate) fn deliver(&mut self, api: &FakeApi) {
        self.deliver_until(api, u64::MAX);
    }

    /// Brings what is not newer than `version`; the first time, all that is there.
    pub(crate) fn deliver_until(&mut self, api: &FakeApi, version: u64) {
        let feeds = &mut self.feeds;
        let range = self.seen.map(|seen| (seen, version));
        bring(api, &mut feeds.tunnels, "muxtunnels", false, range);
        bring(api, &mut feeds.benchmarks, "muxbenchmarks", false, range);
        bring(api, &mut feeds.deployments, "deployments", true, range);
        bring(
            api,
            &mut feeds.endpoint_slices,
            "endpointslices",
            false,
            range,
        );
        bring(api, &mut feeds.replica_sets, "replicasets", true, range);
        bring(api, &mut feeds.services, "services", false, range);
        bring(api, &mut feeds.config_maps, "configmaps", true, range);
        bring(
            api,
            &mut feeds.service_accounts,
            "serviceaccounts",
            true,
            range,
        );
        bring(api, &mut feeds.pods, "pods", true, range);
        bring(api, &mut feeds.jobs, "jobs", true, range);
        bring(
            api,
            &mut feeds.network_policies,
            "networkpolicies",
            true,
            range,
        );
        bring(
            api,
            &mut feeds.pod_disruption_budgets,
            "poddisruptionbudgets",
            true,
            range,
        );
        bring(
            api,
            &mut feeds.autoscalers,
            "horizontalpodautoscalers",
            true,
            range,
        );
        let newest = api.lock().version;
        self.seen = Some(match self.seen {
            Some(seen) => version.min(newest).max(seen),
            None => newest,
        });
    }

    /// How far they have come.
    pub(crate) fn seen(&self) -> u64 {
        self.seen.unwrap_or(0)
    }
}

fn bring<K: Watched>(
    api: &FakeApi,
    feed: &mut Feed<K>,
    resource: &str,
    children_alone: bool,
    range: Option<(u64, u64)>,
) {
    let prefix = format!("{resource}/");
    let read = |object: &Value| serde_json::from_value::<K>(object.clone()).unwrap();
    let is_watched = |object: &K| !children_alone || labels::is_child(object.labels());
    let world = api.lock();
    let Some((after, until)) = range else {
        feed.take(Event::Init);
        let objects = world.objects.iter();
        for (_, stored) in objects.filter(|(path, _)| path.starts_with(&prefix)) {
            let object = read(&stored.shown());
            if is_watched(&object) {
                feed.take(Event::InitApply(object));
            }
        }
        feed.take(Event::InitDone);
        return;
    };
    for change in &world.changes {
        let is_due = change.version > after && change.version <= until;
        if !is_due || !change.path.starts_with(&prefix) {
            continue;
        }
        let old = change.old.as_deref().map(read).filter(is_watched);
        let new = change.new.as_deref().map(read).filter(is_watched);
        match (old, new) {
            (_, Some(new)) => drop(feed.take(Event::Apply(new))),
            (Some(old), None) => drop(feed.take(Event::Delete(old))),
            (None, None) => {}
        }
    }
}
