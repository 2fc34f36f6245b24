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
mod error;
mod others;
mod replace;
mod replicas;
mod settled;

use std::sync::Arc;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{
    ApiResource, DeleteParams, DynamicObject, Patch, PatchParams, PostParams, Preconditions,
};
use kube::core::GroupVersion;
use kube::{Api, Resource, ResourceExt};
use muxtunnel_gateway_config::config_hash;
use serde::Serialize;
use serde_json::Value;
use tracing::info;

use crate::caches::{Cached, Cluster};
use crate::labels::MANAGER;
use crate::watches::Watched;
use adopt::obstacle;
pub use error::{ApplyError, Named, NotReplaced};
pub use settled::Settled;

/// Annotation with the hash of the built object. If the built object no longer has a field that the
/// stored object has, only the hash shows the difference.
const APPLIED_HASH: &str = "muxtunnel.dev/applied-hash";

/// A kind of object that can be a child.
pub trait Child: Watched + Resource<Scope = NamespaceResourceScope> + Serialize {}

impl<K: Watched + Resource<Scope = NamespaceResourceScope> + Serialize> Child for K {}

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

/// Applies the children of an owner, one kind after the other. After the first obstacle, applies
/// nothing, and finds the other obstacles, so that a user can remove them at once.
pub struct Pass<'a> {
    /// The cluster.
    pub cluster: &'a Cluster,
    obstacles: Vec<String>,
}

impl<'a> Pass<'a> {
    /// A pass without an obstacle.
    pub const fn new(cluster: &'a Cluster) -> Self {
        Self {
            cluster,
            obstacles: Vec::new(),
        }
    }

    /// Whether the pass has found an obstacle.
    pub const fn is_blocked(&self) -> bool {
        !self.obstacles.is_empty()
    }

    /// Applies the children `built` of type `K`, which all have the owner as their controller.
    /// Returns the stored objects in the same order.
    ///
    /// If a built Deployment has no `replicas`, the stored Deployment keeps its current number.
    /// Other clients, such as an autoscaler, then own the field (see [`replicas`]).
    ///
    /// # Errors
    /// [`ApplyError`]. If a child cannot be applied, the children before it are already applied,
    /// and no superfluous child is deleted.
    pub async fn apply<K: Cached + Child>(
        &mut self,
        children: Children<'_>,
        built: Vec<K>,
    ) -> Result<Vec<K>, ApplyError> {
        let owner = (&*children.owner.kind, &*children.owner.name);
        let known = match self.is_blocked() {
            true => Vec::new(),
            false => {
                let cache = K::of(&self.cluster.caches);
                cache.children(children.namespace, owner, children.components)?
            }
        };
        let names: Vec<String> = built.iter().map(ResourceExt::name_any).collect();
        let mut applied = Vec::with_capacity(built.len());
        for (name, child) in names.iter().zip(built) {
            if self.is_blocked() {
                self.look(children, &child).await;
                continue;
            }
            let known = known.iter().find(|known| known.name_any() == *name);
            let stored = apply_one(self.cluster, children, known.cloned(), child).await;
            applied.extend(self.passed(stored)?);
        }
        let mut superfluous = known;
        superfluous.retain(|child| {
            !names.contains(&child.name_any())
                && is_owned(child.as_ref(), children.owner)
                && child.meta().deletion_timestamp.is_none()
        });
        if self.is_blocked() || superfluous.is_empty() {
            return Ok(applied);
        }
        still_asked(self.cluster, children).await?;
        for child in superfluous {
            info!(kind = %K::kind(&()), name = child.name_any(), "deleting an object that the spec no longer requests");
            delete(self.cluster, child.as_ref()).await?;
        }
        Ok(applied)
    }

    /// Creates `child`, which is never changed afterwards. An existing child stays as it is.
    pub async fn create<K: Cached + Child>(
        &mut self,
        children: Children<'_>,
        child: &K,
    ) -> Result<(), ApplyError> {
        if self.is_blocked() {
            self.look(children, child).await;
            return Ok(());
        }
        let stored = create_one(self.cluster, children, child).await;
        if let Some(stored) = self.passed(stored)? {
            K::of(&self.cluster.caches).wrote(&stored);
        }
        Ok(())
    }

    /// Ends the pass.
    ///
    /// # Errors
    /// The obstacles.
    pub fn end(self) -> Result<(), ApplyError> {
        match self.is_blocked() {
            true => Err(ApplyError::OwnedByOther(self.obstacles)),
            false => Ok(()),
        }
    }

    /// The stored child, or `None` for an obstacle.
    fn passed<K>(&mut self, stored: Result<K, ApplyError>) -> Result<Option<K>, ApplyError> {
        match stored {
            Err(ApplyError::OwnedByOther(obstacles)) => {
                self.obstacles.extend(obstacles);
                Ok(None)
            }
            stored => stored.map(Some),
        }
    }

    /// Finds out whether `child` has an obstacle. If it cannot be read, the first obstacle is
    /// known.
    async fn look<K: Child>(&mut self, children: Children<'_>, child: &K) {
        let found = obstacle(self.cluster, children, child).await;
        self.obstacles.extend(found.ok().flatten());
    }
}

/// Reads the owner before a deletion, because a newer spec than the cached one may still request
/// the child.
async fn still_asked(cluster: &Cluster, children: Children<'_>) -> Result<(), ApplyError> {
    let owner = children.owner;
    let version: GroupVersion = owner.api_version.parse()?;
    let resource = ApiResource::from_gvk(&version.with_kind(&owner.kind));
    let api: Api<DynamicObject> =
        Api::namespaced_with(cluster.client.clone(), children.namespace, &resource);
    let named = || Named {
        kind: owner.kind.clone(),
        name: owner.name.clone(),
    };
    let found = api.get_opt(&owner.name).await;
    let found = found.map_err(|source| ApplyError::Api("get", named(), Box::new(source)))?;
    let is_same = found.is_some_and(|found| {
        let meta = found.metadata;
        meta.uid.as_ref() == Some(&owner.uid)
            && meta.deletion_timestamp.is_none()
            && (children.generation.is_none() || meta.generation == children.generation)
    });
    match is_same {
        true => Ok(()),
        false => Err(ApplyError::Stale(named())),
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
        None => get(&api, &name).await?,
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
                let handed_over = replicas::hand_over(&api, &name).await;
                handed_over.map_err(failed::<K>("hand over the replicas of", &name))?;
            }
        }
        Some(live) => {
            let orphan = match children.adopts {
                true => adopt::orphan(&api, live, &child).await?,
                false => None,
            };
            let orphan = orphan.ok_or_else(|| adopt::taken(live))?;
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

/// Creates `child`. If an object has its name, returns this object: a child that a request without
/// an answer created, or a child that nobody owned.
async fn create_one<K: Child>(
    cluster: &Cluster,
    children: Children<'_>,
    child: &K,
) -> Result<K, ApplyError> {
    let api: Api<K> = Api::namespaced(cluster.client.clone(), children.namespace);
    let name = child.name_any();
    info!(kind = %K::kind(&()), name, "creating");
    let params = PostParams {
        field_manager: Some(MANAGER.to_owned()),
        ..PostParams::default()
    };
    let refusal = match api.create(&params, child).await {
        Err(kube::Error::Api(status)) if status.code == 409 => kube::Error::Api(status),
        created => return created.map_err(failed::<K>("create", &name)),
    };
    // An earlier child that is being deleted may have gone meanwhile.
    let Some(found) = get(&api, &name).await? else {
        return Err(failed::<K>("create", &name)(refusal));
    };
    if is_owned(&found, children.owner) {
        return Ok(found);
    }
    let adopted = match children.adopts {
        true => adopt::adopt_unchanged(&api, &found, child).await?,
        false => None,
    };
    adopted.ok_or_else(|| adopt::taken(&found))
}

async fn get<K: Child>(api: &Api<K>, name: &str) -> Result<Option<K>, ApplyError> {
    api.get_opt(name).await.map_err(failed::<K>("get", name))
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
        Some(fields) => ApplyError::Shared(Named::of::<K>(name), fields, Box::new(source)),
        None => failed::<K>("apply", name)(source),
    }
}

/// Deletes a child, see [`delete_same`].
pub async fn delete<K: Cached + Child>(cluster: &Cluster, child: &K) -> Result<(), ApplyError> {
    let namespace = child.namespace().unwrap_or_default();
    let api: Api<K> = Api::namespaced(cluster.client.clone(), &namespace);
    let deleted = delete_same(&api, child).await;
    deleted.map_err(failed::<K>("delete", &child.name_any()))?;
    K::of(&cluster.caches).deleted(child);
    Ok(())
}

/// Deletes `object` with its UID as a precondition, so that a recreated object is kept.
pub(crate) async fn delete_same<K: Child>(api: &Api<K>, object: &K) -> Result<(), kube::Error> {
    let params = DeleteParams::background().preconditions(Preconditions {
        uid: object.uid(),
        resource_version: None,
    });
    // The message of a failed UID precondition. No other conflict has this message.
    let is_other = |status: &kube::core::Status| {
        status.code == 409 && status.message.contains("UID in precondition")
    };
    match api.delete(&object.name_any(), &params).await {
        // Either answer means that the object with the old UID no longer exists.
        Err(kube::Error::Api(status)) if status.code == 404 || is_other(&status) => Ok(()),
        deleted => deleted.map(drop),
    }
}

/// The error of a request for the object `name`.
pub(crate) fn failed<K: Child>(
    verb: &'static str,
    name: &str,
) -> impl FnOnce(kube::Error) -> ApplyError {
    move |source| ApplyError::Api(verb, Named::of::<K>(name), Box::new(source))
}

fn to_value<K: Child>(child: &K) -> Result<Value, ApplyError> {
    let named = || Named::of::<K>(&child.name_any());
    serde_json::to_value(child).map_err(|source| ApplyError::Serialize(named(), source))
}

fn stamped<K: Child>(child: &K) -> Result<Value, ApplyError> {
    let hash = config_hash(&to_value(child)?.to_string());
    let mut child = child.clone();
    child
        .annotations_mut()
        .insert(APPLIED_HASH.to_owned(), hash);
    to_value(&child)
}
