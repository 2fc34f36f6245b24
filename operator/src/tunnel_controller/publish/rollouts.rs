//! Records observations of nodes that refuse pods.

use muxtunnel_codes::Code;

use crate::tunnel_controller::build::probe;
use crate::tunnel_controller::end::End;
use crate::tunnel_controller::observe::{Seen, SeenPod};
use crate::tunnel_controller::rollouts::{RefusedPod, Rollout, Rollouts, Shown};
use crate::tunnel_controller::validate::ValidatedObject;

/// Records the refused pods in `seen`.
pub(super) fn learn(rollouts: &Rollouts, object: &ValidatedObject, seen: &Seen, now: i64) {
    // Until all Jobs that test sysctls have passed, Deployments stay unchanged, so no pod has the
    // new sysctls.
    if probe::problem(object).is_some() {
        return;
    }
    // A node that runs a pod accepts the sysctls, even if the gateway is not ready.
    let runs = |pod: &SeenPod| pod.started && pod.has_sysctls;
    let is_node_at_fault = seen.pods.iter().any(runs) || object.pods.is_probed;
    for (end, rollout) in &object.pods.rollouts {
        if rollout.held.is_some() {
            continue;
        }
        let refused = refused_pods(seen, *end, rollout).filter_map(|pod| {
            Some(RefusedPod {
                made: pod.made,
                node: pod.node.as_ref(),
                problem: pod.problem.as_ref()?,
            })
        });
        let shown = Shown {
            refused: refused.collect(),
            runs: seen.of(*end).any(runs),
            is_node_at_fault,
        };
        rollouts.learn((&object.holder.owner.uid, *end), rollout, &shown, now);
    }
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
