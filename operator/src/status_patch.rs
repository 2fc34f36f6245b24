//! The body of the server-side apply that writes a status.

use kube::Resource;
use serde::Serialize;
use serde_json::{Map, Value, json};

/// The body that applies `status` to an object of the kind `K`.
///
/// The body has no object without fields. If all fields of an applied object are removed, but not
/// the object itself, the API server stores null in its place, and then refuses the null.
pub(crate) fn status_patch<K: Resource<DynamicType = ()>>(status: &impl Serialize) -> Value {
    json!({
        "apiVersion": K::api_version(&()),
        "kind": K::kind(&()),
        "status": without_empty_objects(json!(status)),
    })
}

fn without_empty_objects(value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            let fields = fields.into_iter();
            let kept = fields.map(|(name, value)| (name, without_empty_objects(value)));
            let is_empty = |value: &Value| value.as_object().is_some_and(Map::is_empty);
            Value::Object(kept.filter(|(_, value)| !is_empty(value)).collect())
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use muxtunnel_crds::MuxTunnel;

    use super::*;

    #[test]
    fn an_object_without_fields_is_not_applied() {
        let status = json!({"connect": {}, "network": {"dns": {}}, "services": [], "entry": {"replicas": 1}});
        let body = status_patch::<MuxTunnel>(&status);
        assert_eq!(body["kind"], "MuxTunnel");
        assert_eq!(
            body["status"],
            json!({"services": [], "entry": {"replicas": 1}})
        );
    }
}
