//! Hands over the field `replicas` of a Deployment, so that an autoscaler or a user may change it.
//!
//! If the only manager of a field stops applying it, the API server resets the field to its
//! default. A Deployment of ten pods would shrink to one. Before the operator omits `replicas`, a
//! second field manager therefore takes over the current number. The second manager never takes the
//! field from another manager. The next client that scales the Deployment, through `/scale` or
//! manually, gets the field. If the spec sets a number again, the operator applies it.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};
use tracing::info;

use super::Child;
use crate::labels::MANAGER;

/// The second field manager.
pub(super) const HANDOVER: &str = "muxtunnel-handover";

/// Whether a built object leaves the number of pods to other clients, because it has no `replicas`.
pub(super) fn are_handed_over(wanted: &Value) -> bool {
    wanted["kind"] == "Deployment" && wanted.pointer("/spec/replicas").is_none()
}

/// If the operator is a manager of `replicas`, also makes [`HANDOVER`] a manager.
pub(super) async fn hand_over<K: Child>(api: &Api<K>, name: &str) -> Result<(), kube::Error> {
    // Reads the object from the API server, because the cache drops managed fields.
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
    info!(name, %replicas, "handing the field replicas over, so that other clients can scale the Deployment");
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
        // Another client has changed the number since the read, and now manages the field.
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

/// Whether a server-side apply conflicted with another manager's field. No other conflict has the
/// cause `FieldManagerConflict`.
fn is_taken(status: &kube::core::Status) -> bool {
    let causes = status.details.iter().flat_map(|details| &details.causes);
    status.code == 409
        && causes
            .into_iter()
            .any(|cause| cause.reason == "FieldManagerConflict")
}
