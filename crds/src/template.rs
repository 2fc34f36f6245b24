//! What a resource may choose of its pods. Never image, command, volumes, service account or
//! privileges: with those, "may create a MuxTunnel" would mean "may create any pod".

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Affinity, LocalObjectReference, Toleration, TopologySpreadConstraint,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::rules;

/// How annotations begin by which other programs choose what a MuxTunnel may not: the kubelet profiles of containers,
/// service meshes and the like the images, volumes and networks of what they add to pods. There may be more such
/// programs; these are widespread.
pub const PRIVILEGED_ANNOTATIONS: [&str; 8] = [
    "container.apparmor.security.beta.kubernetes.io/",
    "container.seccomp.security.alpha.kubernetes.io/",
    "seccomp.security.alpha.kubernetes.io/",
    "sidecar.istio.io/",
    "inject.istio.io/",
    "proxy.istio.io/",
    "k8s.v1.cni.cncf.io/",
    "vault.hashicorp.com/",
];
/// One of them that chooses nothing but whether there is a sidecar.
pub(crate) const SIDECAR_INJECT: &str = "sidecar.istio.io/inject";

/// Whether a pod's annotation may be chosen by a resource.
#[must_use]
pub fn is_privileged_annotation(key: &str) -> bool {
    let mut prefixes = PRIVILEGED_ANNOTATIONS.iter();
    key != SIDECAR_INJECT && prefixes.any(|prefix| key.starts_with(prefix))
}

/// Settings of the pods of one side.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = rules::annotations_without_privileges())]
pub struct PodTemplate {
    /// Compute resources of the main container. Default: small requests and no limits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<Resources>,
    /// Labels that a node must have.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 16))]
    pub node_selector: BTreeMap<String, String>,
    /// Taints that the pods tolerate.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub tolerations: Vec<Toleration>,
    /// Scheduling constraints, as in a pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub affinity: Option<Affinity>,
    /// How the pods are spread, as in a pod.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    pub topology_spread_constraints: Vec<TopologySpreadConstraint>,
    /// Name of a PriorityClass.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub priority_class_name: Option<String>,
    /// Further labels of the pods. The operator's own labels win.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 32))]
    pub labels: BTreeMap<String, String>,
    /// Further annotations of the pods. The operator's own annotations win. Refused are those by which other programs
    /// give pods images, volumes, networks or profiles, such as `k8s.v1.cni.cncf.io/networks`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 32))]
    pub annotations: BTreeMap<String, String>,
    /// Secrets of the namespace with which the kubelet pulls images.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    pub image_pull_secrets: Vec<LocalObjectReference>,
}

/// Compute resources of a container.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Resources {
    /// What is reserved for it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 8))]
    pub requests: BTreeMap<String, Quantity>,
    /// What it may use at most.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 8))]
    pub limits: BTreeMap<String, Quantity>,
}
