//! Children that exist and do not belong to the owner: orphans, which the operator adopts, and
//! obstacles, which it names.
//!
//! `kubectl delete --cascade=orphan`, a restored backup and a migration leave children without an
//! owner. The operator adopts a child that its own field manager wrote, with the child's labels,
//! and that nobody owns. All other objects stay unchanged.

use std::fmt;

use kube::api::{Patch, PatchParams};
use kube::core::ObjectMeta;
use kube::{Api, Resource, ResourceExt};
use serde_json::{Value, json};
use tracing::info;

use super::{ApplyError, Child, Children, api_error, is_owned, replicas, to_value};
use crate::caches::{Cached, Cluster};
use crate::labels::{self, COMPONENT, MANAGER};

/// An object that has the name of a child and another owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Obstacle {
    kind: String,
    name: String,
    owner: String,
}

impl Obstacle {
    /// The obstacle `object`.
    pub fn of<K: Resource<DynamicType = ()>>(object: &K) -> Self {
        let references = object.meta().owner_references.iter().flatten();
        let mut references: Vec<_> = references.collect();
        // The first place belongs to the controller.
        references.sort_by_key(|reference| reference.controller != Some(true));
        let owner = references.first().map_or_else(
            || "no object of muxtunnel.dev".to_owned(),
            |reference| format!("{} {} ({})", reference.kind, reference.name, reference.uid),
        );
        Self {
            kind: K::kind(&()).into_owned(),
            name: object.name_any(),
            owner,
        }
    }
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, name, owner } = self;
        write!(f, "{kind} {name} exists and belongs to {owner}")
    }
}

/// Obstacles, at most one for each child.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Obstacles(pub Vec<Obstacle>);

impl fmt::Display for Obstacles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, obstacle) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_str("; ")?;
            }
            obstacle.fmt(f)?;
        }
        Ok(())
    }
}

impl From<Obstacle> for ApplyError {
    fn from(obstacle: Obstacle) -> Self {
        Self::OwnedByOther(Obstacles(vec![obstacle]))
    }
}

/// The obstacles for the children `built`.
///
/// # Errors
/// [`ApplyError`].
pub async fn obstacles<K: Cached + Child>(
    cluster: &Cluster,
    children: Children<'_>,
    built: &[K],
) -> Result<Vec<Obstacle>, ApplyError> {
    let api: Api<K> = Api::namespaced(cluster.client.clone(), children.namespace);
    let mut found = Vec::new();
    for child in built {
        let name = child.name_any();
        let Some(live) = get(&api, &name).await? else {
            continue;
        };
        let is_ours = is_owned(&live, children.owner)
            || (children.adopts && is_orphan_of(live.meta(), child.labels()));
        if !is_ours {
            found.push(Obstacle::of(&live));
        }
    }
    Ok(found)
}

/// If `live` may be an orphan, reads it from the API server. Returns the orphan that becomes
/// `child`.
pub(super) async fn orphan<K: Child>(
    api: &Api<K>,
    live: &K,
    child: &K,
) -> Result<Option<K>, ApplyError> {
    if !has_no_owner(live.meta(), child.labels()) {
        return Ok(None);
    }
    // The caches drop managed fields.
    let found = get(api, &child.name_any()).await?;
    Ok(found.filter(|found| is_orphan_of(found.meta(), child.labels())))
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
///
/// # Errors
/// [`ApplyError`].
pub async fn adopt_unchanged<K: Child>(
    api: &Api<K>,
    found: &K,
    child: &K,
) -> Result<Option<K>, ApplyError> {
    if !is_orphan_of(found.meta(), child.labels()) {
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
    adopted
        .map(Some)
        .map_err(|source| api_error::<K>("adopt", &name, source))
}

async fn get<K: Child>(api: &Api<K>, name: &str) -> Result<Option<K>, ApplyError> {
    let found = api.get_opt(name).await;
    found.map_err(|source| api_error::<K>("get", name, source))
}

/// Whether the object is an orphan that becomes the child with `labels`. `object` is from the API
/// server, because the caches drop managed fields.
fn is_orphan_of(object: &ObjectMeta, labels: &Labels) -> bool {
    let mut managers = object.managed_fields.iter().flatten();
    has_no_owner(object, labels)
        && managers.any(|entry| {
            entry.manager.as_deref() == Some(MANAGER)
                && entry.subresource.as_deref().unwrap_or_default().is_empty()
        })
}

type Labels = std::collections::BTreeMap<String, String>;

fn has_no_owner(object: &ObjectMeta, labels: &Labels) -> bool {
    let empty = Labels::new();
    let own = object.labels.as_ref().unwrap_or(&empty);
    let references = object.owner_references.as_deref();
    let is_same = |key: &str| own.get(key).is_some() && own.get(key) == labels.get(key);
    references.unwrap_or_default().is_empty()
        && object.deletion_timestamp.is_none()
        && labels::owner(own).is_some()
        && labels::owner(own) == labels::owner(labels)
        && is_same(COMPONENT)
}
