//! The Services in front of gateways.

use std::collections::BTreeMap;

use kube::KubeSchema;
use muxtunnel_gateway_config::{Cidr, named};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with_macros::{apply, skip_serializing_none};

use crate::{patterns, rules};

/// Settings of a Service.
#[skip_serializing_none]
#[apply(crate = "serde_with_macros", Vec => #[serde(default, skip_serializing_if = "Vec::is_empty")])]
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = rules::traffic_policy_needs_exposure(),
    validation = rules::load_balancer_fields(),
)]
pub struct ServiceSettings {
    /// Type of the Service. Default: ClusterIP.
    #[serde(rename = "type")]
    pub type_: Option<ServiceType>,
    /// Type LoadBalancer: the class of the load balancer. Default: the default class of the cluster.
    #[schemars(length(min = 1, max = 316), regex(pattern = "^[-._/a-zA-Z0-9]+$"))]
    pub load_balancer_class: Option<String>,
    /// Type LoadBalancer: the networks of clients that the load balancer admits. Default: all
    /// networks.
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "set"))]
    pub load_balancer_source_ranges: Vec<Cidr>,
    /// Types NodePort and LoadBalancer: the nodes that forward connections from outside the cluster.
    /// Default: Cluster.
    pub external_traffic_policy: Option<ExternalTrafficPolicy>,
    /// Whether the Service has IPv4 and IPv6 addresses. Default: PreferDualStack.
    pub ip_family_policy: Option<IpFamilyPolicy>,
    /// The address families of the Service. Default: the families of the cluster.
    #[schemars(length(max = 2), extend("x-kubernetes-list-type" = "atomic"))]
    pub ip_families: Vec<IpFamily>,
    /// Annotations, for example for the load balancer of a cloud.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 32))]
    pub annotations: BTreeMap<String, String>,
}

impl ServiceSettings {
    /// The type of the Service.
    #[must_use]
    pub fn type_(&self) -> ServiceType {
        self.type_.unwrap_or_default()
    }
}

/// Settings of a Service to which `serviceName` refers.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Service {
    /// Name of the Service.
    #[schemars(length(min = 1, max = 63), regex(pattern = patterns::NAME))]
    pub name: String,
    /// Settings of the Service.
    #[serde(flatten)]
    pub settings: ServiceSettings,
}

/// The Service in front of the carrier port.
#[skip_serializing_none]
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = rules::node_port_needs_exposure())]
pub struct CarrierService {
    /// Settings of the Service.
    #[serde(flatten)]
    pub settings: ServiceSettings,
    /// Port of the Service. Default: 443.
    #[schemars(range(min = 1, max = 65535))]
    pub port: Option<u16>,
    /// Types NodePort and LoadBalancer: the port of the nodes. Default: the cluster selects a port.
    #[schemars(range(min = 1, max = 65535))]
    pub node_port: Option<u16>,
}

impl CarrierService {
    /// The port of the Service without `port`.
    pub const PORT_DEFAULT: u16 = 443;

    /// The port of the Service.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port.unwrap_or(Self::PORT_DEFAULT)
    }
}

named! {
    /// The type of a Service. ClusterIP: reachable only inside the cluster. NodePort: reachable on a
    /// port of every node. LoadBalancer: reachable through a load balancer. Default: ClusterIP.
    #[derive(JsonSchema, Debug, Clone, Copy, Default, PartialEq, Eq)]
    pub enum ServiceType {
        /// The Service is reachable only inside the cluster.
        #[default]
        ClusterIP = "ClusterIP",
        /// The Service is reachable on a port of every node.
        NodePort = "NodePort",
        /// The Service is reachable through a load balancer.
        LoadBalancer = "LoadBalancer",
    }
}

named! {
    /// The nodes that forward connections from outside the cluster to a Service's pods. Cluster: every
    /// node, and the pods see the address of a node. Local: only nodes with a ready pod, and the pods
    /// see the client's address. Default: Cluster.
    #[derive(JsonSchema, Debug, Clone, Copy, PartialEq, Eq)]
    pub enum ExternalTrafficPolicy {
        /// Every node forwards to any pod. The pods see the address of a node instead of the client's.
        Cluster = "Cluster",
        /// A node forwards only to its own ready pods, which see the client's address. Nodes without a
        /// ready pod drop the connections.
        Local = "Local",
    }
}

named! {
    /// Whether a Service has addresses of both families. SingleStack: one family. PreferDualStack: both
    /// families if the cluster has both. RequireDualStack: both families. Default: PreferDualStack.
    #[derive(JsonSchema, Debug, Clone, Copy, Default, PartialEq, Eq)]
    pub enum IpFamilyPolicy {
        /// One family.
        SingleStack = "SingleStack",
        /// Both families if the cluster has both.
        #[default]
        PreferDualStack = "PreferDualStack",
        /// Both families. A cluster with one family refuses the Service.
        RequireDualStack = "RequireDualStack",
    }
}

named! {
    /// A family of addresses.
    #[derive(JsonSchema, Debug, Clone, Copy, PartialEq, Eq)]
    pub enum IpFamily {
        /// IPv4.
        IPv4 = "IPv4",
        /// IPv6.
        IPv6 = "IPv6",
    }
}
