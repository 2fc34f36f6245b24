//! The security of a tunnel's carriers.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::rules;

/// Security of carriers. Both sides must have the same mode.
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
    /// None: no encryption and no authentication. MutualTls: TLS 1.3 with a certificate on both
    /// sides. Noise: Noise with static keys. With MutualTls and without `entry`, `exit` and
    /// `issuerRef`, the operator issues and renews the certificates. The authorities that sign
    /// these certificates belong to this tunnel alone.
    #[serde(default)]
    pub mode: SecurityMode,
    /// Mode MutualTls: the issuer of cert-manager that issues the certificates, instead of the
    /// operator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub issuer_ref: Option<IssuerRef>,
    /// Keys of the entry gateways, and the exits that they accept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entry: Option<SecurityEnd>,
    /// Keys of the exit gateways, and the entries that they accept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit: Option<SecurityEnd>,
    /// Mode Noise: whether both ends also need a shared secret. The key `psk` in the Secret of each
    /// end contains the shared secret.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub pre_shared_key: bool,
}

/// The security modes of carriers.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum SecurityMode {
    /// No encryption and no authentication: anyone on the path can read and change the traffic.
    None,
    /// TLS 1.3 with a certificate on both sides.
    #[default]
    MutualTls,
    /// Noise with static keys, which `muxgate keygen` generates.
    Noise,
}

/// The keys of the gateways of one side, and the peers that they accept.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct SecurityEnd {
    /// The Secret with the keys, in the tunnel's namespace. MutualTls: `tls.crt`, `tls.key` and
    /// `ca.crt`, as cert-manager writes them. Noise: `private-key`, and also `psk` if
    /// `preSharedKey` is true. Changed keys apply to new carriers. Required without `issuerRef`,
    /// and not permitted with `issuerRef`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = 253),
        regex(pattern = rules::SECRET_NAME)
    )]
    pub secret_name: Option<String>,
    /// The peers that the gateways accept. MutualTls: DNS names, IP addresses and URIs. The peer's
    /// certificate must contain at least one of these names. Noise: public keys.
    #[schemars(length(min = 1, max = 32), inner(length(min = 1, max = 256), regex(pattern = "^[-_.:/+=@%a-zA-Z0-9]+$")), extend("x-kubernetes-list-type" = "set"))]
    pub peers: Vec<String>,
}

/// An issuer of cert-manager, which signs the certificates of the sides that belong to this object.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct IssuerRef {
    /// Name of the issuer.
    #[schemars(
        length(min = 1, max = 253),
        regex(pattern = "^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$")
    )]
    pub name: String,
    /// Kind of the issuer: Issuer (in the tunnel's namespace) or ClusterIssuer.
    #[serde(default = "issuer_kind")]
    #[schemars(length(min = 1, max = 63), regex(pattern = "^[A-Z][A-Za-z0-9]*$"))]
    pub kind: String,
    /// API group of the issuer.
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

/// The join bundle with which an entry joins an exit in another cluster or namespace.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct JoinFrom {
    /// The Secret with the join bundle, in the tunnel's namespace: a copy of the Secret NAME-join
    /// that the exit's operator publishes. The operator applies changes of the copy automatically.
    #[schemars(
        length(min = 1, max = 253),
        regex(pattern = "^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$")
    )]
    pub secret_name: String,
}
