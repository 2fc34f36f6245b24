//! The rendezvous, which connects entries and exits that cannot dial each other.

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use crate::{GatewayService, PodTemplate, rules};

/// The gateway that connects entries and exits. This gateway is always one pod, because two pods
/// would not share the registered names.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Rendezvous {
    /// A Secret in the tunnel's namespace with the secrets of all names. The key `names` of the
    /// Secret has a line `NAME EXIT-SECRET ENTRY-SECRET` for each name. A change applies to new
    /// connections. Carriers that are already joined continue.
    #[schemars(
        length(min = 1, max = 253),
        regex(pattern = rules::SECRET_NAME)
    )]
    pub secret_name: String,
    /// Maximum number of carriers that the gateway joins at the same time. Default: 256.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1024))]
    pub visits: Option<u32>,
    /// The Service in front of the gateway.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<GatewayService>,
    /// Networks of the load balancers in front of the gateway. Connections from these networks must
    /// begin with a header of the PROXY protocol, as with `exit.trustedProxies` of other tunnels.
    /// Default: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 64),
        inner(length(min = 3, max = 49), regex(pattern = rules::NETWORK))
    )]
    pub trusted_proxies: Vec<String>,
    /// Settings of the gateway's pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<PodTemplate>,
}
