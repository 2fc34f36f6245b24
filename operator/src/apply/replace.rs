//! Deletes a child and creates it again, if only this changes an immutable field.
//!
//! Any admission policy can refuse a change with status 422 and any text and causes. The refusal
//! alone is therefore no reason to delete a child. The operator deletes a child only if both are
//! true: a field that the API server never changes differs between the stored and the built object,
//! and the API server accepts the creation of the built object in a dry run under another name. In
//! all other cases the child stays.

use kube::Api;
use kube::api::PostParams;
use serde_json::{Value, json};
use tracing::warn;

use super::{
    ApplyError, Child, Children, Named, NotReplaced, delete, failed, get, is_owned, patch, to_value,
};
use crate::caches::{Cached, Cluster};
use crate::failure;

/// Longest name of a dry run, without the suffix that the API server adds. With the suffix, the
/// name fits every kind.
const DRY_RUN_NAME_MAX: usize = 40;

/// Whether the refusal of a change can be due to an immutable field.
pub(super) fn is_immutable(status: &kube::core::Status) -> bool {
    // The API server's message for a Service's clusterIP does not contain "immutable".
    let words = ["immutable", "may not change once set"];
    status.code == 422 && words.iter().any(|words| status.message.contains(words))
}

/// Replaces the child `name`, whose change the API server has refused with `refusal`.
pub(super) async fn replace<K: Cached + Child>(
    cluster: &Cluster,
    children: Children<'_>,
    (api, name): (&Api<K>, &str),
    wanted: &Value,
    refusal: kube::Error,
) -> Result<K, ApplyError> {
    let kept = |why: NotReplaced, source: kube::Error| {
        ApplyError::NotReplaced(Named::of::<K>(name), why, Box::new(source))
    };
    // The next reconciliation handles an object that was deleted meanwhile.
    let Some(live) = get(api, name).await? else {
        return Err(failed::<K>("apply", name)(refusal));
    };
    let state = to_value(&live)?;
    let Some(field) = immutable_field(&K::kind(&()), &state, wanted) else {
        return Err(kept(NotReplaced::NoImmutableField, refusal));
    };
    if !is_owned(&live, children.owner) || !may_be_made_anew(&K::kind(&()), &state) {
        let refusal = failure::chain(&refusal);
        return Err(ApplyError::Immutable(Named::of::<K>(name), refusal));
    }
    if let Err(source) = dry_run(api, wanted).await {
        return Err(kept(NotReplaced::CreationRefused(field), source));
    }
    warn!(kind = %K::kind(&()), name, field, "replacing an object with an immutable field");
    delete(cluster, &live).await?;
    let written = patch(api, name, wanted).await;
    written.map_err(failed::<K>("apply", name))
}

/// Creates `wanted` under another name in a dry run, which stores nothing.
async fn dry_run<K: Child>(api: &Api<K>, wanted: &Value) -> Result<(), kube::Error> {
    let mut wanted = wanted.clone();
    let name = wanted["metadata"]["name"].as_str().unwrap_or_default();
    let begin: String = name.chars().take(DRY_RUN_NAME_MAX).collect();
    wanted["metadata"]["generateName"] = json!(format!("{begin}-"));
    if let Some(metadata) = wanted["metadata"].as_object_mut() {
        metadata.remove("name");
    }
    let wanted = serde_json::from_value(wanted).map_err(kube::Error::SerdeError)?;
    let params = PostParams {
        dry_run: true,
        field_manager: Some(crate::labels::MANAGER.to_owned()),
    };
    api.create(&params, &wanted).await.map(drop)
}

/// An immutable field that the apply of `wanted` would change.
fn immutable_field(kind: &str, live: &Value, wanted: &Value) -> Option<&'static str> {
    let fields: &[(&str, &str)] = match kind {
        "Deployment" => &[("/spec/selector", "spec.selector")],
        "Service" => &[
            ("/spec/clusterIP", "spec.clusterIP"),
            ("/spec/ipFamilies/0", "spec.ipFamilies"),
            ("/spec/loadBalancerClass", "spec.loadBalancerClass"),
            ("/spec/healthCheckNodePort", "spec.healthCheckNodePort"),
        ],
        "ConfigMap" => return (live["immutable"] == true).then_some("immutable"),
        _ => &[],
    };
    let differs = |pointer: &str| match (live.pointer(pointer), wanted.pointer(pointer)) {
        (Some(live), Some(wanted)) => live != wanted,
        // The API server chooses a missing address. It never gives an address to a headless
        // Service.
        (Some(live), None) => live == "None" || pointer == "/spec/loadBalancerClass",
        (None, _) => false,
    };
    let mut fields = fields.iter();
    fields
        .find(|(pointer, _)| differs(pointer))
        .map(|(_, field)| *field)
}

/// Whether an object may be deleted and created again without a visible change. This is not true
/// for a Service that is reachable from outside the cluster, because the new Service would get
/// another port or address.
fn may_be_made_anew(kind: &str, live: &Value) -> bool {
    match kind {
        "Deployment" => true,
        "Service" => {
            let type_ = live.pointer("/spec/type").and_then(Value::as_str);
            matches!(type_, None | Some("ClusterIP"))
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_field_that_differs_and_never_changes_is_a_reason_to_replace() {
        let deployment =
            |labels: Value| json!({"spec": {"selector": {"matchLabels": labels}, "replicas": 1}});
        let [one, other] = [json!({"a": "b"}), json!({"a": "c"})].map(deployment);
        assert_eq!(
            immutable_field("Deployment", &one, &other),
            Some("spec.selector")
        );
        assert_eq!(immutable_field("Deployment", &one, &one), None);
        assert_eq!(immutable_field("NetworkPolicy", &one, &other), None);
        let service = |address: Value| json!({"spec": {"clusterIP": address}});
        let [headless, address, none] =
            [json!("None"), json!("10.96.0.1"), Value::Null].map(service);
        let unset = json!({"spec": {}});
        let field = Some("spec.clusterIP");
        assert_eq!(immutable_field("Service", &headless, &address), field);
        assert_eq!(immutable_field("Service", &address, &headless), field);
        assert_eq!(immutable_field("Service", &headless, &unset), field);
        assert_eq!(immutable_field("Service", &address, &unset), None);
        assert_eq!(immutable_field("Service", &unset, &address), None);
        assert_eq!(immutable_field("Service", &none, &none), None);
        let fixed = json!({"immutable": true});
        assert_eq!(
            immutable_field("ConfigMap", &fixed, &json!({})),
            Some("immutable")
        );
        assert_eq!(immutable_field("ConfigMap", &json!({}), &fixed), None);
    }
}
