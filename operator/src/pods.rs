//! Functions that both controllers use for pods.

use k8s_openapi::api::core::v1::{Capabilities, Pod, SecurityContext};

/// Whether the pod's readiness probe succeeds.
#[must_use]
pub fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|status| &status.conditions);
    conditions
        .flatten()
        .any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// The pod's address.
#[must_use]
pub fn host(pod: &Pod) -> Option<String> {
    let host = pod.status.as_ref()?.pod_ip.clone();
    host.filter(|host| !host.is_empty())
}

/// The security context of a container that needs no privilege.
#[must_use]
pub fn unprivileged() -> SecurityContext {
    SecurityContext {
        allow_privilege_escalation: Some(false),
        read_only_root_filesystem: Some(true),
        capabilities: Some(Capabilities {
            drop: Some(vec!["ALL".to_owned()]),
            add: None,
        }),
        ..SecurityContext::default()
    }
}
