//! Writes a status with server-side apply.

use kube::api::{Patch, PatchParams};
use kube::{Api, Resource};
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::caches::Cache;
use crate::labels::MANAGER;
use crate::undecoded::Guarded;
use crate::watches::Watched;

/// Writes the status of the object `name`, and keeps the answer in `cache`. The answer contains the
/// spec, which this version perhaps cannot decode. If the object was deleted meanwhile, does nothing.
pub(crate) async fn write_status<K: Watched>(
    api: &Api<Guarded<K>>,
    cache: &Cache<K>,
    name: &str,
    status: &(impl Serialize + Sync),
) -> Result<(), kube::Error> {
    let body = status_patch::<K>(status);
    let params = PatchParams::apply(MANAGER).force();
    match api.patch_status(name, &params, &Patch::Apply(body)).await {
        Ok(written) => {
            if let Ok(written) = &written.0 {
                cache.wrote(written);
            }
            Ok(())
        }
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        Err(error) => Err(error),
    }
}

/// The body that applies `status` to an object of the kind `K`.
///
/// The body has no object without fields. If all fields of an applied object are removed, but not
/// the object itself, the API server stores null in its place, and then refuses the null.
fn status_patch<K: Resource<DynamicType = ()>>(status: &impl Serialize) -> Value {
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
