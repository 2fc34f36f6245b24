//! Finds why the sandbox of a pod failed, and why a Job has no pod. This module requires a client,
//! and [`problem`] is the pure part.
//!
//! A pod whose sandbox fails stays pending. Only the kubelet's Events contain the reason. The
//! operator lists Events only for such a pod.

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::events::v1::Event;
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt};
use muxtunnel_codes::Code;
use tracing::warn;

use super::problem::Problem;

/// The reason of the kubelet's Event about a failed sandbox.
const REASON: &str = "FailedCreatePodSandBox";
/// Reason of the Event that the Job controller writes if it cannot create a pod.
const NOT_CREATED: &str = "FailedCreate";
/// Part of the API server's message if the namespace's Pod Security level rejects a pod.
const NOT_ADMITTED: &str = "violates PodSecurity";
/// Maximum number of Events of an object that are read. The kubelet counts equal Events in one
/// Event.
const EVENTS_MAX: u32 = 8;

/// Why the sandbox of `pod` failed. `None` if the sandbox did not fail, or if no Event reports the
/// failure. A refusal of the API server is logged, and the pod's own status is used instead.
pub(super) async fn failure(client: &Client, namespace: &str, pod: &Pod) -> Option<Problem> {
    if !waits_for_sandbox(pod) {
        return None;
    }
    let uid = pod.uid()?;
    problem(pod, &events(client, namespace, &uid, REASON).await)
}

/// The Events with that reason on the object with that UID.
pub(super) async fn events(
    client: &Client,
    namespace: &str,
    uid: &str,
    reason: &str,
) -> Vec<Event> {
    let api: Api<Event> = Api::namespaced(client.clone(), namespace);
    let fields = format!("regarding.uid={uid},reason={reason}");
    let params = ListParams::default().fields(&fields).limit(EVENTS_MAX);
    match api.list(&params).await {
        Ok(events) => events.items,
        Err(error) => {
            warn!(uid, reason, %error, "cannot list the Events of an object that does not start");
            Vec::new()
        }
    }
}

/// Why the Job's pod could not be created, for example because of a quota or Pod Security. Only the
/// level `privileged` allows unsafe sysctls. Returns the problem in the oldest Event with the
/// reason [`NOT_CREATED`], because the other Events differ only in the pod's name.
pub(crate) async fn not_created(client: &Client, namespace: &str, job: &Job) -> Option<Problem> {
    let uid = job.uid()?;
    let events = events(client, namespace, &uid, NOT_CREATED).await;
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
    Some(Problem { code, detail })
}

/// Whether the pod has a node, but no sandbox yet.
fn waits_for_sandbox(pod: &Pod) -> bool {
    let Some(status) = &pod.status else {
        return false;
    };
    let is_true = |type_: &str| {
        let mut conditions = status.conditions.iter().flatten();
        conditions.any(|condition| condition.type_ == type_ && condition.status == "True")
    };
    status.phase.as_deref() == Some("Pending")
        && is_true("PodScheduled")
        && !is_true("PodReadyToStartContainers")
}

/// The problem in the newest of `events` on `pod`. A sysctl is the cause if the Event names a
/// sysctl of the pod, or its file in /proc.
fn problem(pod: &Pod, events: &[Event]) -> Option<Problem> {
    let own = events.iter().filter(|event| {
        let regarding = event.regarding.as_ref();
        event.reason.as_deref() == Some(REASON)
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
    let name = pod.name_any();
    Some(match sysctl_of(pod, note) {
        Some(sysctl) => Problem {
            code: Code::SandboxFailed,
            detail: format!("pod {name}: sysctl {sysctl}: {note}"),
        },
        None => Problem {
            code: Code::GatewaysNotReady,
            detail: format!("pod {name}: {note}"),
        },
    })
}

/// The longest sysctl name in `note`, because one name may be the prefix of another.
fn sysctl_of<'a>(pod: &'a Pod, note: &str) -> Option<&'a str> {
    let context = pod.spec.as_ref()?.security_context.as_ref()?;
    let names = context
        .sysctls
        .iter()
        .flatten()
        .map(|sysctl| sysctl.name.as_str());
    names
        .filter(|name| note.contains(name) || note.contains(&name.replace('.', "/")))
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
            "metadata": {}, "reason": REASON, "note": note, "eventTime": null,
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
            let said = problem(&pod(json!([])), &[event("u", "2030-01-01T00:00:00Z", note)]);
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
        let said = problem(&pod(json!([])), &events).unwrap();
        assert_eq!(
            (said.code, said.detail.as_str()),
            (Code::GatewaysNotReady, "pod p: no address is free")
        );
        assert_eq!(problem(&pod(json!([])), &events[2..]), None);
    }
}
