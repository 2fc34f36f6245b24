//! Hands the number of pods of a Deployment over, so that somebody else may change it.
//!
//! A field that its only manager no longer applies goes back to its default: a Deployment of ten pods
//! would have one. So before the operator leaves `replicas` out, a second field manager takes the number
//! that stands there. It never takes it from another manager: the client that scales the Deployment
//! next, by `/scale` or by hand, has the field from then on. A number that is asked for again is simply
//! applied.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};
use tracing::info;

use super::Child;
use crate::labels::MANAGER;

/// The second field manager.
pub(super) const HANDOVER: &str = "muxtunnel-handover";

/// Whether somebody else says how many pods a built object has.
pub(super) fn are_handed_over(wanted: &Value) -> bool {
    wanted["kind"] == "Deployment" && wanted.pointer("/spec/replicas").is_none()
}

/// Where the operator is a manager of `replicas`, [`HANDOVER`] becomes one.
pub(super) async fn hand_over<K: Child>(api: &Api<K>, name: &str) -> Result<(), kube::Error> {
    // Field managers are not in the cache.
    let Some(live) = api.get_opt(name).await? else {
        return Ok(());
    };
    let managers = live.meta().managed_fields.as_deref().unwrap_or_default();
    if !managers.iter().any(is_ours) {
        return Ok(());
    }
    let replicas = serde_json::to_value(&live)
        .ok()
        .and_then(|live| live.pointer("/spec/replicas").cloned());
    let Some(replicas) = replicas else {
        return Ok(());
    };
    info!(name, %replicas, "handing the number of pods over");
    let body = json!({
        "apiVersion": K::api_version(&()),
        "kind": K::kind(&()),
        "metadata": {"name": name},
        "spec": {"replicas": replicas},
    });
    match api
        .patch(name, &PatchParams::apply(HANDOVER), &Patch::Apply(body))
        .await
    {
        Ok(_) => Ok(()),
        // Somebody else has changed the number since it was read, and so has the field.
        Err(kube::Error::Api(status)) if is_taken(&status) => Ok(()),
        Err(error) => Err(error),
    }
}

fn is_ours(entry: &ManagedFieldsEntry) -> bool {
    entry.manager.as_deref() == Some(MANAGER)
        && entry.subresource.as_deref().unwrap_or_default().is_empty()
        && entry
            .fields_v1
            .as_ref()
            .is_some_and(|fields| fields.0.pointer("/f:spec/f:replicas").is_some())
}

/// Whether a server-side apply met another manager's field, which no other conflict says.
pub(crate) fn is_taken(status: &kube::core::Status) -> bool {
    let causes = status.details.iter().flat_map(|details| &details.causes);
    status.code == 409
        && causes
            .into_iter()
            .any(|cause| cause.reason == "FieldManagerConflict")
}
