//! The security of a tunnel's carriers.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::rules;

/// Security of carriers. Both sides must have the same mode.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = rules::certificates_of_their_mode("entry"),
    validation = rules::certificates_of_their_mode("exit"),
    validation = rules::issuer_is_of_certificates(),
    validation = rules::certificates_are_somewhere("entry"),
    validation = rules::certificates_are_somewhere("exit")
)]
pub struct Security {
    /// PublicKeys: TLS 1.3 with the public keys of both sides (RFC 7250). The operator creates the
    /// keys. MutualTls: TLS 1.3 with a certificate on both sides, from `issuerRef` or from the
    /// Secrets in `entry` and `exit`. None: no encryption and no authentication. Default:
    /// PublicKeys.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<SecurityMode>,
    /// Mode MutualTls: the issuer of cert-manager that issues the certificates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub issuer_ref: Option<IssuerRef>,
    /// Mode MutualTls: the certificate of the entry gateways, and the exits that they accept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entry: Option<SecurityEnd>,
    /// Mode MutualTls: the certificate of the exit gateways, and the entries that they accept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit: Option<SecurityEnd>,
}

/// The security modes of carriers.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum SecurityMode {
    /// TLS 1.3 with the public keys of both sides (RFC 7250).
    #[default]
    PublicKeys,
    /// TLS 1.3 with a certificate on both sides.
    MutualTls,
    /// No encryption and no authentication: anyone on the path can read and change the traffic.
    None,
}

/// The certificate of the gateways of one side, and the peers that they accept.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct SecurityEnd {
    /// The Secret with `tls.crt`, `tls.key` and `ca.crt`, as cert-manager writes them, in the
    /// tunnel's namespace. A changed certificate applies to new carriers. Required without
    /// `issuerRef`, and not permitted with `issuerRef`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = 253),
        regex(pattern = rules::SECRET_NAME)
    )]
    pub secret_name: Option<String>,
    /// The peers that the gateways accept: DNS names, IP addresses and URIs. The peer's certificate
    /// must contain at least one of these names.
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
