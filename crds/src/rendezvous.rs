//! [`MuxRendezvous`]: connects entries and exits that cannot dial each other.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use muxtunnel_gateway_config::{Cidr, Member};
use serde::{Deserialize, Serialize};
use serde_with_macros::{apply, skip_serializing_none};

use crate::{
    CarrierLimits, CarrierService, CarrierStatus, Clients, Endpoint, KeySource, KeyStatus,
    Template, patterns, rules,
};

/// A gateway that connects entries and exits which cannot dial each other. The gateway is always one
/// pod, because two pods would not share the registered keys.
#[skip_serializing_none]
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Debug, Clone, Default, PartialEq)]
#[kube(
    group = "muxtunnel.dev",
    version = "v1alpha1",
    kind = "MuxRendezvous",
    plural = "muxrendezvous",
    shortname = "mr",
    category = "mux",
    namespaced,
    status = "MuxRendezvousStatus",
    derive = "PartialEq",
    doc = "A gateway that connects entries and exits which cannot dial each other. The gateway is always one pod, because two pods would not share the registered keys.",
    validation = rules::name()
)]
#[serde(rename_all = "camelCase")]
pub struct MuxRendezvousSpec {
    /// The MuxClass of the object. A change rolls the gateways. Default: the class with `default`.
    #[schemars(length(min = 1, max = 63), regex(pattern = patterns::LABEL))]
    pub class_name: Option<String>,
    /// Whether the operator writes only the status of this object, and leaves its gateway unchanged.
    /// Default: false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub paused: bool,
    /// The entries and exits that may use the rendezvous. An exit registers its own key. An entry asks
    /// for the key of an exit. A change reaches the running gateway without a restart.
    #[schemars(length(min = 1, max = 256), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub members: Vec<Member>,
    /// The Service NAME-rendezvous in front of the gateway. Default: a ClusterIP.
    pub service: Option<CarrierService>,
    /// The entries and exits that may reach the port. Default: type Any.
    pub from: Option<Clients>,
    /// Networks of the load balancers in front of the gateway. Connections from these networks must
    /// begin with a header of the PROXY protocol, as with `trustedProxies` of a MuxExit. Default:
    /// none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(regex(pattern = patterns::NETWORK)), extend("x-kubernetes-list-type" = "set"))]
    pub trusted_proxies: Vec<Cidr>,
    /// Limits of the gateway.
    pub limits: Option<CarrierLimits>,
    /// Seconds that the terminating pod waits for the end of its carriers. Default: 25.
    #[schemars(range(min = 10, max = 86400))]
    pub drain_seconds: Option<u32>,
    /// Settings of the gateway's pod.
    pub template: Option<Template>,
    /// The key of the gateway. Default: generation 1, which the operator creates.
    pub key: Option<KeySource>,
}

/// The observed state of a rendezvous.
#[apply(crate = "serde_with_macros", Vec => #[serde(default, skip_serializing_if = "Vec::is_empty")])]
#[skip_serializing_none]
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct MuxRendezvousStatus {
    /// The generation of the spec that this status describes.
    pub observed_generation: Option<i64>,
    /// The MuxClass that applies.
    #[schemars(length(max = 63))]
    pub class_name: Option<String>,
    /// The conditions Accepted, Programmed, Available, CredentialsValid, Ready, Reconciling and
    /// Stalled. A condition that does not apply is absent.
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// The public keys of the rendezvous, which entries and exits pin. The newest key comes first.
    #[schemars(length(max = 4), inner(length(max = 63)), extend("x-kubernetes-list-type" = "atomic"))]
    pub public_keys: Vec<String>,
    /// The key pairs of `publicKeys`, with their Secrets.
    #[schemars(length(max = 8), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["secretName"]))]
    pub keys: Vec<KeyStatus>,
    /// The addresses that entries and exits dial.
    #[schemars(length(max = 8), extend("x-kubernetes-list-type" = "atomic"))]
    pub endpoints: Vec<Endpoint>,
    /// The carriers that the rendezvous joins.
    pub carriers: Option<CarrierStatus>,
}
