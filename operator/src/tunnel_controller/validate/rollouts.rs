//! Decides the roll-out of each end, from the memory of refusals and from the running pods. Pure.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use kube::ResourceExt;
use muxtunnel_crds::PodTemplate;
use muxtunnel_gateway_config::config_hash;
use serde_json::json;

use super::ValidatedTunnel;
use crate::pods::{is_ready, is_started};
use crate::tunnel_controller::config_file::{
    FILE, STATIC_HASH, hash_of_kept, kept_key, static_hash,
};
use crate::tunnel_controller::dereference::{Dereferenced, Live, LiveConfig};
use crate::tunnel_controller::end::End;
use crate::tunnel_controller::pods::{end_of, is_of};
use crate::tunnel_controller::rollouts::{
    AVOIDED_NODES, Fallback, Held, NODES_AVOIDED_MAX, Rollout, STOPPED,
};

/// Maximum number of configurations that a ConfigMap stores in addition to its current
/// configuration. Several roll-outs at the same time need several configurations.
const KEPT_MAX: usize = 4;
/// Label that the Deployment controller adds to a ReplicaSet's template.
const TEMPLATE_HASH: &str = "pod-template-hash";
/// Annotation of a ReplicaSet with an increasing number.
const REVISION: &str = "deployment.kubernetes.io/revision";
/// Number of digits of the hash in a name. With the longest name of a tunnel, the result has 63
/// characters, the maximum for a label.
const HASH_DIGITS: usize = 8;

impl ValidatedTunnel {
    /// The roll-out of `end`.
    #[must_use]
    pub fn rollout(&self, end: End) -> Option<&Rollout> {
        self.rollouts.get(&end)
    }
}

/// Hash of the fields that decide whether a node accepts the sysctls: the sysctls and the
/// placement.
pub(in crate::tunnel_controller) fn asked(
    sysctls: &BTreeMap<String, String>,
    template: &PodTemplate,
) -> String {
    let tried = json!({
        "sysctls": sysctls,
        "nodeSelector": template.node_selector,
        "tolerations": template.tolerations,
        "affinity": template.affinity,
        "priorityClassName": template.priority_class_name,
    });
    let mut hash = config_hash(&tried.to_string());
    hash.truncate(HASH_DIGITS);
    hash
}

/// The roll-out of `end`, whose pods make requests to nodes with the hash `asked`.
pub(super) fn rollout(end: End, asked: String, named: &Dereferenced) -> Rollout {
    let live = named.live.deployments.get(&end);
    let mut rollout = Rollout {
        avoided: live.map(|live| avoided(live, &asked)).unwrap_or_default(),
        is_stopped: live.is_some_and(|live| live.annotations().contains_key(STOPPED)),
        kept: kept(&named.live, end),
        asked,
        held: None,
    };
    let refusal = named.refusals.get(&end);
    if let Some(refusal) = refusal.filter(|refusal| refusal.asked == rollout.asked) {
        rollout.avoided.extend(refusal.nodes.iter().cloned());
        rollout.held = refusal.rests.then(|| Held {
            problem: refusal.problem.clone(),
            fallback: live.map_or(Fallback::Nothing, |live| fallback(&named.live, live)),
        });
    }
    rollout
}

/// The nodes that pods with the same requests currently avoid.
fn avoided(live: &Deployment, asked: &str) -> BTreeSet<String> {
    let text = live.annotations().get(AVOIDED_NODES);
    let mut words = text.map_or("", String::as_str).split(' ');
    if words.next() != Some(asked) {
        return BTreeSet::new();
    }
    words
        .take(NODES_AVOIDED_MAX)
        .filter(|node| !node.is_empty())
        .map(str::to_owned)
        .collect()
}

/// The state of an end with the Deployment `deployment` while its spec is refused.
fn fallback(live: &Live, deployment: &Deployment) -> Fallback {
    let own: BTreeSet<_> = deployment.uid().into_iter().collect();
    let revision = |set: &ReplicaSet| {
        let text = set.annotations().get(REVISION);
        text.and_then(|text| text.parse::<u64>().ok()).unwrap_or(0)
    };
    let has_ready_pods = |set: &ReplicaSet| {
        let status = set.status.as_ref();
        status.and_then(|status| status.ready_replicas).unwrap_or(0) > 0
    };
    // An entry without a carrier is not ready, but it runs, so the template suits the nodes.
    let has_running_pods = |set: &ReplicaSet| {
        let set: BTreeSet<_> = set.uid().into_iter().collect();
        let mut pods = live.pods.iter().flatten();
        pods.any(|pod| is_of(pod.as_ref(), &set) && is_started(pod))
    };
    let good = live
        .replica_sets
        .iter()
        .filter(|set| is_of(set.as_ref(), &own))
        .map(|set| (has_ready_pods(set), revision(set), set))
        .filter(|(is_ready, _, set)| *is_ready || has_running_pods(set))
        .max_by_key(|(is_ready, revision, _)| (*is_ready, *revision))
        .map(|(_, _, set)| set)
        .and_then(|set| set.spec.as_ref()?.template.clone());
    good.map_or(Fallback::Stopped, |mut template| {
        let labels = template.metadata.as_mut();
        if let Some(labels) = labels.and_then(|metadata| metadata.labels.as_mut()) {
            labels.remove(TEMPLATE_HASH);
        }
        Fallback::Template(Box::new(template))
    })
}

/// The configurations that ready gateways of `end` started with, if the end's ConfigMap still
/// contains them. If the pods are not known, keeps all configurations.
fn kept(live: &Live, end: End) -> BTreeMap<String, String> {
    let Some(config) = live.config_maps.get(&end) else {
        return BTreeMap::new();
    };
    let used: BTreeSet<_> = match &live.pods {
        Some(pods) => pods
            .iter()
            .filter(|pod| is_ready(pod) && end_of(pod) == Some(end))
            .filter_map(|pod| pod.annotations().get(STATIC_HASH).cloned())
            .collect(),
        None => static_hashes(config),
    };
    let texts = used.into_iter().take(KEPT_MAX).filter_map(|hash| {
        let text = text_of(config, &hash)?;
        Some((hash, text))
    });
    texts.collect()
}

/// The hashes of all static parts in a ConfigMap.
fn static_hashes(live: &LiveConfig) -> BTreeSet<String> {
    let data = live.config_map.data.iter().flatten();
    let kept = data.filter_map(|(key, _)| hash_of_kept(key));
    let current = || static_hash(live.config.as_ref()?).ok();
    kept.map(str::to_owned).chain(current()).collect()
}

/// The configuration in a ConfigMap whose static part has the hash `hash`.
fn text_of(live: &LiveConfig, hash: &str) -> Option<String> {
    let data = live.config_map.data.as_ref()?;
    if let Some(text) = data.get(&kept_key(hash)) {
        return Some(text.clone());
    }
    let is_it = static_hash(live.config.as_ref()?).ok()? == hash;
    is_it.then(|| data.get(FILE).cloned())?
}
