//! The CustomResourceDefinitions as they are installed.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;
use serde_json::{Error, Value, json};

use crate::columns::columns;
use crate::{MuxBenchmark, MuxClass, MuxExit, MuxGrant, MuxPeer, MuxRendezvous, MuxTunnel};

/// Properties whose schemas come from Kubernetes' own types, and their types. Their descriptions are
/// removed, because the Kubernetes reference has them, and they would be nine tenths of the
/// definitions.
const FOREIGN: &[(&str, &str)] = &[
    ("affinity", "object"),
    ("conditions", "array"),
    ("dnsConfig", "object"),
    ("hostAliases", "array"),
    ("imagePullSecrets", "array"),
    ("peers", "array"),
    ("selector", "object"),
    ("tolerations", "array"),
    ("topologySpreadConstraints", "array"),
];

/// All definitions, each with the name of its file.
///
/// # Errors
/// If a generated schema is not JSON of the expected shape. A test shows that this does not happen.
pub fn definitions() -> Result<Vec<(&'static str, CustomResourceDefinition)>, Error> {
    Ok(vec![
        ("muxtunnels.yaml", finished(MuxTunnel::crd(), 40)?),
        ("muxexits.yaml", finished(MuxExit::crd(), 40)?),
        ("muxpeers.yaml", finished(MuxPeer::crd(), 63)?),
        ("muxrendezvous.yaml", finished(MuxRendezvous::crd(), 40)?),
        ("muxbenchmarks.yaml", finished(MuxBenchmark::crd(), 28)?),
        ("muxgrants.yaml", finished(MuxGrant::crd(), 253)?),
        ("muxclasses.yaml", finished(MuxClass::crd(), 63)?),
    ])
}

/// `name_max`: the greatest length of the names of objects. Children have longer names. The API
/// server also needs the bound to estimate the cost of rules that read the name.
fn finished(
    mut definition: CustomResourceDefinition,
    name_max: usize,
) -> Result<CustomResourceDefinition, Error> {
    for version in &mut definition.spec.versions {
        version.additional_printer_columns = columns(&definition.spec.names.kind);
    }
    let mut value = serde_json::to_value(definition)?;
    let versions = value.pointer_mut("/spec/versions");
    for version in versions.and_then(Value::as_array_mut).into_iter().flatten() {
        if let Some(schema) = version.pointer_mut("/schema/openAPIV3Schema") {
            tidy(schema, false);
            schema["properties"]["apiVersion"] = json!({"type": "string"});
            schema["properties"]["kind"] = json!({"type": "string"});
            schema["properties"]["metadata"] = json!({
                "type": "object",
                "properties": {
                    "name": {"type": "string", "maxLength": name_max},
                    "generateName": {"type": "string"},
                },
            });
        }
    }
    serde_json::from_value(value)
}

/// Removes `nullable` and `default`, so that the API server stores objects as they were written, and
/// formats such as `uint16`, because API servers warn about formats that they do not know. In place of
/// the format `ip`, an API server has one for each family. Also removes the descriptions of schemas
/// within Kubernetes' own types.
fn tidy(schema: &mut Value, is_foreign: bool) {
    let Value::Object(object) = schema else {
        return;
    };
    object.remove("nullable");
    object.remove("default");
    object.retain(|key, value| {
        key != "format"
            || !value
                .as_str()
                .is_some_and(|format| format.starts_with("uint"))
    });
    if object.get("format").is_some_and(|format| format == "ip") {
        object.remove("format");
        object.insert(
            "anyOf".to_owned(),
            json!([{"format": "ipv4"}, {"format": "ipv6"}]),
        );
    }
    if is_foreign {
        object.remove("description");
    }
    let properties = object.get_mut("properties").and_then(Value::as_object_mut);
    for (name, property) in properties.into_iter().flatten() {
        let own = property.get("description").cloned();
        let type_ = property["type"].as_str().unwrap_or_default();
        let begins = !is_foreign && FOREIGN.contains(&(name.as_str(), type_));
        tidy(property, is_foreign || begins);
        if let (true, Some(own)) = (begins, own) {
            property["description"] = own;
        }
    }
    if let Some(items) = object.get_mut("items") {
        tidy(items, is_foreign);
    }
    // All maps of the schemas have strings or Kubernetes quantities as values.
    if let Some(values) = object.get_mut("additionalProperties") {
        tidy(values, true);
    }
}
