//! Makes the children of an object what was built, and nothing more.
//!
//! Server-side apply with owner references; a child that is already as built is not written; a child
//! that is no longer asked for is deleted; an object of the same name that belongs to something else
//! is never touched. Owner references alone clean up after the object itself: there is no finalizer.

use std::fmt::Debug;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, Preconditions, PropagationPolicy};
use kube::{Api, Client, Resource, ResourceExt};
use muxtunnel_gateway_config::config_hash;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tracing::info;

use crate::labels::MANAGER;

/// Annotation with the hash of what was built. Without it a field that is no longer built would not be
/// noticed.
const APPLIED_HASH: &str = "muxtunnel.dev/applied-hash";

/// Why children could not be made what was built.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// An object of the needed name belongs to something else.
    #[error("{kind} {name} exists and belongs to {owner}")]
    OwnedByOther {
        /// Kind of the object.
        kind: String,
        /// Its name.
        name: String,
        /// Its owner.
        owner: String,
    },
    /// The API server refused a request, or could not be reached.
    #[error("cannot {verb} {kind} {name}: {source}")]
    Api {
        /// `list`, `get`, `apply` or `delete`.
        verb: &'static str,
        /// Kind of the object.
        kind: String,
        /// Its name; empty for a list.
        name: String,
        /// The client's error.
        source: Box<kube::Error>,
    },
    /// A built object is not JSON, which none of ours can be.
    #[error("cannot serialize {kind} {name}: {source}")]
    Serialize {
        /// Kind of the object.
        kind: String,
        /// Its name.
        name: String,
        /// The serializer's error.
        source: serde_json::Error,
    },
}

/// A kind of object that can be a child.
pub trait Child:
    Resource<DynamicType = (), Scope = NamespaceResourceScope>
    + Clone
    + Debug
    + Serialize
    + DeserializeOwned
{
}

impl<K> Child for K where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + Debug
        + Serialize
        + DeserializeOwned
{
}

/// The reference by which `object` owns its children. Deleting the object does not wait for them.
pub fn owner_reference<K: Resource<DynamicType = ()>>(object: &K) -> Option<OwnerReference> {
    let mut reference = object.controller_owner_ref(&())?;
    reference.block_owner_deletion = None;
    Some(reference)
}

/// Whether `object` is controlled by `owner`.
pub fn is_owned<K: Resource>(object: &K, owner: &OwnerReference) -> bool {
    object
        .meta()
        .owner_references
        .iter()
        .flatten()
        .any(|reference| reference.controller == Some(true) && reference.uid == owner.uid)
}

/// Makes the children of type `K` that `selector` selects be `built`, which all carry `owner` as
/// their controller. Returns them as the API server has them, in the same order.
///
/// # Errors
/// [`ApplyError`]; children before the one that failed are applied, nothing is deleted.
pub async fn apply<K: Child>(
    client: &Client,
    namespace: &str,
    owner: &OwnerReference,
    selector: &str,
    built: Vec<K>,
) -> Result<Vec<K>, ApplyError> {
    let api: Api<K> = Api::namespaced(client.clone(), namespace);
    let live = api
        .list(&ListParams::default().labels(selector))
        .await
        .map_err(|source| api_error::<K>("list", "", source))?
        .items;
    let names: Vec<String> = built.iter().map(ResourceExt::name_any).collect();
    let mut applied = Vec::with_capacity(built.len());
    for child in built {
        let known = live.iter().find(|live| live.name_any() == child.name_any());
        applied.push(apply_one(&api, owner, known, child).await?);
    }
    for child in &live {
        if !names.contains(&child.name_any())
            && is_owned(child, owner)
            && child.meta().deletion_timestamp.is_none()
        {
            delete(&api, child).await?;
        }
    }
    Ok(applied)
}

async fn apply_one<K: Child>(
    api: &Api<K>,
    owner: &OwnerReference,
    known: Option<&K>,
    child: K,
) -> Result<K, ApplyError> {
    let name = child.name_any();
    let wanted = stamped(&child)?;
    let live = match known {
        Some(live) => Some(live.clone()),
        None => api
            .get_opt(&name)
            .await
            .map_err(|source| api_error::<K>("get", &name, source))?,
    };
    if let Some(live) = live {
        if !is_owned(&live, owner) {
            return Err(ApplyError::OwnedByOther {
                kind: K::kind(&()).into_owned(),
                name,
                owner: owner_text(&live),
            });
        }
        let state = to_value(&live)?;
        if contains(&state, &wanted) {
            return Ok(live);
        }
    }
    info!(kind = %K::kind(&()), name, "applying");
    api.patch(
        &name,
        &PatchParams::apply(MANAGER).force(),
        &Patch::Apply(&wanted),
    )
    .await
    .map_err(|source| api_error::<K>("apply", &name, source))
}

/// With the UID as a precondition: an object that was deleted and made again meanwhile stays.
async fn delete<K: Child>(api: &Api<K>, child: &K) -> Result<(), ApplyError> {
    let name = child.name_any();
    info!(kind = %K::kind(&()), name, "deleting, no longer asked for");
    let params = DeleteParams {
        preconditions: Some(Preconditions {
            uid: child.uid(),
            resource_version: None,
        }),
        propagation_policy: Some(PropagationPolicy::Background),
        ..DeleteParams::default()
    };
    match api.delete(&name, &params).await {
        Ok(_) => Ok(()),
        // Gone, or another object by now: either way ours is.
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
        Err(source) => Err(api_error::<K>("delete", &name, source)),
    }
}

fn api_error<K: Child>(verb: &'static str, name: &str, source: kube::Error) -> ApplyError {
    ApplyError::Api {
        verb,
        kind: K::kind(&()).into_owned(),
        name: name.to_owned(),
        source: Box::new(source),
    }
}

fn to_value<K: Child>(child: &K) -> Result<Value, ApplyError> {
    serde_json::to_value(child).map_err(|source| ApplyError::Serialize {
        kind: K::kind(&()).into_owned(),
        name: child.name_any(),
        source,
    })
}

fn stamped<K: Child>(child: &K) -> Result<Value, ApplyError> {
    let hash = config_hash(&to_value(child)?.to_string());
    let mut child = child.clone();
    child
        .annotations_mut()
        .insert(APPLIED_HASH.to_owned(), hash);
    to_value(&child)
}

fn owner_text<K: Child>(object: &K) -> String {
    object
        .meta()
        .owner_references
        .iter()
        .flatten()
        .find(|reference| reference.controller == Some(true))
        .map_or_else(
            || "no MuxTunnel or MuxBenchmark".to_owned(),
            |reference| format!("{} {} ({})", reference.kind, reference.name, reference.uid),
        )
}

/// Whether `live` has all that `wanted` says; what the API server added is passed over.
fn contains(live: &Value, wanted: &Value) -> bool {
    match (live, wanted) {
        (Value::Object(live), Value::Object(wanted)) => wanted.iter().all(|(key, wanted)| {
            live.get(key)
                .map_or_else(|| is_empty(wanted), |live| contains(live, wanted))
        }),
        (Value::Array(live), Value::Array(wanted)) => {
            live.len() == wanted.len()
                && live
                    .iter()
                    .zip(wanted)
                    .all(|(live, wanted)| contains(live, wanted))
        }
        _ => live == wanted,
    }
}

/// The API server drops empty objects and lists.
fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Object(fields) => fields.values().all(is_empty),
        Value::Array(items) => items.is_empty(),
        _ => false,
    }
}
