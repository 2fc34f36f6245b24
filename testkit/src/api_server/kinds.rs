//! The API server's treatment of some kinds: defaults, the canonical form of quantities, and
//! immutable fields.

use serde_json::{Value, json};

use super::quantity::{nanos, spelled};

/// The applied part of a body: its fields, with quantities in the server's form.
pub(super) fn appliable(body: &Value, subresource: &str) -> Value {
    let mut applied = body.clone();
    if let Some(fields) = applied.as_object_mut() {
        fields.retain(|name, _| match subresource {
            "status" => name == "status",
            _ => name != "status",
        });
    }
    spell(&mut applied, false);
    applied
}

/// Fills in defaults.
pub(super) fn complete(path: &str, object: &mut Value) {
    let (resource, name) = path.split_once('/').unwrap();
    spell(object, false);
    match resource {
        "deployments" => {
            let spec = &mut object["spec"];
            default(spec, "replicas", json!(1));
            default(spec, "revisionHistoryLimit", json!(10));
            default(spec, "progressDeadlineSeconds", json!(600));
            complete_pod(&mut spec["template"]["spec"]);
        }
        "jobs" => complete_pod(&mut object["spec"]["template"]["spec"]),
        "services" => {
            let spec = &mut object["spec"];
            default(spec, "type", json!("ClusterIP"));
            default(spec, "sessionAffinity", json!("None"));
            // An arbitrary address that depends only on the name.
            let number = name
                .bytes()
                .fold(7_u8, |sum, byte| sum.wrapping_mul(31) ^ byte);
            default(spec, "clusterIP", json!(format!("10.96.0.{number}")));
            let outside = matches!(spec["type"].as_str(), Some("NodePort" | "LoadBalancer"));
            for port in spec["ports"].as_array_mut().into_iter().flatten() {
                default(port, "protocol", json!("TCP"));
                let target = port["port"].clone();
                default(port, "targetPort", target);
                if outside {
                    default(port, "nodePort", json!(30000 + u16::from(number)));
                }
            }
        }
        _ => {}
    }
}

fn complete_pod(pod: &mut Value) {
    if pod.is_null() {
        return;
    }
    default(pod, "restartPolicy", json!("Always"));
    default(pod, "dnsPolicy", json!("ClusterFirst"));
    default(pod, "schedulerName", json!("default-scheduler"));
    default(pod, "terminationGracePeriodSeconds", json!(30));
    for container in pod["containers"].as_array_mut().into_iter().flatten() {
        default(
            container,
            "terminationMessagePath",
            json!("/dev/termination-log"),
        );
        default(container, "terminationMessagePolicy", json!("File"));
        // A limit without a request also sets the request.
        let limits = container["resources"]["limits"].clone();
        for (name, amount) in limits.as_object().into_iter().flatten() {
            default(
                &mut container["resources"]["requests"],
                name,
                amount.clone(),
            );
        }
    }
}

fn default(object: &mut Value, field: &str, value: Value) {
    if object[field].is_null() {
        object[field] = value;
    }
}

/// Returns the reason if `new` cannot replace `old`.
pub(super) fn refusal(path: &str, old: &Value, new: &Value) -> Option<String> {
    let (resource, name) = path.split_once('/')?;
    let fixed = match resource {
        "deployments" => "/spec/selector",
        "services" => "/spec/clusterIP",
        "jobs" => "/spec/template",
        "secrets" => "/type",
        _ => return None,
    };
    let before = old.pointer(fixed)?;
    if new.pointer(fixed) == Some(before) {
        return None;
    }
    let kind = &new["kind"];
    Some(if resource == "services" {
        format!(
            "{kind} {name} is invalid: spec.clusterIPs[0]: Invalid value: may not change once set"
        )
    } else {
        format!("{kind} {name} is invalid: {fixed}: Invalid value: {before}: field is immutable")
    })
}

/// The server's message for an invalid quantity.
pub(super) fn bad_quantity(value: &Value, quantities: bool) -> Option<String> {
    match value {
        Value::Object(fields) => fields.iter().find_map(|(name, value)| {
            let quantities = quantities || ["limits", "requests"].contains(&name.as_str());
            bad_quantity(value, quantities)
        }),
        Value::Array(items) => items.iter().find_map(|item| bad_quantity(item, quantities)),
        Value::String(text) if quantities && nanos(text).is_none() => Some(format!(
            "unable to parse quantity's value {text}: quantities must match the regular expression"
        )),
        _ => None,
    }
}

/// Writes quantities like the server: with the largest suffix of the quantity's own kind (binary or
/// decimal) that gives a whole number. Removes nulls and empty strings.
fn spell(value: &mut Value, quantities: bool) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields.iter_mut() {
                let quantities = quantities || ["limits", "requests"].contains(&name.as_str());
                spell(value, quantities);
            }
            fields.retain(|_, value| !value.is_null() && value != "");
        }
        Value::Array(items) => items.iter_mut().for_each(|item| spell(item, quantities)),
        Value::String(text) if quantities => {
            if let Some(spelled) = spelled(text) {
                *text = spelled;
            }
        }
        _ => {}
    }
}

/// The server's version document.
pub(super) fn version() -> Value {
    let mut info = json!({"gitVersion": "v1.33.1"});
    for field in [
        "buildDate",
        "compiler",
        "gitCommit",
        "gitTreeState",
        "goVersion",
        "major",
        "minor",
        "platform",
    ] {
        info[field] = json!("");
    }
    info
}
