//! Finds why the sandboxes of pods failed, why the volume of a CSI driver is not mounted, and why a
//! Job has no pod. This module reads from the API server, and [`problem`] is the pure part.
//!
//! A pod whose sandbox or volume fails stays pending. Only the kubelet's Events contain the reason. The
//! operator lists Events only if there is such a pod, once for all pods of a tunnel.

use std::collections::BTreeMap;

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::events::v1::Event;
use kube::ResourceExt;
use kube::api::ListParams;
use muxtunnel_codes::Code;
use muxtunnel_contract::sysctls::UNPRIVILEGED_PORT_START;
use tracing::warn;

use super::problem::Problem;
use crate::pods::{is_true, sysctls};
use crate::reader::Reader;

/// Reason of the Event that the Job controller writes if it cannot create a pod.
const NOT_CREATED: &str = "FailedCreate";
/// Part of the API server's message if the namespace's Pod Security level rejects a pod.
const NOT_ADMITTED: &str = "violates PodSecurity";
/// Maximum number of Events about a Job that are read.
const JOB_EVENTS_MAX: u32 = 8;
/// Number of Events in one answer of the API server.
const PAGE: u32 = 500;
/// Maximum number of such answers. The kubelet counts equal Events in one Event, and Events end
/// after an hour.
const PAGES_MAX: usize = 4;

/// What the kubelet has to do before a pod has a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// Mount the volumes.
    Mount,
    /// Create the sandbox.
    Sandbox,
}

impl Step {
    /// The reason of the kubelet's Event about a failure.
    const fn reason(self) -> &'static str {
        match self {
            Self::Mount => "FailedMount",
            Self::Sandbox => "FailedCreatePodSandBox",
        }
    }
}

/// Why `step` failed for `pods`, by UID of the pod. A pod is missing if the step did not fail, or if no
/// Event reports the failure. A refusal of the API server is logged, and the pods' own status is used
/// instead.
pub(super) async fn failures<'a>(
    reader: &Reader,
    namespace: &str,
    step: Step,
    pods: impl Iterator<Item = &'a Pod>,
) -> BTreeMap<String, Problem> {
    let waiting = pods.filter(|pod| waits_for_sandbox(pod));
    let waiting: BTreeMap<String, &Pod> =
        waiting.filter_map(|pod| Some((pod.uid()?, pod))).collect();
    if waiting.is_empty() {
        return BTreeMap::new();
    }
    let mut events: BTreeMap<String, Vec<Event>> = BTreeMap::new();
    let fields = format!("regarding.kind=Pod,reason={}", step.reason());
    let mut params = ListParams::default().fields(&fields).limit(PAGE);
    for _ in 0..PAGES_MAX {
        let (page, next) = list(reader, namespace, &params).await;
        for event in page {
            let uid = event.regarding.as_ref().and_then(|pod| pod.uid.clone());
            if let Some(uid) = uid.filter(|uid| waiting.contains_key(uid)) {
                events.entry(uid).or_default().push(event);
            }
        }
        let Some(next) = next else {
            break;
        };
        params = params.continue_token(&next);
    }
    let problems = events.into_iter().filter_map(|(uid, events)| {
        let problem = problem(step, waiting.get(&uid)?, &events)?;
        Some((uid, problem))
    });
    problems.collect()
}

/// A page of a list of Events, and the token of the next page.
async fn list(
    reader: &Reader,
    namespace: &str,
    params: &ListParams,
) -> (Vec<Event>, Option<String>) {
    match reader.list(namespace, params).await {
        Ok(page) => {
            let next = page.metadata.continue_.filter(|token| !token.is_empty());
            (page.items, next)
        }
        Err(error) => {
            let fields = params.field_selector.as_deref();
            warn!(namespace, fields, %error, "cannot list the Events of an object that does not start");
            (Vec::new(), None)
        }
    }
}

/// Whether the pod has a sysctl in addition to the sysctl that every gateway needs.
pub(super) fn is_tuned(pod: &Pod) -> bool {
    let mut sysctls = pod.spec.iter().flat_map(sysctls);
    sysctls.any(|sysctl| sysctl.name != UNPRIVILEGED_PORT_START.0)
}

/// Whether the pod has the volume of a CSI driver.
pub(super) fn has_driver(pod: &Pod) -> bool {
    let volumes = pod.spec.iter().flat_map(|spec| &spec.volumes);
    volumes.flatten().any(|volume| volume.csi.is_some())
}

/// Why the Job's pod could not be created, for example because of a quota or Pod Security. Only the
/// level `privileged` allows unsafe sysctls. Returns the problem in the oldest Event with the
/// reason [`NOT_CREATED`], because the other Events differ only in the pod's name.
pub(crate) async fn not_created(reader: &Reader, namespace: &str, job: &Job) -> Option<Problem> {
    let uid = job.uid()?;
    let fields = format!("regarding.uid={uid},reason={NOT_CREATED}");
    let params = ListParams::default().fields(&fields).limit(JOB_EVENTS_MAX);
    let (events, _) = list(reader, namespace, &params).await;
    let own = events.into_iter().filter(|event| {
        let regarding = event.regarding.as_ref();
        event.reason.as_deref() == Some(NOT_CREATED)
            && regarding.and_then(|regarding| regarding.uid.as_ref()) == Some(&uid)
    });
    let first = own.min_by_key(|event| event.creation_timestamp().map(|time| time.0))?;
    let detail = first.note?;
    let code = match detail.contains(NOT_ADMITTED) {
        true => Code::PodSecurityTooStrict,
        false => Code::GatewaysNotReady,
    };
    Some(Problem::new(code, detail))
}

/// Whether the pod has a node, but no sandbox yet.
fn waits_for_sandbox(pod: &Pod) -> bool {
    let phase = pod
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref());
    phase == Some("Pending")
        && is_true(pod, "PodScheduled")
        && !is_true(pod, "PodReadyToStartContainers")
}

/// The problem in the newest of `events` on `pod`. A sysctl is the cause of a failed sandbox if the
/// Event names a sysctl of the pod, or its file in /proc.
fn problem(step: Step, pod: &Pod, events: &[Event]) -> Option<Problem> {
    let own = events.iter().filter(|event| {
        let regarding = event.regarding.as_ref();
        event.reason.as_deref() == Some(step.reason())
            && regarding.and_then(|regarding| regarding.uid.as_ref()) == pod.metadata.uid.as_ref()
    });
    let newest = own.max_by_key(|event| {
        let series = event
            .series
            .as_ref()
            .map(|series| series.last_observed_time.0);
        let legacy = event.deprecated_last_timestamp.as_ref().map(|time| time.0);
        let first = event.event_time.as_ref().map(|time| time.0);
        series.max(legacy).max(first)
    })?;
    let note = newest.note.as_deref().unwrap_or_default();
    let (code, cause) = match (step, sysctl_of(pod, note)) {
        (Step::Mount, _) => (Code::VolumeNotMounted, String::new()),
        (Step::Sandbox, None) => (Code::GatewaysNotReady, String::new()),
        (Step::Sandbox, Some(sysctl)) => (Code::SandboxFailed, format!("sysctl {sysctl}: ")),
    };
    let detail = format!("pod {}: {cause}{note}", pod.name_any());
    Some(Problem::new(code, detail))
}

/// Whether a message names the sysctl `name`, or its file in /proc.
pub(super) fn names_sysctl(message: &str, name: &str) -> bool {
    message.contains(name) || message.contains(&name.replace('.', "/"))
}

/// The longest sysctl name in `note`, because one name may be the prefix of another.
fn sysctl_of<'a>(pod: &'a Pod, note: &str) -> Option<&'a str> {
    let sysctls = pod.spec.iter().flat_map(sysctls);
    let names = sysctls.map(|sysctl| sysctl.name.as_str());
    names
        .filter(|name| names_sysctl(note, name))
        .max_by_key(|name| name.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pod(conditions: Value) -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": "p", "uid": "u"},
            "spec": {"containers": [], "securityContext": {"sysctls": [
                {"name": "net.ipv4.tcp_rmem", "value": "1"},
                {"name": "net.ipv4.tcp_rmem_more", "value": "1"},
            ]}},
            "status": {"phase": "Pending", "conditions": conditions},
        }))
        .unwrap()
    }

    fn event(uid: &str, at: &str, note: &str) -> Event {
        serde_json::from_value(json!({
            "metadata": {}, "reason": Step::Sandbox.reason(), "note": note, "eventTime": null,
            "regarding": {"uid": uid}, "deprecatedLastTimestamp": at,
        }))
        .unwrap()
    }

    #[test]
    fn events_are_asked_for_only_where_a_pod_waits_on_its_node() {
        let condition = |type_: &str, status: &str| json!({"type": type_, "status": status});
        let scheduled = condition("PodScheduled", "True");
        let set_up = condition("PodReadyToStartContainers", "True");
        let not_set_up = condition("PodReadyToStartContainers", "False");
        assert!(!waits_for_sandbox(&pod(json!([]))));
        assert!(waits_for_sandbox(&pod(json!([scheduled]))));
        assert!(waits_for_sandbox(&pod(json!([scheduled, not_set_up]))));
        assert!(!waits_for_sandbox(&pod(json!([scheduled, set_up]))));
    }

    #[test]
    fn the_sysctl_is_named_by_its_name_or_its_file() {
        for (note, sysctl) in [
            (
                "runc: write /proc/sys/net/ipv4/tcp_rmem: invalid argument",
                "net.ipv4.tcp_rmem",
            ),
            (
                "open /proc/sys/net/ipv4/tcp_rmem_more: no such file",
                "net.ipv4.tcp_rmem_more",
            ),
            (
                "unable to write sysctl key net.ipv4.tcp_rmem",
                "net.ipv4.tcp_rmem",
            ),
        ] {
            let events = [event("u", "2030-01-01T00:00:00Z", note)];
            let said = problem(Step::Sandbox, &pod(json!([])), &events);
            let said = said.unwrap();
            assert_eq!(said.code, Code::SandboxFailed);
            assert_eq!(said.detail, format!("pod p: sysctl {sysctl}: {note}"));
        }
    }

    #[test]
    fn the_newest_event_of_the_pod_counts_and_another_cause_is_none_of_sysctls() {
        let events = [
            event("u", "2030-01-01T00:00:02Z", "no address is free"),
            event(
                "u",
                "2030-01-01T00:00:01Z",
                "write /proc/sys/net/ipv4/tcp_rmem: no",
            ),
            event(
                "other",
                "2030-01-01T00:00:03Z",
                "write /proc/sys/net/ipv4/tcp_rmem: no",
            ),
        ];
        let said = problem(Step::Sandbox, &pod(json!([])), &events).unwrap();
        assert_eq!(
            (said.code, said.detail.as_str()),
            (Code::GatewaysNotReady, "pod p: no address is free")
        );
        assert_eq!(problem(Step::Sandbox, &pod(json!([])), &events[2..]), None);
        // Events of the other step do not count.
        assert_eq!(problem(Step::Mount, &pod(json!([])), &events), None);
    }
}
