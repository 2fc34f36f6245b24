//! Decides the roll-out of each end, from the memory of refusals and from the running pods. Pure.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::api::core::v1::{PodSpec, PodTemplateSpec};
use kube::ResourceExt;
use muxtunnel_crds::Template;
use muxtunnel_gateway_config::config_hash;
use serde_json::json;

use crate::pods::{has_sysctls, is_started};
use crate::tunnel_controller::config_file::{is_key, mounted_key, whole_key};
use crate::tunnel_controller::dereference::{Dereferenced, Live};
use crate::tunnel_controller::end::End;
use crate::tunnel_controller::pods::{end_of, is_of};
use crate::tunnel_controller::rollouts::{
    AVOIDED_NODES, Auto, Fallback, Held, NODES_AVOIDED_MAX, Rollout, STOPPED, Untuned,
};

/// Label that the Deployment controller adds to a ReplicaSet's template.
const TEMPLATE_HASH: &str = "pod-template-hash";
/// Annotation of a ReplicaSet with an increasing number.
const REVISION: &str = "deployment.kubernetes.io/revision";
/// Number of digits of the hash in a name. With the longest name of a tunnel, the result has 63
/// characters, the maximum for a label.
const HASH_DIGITS: usize = 8;

/// Hash of the fields that decide whether a node accepts the sysctls: the sysctls and the
/// placement. `image`: the image of the pods, if the hash also depends on it.
pub(in crate::tunnel_controller) fn asked(
    sysctls: &BTreeMap<String, String>,
    template: &Template,
    image: Option<&str>,
) -> String {
    let placement = template.spec.clone().unwrap_or_default();
    let mut tried = json!({
        "sysctls": sysctls,
        "nodeSelector": placement.node_selector,
        "tolerations": placement.tolerations,
        "affinity": placement.affinity,
        "priorityClassName": placement.priority_class_name,
        "runtimeClassName": placement.runtime_class_name,
        "schedulerName": placement.scheduler_name,
    });
    if let Some(image) = image {
        tried["image"] = json!(image);
    }
    let mut hash = config_hash(&tried.to_string());
    hash.truncate(HASH_DIGITS);
    hash
}

/// Why the pods of `end` do not get the sysctls of profile `Auto`. `None`: they get them. `asked`:
/// the hash of the requests with these sysctls. `sysctls`: all sysctls of such pods.
pub(super) fn untuned(
    end: End,
    asked: &str,
    sysctls: &BTreeMap<String, String>,
    named: &Dereferenced,
) -> Option<Untuned> {
    let live = named.live.deployments.get(&end);
    let is_own = |untuned: &Untuned| untuned.asked == asked;
    let stored = live.and_then(|live| Untuned::of(live)).filter(is_own);
    let known = || named.untuned.get(&end).cloned().filter(is_own);
    let has_sysctls = || {
        let pods = live.and_then(|live| live.spec.as_ref()?.template.spec.as_ref());
        pods.is_some_and(|pods| has_sysctls(pods, sysctls))
    };
    stored.or_else(known).or_else(|| {
        let detail = named.answers.get(asked).filter(|_| !has_sysctls())?;
        let detail = format!("another end in this namespace was refused: {detail}");
        Some(Untuned::new(asked, &detail))
    })
}

/// The roll-out of `end`, whose pods make requests to nodes with the hash `asked`.
pub(super) fn rollout(
    end: End,
    (tuning, auto): (BTreeMap<String, String>, Auto),
    asked: String,
    named: &Dereferenced,
) -> Rollout {
    let live = named.live.deployments.get(&end);
    let mut rollout = Rollout {
        tuning,
        auto,
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
        .flatten()
        .filter(|set| is_of(set.as_ref(), &own))
        .map(|set| (has_ready_pods(set), revision(set), set))
        .filter(|(is_ready, _, set)| *is_ready || has_running_pods(set))
        .max_by_key(|(is_ready, revision, _)| (*is_ready, *revision))
        .and_then(|(_, _, set)| template_of(set));
    good.map_or(Fallback::Stopped, |template| {
        Fallback::Template(Box::new(template))
    })
}

/// The template of the Deployment from which the ReplicaSet was created.
fn template_of(set: &ReplicaSet) -> Option<PodTemplateSpec> {
    let mut template = set.spec.as_ref()?.template.clone()?;
    let labels = template.metadata.as_mut();
    if let Some(labels) = labels.and_then(|metadata| metadata.labels.as_mut()) {
        labels.remove(TEMPLATE_HASH);
    }
    Some(template)
}

/// The configurations that pods of `end` mount or may still mount, from the end's ConfigMap. The
/// order is: the configuration of the Deployment's template, those of ReplicaSets with pods, and
/// those of pods that end, the newest first. If the pods are not known, the others are last.
fn kept(live: &Live, end: End) -> Vec<(String, String)> {
    let Some(own) = live.config_maps.get(&end) else {
        return Vec::new();
    };
    let name = own.config_map.name_any();
    let mut needs = BTreeMap::new();
    let mut need = |pod: Option<&PodSpec>, need: (Need, u64)| {
        if let Some(key) = pod.and_then(|pod| mounted_key(pod, &name)) {
            let known = needs.entry(key.to_owned()).or_insert(need);
            *known = need.max(*known);
        }
    };
    let deployment = live.deployments.get(&end);
    let template = deployment.and_then(|one| one.spec.as_ref()?.template.spec.as_ref());
    need(template, (Need::Template, 0));
    let uid: BTreeSet<_> = deployment.and_then(|one| one.uid()).into_iter().collect();
    let sets = live.replica_sets.iter().flatten();
    let sets: Vec<_> = sets.filter(|set| is_of(set.as_ref(), &uid)).collect();
    for set in sets.iter().filter(|set| has_replicas(set)) {
        let template = set.spec.as_ref().and_then(|spec| spec.template.as_ref());
        let pod = template.and_then(|template| template.spec.as_ref());
        need(pod, (Need::Pods, revision(set)));
    }
    let pods = live.pods.iter().flatten();
    for pod in pods.filter(|pod| end_of(pod) == Some(end)) {
        let set = sets.iter().find(|set| {
            let uid: BTreeSet<_> = set.uid().into_iter().collect();
            is_of(pod.as_ref(), &uid)
        });
        let why = match pod.metadata.deletion_timestamp {
            Some(_) => Need::Ending,
            None => Need::Pods,
        };
        need(pod.spec.as_ref(), (why, set.map_or(0, |set| revision(set))));
    }
    let texts: BTreeMap<_, _> = own.config_map.data.iter().flatten().collect();
    let are_known = live.pods.is_some() && live.replica_sets.is_some();
    if !(are_known && deployment.is_some_and(|deployment| is_observed(deployment))) {
        for key in texts.keys().filter(|key| is_key(key)) {
            needs.entry((*key).clone()).or_insert((Need::Unknown, 0));
        }
    }
    let mut needs: Vec<_> = needs.into_iter().collect();
    needs.sort_by(|(_, need), (_, other)| other.cmp(need));
    let kept = needs.into_iter().filter_map(|(key, _)| {
        let text = texts.get(&whole_key(&key)).or_else(|| texts.get(&key))?;
        Some((key, (*text).clone()))
    });
    kept.collect()
}

/// Whether the Deployment's controller has seen the newest template, so that a ReplicaSet exists
/// for each earlier template with pods.
fn is_observed(deployment: &Deployment) -> bool {
    let status = deployment.status.as_ref();
    status.and_then(|status| status.observed_generation) >= deployment.metadata.generation
}

/// Why an end needs a configuration, the weakest reason first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Need {
    /// The pods are not known.
    Unknown,
    /// The pods that mount the configuration are being deleted.
    Ending,
    /// Pods mount the configuration, or a ReplicaSet creates such pods.
    Pods,
    /// The Deployment's template mounts the configuration.
    Template,
}

/// The ReplicaSet of the newest template of `deployment`. `None` until it exists.
pub(in crate::tunnel_controller) fn newest_set<'a>(
    live: &'a Live,
    deployment: &Deployment,
) -> Option<&'a ReplicaSet> {
    let own: BTreeSet<_> = deployment.uid().into_iter().collect();
    let newest = deployment.spec.as_ref().map(|spec| &spec.template);
    let mut sets = live.replica_sets.iter().flatten().map(AsRef::as_ref);
    sets.find(|set| is_of(*set, &own) && template_of(set).as_ref() == newest)
}

fn revision(set: &ReplicaSet) -> u64 {
    let text = set.annotations().get(REVISION);
    text.and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// Whether the ReplicaSet may create pods.
fn has_replicas(set: &ReplicaSet) -> bool {
    let spec = set.spec.as_ref();
    spec.and_then(|spec| spec.replicas) != Some(0)
}
