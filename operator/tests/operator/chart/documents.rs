//! Checks that each rendered document has only fields of its kind: no field is lost when the
//! document is parsed into the API's type and serialized again.

use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, Secret, Service, ServiceAccount};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use muxtunnel_crds::{MuxClass, MuxExit, MuxGrant, MuxPeer, MuxTunnel};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::monitoring::{PodMonitor, PrometheusRule, ServiceMonitor};
use super::{GOLDEN, documents_of, golden, read};

/// The class that the operator of the chart applies.
pub(super) fn class(name: &str) -> Value {
    let documents = golden(name);
    let mut texts = documents
        .iter()
        .filter_map(|one| one["data"]["class.yaml"].as_str());
    serde_yaml::from_str(texts.next().unwrap()).unwrap()
}

/// Panics if the document is not of its kind, or has a field that its kind does not have.
pub(super) fn check(of: &str, document: &Value) {
    let api_version = document["apiVersion"].as_str().unwrap();
    let kind = document["kind"].as_str().unwrap();
    let round_trip = match (api_version, kind) {
        ("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicy") => {
            again::<ValidatingAdmissionPolicy>
        }
        ("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicyBinding") => {
            again::<ValidatingAdmissionPolicyBinding>
        }
        ("apps/v1", "Deployment") => again::<Deployment>,
        ("batch/v1", "Job") => again::<Job>,
        ("v1", "ConfigMap") => again::<ConfigMap>,
        ("v1", "Secret") => again::<Secret>,
        ("v1", "Service") => again::<Service>,
        ("v1", "ServiceAccount") => again::<ServiceAccount>,
        ("networking.k8s.io/v1", "NetworkPolicy") => again::<NetworkPolicy>,
        ("policy/v1", "PodDisruptionBudget") => again::<PodDisruptionBudget>,
        ("rbac.authorization.k8s.io/v1", "ClusterRole") => again::<ClusterRole>,
        ("rbac.authorization.k8s.io/v1", "ClusterRoleBinding") => again::<ClusterRoleBinding>,
        ("rbac.authorization.k8s.io/v1", "Role") => again::<Role>,
        ("rbac.authorization.k8s.io/v1", "RoleBinding") => again::<RoleBinding>,
        ("apiextensions.k8s.io/v1", "CustomResourceDefinition") => {
            again::<CustomResourceDefinition>
        }
        ("muxtunnel.dev/v1alpha1", "MuxClass") => again::<MuxClass>,
        ("muxtunnel.dev/v1alpha1", "MuxTunnel") => again::<MuxTunnel>,
        ("muxtunnel.dev/v1alpha1", "MuxExit") => again::<MuxExit>,
        ("muxtunnel.dev/v1alpha1", "MuxPeer") => again::<MuxPeer>,
        ("muxtunnel.dev/v1alpha1", "MuxGrant") => again::<MuxGrant>,
        ("monitoring.coreos.com/v1", "PodMonitor") => again::<PodMonitor>,
        ("monitoring.coreos.com/v1", "ServiceMonitor") => again::<ServiceMonitor>,
        ("monitoring.coreos.com/v1", "PrometheusRule") => again::<PrometheusRule>,
        other => panic!("{of}: no type for {other:?}"),
    };
    let mut lost = Vec::new();
    compare("", document, &round_trip(of, document), &mut lost);
    assert!(lost.is_empty(), "{of}: {kind} has no {}", lost.join(", "));
}

fn again<K: DeserializeOwned + Serialize>(of: &str, document: &Value) -> Value {
    let object: K = serde_json::from_value(document.clone())
        .unwrap_or_else(|error| panic!("{of}: {}: {error}", document["kind"]));
    serde_json::to_value(object).unwrap()
}

/// The paths in `wanted` that `found` lacks.
fn compare(at: &str, wanted: &Value, found: &Value, lost: &mut Vec<String>) {
    match (wanted, found) {
        (Value::Object(wanted), Value::Object(found)) => {
            for (key, wanted) in wanted {
                compare(
                    &format!("{at}.{key}"),
                    wanted,
                    &found.get(key).cloned().unwrap_or_default(),
                    lost,
                );
            }
        }
        (Value::Array(wanted), Value::Array(found)) if wanted.len() == found.len() => {
            for (index, (wanted, found)) in wanted.iter().zip(found).enumerate() {
                compare(&format!("{at}[{index}]"), wanted, found, lost);
            }
        }
        // The serializer omits empty values, and a document may contain a quantity as a number.
        (Value::Object(wanted), Value::Null) if wanted.is_empty() => {}
        (Value::Array(wanted), Value::Null) if wanted.is_empty() => {}
        (Value::Null, Value::Null) => {}
        (Value::Bool(false), Value::Null) => {}
        (Value::Number(wanted), Value::String(found)) if wanted.to_string() == *found => {}
        (wanted, found) if wanted == found => {}
        _ => lost.push(at.to_owned()),
    }
}

#[test]
fn every_rendered_document_has_only_what_its_kind_has() {
    for name in GOLDEN {
        for document in golden(name) {
            check(name, &document);
        }
        check(name, &class(name));
    }
    for (file, _) in muxtunnel_crds::schema::definitions().unwrap() {
        for document in documents_of(&read(&format!("charts/muxtunnel/files/crds/{file}"))) {
            check(file, &document);
        }
    }
}

#[test]
fn a_field_that_is_misspelt_or_in_the_wrong_place_is_found() {
    let mut document = golden("default")
        .into_iter()
        .find(|document| document["kind"] == "Deployment")
        .unwrap();
    check("as rendered", &document);
    document["spec"]["template"]["spec"]["runAsNonRoot"] = Value::Bool(true);
    let found = std::panic::catch_unwind(|| check("changed", &document));
    let message = *found.unwrap_err().downcast::<String>().unwrap();
    assert!(
        message.ends_with("Deployment has no .spec.template.spec.runAsNonRoot"),
        "{message}"
    );
}
