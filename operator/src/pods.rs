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

/// Whether the node has created the pod's sandbox, and so accepts the pod's sysctls. The pod need
/// not be ready: an entry is not ready while it has no carrier.
#[must_use]
pub fn is_started(pod: &Pod) -> bool {
    let Some(status) = &pod.status else {
        return false;
    };
    let init = status.init_container_statuses.iter().flatten();
    let mut containers = init.chain(status.container_statuses.iter().flatten());
    containers.any(|container| {
        let states = [&container.state, &container.last_state];
        let mut states = states.into_iter().flatten();
        states.any(|state| state.running.is_some() || state.terminated.is_some())
    })
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
