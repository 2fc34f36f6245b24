//! The pods of a tunnel's gateways, and the problems that their objects show. Pure, apart from the
//! caches.

use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use kube::{Resource, ResourceExt};
use muxtunnel_codes::Code;

use super::end::End;
use super::holder::Holder;
use super::problem::Problem;
use crate::apply::is_owned;
use crate::caches::{Caches, NotKnown};
use crate::labels;
use crate::pods::{containers, is_true};

/// The init container that creates the interface for IP packets.
pub(super) const NETWORK_CONTAINER: &str = "network";
/// The container for WAN emulation.
pub const WAN_CONTAINER: &str = "wan";
/// The reasons of the kubelet why a container has no image.
const IMAGE_REASONS: [&str; 7] = [
    "ErrImagePull",
    "ImagePullBackOff",
    "InvalidImageName",
    "ErrImageNeverPull",
    "ImageInspectError",
    "RegistryUnavailable",
    "SignatureValidationFailed",
];
/// Age of a pod, in seconds, from which containers that have not started are reported.
pub const WAITING_SECONDS_MIN: i64 = 10;

/// The pods of the tunnel's gateways, which belong to ReplicaSets of the tunnel's Deployments.
/// Labels do not prove the owner, because any user may create a pod with any labels.
pub(super) fn own_pods(caches: &Caches, holder: &Holder) -> Result<Vec<Arc<Pod>>, NotKnown> {
    let (namespace, own) = (&*holder.namespace, holder.labelled());
    let components = End::ALL.map(End::component);
    let deployments = caches.deployments.children(namespace, own, &components)?;
    let deployments = deployments
        .iter()
        .filter(|one| is_owned(one.as_ref(), &holder.owner));
    let deployments = deployments.filter_map(|one| one.uid()).collect();
    let sets = caches.replica_sets.children(namespace, own, &components)?;
    let sets = sets.iter().filter(|set| is_of(set.as_ref(), &deployments));
    let sets = sets.filter_map(|set| set.uid()).collect();
    let mut pods = caches.pods.children(namespace, own, &components)?;
    pods.retain(|pod| is_of(pod.as_ref(), &sets));
    Ok(pods)
}

/// Whether an object with one of the UIDs `owners` controls `object`.
pub(super) fn is_of<K: Resource>(object: &K, owners: &BTreeSet<String>) -> bool {
    let mut references = object.meta().owner_references.iter().flatten();
    references.any(|owner| owner.controller == Some(true) && owners.contains(&owner.uid))
}

/// The end that a pod serves.
pub(super) fn end_of(pod: &Pod) -> Option<End> {
    let component = pod.labels().get(labels::COMPONENT)?;
    let mut ends = End::ALL.into_iter();
    ends.find(|end| end.component() == component)
}

/// Why a pod does not run, if the pod's object shows the reason.
pub fn pod_problem(pod: &Pod) -> Option<Problem> {
    let status = pod.status.as_ref()?;
    let name = pod.name_any();
    let problem = |code, text: &str| Some(Problem::new(code, format!("pod {name}: {text}")));
    let message = status.message.as_deref().unwrap_or_default();
    match status.reason.as_deref() {
        Some("SysctlForbidden") => return problem(Code::SysctlForbidden, message),
        Some(reason) if status.phase.as_deref() == Some("Failed") => {
            return problem(Code::GatewaysNotReady, &format!("{reason}: {message}"));
        }
        _ => {}
    }
    let unschedulable = status.conditions.iter().flatten().find(|condition| {
        condition.type_ == "PodScheduled"
            && condition.status == "False"
            && condition.reason.is_some()
    });
    if let Some(condition) = unschedulable {
        let message = condition.message.as_deref().unwrap_or_default();
        return problem(
            Code::Unschedulable,
            &format!("cannot be scheduled: {message}"),
        );
    }
    let (code, text) = containers(pod).find_map(container_problem)?;
    problem(code, &text)
}

/// Why a container does not run. `None` if it runs, has done its work, or only needs more time.
fn container_problem(container: &ContainerStatus) -> Option<(Code, String)> {
    let (name, state) = (&container.name, container.state.as_ref()?);
    let waiting = state.waiting.as_ref();
    let reason = waiting.and_then(|waiting| waiting.reason.as_deref());
    let message = waiting.and_then(|waiting| waiting.message.as_deref());
    let text = |reason: &str| {
        let message = message.unwrap_or_default();
        format!("container {name}: {reason}: {message}")
    };
    let last = container.last_state.as_ref();
    let last = last.and_then(|last| last.terminated.as_ref());
    let ended = match reason {
        None if waiting.is_none() => state.terminated.as_ref(),
        None | Some("ContainerCreating" | "PodInitializing") => return None,
        Some("CrashLoopBackOff") => last,
        Some(reason) if IMAGE_REASONS.contains(&reason) => {
            return Some((Code::ImageNotPulled, text(reason)));
        }
        Some(_) => None,
    };
    let of_container = |code| match name.as_str() {
        NETWORK_CONTAINER => Code::InterfaceFailed,
        _ => code,
    };
    match (ended, reason) {
        (Some(ended), _) if ended.reason.as_deref() == Some("OOMKilled") => {
            let text = format!("container {name} exceeded its memory limit (OOMKilled)");
            Some((Code::OutOfMemory, text))
        }
        (Some(ended), _) if ended.exit_code != 0 || reason.is_some() => {
            let (status, said) = (ended.exit_code, ended.message.as_deref());
            let said = said.map(str::trim).filter(|said| !said.is_empty());
            let said = said.map_or(String::new(), |said| format!(": {said}"));
            let text = format!(
                "container {name} ends with status {status} each time that it starts{said}"
            );
            Some((of_container(Code::ContainerCrashing), text))
        }
        (_, Some(reason)) => Some((of_container(Code::GatewaysNotReady), text(reason))),
        _ => None,
    }
}

/// When the pod was created, if its containers have not started for some time. The pod may wait for
/// a volume, such as a Secret, which the kubelet reports only in an Event.
pub(super) fn waiting_since(pod: &Pod, now: i64) -> Option<i64> {
    let status = pod.status.as_ref()?;
    let made = pod.creation_timestamp()?.0.as_second();
    let is_begun = |container: &ContainerStatus| {
        let waiting = container
            .state
            .as_ref()
            .and_then(|state| state.waiting.as_ref());
        let reason = waiting.and_then(|waiting| waiting.reason.as_deref());
        !matches!(reason, Some("ContainerCreating" | "PodInitializing"))
    };
    let waits = status.phase.as_deref() == Some("Pending")
        && now - made >= WAITING_SECONDS_MIN
        && is_true(pod, "PodScheduled")
        && !containers(pod).any(is_begun);
    waits.then_some(made)
}
