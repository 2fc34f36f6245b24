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
    validation = rules::psk_is_of_noise(),
    validation = rules::issuer_is_of_tls(),
    validation = rules::keys_are_somewhere("entry"),
    validation = rules::keys_are_somewhere("exit")
)]
pub struct Security {
    /// The mode. MutualTls without `entry` and `exit`: the operator issues the certificates, from an authority
    /// that serves this tunnel alone, and renews them.
    #[serde(default)]
    pub mode: SecurityMode,
    /// MutualTls: cert-manager issues the certificates by this issuer, instead of the operator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub issuer_ref: Option<IssuerRef>,
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
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum SecurityMode {
    /// Plain TCP: anyone on the path reads and changes the traffic.
    None,
    /// TLS 1.3 with a certificate on both sides.
    #[default]
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
    /// changed ones for new carriers. With `issuerRef` there is none to name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = 253),
        regex(pattern = rules::SECRET_NAME)
    )]
    pub secret_name: Option<String>,
    /// Whom they take at the other end. MutualTls: names, one of which is in its certificate (DNS names, IP
    /// addresses, URIs). Noise: public keys.
    #[schemars(length(min = 1, max = 32), inner(length(min = 1, max = 256), regex(pattern = "^[-_.:/+=@%a-zA-Z0-9]+$")), extend("x-kubernetes-list-type" = "set"))]
    pub peers: Vec<String>,
}

/// An issuer of cert-manager, by which it signs the certificates of both sides that are this object's.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct IssuerRef {
    /// Its name.
    #[schemars(
        length(min = 1, max = 253),
        regex(pattern = "^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$")
    )]
    pub name: String,
    /// Issuer, of the tunnel's namespace, or ClusterIssuer.
    #[serde(default = "issuer_kind")]
    #[schemars(length(min = 1, max = 63), regex(pattern = "^[A-Z][A-Za-z0-9]*$"))]
    pub kind: String,
    /// Its API group.
    #[serde(default = "issuer_group")]
    #[schemars(
        length(min = 1, max = 253),
        regex(pattern = "^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$")
    )]
    pub group: String,
}

fn issuer_kind() -> String {
    "Issuer".to_owned()
}

fn issuer_group() -> String {
    "cert-manager.io".to_owned()
}

/// Where the entry of an exit elsewhere finds what it needs to join it.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct JoinFrom {
    /// The Secret with the join bundle, in the tunnel's namespace: a copy of the one, NAME-join, that the exit's
    /// operator publishes. A changed one is taken over by itself.
    #[schemars(
        length(min = 1, max = 253),
        regex(pattern = "^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$")
    )]
    pub secret_name: String,
}
