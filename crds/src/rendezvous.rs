//! Where an entry and an exit meet that cannot dial each other.

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use crate::{GatewayService, PodTemplate, rules};

/// The gateway at which entries and exits meet. There is one: two would not know each other's names.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Rendezvous {
    /// The Secret with the secrets of all names, in the tunnel's namespace: its key `names`, a line
    /// `NAME EXIT-SECRET ENTRY-SECRET` each. A changed one is for who comes next; pairs that have met go on.
    #[schemars(
        length(min = 1, max = 253),
        regex(pattern = rules::SECRET_NAME)
    )]
    pub secret_name: String,
    /// Carriers that it joins at once. Default: 256.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1024))]
    pub visits: Option<u32>,
    /// The Service in front of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<GatewayService>,
    /// Networks of the load balancers in front of it, whose connections have to begin with a header of the PROXY
    /// protocol, as those in `exit.trustedProxies` of other tunnels. Default: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 64),
        inner(length(min = 3, max = 49), regex(pattern = rules::NETWORK))
    )]
    pub trusted_proxies: Vec<String>,
    /// Settings of its pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<PodTemplate>,
}
