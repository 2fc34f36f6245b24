//! Whether an object matches its built form. Pure.

use serde_json::Value;

use crate::quantity;

/// Fields whose values are quantities, at any depth.
const QUANTITIES: [&str; 3] = ["limits", "requests", "sizeLimit"];

/// Whether `live` contains all fields of `wanted`. Fields that only `live` has are ignored.
pub(super) fn contains(live: &Value, wanted: &Value) -> bool {
    has(live, wanted, false)
}

fn has(live: &Value, wanted: &Value, quantities: bool) -> bool {
    match (live, wanted) {
        (Value::Object(live), Value::Object(wanted)) => wanted.iter().all(|(key, wanted)| {
            let quantities = quantities || QUANTITIES.contains(&key.as_str());
            live.get(key)
                .map_or_else(|| is_empty(wanted), |live| has(live, wanted, quantities))
        }),
        (Value::Array(live), Value::Array(wanted)) => {
            live.len() == wanted.len()
                && live
                    .iter()
                    .zip(wanted)
                    .all(|(live, wanted)| has(live, wanted, quantities))
        }
        (Value::String(live), Value::String(wanted)) if quantities => {
            live == wanted || quantity::are_equal(live, wanted)
        }
        _ => live == wanted,
    }
}

/// The API server drops empty objects, lists and texts.
fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Object(fields) => fields.values().all(is_empty),
        Value::Array(items) => items.is_empty(),
        Value::String(text) => text.is_empty(),
        Value::Bool(_) | Value::Number(_) => false,
    }
}

/// The fields of `live` that `wanted` also has.
pub(super) fn projected(live: &Value, wanted: &Value) -> Value {
    match (live, wanted) {
        (Value::Object(live), Value::Object(wanted)) => wanted
            .iter()
            .map(|(key, wanted)| {
                let live = live.get(key).unwrap_or(&Value::Null);
                (key.clone(), projected(live, wanted))
            })
            .collect(),
        _ => live.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_quantity_is_as_asked_in_any_spelling_and_other_texts_are_not() {
        let resources =
            |memory: &str| json!({"resources": {"limits": {"memory": memory, "cpu": "1"}}});
        assert!(contains(&resources("1Gi"), &resources("1024Mi")));
        assert!(!contains(&resources("1Gi"), &resources("1G")));
        assert!(!contains(
            &json!({"value": "1Gi"}),
            &json!({"value": "1024Mi"})
        ));
    }

    #[test]
    fn what_the_server_adds_or_drops_is_passed_over_and_what_it_changes_is_not() {
        let wanted = json!({"a": {"b": "", "c": [], "d": {}}, "e": [{"f": 1}]});
        assert!(contains(&json!({"e": [{"f": 1, "g": 2}], "h": 3}), &wanted));
        assert!(!contains(&json!({"e": [{"f": 2}]}), &wanted));
        assert!(!contains(&json!({"e": [{"f": 1}, {"f": 1}]}), &wanted));
        assert!(!contains(&json!({}), &json!({"automount": false})));
    }
}
