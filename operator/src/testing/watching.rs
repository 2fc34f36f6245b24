//! Delivers objects from the API server in memory into the operator's caches. The test decides how
//! far the caches lag.

use kube::ResourceExt;
use kube::runtime::watcher::Event;
use serde_json::Value;

use super::FakeApi;
use crate::caches::{Caches, Feed, Feeds};
use crate::labels;
use crate::undecoded::{self, Guarded};
use crate::watches::Watched;

/// Caches that a test fills.
pub(crate) struct Watches {
    feeds: Feeds,
    /// `None` until the objects are listed.
    seen: Option<u64>,
}

impl Watches {
    /// Empty caches.
    pub(crate) fn new() -> Self {
        Self {
            feeds: Feeds::default(),
            seen: None,
        }
    }

    pub(crate) fn caches(&self) -> Caches {
        self.feeds.caches()
    }

    /// Delivers all changes.
    pub(crate) fn deliver(&mut self, api: &FakeApi) {
        self.deliver_until(api, u64::MAX);
    }

    /// Delivers all changes up to `version`. The first call delivers all existing objects.
    pub(crate) fn deliver_until(&mut self, api: &FakeApi, version: u64) {
        let feeds = &mut self.feeds;
        let range = self.seen.map(|seen| (seen, version));
        bring(api, &mut feeds.tunnels, "muxtunnels", false, range);
        bring(api, &mut feeds.exits, "muxexits", false, range);
        bring(api, &mut feeds.rendezvous, "muxrendezvous", false, range);
        bring(api, &mut feeds.peers, "muxpeers", false, range);
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
        let newest = api.newest();
        self.seen = Some(match self.seen {
            Some(seen) => version.min(newest).max(seen),
            None => newest,
        });
    }

    /// The version up to which changes were delivered.
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
    let read = |object: &Value| {
        let object = serde_json::from_value::<Guarded<K>>(object.clone());
        undecoded::decoded(object.unwrap()).unwrap()
    };
    let is_watched = |object: &K| !children_alone || labels::is_child(object.labels());
    let Some((after, until)) = range else {
        feed.take(Event::Init);
        for object in api.list(resource) {
            let object = read(&object);
            if is_watched(&object) {
                feed.take(Event::InitApply(object));
            }
        }
        feed.take(Event::InitDone);
        return;
    };
    for (old, new) in api.changes(resource, after, until) {
        let old = old.as_deref().map(read).filter(is_watched);
        let new = new.as_deref().map(read).filter(is_watched);
        match (old, new) {
            (_, Some(new)) => drop(feed.take(Event::Apply(new))),
            (Some(old), None) => drop(feed.take(Event::Delete(old))),
            (None, None) => {}
        }
    }
}
