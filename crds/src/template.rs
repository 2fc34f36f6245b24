//! The pod settings that a resource may choose. Image, command, volumes, service account and
//! privileges cannot be set, because a user who may create a MuxTunnel could then create any pod.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Affinity, HostAlias, LocalObjectReference, PodDNSConfig, Toleration, TopologySpreadConstraint,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use muxtunnel_gateway_config::named;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with_macros::{apply, skip_serializing_none};

use crate::patterns;

/// Settings of pods. `C` is the names of their containers.
#[skip_serializing_none]
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Template<C = ContainerName> {
    /// Labels and annotations of the pods.
    pub metadata: Option<TemplateMetadata>,
    /// Scheduling, DNS and containers of the pods.
    #[serde(default)]
    pub spec: Option<TemplateSpec<C>>,
}

/// Labels and annotations of pods.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct TemplateMetadata {
    /// Additional labels of the pods. The operator's own labels take precedence. The MuxClass
    /// lists the permitted keys in `permitted.podMetadataKeys`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 32))]
    pub labels: BTreeMap<String, String>,
    /// Additional annotations of the pods. The operator's own annotations take precedence.
    /// The MuxClass lists the permitted keys in `permitted.podMetadataKeys`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 32))]
    pub annotations: BTreeMap<String, String>,
}

/// Scheduling, DNS and containers of pods, as in a PodSpec.
#[apply(crate = "serde_with_macros", Vec => #[serde(default, skip_serializing_if = "Vec::is_empty")])]
#[skip_serializing_none]
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct TemplateSpec<C = ContainerName> {
    /// Labels that a node must have.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 16))]
    pub node_selector: BTreeMap<String, String>,
    /// Taints that the pods tolerate.
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "atomic"))]
    pub tolerations: Vec<Toleration>,
    /// Scheduling constraints, as in a pod.
    pub affinity: Option<Affinity>,
    /// Topology spread constraints, as in a pod.
    #[schemars(length(max = 8), extend("x-kubernetes-list-type" = "atomic"))]
    pub topology_spread_constraints: Vec<TopologySpreadConstraint>,
    /// Name of a PriorityClass.
    #[schemars(length(min = 1, max = 253), regex(pattern = patterns::OBJECT_NAME))]
    pub priority_class_name: Option<String>,
    /// Name of a RuntimeClass.
    #[schemars(length(min = 1, max = 253), regex(pattern = patterns::OBJECT_NAME))]
    pub runtime_class_name: Option<String>,
    /// Name of the scheduler. Default: the cluster's default scheduler.
    #[schemars(length(min = 1, max = 253), regex(pattern = patterns::OBJECT_NAME))]
    pub scheduler_name: Option<String>,
    /// Secrets of the object's namespace with which the kubelet pulls images.
    #[schemars(length(max = 8), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub image_pull_secrets: Vec<LocalObjectReference>,
    /// How the pods resolve names.
    pub dns_policy: Option<DnsPolicy>,
    /// DNS servers, search domains and options, as in a pod.
    pub dns_config: Option<PodDNSConfig>,
    /// Additional lines of the pods' hosts file.
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["ip"]))]
    pub host_aliases: Vec<HostAlias>,
    /// Compute resources of the containers, by name.
    #[schemars(length(max = 4), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub containers: Vec<TemplateContainer<C>>,
}

named! {
    /// How pods resolve names. ClusterFirst: names of the cluster by the cluster's DNS. `Default`: as the
    /// node. None: only as `dnsConfig` says. Default: ClusterFirst.
    #[derive(JsonSchema, Debug, Clone, Copy, PartialEq, Eq)]
    pub enum DnsPolicy {
        /// Names of the cluster by the cluster's DNS.
        ClusterFirst = "ClusterFirst",
        /// As the node.
        Default = "Default",
        /// Only as `dnsConfig` says.
        None = "None",
    }
}

/// Compute resources of one container.
#[skip_serializing_none]
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct TemplateContainer<C = ContainerName> {
    /// Name of the container.
    pub name: C,
    /// Compute resources of the container: CPU, memory and ephemeral storage. Default: small requests,
    /// and no limits.
    pub resources: Option<Resources>,
}

/// The containers of gateways. gateway: the gateway. wan: the emulation of a wide-area network.
/// network: the interface for IP packets. sysctls: the Job that tests sysctls.
#[derive(
    JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord,
)]
#[serde(rename_all = "lowercase")]
pub enum ContainerName {
    /// The gateway.
    #[default]
    Gateway,
    /// The emulation of a wide-area network.
    Wan,
    /// The interface for IP packets.
    Network,
    /// The Job that tests sysctls.
    Sysctls,
}

/// The containers of a benchmark. runner: the Job, which runs the matrix. agent: the pods that send
/// and receive the measured traffic.
#[derive(
    JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord,
)]
#[serde(rename_all = "lowercase")]
pub enum BenchmarkContainerName {
    /// The Job, which runs the matrix.
    #[default]
    Runner,
    /// The pods that send and receive the measured traffic.
    Agent,
}

/// Compute resources of a container.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Resources {
    /// Resources that are reserved for the container.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 8))]
    pub requests: BTreeMap<String, Quantity>,
    /// Maximum resources that the container may use.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 8))]
    pub limits: BTreeMap<String, Quantity>,
}
