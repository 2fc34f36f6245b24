//! Applies the built children of an object, and deletes all other children.
//!
//! The module uses server-side apply with owner references. A child that matches its built form is
//! not written, and a child that the spec no longer requests is deleted. The module never changes
//! an object with the same name and another owner, and adopts its own children that nobody owns
//! ([`adopt`]). When the owner is deleted, its owner references let the garbage collector delete
//! the children, so there is no finalizer.
//!
//! The [`crate::caches`] may be outdated. The operator therefore queries the API server before it
//! deletes a child, and before it creates a child that the caches do not contain.

mod adopt;
mod compare;
mod others;
mod replace;
mod replicas;
mod settled;

use std::fmt::Debug;
use std::sync::Arc;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{
    ApiResource, DeleteParams, DynamicObject, Patch, PatchParams, Preconditions, PropagationPolicy,
};
use kube::core::GroupVersion;
use kube::core::gvk::ParseGroupVersionError;
use kube::{Api, Resource, ResourceExt};
use muxtunnel_codes::Code;
use muxtunnel_gateway_config::config_hash;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tracing::info;

use crate::caches::{Cached, Cluster, NotKnown};
use crate::failure::{self, Coded};
use crate::labels::MANAGER;
pub use adopt::{Obstacle, Obstacles, adopt_unchanged, obstacles};
pub use settled::Settled;

/// Annotation with the hash of the built object. If the built object no longer has a field that the
/// stored object has, only the hash shows the difference.
const APPLIED_HASH: &str = "muxtunnel.dev/applied-hash";

/// Why children could not be applied.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// Objects with required names have another owner.
    #[error("{0}")]
    OwnedByOther(Obstacles),
    /// The change concerns an immutable field, and the operator does not replace the object.
    #[error(
        "{kind} {name} cannot be changed in place: delete {kind} {name} when an interruption is \
         acceptable. The operator then creates a new {kind}, which gets another address or port \
         (refusal of the API server: {refusal})"
    )]
    Immutable {
        /// Kind of the object.
        kind: String,
        /// Name of the object.
        name: String,
        /// The API server's message.
        refusal: String,
    },
    /// The API server refused a change in words that it also uses for immutable fields, and the
    /// operator keeps the object.
    #[error(
        "cannot apply {kind} {name}, and the operator does not delete it, because {why}: {source}"
    )]
    NotReplaced {
        /// Kind of the object.
        kind: String,
        /// Name of the object.
        name: String,
        /// Why the operator keeps the object.
        why: NotReplaced,
        /// The refusal of the change, or of the creation.
        source: Box<kube::Error>,
    },
    /// The API server refused a change of an object in which other managers set fields.
    #[error("cannot apply {kind} {name}, in which other field managers set {fields}: {source}")]
    Shared {
        /// Kind of the object.
        kind: String,
        /// Name of the object.
        name: String,
        /// The fields, with their managers.
        fields: String,
        /// The client's error.
        source: Box<kube::Error>,
    },
    /// The watch is outdated: the owner has changed since the operator read it.
    #[error(
        "{kind} {name} changed or was deleted during its reconciliation; the operator reconciles it again"
    )]
    Stale {
        /// Kind of the owner.
        kind: String,
        /// Name of the object.
        name: String,
    },
    /// The caches do not contain the existing children yet.
    #[error(transparent)]
    NotKnown(#[from] NotKnown),
    /// The API server refused a request, or could not be reached.
    #[error("cannot {verb} {kind} {name}: {source}")]
    Api {
        /// `get`, `apply`, `delete`, ...
        verb: &'static str,
        /// Kind of the object.
        kind: String,
        /// Name of the object.
        name: String,
        /// The client's error.
        source: Box<kube::Error>,
    },
    /// The reference to the owner has an invalid API version. This never happens for the operator's
    /// own kinds.
    #[error("the reference to the owner has an invalid API version: {0}")]
    Owner(#[from] ParseGroupVersionError),
    /// A built object cannot be serialized. This never happens for objects that the operator
    /// builds.
    #[error("cannot serialize {kind} {name}: {source}")]
    Serialize {
        /// Kind of the object.
        kind: String,
        /// Name of the object.
        name: String,
        /// The serializer's error.
        source: serde_json::Error,
    },
}

/// Why the operator keeps an object whose change was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotReplaced {
    /// All immutable fields already have the required values.
    #[error("no immutable field differs")]
    NoImmutableField,
    /// The named field differs, but the API server refused the creation of the new object.
    #[error("{0} differs, but the API server refused the new object in a dry run")]
    CreationRefused(&'static str),
}

impl Coded for ApplyError {
    fn code(&self) -> Code {
        match self {
            Self::OwnedByOther(_) => Code::NameTaken,
            Self::Immutable { .. } => Code::ImmutableField,
            Self::Stale { .. } => Code::StaleRead,
            Self::NotKnown(error) => error.code(),
            Self::NotReplaced { .. }
            | Self::Shared { .. }
            | Self::Api { .. }
            | Self::Owner(_)
            | Self::Serialize { .. } => failure::code(self),
        }
    }
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

/// The children of an owner, and their components.
#[derive(Debug, Clone, Copy)]
pub struct Children<'a> {
    /// Namespace of the children.
    pub namespace: &'a str,
    /// The components of the children.
    pub components: &'a [&'a str],
    /// The owner.
    pub owner: &'a OwnerReference,
    /// Generation of the owner's spec from which the children were built. `None` if the spec is
    /// immutable.
    pub generation: Option<i64>,
    /// Whether the owner adopts children that nobody owns.
    pub adopts: bool,
}

/// The owner reference for children of `object`. The deletion of `object` does not wait for its
/// children.
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

/// Applies the children `built` of type `K`, which all have the owner as their controller. Returns
/// the stored objects in the same order.
///
/// If a built Deployment has no `replicas`, the stored Deployment keeps its current number. Other
/// clients, such as an autoscaler, then own the field (see [`replicas`]).
///
/// # Errors
/// [`ApplyError`]. If a child cannot be applied, the children before it are already applied, and no
/// superfluous child is deleted.
pub async fn apply<K: Cached + Child>(
    cluster: &Cluster,
    children: Children<'_>,
    built: Vec<K>,
) -> Result<Vec<K>, ApplyError> {
    let known = K::of(&cluster.caches).children(
        children.namespace,
        (&children.owner.kind, &children.owner.name),
        children.components,
    )?;
    let names: Vec<String> = built.iter().map(ResourceExt::name_any).collect();
    let mut applied = Vec::with_capacity(built.len());
    for child in built {
        let name = child.name_any();
        let known = known.iter().find(|known| known.name_any() == name).cloned();
        applied.push(apply_one(cluster, children, known, child).await?);
    }
    let superfluous: Vec<_> = known
        .into_iter()
        .filter(|child| {
            !names.contains(&child.name_any())
                && is_owned(child.as_ref(), children.owner)
                && child.meta().deletion_timestamp.is_none()
        })
        .collect();
    if !superfluous.is_empty() {
        still_asked(cluster, children).await?;
    }
    for child in superfluous {
        info!(kind = %K::kind(&()), name = child.name_any(), "deleting an object that the spec no longer requests");
        delete(cluster, children, child.as_ref()).await?;
    }
    Ok(applied)
}

/// Reads the owner before a deletion, because a newer spec than the cached one may still request
/// the child.
async fn still_asked(cluster: &Cluster, children: Children<'_>) -> Result<(), ApplyError> {
    let owner = children.owner;
    let version: GroupVersion = owner.api_version.parse()?;
    let resource = ApiResource::from_gvk(&version.with_kind(&owner.kind));
    let api: Api<DynamicObject> =
        Api::namespaced_with(cluster.client.clone(), children.namespace, &resource);
    let found = api
        .get_opt(&owner.name)
        .await
        .map_err(|source| ApplyError::Api {
            verb: "get",
            kind: owner.kind.clone(),
            name: owner.name.clone(),
            source: Box::new(source),
        })?;
    let is_same = found.is_some_and(|found| {
        let meta = found.metadata;
        meta.uid.as_ref() == Some(&owner.uid)
            && meta.deletion_timestamp.is_none()
            && (children.generation.is_none() || meta.generation == children.generation)
    });
    if is_same {
        Ok(())
    } else {
        Err(ApplyError::Stale {
            kind: owner.kind.clone(),
            name: owner.name.clone(),
        })
    }
}

async fn apply_one<K: Cached + Child>(
    cluster: &Cluster,
    children: Children<'_>,
    known: Option<Arc<K>>,
    child: K,
) -> Result<K, ApplyError> {
    let api: Api<K> = Api::namespaced(cluster.client.clone(), children.namespace);
    let name = child.name_any();
    let wanted = stamped(&child)?;
    let live = match known {
        Some(live) => Some(Arc::unwrap_or_clone(live)),
        // The cache has no child with this name. An object may still exist: one that lost its
        // labels, has another owner, or is newer than the cache.
        None => api
            .get_opt(&name)
            .await
            .map_err(|source| api_error::<K>("get", &name, source))?,
    };
    let mut applied = wanted.clone();
    match &live {
        Some(live) if is_owned(live, children.owner) => {
            let state = to_value(live)?;
            if compare::contains(&state, &wanted)
                || cluster.settled.is_settled(live.uid(), &state, &wanted)
            {
                return Ok(live.clone());
            }
            if replicas::are_handed_over(&wanted) {
                replicas::hand_over(&api, &name)
                    .await
                    .map_err(|source| api_error::<K>("hand over the replicas of", &name, source))?;
            }
        }
        Some(live) => {
            let orphan = match children.adopts {
                true => adopt::orphan(&api, live, &child).await?,
                false => None,
            };
            let orphan = orphan.ok_or_else(|| Obstacle::of(live))?;
            info!(kind = %K::kind(&()), name, "adopting an object that nobody owns");
            applied = adopt::onto(&wanted, &orphan)?;
        }
        None => {}
    }
    info!(kind = %K::kind(&()), name, "applying");
    let written = match patch(&api, &name, &applied).await {
        Ok(written) => written,
        Err(kube::Error::Api(status)) if replace::is_immutable(&status) && live.is_some() => {
            let refusal = kube::Error::Api(status);
            replace::replace(cluster, children, (&api, &name), &wanted, refusal).await?
        }
        Err(source) => return Err(refused(&api, &name, live.is_some(), source).await),
    };
    K::of(&cluster.caches).wrote(&written);
    cluster
        .settled
        .answered(written.uid(), &to_value(&written)?, &wanted);
    Ok(written)
}

async fn patch<K: Child>(api: &Api<K>, name: &str, wanted: &Value) -> Result<K, kube::Error> {
    let params = PatchParams::apply(MANAGER).force();
    api.patch(name, &params, &Patch::Apply(wanted)).await
}

/// The error of a refused apply. If the object exists, the error names the fields that other
/// managers set in its pods.
async fn refused<K: Child>(
    api: &Api<K>,
    name: &str,
    exists: bool,
    source: kube::Error,
) -> ApplyError {
    let is_refused =
        matches!(&source, kube::Error::Api(status) if matches!(status.code, 400 | 403 | 422));
    // The caches drop managed fields. If this read fails, the refusal alone is known.
    let live = match exists && is_refused {
        true => api.get_opt(name).await.ok().flatten(),
        false => None,
    };
    match live.and_then(|live| others::of_others(live.meta())) {
        Some(fields) => ApplyError::Shared {
            kind: K::kind(&()).into_owned(),
            name: name.to_owned(),
            fields,
            source: Box::new(source),
        },
        None => api_error::<K>("apply", name, source),
    }
}

/// Deletes an object with its UID as a precondition, so that a recreated object is kept.
async fn delete<K: Cached + Child>(
    cluster: &Cluster,
    children: Children<'_>,
    child: &K,
) -> Result<(), ApplyError> {
    let api: Api<K> = Api::namespaced(cluster.client.clone(), children.namespace);
    let name = child.name_any();
    let params = DeleteParams {
        preconditions: Some(Preconditions {
            uid: child.uid(),
            resource_version: None,
        }),
        propagation_policy: Some(PropagationPolicy::Background),
        ..DeleteParams::default()
    };
    match api.delete(&name, &params).await {
        Ok(_) => {}
        // Either answer means that the object with the old UID no longer exists.
        Err(kube::Error::Api(status)) if matches!(status.code, 404) || is_other(&status) => {}
        Err(source) => return Err(api_error::<K>("delete", &name, source)),
    }
    K::of(&cluster.caches).deleted(child);
    Ok(())
}

/// Whether the UID precondition failed. No other conflict has this message.
pub(crate) fn is_other(status: &kube::core::Status) -> bool {
    status.code == 409 && status.message.contains("UID in precondition")
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
