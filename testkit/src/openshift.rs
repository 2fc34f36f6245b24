//! The security context constraint `restricted-v2` of OpenShift, for tests of pods. Every user may use
//! it, and a pod that it refuses needs a further right.
//!
//! Source: docs.openshift.com, "Managing security context constraints". The constraint has the rules of
//! the Pod Security level `restricted`, permits only the seccomp profile of the runtime, and gives each
//! namespace a range of users and groups and a label of SELinux.

use std::collections::BTreeSet;
use std::ops::Range;

use serde_json::{Value, json};

use crate::pod_security::violations;

/// The users and groups of a namespace, in annotations such as `openshift.io/sa.scc.uid-range`.
const RANGE: Range<i64> = 1_000_650_000..1_000_660_000;

/// The pod's spec with the user and the group that the constraint adds, or the rules that the pod
/// breaks, each with the container or `pod`.
///
/// # Errors
/// The constraint refuses the pod.
pub fn restricted_v2(spec: &Value) -> Result<Value, BTreeSet<String>> {
    let mut broken = violations(spec);
    let containers = ["initContainers", "containers"].map(|list| &spec[list]);
    let containers = containers.into_iter().filter_map(Value::as_array).flatten();
    let of_containers =
        containers.map(|one| (one["name"].as_str().unwrap(), &one["securityContext"]));
    for (name, context) in of_containers.chain([("pod", &spec["securityContext"])]) {
        for id in ["runAsUser", "fsGroup"] {
            let id_of = context[id].as_i64();
            if id_of.is_some_and(|id| !RANGE.contains(&id)) {
                broken.insert(format!("{id} outside of the namespace's range: {name}"));
            }
        }
        if !matches!(
            context["seccompProfile"]["type"].as_str(),
            None | Some("RuntimeDefault")
        ) {
            broken.insert(format!("seccomp: {name}"));
        }
        if !context["seLinuxOptions"].is_null() {
            broken.insert(format!("SELinux: {name}"));
        }
    }
    if !broken.is_empty() {
        return Err(broken);
    }
    let mut admitted = spec.clone();
    for id in ["runAsUser", "fsGroup"] {
        let context = &mut admitted["securityContext"];
        if context[id].is_null() {
            context[id] = json!(RANGE.start);
        }
    }
    Ok(admitted)
}

/// The volumes with files that a user without a group in the pod cannot read. Without `fsGroup`, files
/// of volumes belong to root.
#[must_use]
pub fn unreadable(spec: &Value) -> BTreeSet<String> {
    let volumes = spec["volumes"].as_array().into_iter().flatten();
    let is_hidden = |mode: &Value| mode.as_i64().is_some_and(|mode| mode & 0o4 == 0);
    let hidden = volumes.filter(|volume| {
        let sources = ["secret", "configMap", "projected"].map(|kind| &volume[kind]);
        let projected = volume["projected"]["sources"]
            .as_array()
            .into_iter()
            .flatten();
        let projected = projected.flat_map(|source| source.as_object().unwrap().values());
        sources.into_iter().chain(projected).any(|source| {
            let items = source["items"].as_array().into_iter().flatten();
            is_hidden(&source["defaultMode"])
                || items.into_iter().any(|item| is_hidden(&item["mode"]))
        })
    });
    hidden
        .map(|volume| volume["name"].as_str().unwrap().to_owned())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fitting() -> Value {
        json!({
            "securityContext": {"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}},
            "volumes": [
                {"name": "keys", "projected": {"sources": [{"secret": {"name": "s", "items": [{"key": "k", "path": "p"}]}}]}},
                {"name": "users", "secret": {"secretName": "u", "defaultMode": 0o444}},
            ],
            "containers": [{
                "name": "c",
                "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}},
            }],
        })
    }

    #[test]
    fn a_pod_without_a_user_gets_one_of_the_namespace() {
        let admitted = restricted_v2(&fitting()).unwrap();
        assert_eq!(admitted["securityContext"]["runAsUser"], 1_000_650_000);
        assert_eq!(admitted["securityContext"]["fsGroup"], 1_000_650_000);
        assert_eq!(restricted_v2(&admitted), Ok(admitted.clone()));
    }

    #[test]
    fn a_pod_with_a_user_or_a_profile_of_its_own_is_refused() {
        let own = "/containers/0/securityContext";
        for (pointer, field, value, rule) in [
            (
                "/securityContext",
                "runAsUser",
                json!(65532),
                "runAsUser outside of the namespace's range: pod",
            ),
            (
                own,
                "runAsUser",
                json!(65532),
                "runAsUser outside of the namespace's range: c",
            ),
            (
                "/securityContext",
                "fsGroup",
                json!(65532),
                "fsGroup outside of the namespace's range: pod",
            ),
            (
                own,
                "seccompProfile",
                json!({"type": "Localhost"}),
                "seccomp: c",
            ),
            (own, "seLinuxOptions", json!({"level": "s0"}), "SELinux: c"),
            (
                own,
                "allowPrivilegeEscalation",
                json!(true),
                "privilege escalation: c",
            ),
        ] {
            let mut spec = fitting();
            spec.pointer_mut(pointer).unwrap()[field] = value;
            let broken = restricted_v2(&spec).unwrap_err();
            assert_eq!(broken, BTreeSet::from([rule.to_owned()]));
        }
    }

    #[test]
    fn a_volume_for_one_group_is_found() {
        assert_eq!(unreadable(&fitting()), BTreeSet::new());
        for (pointer, field) in [
            ("/volumes/0/projected", "defaultMode"),
            ("/volumes/0/projected/sources/0/secret/items/0", "mode"),
        ] {
            let mut spec = fitting();
            spec.pointer_mut(pointer).unwrap()[field] = json!(0o440);
            assert_eq!(
                unreadable(&spec),
                BTreeSet::from(["keys".to_owned()]),
                "{pointer}"
            );
        }
    }
}
