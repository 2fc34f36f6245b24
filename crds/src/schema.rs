//! The CustomResourceDefinitions as they are installed.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;
use serde_json::Value;

use crate::{MuxBenchmark, MuxExit, MuxGrant, MuxPeer, MuxRendezvous, MuxTunnel};

/// Properties whose schemas come from Kubernetes' own types. Their descriptions are removed,
/// because the Kubernetes reference has them, and they would be nine tenths of the definitions.
const FOREIGN: &[&str] = &[
    "affinity",
    "conditions",
    "dnsConfig",
    "hostAliases",
    "imagePullSecrets",
    "peers",
    "tolerations",
    "topologySpreadConstraints",
];

/// A definition could not be generated.
#[derive(Debug)]
pub struct SchemaError(serde_json::Error);

impl std::error::Error for SchemaError {}

impl std::fmt::Display for SchemaError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "cannot convert a generated definition: {}", self.0)
    }
}

/// All definitions, each with the name of its file.
///
/// # Errors
/// If a generated schema is not JSON of the expected shape. A test shows that this does not happen.
pub fn definitions() -> Result<Vec<(&'static str, CustomResourceDefinition)>, SchemaError> {
    Ok(vec![
        ("muxtunnels.yaml", finished(MuxTunnel::crd())?),
        ("muxexits.yaml", finished(MuxExit::crd())?),
        ("muxpeers.yaml", finished(MuxPeer::crd())?),
        ("muxrendezvous.yaml", finished(MuxRendezvous::crd())?),
        ("muxbenchmarks.yaml", finished(MuxBenchmark::crd())?),
        ("muxgrants.yaml", finished(MuxGrant::crd())?),
    ])
}

fn finished(definition: CustomResourceDefinition) -> Result<CustomResourceDefinition, SchemaError> {
    let mut value = serde_json::to_value(definition).map_err(SchemaError)?;
    if let Some(versions) = value
        .pointer_mut("/spec/versions")
        .and_then(Value::as_array_mut)
    {
        for version in versions {
            if let Some(schema) = version.pointer_mut("/schema/openAPIV3Schema") {
                strip_unsigned_formats(schema);
                strip_foreign_texts(schema);
            }
        }
    }
    serde_json::from_value(value).map_err(SchemaError)
}

/// Removes formats such as `uint16`, because API servers warn about formats that they do not know.
fn strip_unsigned_formats(schema: &mut Value) {
    match schema {
        Value::Object(object) => {
            if object
                .get("format")
                .and_then(Value::as_str)
                .is_some_and(|format| format.starts_with("uint"))
            {
                object.remove("format");
            }
            object.values_mut().for_each(strip_unsigned_formats);
        }
        Value::Array(items) => items.iter_mut().for_each(strip_unsigned_formats),
        _ => {}
    }
}

fn strip_foreign_texts(schema: &mut Value) {
    let Value::Object(object) = schema else {
        return;
    };
    for (name, property) in object
        .get_mut("properties")
        .and_then(Value::as_object_mut)
        .into_iter()
        .flatten()
    {
        if FOREIGN.contains(&name.as_str()) {
            let own = property.get("description").cloned();
            strip_texts(property);
            if let (Some(own), Some(property)) = (own, property.as_object_mut()) {
                property.insert("description".to_owned(), own);
            }
        } else {
            strip_foreign_texts(property);
        }
    }
    if let Some(items) = object.get_mut("items") {
        strip_foreign_texts(items);
    }
    // All maps of the schemas have strings or Kubernetes quantities as values.
    if let Some(values) = object.get_mut("additionalProperties") {
        strip_texts(values);
    }
}

fn strip_texts(schema: &mut Value) {
    match schema {
        Value::Object(object) => {
            if object.get("description").is_some_and(Value::is_string) {
                object.remove("description");
            }
            object.values_mut().for_each(strip_texts);
        }
        Value::Array(items) => items.iter_mut().for_each(strip_texts),
        _ => {}
    }
}
