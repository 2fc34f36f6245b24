//! How the carriers of a tunnel are secured.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::rules;

/// How carriers are secured. Both sides must have the same mode.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = rules::keys_for_nothing("entry"),
    validation = rules::keys_for_nothing("exit"),
    validation = rules::psk_is_of_noise()
)]
pub struct Security {
    /// The mode. There is no default: the insecure form must be written out.
    pub mode: SecurityMode,
    /// Who the entry gateways are, and whom they take for an exit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entry: Option<SecurityEnd>,
    /// Who the exit gateways are, and whom they take for an entry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit: Option<SecurityEnd>,
    /// Mode Noise: both ends have a secret in common as well, the key `psk` of their Secrets.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub pre_shared_key: bool,
}

/// The modes in which carriers are secured.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq)]
pub enum SecurityMode {
    /// Plain TCP: anyone on the path reads and changes the traffic.
    None,
    /// TLS 1.3 with a certificate on both sides.
    MutualTls,
    /// Noise with static keys, as `muxgate keygen` makes them.
    Noise,
}

/// The keys of the gateways of one side, and the other side's names.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct SecurityEnd {
    /// The Secret with their keys, in the tunnel's namespace. MutualTls: `tls.crt`, `tls.key` and `ca.crt`,
    /// as cert-manager writes them. Noise: `private-key`, and `psk` where there is one. The gateways take
    /// changed ones for new carriers.
    #[schemars(
        length(min = 1, max = 253),
        regex(pattern = "^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$")
    )]
    pub secret_name: String,
    /// Whom they take at the other end. MutualTls: names, one of which is in its certificate (DNS names, IP
    /// addresses, URIs). Noise: public keys.
    #[schemars(length(min = 1, max = 32), inner(length(min = 1, max = 256), regex(pattern = "^[-_.:/+=@%a-zA-Z0-9]+$")), extend("x-kubernetes-list-type" = "set"))]
    pub peers: Vec<String>,
}
