//! Records observations of nodes and of the API server that refuse pods.

use std::collections::BTreeSet;

use k8s_openapi::api::apps::v1::ReplicaSet;
use kube::ResourceExt;
use muxtunnel_codes::Code;

use super::named;
use crate::pods::has_sysctls;
use crate::tunnel_controller::apply::Applied;
use crate::tunnel_controller::build::probe;
use crate::tunnel_controller::dereference::Live;
use crate::tunnel_controller::end::End;
use crate::tunnel_controller::observe::{Seen, SeenPod};
use crate::tunnel_controller::rollouts::{Auto, RefusedPod, Rollout, Rollouts, Shown, Untuned};
use crate::tunnel_controller::sandbox::names_sysctl;
use crate::tunnel_controller::validate::{ValidatedObject, newest_set};

/// Records the refused pods in `seen`. Returns whether an end gives up the sysctls of profile `Auto`,
/// so that the object needs another plan at once.
pub(super) fn learn(
    rollouts: &Rollouts,
    object: &ValidatedObject,
    (live, applied, seen): (&Live, &Applied, &Seen),
    now: i64,
) -> bool {
    // Until all Jobs that test sysctls have passed, Deployments stay unchanged, so no pod has the
    // new sysctls.
    if probe::problem(object).is_some() {
        return false;
    }
    // A node that runs a pod accepts the sysctls, even if the gateway is not ready.
    let runs = |pod: &SeenPod| pod.started && pod.has_sysctls;
    let is_node_at_fault = seen.pods.iter().any(runs) || object.pods.is_probed;
    let uid = &object.holder.owner.uid;
    let mut gives_up = false;
    for (end, rollout) in &object.pods.rollouts {
        let end = *end;
        match &rollout.auto {
            Auto::NotRequested => {}
            Auto::Tuned(names) => {
                let facts = (live, applied, seen);
                if let Some(detail) = refusal_of_auto(object, end, names, facts) {
                    let refused = Untuned::new(&rollout.asked, &detail);
                    rollouts.give_up((&object.holder, end), refused, now);
                    gives_up = true;
                    continue;
                }
            }
            Auto::Untuned(untuned) => {
                let deployment = named(&applied.deployments, &object.child(end));
                if deployment.and_then(Untuned::of).as_ref() == Some(untuned) {
                    rollouts.forget_untuned(uid, end);
                }
            }
        }
        if rollout.held.is_some() {
            continue;
        }
        let refused = refused_pods(seen, end, rollout).filter_map(|pod| {
            Some(RefusedPod {
                made: pod.made,
                node: pod.node.as_ref(),
                problem: pod.problem.as_ref()?,
            })
        });
        let shown = Shown {
            refused: refused.collect(),
            runs: seen.of(end).any(runs),
            is_node_at_fault,
        };
        rollouts.learn((uid, end), rollout, &shown, now);
    }
    gives_up
}

/// Why pods of `end` do not run with the sysctls `names` of profile `Auto`. Only refusals of the
/// newest template count, because refused pods exist as long as their ReplicaSet. Pods that wait for
/// their turn in an upgrade may have a template without the sysctls.
fn refusal_of_auto(
    object: &ValidatedObject,
    end: End,
    names: &BTreeSet<String>,
    (live, applied, seen): (&Live, &Applied, &Seen),
) -> Option<String> {
    let child = object.child(end);
    if let Some(refusal) = &applied.refusal {
        let detail = &refusal.detail;
        return (detail.contains(&child) && is_about(detail, names)).then(|| detail.clone());
    }
    let deployment = named(&applied.deployments, &child)?;
    let sysctls = object.pods.sysctls(end);
    let is_tuned = |set: &&ReplicaSet| {
        let template = set.spec.as_ref().and_then(|spec| spec.template.as_ref());
        let pods = template.and_then(|template| template.spec.as_ref());
        pods.is_some_and(|pods| has_sysctls(pods, &sysctls))
    };
    let set = newest_set(live, deployment).filter(is_tuned)?;
    let uid = set.uid();
    let pods = seen.of(end).filter(|pod| pod.set == uid);
    let mut problems = pods.filter_map(|pod| pod.problem.as_ref());
    let refused = problems.find(|problem| {
        matches!(problem.code, Code::SysctlForbidden | Code::SandboxFailed)
            && names.iter().any(|name| names_sysctl(&problem.detail, name))
    });
    let refused = refused.map(|problem| problem.detail.clone());
    refused.or_else(|| not_created(set).filter(|detail| is_about(detail, names)))
}

/// Whether the API server refused a pod or a Deployment because of a sysctl of `names`, for example
/// by Pod Security, or by a policy that lists the permitted sysctls instead of the refused ones.
fn is_about(message: &str, names: &BTreeSet<String>) -> bool {
    names.iter().any(|name| names_sysctl(message, name))
        || message.to_lowercase().contains("sysctl")
}

/// Why the ReplicaSet cannot create pods.
fn not_created(set: &ReplicaSet) -> Option<String> {
    let mut conditions = set.status.as_ref()?.conditions.iter().flatten();
    let failure = conditions.find(|one| one.type_ == "ReplicaFailure" && one.status == "True");
    failure?.message.clone()
}

/// The pods of `end` that a node refused because of a sysctl, except pods on avoided nodes.
pub fn refused_pods<'a>(
    seen: &'a Seen,
    end: End,
    rollout: &'a Rollout,
) -> impl Iterator<Item = &'a SeenPod> {
    let is_avoided = |pod: &SeenPod| {
        let node = pod.node.as_ref();
        node.is_some_and(|node| rollout.avoided.contains(node))
    };
    seen.of(end).filter(move |pod| {
        let code = pod.problem.as_ref().map(|problem| problem.code);
        pod.has_sysctls
            && matches!(code, Some(Code::SysctlForbidden | Code::SandboxFailed))
            && !is_avoided(pod)
    })
}
