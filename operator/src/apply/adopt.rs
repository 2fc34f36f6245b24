//! Children that exist and do not belong to the owner: orphans, which the operator adopts, and
//! obstacles, which it names.
//!
//! `kubectl delete --cascade=orphan`, a restored backup and a migration leave children without an
//! owner. The operator adopts a child that its own field manager wrote, with the child's labels,
//! and that nobody owns. All other objects stay unchanged.

use kube::api::{Patch, PatchParams};
use kube::{Api, Resource, ResourceExt};
use serde_json::{Value, json};
use tracing::info;

use super::{ApplyError, Child, Children, Named, failed, get, is_owned, replicas, to_value};
use crate::caches::Cluster;
use crate::labels::{self, COMPONENT, MANAGER};

/// The error of an object that has the name of a child and another owner.
pub(super) fn taken<K: Resource<DynamicType = ()>>(object: &K) -> ApplyError {
    ApplyError::OwnedByOther(vec![in_the_way(object)])
}

fn in_the_way<K: Resource<DynamicType = ()>>(object: &K) -> String {
    let references = object.meta().owner_references.iter().flatten();
    // The first place belongs to the controller.
    let owner = references.min_by_key(|reference| reference.controller != Some(true));
    let owner = owner.map_or_else(
        || "no object of muxtunnel.dev".to_owned(),
        |reference| format!("{} {} ({})", reference.kind, reference.name, reference.uid),
    );
    let object = Named::of::<K>(&object.name_any());
    format!("{object} exists and belongs to {owner}")
}

/// The obstacle for `child`, if there is one.
pub(super) async fn obstacle<K: Child>(
    cluster: &Cluster,
    children: Children<'_>,
    child: &K,
) -> Result<Option<String>, ApplyError> {
    let api: Api<K> = Api::namespaced(cluster.client.clone(), children.namespace);
    let live = get(&api, &child.name_any()).await?;
    let is_ours =
        |live: &K| is_owned(live, children.owner) || (children.adopts && is_orphan_of(live, child));
    let others = live.filter(|live| !is_ours(live));
    Ok(others.map(|live| in_the_way(&live)))
}

/// If `live` may be an orphan, reads it from the API server. Returns the orphan that becomes
/// `child`.
pub(super) async fn orphan<K: Child>(
    api: &Api<K>,
    live: &K,
    child: &K,
) -> Result<Option<K>, ApplyError> {
    if !has_no_owner(live, child) {
        return Ok(None);
    }
    // The caches drop managed fields.
    let found = get(api, &child.name_any()).await?;
    Ok(found.filter(|found| is_orphan_of(found, child)))
}

/// `wanted` as an apply that fails if the orphan has changed since it was read. A Deployment keeps
/// its number of pods. If the number is handed over, the next write does so.
pub(super) fn onto<K: Child>(wanted: &Value, orphan: &K) -> Result<Value, ApplyError> {
    let mut applied = wanted.clone();
    applied["metadata"]["uid"] = json!(orphan.uid());
    applied["metadata"]["resourceVersion"] = json!(orphan.resource_version());
    if replicas::are_handed_over(wanted)
        && let Some(number) = to_value(orphan)?.pointer("/spec/replicas")
    {
        applied["spec"]["replicas"] = number.clone();
    }
    Ok(applied)
}

/// Adopts `found` without another change, if it is an orphan that becomes `child`.
pub(super) async fn adopt_unchanged<K: Child>(
    api: &Api<K>,
    found: &K,
    child: &K,
) -> Result<Option<K>, ApplyError> {
    if !is_orphan_of(found, child) {
        return Ok(None);
    }
    let name = child.name_any();
    info!(kind = %K::kind(&()), name, "adopting an object that nobody owns");
    let patch = json!({"metadata": {
        "uid": found.uid(),
        "resourceVersion": found.resource_version(),
        "ownerReferences": child.owner_references(),
    }});
    let params = PatchParams {
        field_manager: Some(MANAGER.to_owned()),
        ..PatchParams::default()
    };
    let adopted = api.patch(&name, &params, &Patch::Merge(patch)).await;
    adopted.map(Some).map_err(failed::<K>("adopt", &name))
}

/// Whether `object` is an orphan that becomes `child`. `object` is from the API server, because the
/// caches drop managed fields.
fn is_orphan_of<K: Child>(object: &K, child: &K) -> bool {
    let mut managers = object.managed_fields().iter();
    has_no_owner(object, child)
        && managers.any(|entry| {
            entry.manager.as_deref() == Some(MANAGER)
                && entry.subresource.as_deref().unwrap_or_default().is_empty()
        })
}

fn has_no_owner<K: Child>(object: &K, child: &K) -> bool {
    let (own, wanted) = (object.labels(), child.labels());
    object.owner_references().is_empty()
        && object.meta().deletion_timestamp.is_none()
        && labels::owner(own).is_some()
        && labels::owner(own) == labels::owner(wanted)
        && own.get(COMPONENT).is_some()
        && own.get(COMPONENT) == wanted.get(COMPONENT)
}
