//! Records observations of nodes that refuse pods.

use k8s_openapi::api::apps::v1::Deployment;
use muxtunnel_codes::Code;

use super::named;
use crate::pods::{is_observed, replica_failure};
use crate::tunnel_controller::build::probe;
use crate::tunnel_controller::end::End;
use crate::tunnel_controller::observe::{Seen, SeenPod};
use crate::tunnel_controller::rollouts::{Auto, RefusedPod, Rollout, Rollouts, Shown};
use crate::tunnel_controller::sandbox::names_sysctl;
use crate::tunnel_controller::validate::ValidatedObject;

/// Records the refused pods in `seen`, and the pods of `deployments` that the API server did not
/// admit.
pub(super) fn learn(
    rollouts: &Rollouts,
    object: &ValidatedObject,
    (deployments, seen): (&[Deployment], &Seen),
    now: i64,
) {
    // Until all Jobs that test sysctls have passed, Deployments stay unchanged, so no pod has the
    // new sysctls.
    if probe::problem(object).is_some() {
        return;
    }
    // A node that runs a pod accepts the sysctls, even if the gateway is not ready.
    let runs = |pod: &SeenPod| pod.started && pod.has_sysctls;
    let is_node_at_fault = seen.pods.iter().any(runs) || object.pods.is_probed;
    for (end, rollout) in &object.pods.rollouts {
        // Pods that wait for their turn in an upgrade may lack the sysctls of `Auto`.
        let is_kept = rollout.auto == Auto::Tuned && object.upgrade.kept.contains_key(end);
        if rollout.held.is_some() || is_kept {
            continue;
        }
        let refused = refused_pods(seen, *end, rollout).filter_map(|pod| {
            Some(RefusedPod {
                made: pod.made,
                node: pod.node.as_ref(),
                problem: pod.problem.as_ref()?,
            })
        });
        let deployment = named(deployments, &object.child(*end));
        let shown = Shown {
            refused: refused.collect(),
            not_admitted: deployment.and_then(|deployment| not_admitted(deployment, rollout)),
            runs: seen.of(*end).any(runs),
            is_node_at_fault,
        };
        rollouts.learn((&object.holder, *end), rollout, &shown, now);
    }
}

/// Why the API server does not admit pods of the newest template, if the message names one of their
/// sysctls. Pod Security does so below the level `privileged` if the namespace enforces the rules of
/// a Kubernetes version before 1.32.
fn not_admitted(deployment: &Deployment, rollout: &Rollout) -> Option<String> {
    let failure = replica_failure(deployment).filter(|_| is_observed(deployment))?;
    let mut names = rollout.tuning.keys();
    names
        .any(|name| names_sysctl(&failure, name))
        .then_some(failure)
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
