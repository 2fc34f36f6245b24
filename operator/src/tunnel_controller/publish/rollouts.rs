//! What pods show of nodes that refuse them.

use muxtunnel_codes::Code;

use crate::tunnel_controller::build::probe;
use crate::tunnel_controller::end::End;
use crate::tunnel_controller::observe::{Seen, SeenPod};
use crate::tunnel_controller::rollouts::{RefusedPod, Rollout, Rollouts, Shown};
use crate::tunnel_controller::validate::ValidatedTunnel;

/// Takes in what `seen` shows of pods that are refused.
pub(super) fn learn(rollouts: &Rollouts, tunnel: &ValidatedTunnel, seen: &Seen, now: i64) {
    // The Job's verdict keeps Deployments as they are.
    if probe::verdict(tunnel) != probe::Verdict::Passed {
        return;
    }
    let runs = |pod: &SeenPod| pod.ready && pod.has_sysctls;
    let is_node_at_fault = seen.pods.iter().any(runs) || tunnel.is_probed;
    for (end, rollout) in &tunnel.rollouts {
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
        let mut own = seen.pods.iter().filter(|pod| pod.end == *end);
        let shown = Shown {
            refused: refused.collect(),
            runs: own.any(runs),
            is_node_at_fault,
        };
        rollouts.learn((&tunnel.owner.uid, *end), rollout, &shown, now);
    }
}

/// The pods of `end` that a node refused for a sysctl, less those of nodes that it avoids already.
pub fn refused_pods<'a>(
    seen: &'a Seen,
    end: End,
    rollout: &'a Rollout,
) -> impl Iterator<Item = &'a SeenPod> {
    let is_avoided = |pod: &SeenPod| {
        let node = pod.node.as_ref();
        node.is_some_and(|node| rollout.avoided.contains(node))
    };
    seen.pods.iter().filter(move |pod| {
        let code = pod.problem.as_ref().map(|problem| problem.code);
        pod.end == end
            && pod.has_sysctls
            && matches!(code, Some(Code::SysctlForbidden | Code::SandboxFailed))
            && !is_avoided(pod)
    })
}
