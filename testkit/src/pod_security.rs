//! The controls of the Pod Security level `restricted`, for tests of pods.
//!
//! Source: kubernetes.io, "Pod Security Standards", policy version v1.32. The module has the
//! controls of `baseline` and `restricted` that Linux pods can violate.

use std::collections::BTreeSet;

use serde_json::Value;

/// The permitted sysctls at the levels `baseline` and `restricted`.
pub const SAFE_SYSCTLS: [&str; 12] = [
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.ping_group_range",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.tcp_wmem",
];

/// The permitted kinds of volumes at the level `restricted`.
const VOLUMES: [&str; 8] = [
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "persistentVolumeClaim",
    "projected",
    "secret",
];

/// The controls that the pod's spec violates, each with the container or field.
#[must_use]
pub fn violations(spec: &Value) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for field in ["hostNetwork", "hostPID", "hostIPC"] {
        if spec[field] == true {
            found.insert(format!("host namespaces: {field}"));
        }
    }
    for volume in list(&spec["volumes"]) {
        for kind in volume.as_object().unwrap().keys() {
            if kind != "name" && !VOLUMES.contains(&kind.as_str()) {
                found.insert(format!("volume types: {kind}"));
            }
        }
    }
    let pod = &spec["securityContext"];
    for sysctl in list(&pod["sysctls"]) {
        let name = sysctl["name"].as_str().unwrap();
        if !SAFE_SYSCTLS.contains(&name) {
            found.insert(format!("sysctls: {name}"));
        }
    }
    of_context("pod", pod, &mut found);
    for field in ["initContainers", "containers", "ephemeralContainers"] {
        for container in list(&spec[field]) {
            of_container(pod, container, &mut found);
        }
    }
    found
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn of_container(pod: &Value, container: &Value, found: &mut BTreeSet<String>) {
    let name = container["name"].as_str().unwrap();
    let own = &container["securityContext"];
    let mut broken = |control: &str| found.insert(format!("{control}: {name}"));
    if list(&container["ports"]).any(|port| !matches!(port["hostPort"].as_i64(), None | Some(0))) {
        broken("host ports");
    }
    let hooks = ["livenessProbe", "readinessProbe", "startupProbe"];
    let hooks = hooks.map(|hook| &container[hook]);
    let lifecycle = ["postStart", "preStop"].map(|hook| &container["lifecycle"][hook]);
    for hook in hooks.into_iter().chain(lifecycle) {
        if hook["httpGet"]["host"].is_string() || hook["tcpSocket"]["host"].is_string() {
            broken("host of probes");
        }
    }
    if own["privileged"] == true {
        broken("privileged");
    }
    if own["allowPrivilegeEscalation"] != false {
        broken("privilege escalation");
    }
    let capabilities = &own["capabilities"];
    if !list(&capabilities["drop"]).any(|dropped| dropped == "ALL") {
        broken("capabilities dropped");
    }
    if list(&capabilities["add"]).any(|added| added != "NET_BIND_SERVICE") {
        broken("capabilities added");
    }
    // The value of the container overrides the value of the pod.
    let either = |field: &str| match own.get(field) {
        Some(value) if !value.is_null() => value.clone(),
        _ => pod[field].clone(),
    };
    if either("runAsNonRoot") != true {
        broken("non-root");
    }
    if either("runAsUser") == 0 {
        broken("non-root user");
    }
    let seccomp = &either("seccompProfile")["type"];
    if seccomp != "RuntimeDefault" && seccomp != "Localhost" {
        broken("seccomp");
    }
    of_context(name, own, found);
}

/// The controls that apply to pods and to containers.
fn of_context(name: &str, context: &Value, found: &mut BTreeSet<String>) {
    let mut broken = |control: &str| found.insert(format!("{control}: {name}"));
    if !matches!(context["procMount"].as_str(), None | Some("Default")) {
        broken("proc mount");
    }
    if context["appArmorProfile"]["type"] == "Unconfined" {
        broken("AppArmor");
    }
    let selinux = &context["seLinuxOptions"];
    if selinux["user"].is_string() || selinux["role"].is_string() || selinux["type"].is_string() {
        broken("SELinux");
    }
    if context["windowsOptions"]["hostProcess"] == true {
        broken("host process");
    }
}

#[cfg(test)]
mod tests {
    use super::violations;
    use serde_json::{Value, json};

    fn fitting() -> Value {
        json!({
            "securityContext": {"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}},
            "volumes": [{"name": "v", "emptyDir": {}}],
            "containers": [{
                "name": "c",
                "ports": [{"containerPort": 80}],
                "securityContext": {
                    "allowPrivilegeEscalation": false,
                    "capabilities": {"drop": ["ALL"], "add": ["NET_BIND_SERVICE"]},
                },
            }],
        })
    }

    #[test]
    fn each_control_is_missed_where_it_is_broken() {
        assert_eq!(violations(&fitting()).len(), 0);
        let own = "/containers/0/securityContext";
        for (pointer, field, value, control) in [
            (
                "",
                "hostNetwork",
                json!(true),
                "host namespaces: hostNetwork",
            ),
            (
                "/volumes/0",
                "hostPath",
                json!({"path": "/"}),
                "volume types: hostPath",
            ),
            (
                "/securityContext",
                "sysctls",
                json!([{"name": "net.a", "value": "1"}]),
                "sysctls: net.a",
            ),
            (
                "/securityContext",
                "runAsNonRoot",
                json!(false),
                "non-root: c",
            ),
            (
                "/securityContext",
                "runAsUser",
                json!(0),
                "non-root user: c",
            ),
            (
                "/securityContext",
                "seccompProfile",
                Value::Null,
                "seccomp: c",
            ),
            (
                "/securityContext",
                "seLinuxOptions",
                json!({"type": "spc_t"}),
                "SELinux: pod",
            ),
            (
                "/containers/0/ports/0",
                "hostPort",
                json!(80),
                "host ports: c",
            ),
            (
                "/containers/0",
                "livenessProbe",
                json!({"httpGet": {"host": "h"}}),
                "host of probes: c",
            ),
            (own, "privileged", json!(true), "privileged: c"),
            (
                own,
                "allowPrivilegeEscalation",
                Value::Null,
                "privilege escalation: c",
            ),
            (
                own,
                "capabilities",
                json!({"drop": ["CHOWN"]}),
                "capabilities dropped: c",
            ),
            (
                own,
                "capabilities",
                json!({"drop": ["ALL"], "add": ["NET_ADMIN"]}),
                "capabilities added: c",
            ),
            (own, "runAsNonRoot", json!(false), "non-root: c"),
            (own, "procMount", json!("Unmasked"), "proc mount: c"),
            (
                own,
                "appArmorProfile",
                json!({"type": "Unconfined"}),
                "AppArmor: c",
            ),
            (
                own,
                "windowsOptions",
                json!({"hostProcess": true}),
                "host process: c",
            ),
        ] {
            let mut spec = fitting();
            spec.pointer_mut(pointer).unwrap()[field] = value;
            let found: Vec<_> = violations(&spec).into_iter().collect();
            assert_eq!(found, [control], "{pointer}/{field}");
        }
    }
}
