//! Whether the requested sysctls are in force.

use muxtunnel_codes::Code;
use muxtunnel_crds::condition;

use crate::conditions::Verdict;
use crate::tunnel_controller::build::probe;
use crate::tunnel_controller::end::End;
use crate::tunnel_controller::observe::Seen;
use crate::tunnel_controller::publish::refused_pods;
use crate::tunnel_controller::rollouts::{Auto, Fallback, Held, Rollout};
use crate::tunnel_controller::update_status::facts::folded;
use crate::tunnel_controller::validate::ValidatedObject;

/// `None`: the spec requests no sysctls.
pub(super) fn tuning_applied(object: &ValidatedObject, seen: &Seen) -> Option<Verdict> {
    let no = |code, detail| Some(Verdict::no(condition::TUNING_APPLIED, code, detail));
    if let Some(problem) = probe::problem(object) {
        return Some(problem.no(condition::TUNING_APPLIED));
    }
    let as_built = Rollout::default();
    for end in End::ALL {
        let rollout = object.rollout(end).unwrap_or(&as_built);
        if let Some(held) = &rollout.held {
            return no(held.problem.code, held_sentence(end, held));
        }
        let refused = refused_pods(seen, end, rollout).find_map(|pod| pod.problem.clone());
        if let Some(problem) = refused {
            return Some(problem.no(condition::TUNING_APPLIED));
        }
    }
    let refused = untuned_sentence(object);
    let mut tuned = End::ALL
        .into_iter()
        .filter_map(|end| object.pods.tuning(end));
    if tuned.next().is_none() && refused.is_empty() {
        return None;
    }
    // Pods that wait for their turn in an upgrade may have the sysctls of an earlier operator.
    let kept = &object.upgrade.kept;
    let answers = seen.all_answers();
    for (pod, status) in answers.filter(|(pod, _)| !kept.contains_key(&pod.end)) {
        for (name, wanted) in object.pods.tuning(pod.end).into_iter().flatten() {
            // A gateway reports only some sysctls. The kubelet guarantees the values of the others:
            // the pod would not run without them.
            let Some(value) = status.sysctls.get(name) else {
                continue;
            };
            if folded(value) != folded(wanted) {
                let detail = format!("pod {}: {name} is {value}, requested {wanted}", pod.name);
                return no(Code::SysctlMismatch, detail);
            }
        }
    }
    if !refused.is_empty() {
        return no(Code::SysctlsNotAdmitted, refused);
    }
    Some(if seen.all_answers().next().is_some() {
        Verdict::yes(condition::TUNING_APPLIED, Code::SysctlsApplied).with(avoided_sentence(object))
    } else {
        let detail = "no gateway answers yet";
        Verdict::unknown(condition::TUNING_APPLIED, Code::GatewaysNotReady, detail)
    })
}

/// The ends whose pods have the kernel's defaults, because they were refused with the sysctls of
/// profile `Auto`; empty if there are none.
fn untuned_sentence(object: &ValidatedObject) -> String {
    let ends = object.pods.rollouts.iter();
    let sentences = ends.filter_map(|(end, rollout)| match &rollout.auto {
        Auto::Untuned(untuned) => Some(format!(
            "{} gateways have the kernel's defaults: {}",
            end.component(),
            untuned.detail
        )),
        Auto::NotRequested | Auto::Tuned(_) => None,
    });
    sentences.collect::<Vec<_>>().join("; ")
}

/// The refusal, and the state of the end meanwhile.
fn held_sentence(end: End, held: &Held) -> String {
    let meanwhile = match held.fallback {
        Fallback::Template(_) => "its gateways keep their previous settings",
        Fallback::Stopped | Fallback::Nothing => "it has no gateways",
    };
    format!(
        "{}: {}; {meanwhile} until the operator tries the spec again, within 10 minutes",
        end.component(),
        held.problem.detail
    )
}

/// The nodes that refused a sysctl that other nodes accepted; empty if there are none.
fn avoided_sentence(object: &ValidatedObject) -> String {
    let ends = object.pods.rollouts.iter();
    let ends = ends.filter(|(_, rollout)| !rollout.avoided.is_empty());
    let sentences: Vec<_> = ends
        .map(|(end, rollout)| {
            let nodes: Vec<_> = rollout.avoided.iter().map(String::as_str).collect();
            let (end, nodes) = (end.component(), nodes.join(", "));
            format!("{end} gateways avoid the nodes that refused a sysctl: {nodes}")
        })
        .collect();
    sentences.join("; ")
}
