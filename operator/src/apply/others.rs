//! The fields of a child's pods that other field managers set. If the API server refuses a change
//! of the child, such a field is often the cause, so the condition names it and its manager.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
use kube::core::ObjectMeta;
use serde_json::{Map, Value};

use super::replicas::HANDOVER;
use crate::labels::MANAGER;

/// Maximum number of fields that a text names.
const NAMED_MAX: usize = 8;

/// The fields of the pod template that other managers set, with their managers, or `None`.
pub(super) fn of_others(object: &ObjectMeta) -> Option<String> {
    let entries = || object.managed_fields.iter().flatten();
    let is_ours =
        |entry: &ManagedFieldsEntry| matches!(entry.manager.as_deref(), Some(MANAGER | HANDOVER));
    let ours: Vec<_> = entries()
        .filter(|entry| is_ours(entry))
        .filter_map(template)
        .collect();
    let mut found = Vec::new();
    for entry in entries().filter(|entry| !is_ours(entry)) {
        let manager = entry.manager.as_deref().unwrap_or("unknown");
        if let Some(template) = template(entry) {
            let mut paths = Vec::new();
            collect(template, &ours, "spec.template", &mut paths);
            let named = paths.into_iter().map(|path| format!("{path} ({manager})"));
            found.extend(named);
        }
    }
    let further = found.len().saturating_sub(NAMED_MAX);
    found.truncate(NAMED_MAX);
    let mut text = (!found.is_empty()).then(|| found.join(", "))?;
    if further > 0 {
        text.push_str(&format!(" and {further} more"));
    }
    Some(text)
}

fn template(entry: &ManagedFieldsEntry) -> Option<&Map<String, Value>> {
    let fields = entry.fields_v1.as_ref()?;
    fields.0.pointer("/f:spec/f:template")?.as_object()
}

/// Appends the paths of the fields in `fields` that are not in `ours`. An item of a list that
/// belongs to the manager as a whole is one path.
fn collect(
    fields: &Map<String, Value>,
    ours: &[&Map<String, Value>],
    path: &str,
    found: &mut Vec<String>,
) {
    for (key, below) in fields {
        let path = match (key.strip_prefix("f:"), key.strip_prefix("k:")) {
            (Some(field), _) => format!("{path}.{field}"),
            (_, Some(keys)) => format!("{path}[{}]", item(keys)),
            _ => continue,
        };
        let own: Vec<_> = ours
            .iter()
            .filter_map(|ours| ours.get(key)?.as_object())
            .collect();
        let below = below.as_object().filter(|below| !below.is_empty());
        let is_whole_item = key.starts_with("k:") && below.is_some_and(|all| all.contains_key("."));
        match below {
            Some(below) if !(is_whole_item && own.is_empty()) => {
                collect(below, &own, &path, found);
            }
            _ if own.is_empty() => found.push(path),
            _ => {}
        }
    }
}

/// The values of an item's keys, such as the name of a container.
fn item(keys: &str) -> String {
    let keys: Map<String, Value> = serde_json::from_str(keys).unwrap_or_default();
    let values: Vec<_> = keys
        .values()
        .map(|value| {
            value
                .as_str()
                .map_or_else(|| value.to_string(), str::to_owned)
        })
        .collect();
    values.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn fields_of_others_are_named_with_their_managers() {
        let pod = |fields: Value| json!({"f:spec": {"f:template": {"f:spec": fields}}});
        let ours = pod(json!({"f:containers": {
            r#"k:{"name":"gateway"}"#: {".": {}, "f:name": {}, "f:image": {}},
        }}));
        let set_env = pod(json!({"f:containers": {
            r#"k:{"name":"gateway"}"#: {"f:image": {}, "f:env": {
                ".": {}, r#"k:{"name":"FOO"}"#: {".": {}, "f:name": {}, "f:value": {}},
            }},
            r#"k:{"name":"log"}"#: {".": {}, "f:image": {}, "f:name": {}},
        }}));
        let object = |theirs: Value| -> ObjectMeta {
            let entry = |manager: &str, fields: &Value| json!({"manager": manager, "operation": "Apply", "fieldsV1": fields});
            serde_json::from_value(json!({"managedFields": [
                entry(MANAGER, &ours),
                entry("kubectl-set", &theirs),
                entry("kube-controller-manager", &json!({"f:metadata": {"f:annotations": {}}})),
            ]}))
            .unwrap()
        };
        assert_eq!(
            of_others(&object(set_env)).unwrap(),
            "spec.template.spec.containers[gateway].env[FOO] (kubectl-set), \
             spec.template.spec.containers[log] (kubectl-set)"
        );
        assert_eq!(of_others(&object(ours.clone())), None);
        let many: Map<String, Value> = (0..20).map(|n| (format!("f:{n}"), json!({}))).collect();
        let text = of_others(&object(pod(json!(many)))).unwrap();
        assert!(text.ends_with(" and 12 more"), "{text}");
    }
}
