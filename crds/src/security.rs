//! The security of a tunnel's carriers.

use std::collections::BTreeMap;

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with_macros::{apply, skip_serializing_none};

use crate::{IssuerRef, SecretRef, patterns, rules};

/// Security of carriers. Both ends must have the same mode.
#[skip_serializing_none]
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = rules::certificates_of_mode())]
pub struct Security {
    /// The security mode.
    pub mode: Option<SecurityMode>,
    /// Mode Certificates: the certificates of the gateways.
    pub certificates: Option<Certificates>,
}

/// Security of the carriers of an exit. Both ends must have the same mode.
#[skip_serializing_none]
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = rules::certificates_of_mode())]
pub struct ExitSecurity {
    /// The security mode.
    pub mode: Option<SecurityMode>,
    /// Mode Certificates: the certificate of the exit gateways.
    pub certificates: Option<CertificateSource>,
}

/// The security mode of carriers. PublicKeys: TLS 1.3 with the public keys of both ends (RFC 7250),
/// which the operator creates. Certificates: TLS 1.3 with a certificate at both ends. None: no
/// encryption and no authentication, and an exit admits every entry. Default: PublicKeys.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum SecurityMode {
    /// TLS 1.3 with the public keys of both ends (RFC 7250).
    #[default]
    PublicKeys,
    /// TLS 1.3 with a certificate at both ends.
    Certificates,
    /// No encryption and no authentication: anyone on the path can read and change the traffic.
    None,
}

/// The certificates of the gateways, and the names that each end accepts.
#[apply(crate = "serde_with_macros", Vec => #[serde(default, skip_serializing_if = "Vec::is_empty")])]
#[skip_serializing_none]
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = rules::certificate_names_needed("entry"),
    validation = rules::certificate_names_needed("exit"),
)]
pub struct Certificates {
    /// The certificate of the entry gateways.
    pub entry: CertificateSource,
    /// The certificate of the exit gateways. Required without `connect`, and not permitted with
    /// `connect`.
    pub exit: Option<CertificateSource>,
    /// The names of entries that the exit gateways accept: DNS names, IP addresses and URIs. Required
    /// if `entry` has `secretRef` or `csi`. Default with `issuerRef`: the SPIFFE ID of the entry.
    #[schemars(length(min = 1, max = 32), inner(length(min = 1, max = 256), regex(pattern = patterns::CERTIFICATE_NAME)), extend("x-kubernetes-list-type" = "set"))]
    pub entry_names: Vec<String>,
    /// The names of exits that the entry gateways accept: DNS names, IP addresses and URIs. Required
    /// if `exit` has `secretRef` or `csi`. Default with `issuerRef`: the SPIFFE ID of the exit.
    #[schemars(length(min = 1, max = 32), inner(length(min = 1, max = 256), regex(pattern = patterns::CERTIFICATE_NAME)), extend("x-kubernetes-list-type" = "set"))]
    pub exit_names: Vec<String>,
}

/// The source of a certificate: exactly one of `secretRef`, `issuerRef` and `csi`.
#[skip_serializing_none]
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = rules::certificate_source())]
pub struct CertificateSource {
    /// The Secret with `tls.crt`, `tls.key` and `ca.crt`, as cert-manager writes them. A changed
    /// certificate applies to new carriers.
    pub secret_ref: Option<SecretRef>,
    /// The issuer of cert-manager that issues the certificate.
    pub issuer_ref: Option<IssuerRef>,
    /// The volume of a CSI driver that writes the files `tls.crt`, `tls.key` and `ca.crt`, such as
    /// spiffe.csi.cert-manager.io. The MuxClass lists the permitted drivers in
    /// `permitted.csiDrivers`. A changed certificate applies to new carriers.
    pub csi: Option<CsiSource>,
}

/// An inline volume of a CSI driver, which the gateways mount read-only.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = rules::csi_attributes())]
pub struct CsiSource {
    /// Name of the CSI driver.
    #[schemars(length(min = 1, max = 63), regex(pattern = patterns::CSI_DRIVER))]
    pub driver: String,
    /// What the driver needs to know, as in `volumeAttributes` of a pod. The gateways run as group
    /// 65532, unless the cluster replaces it, and the driver must let this group read the files. A
    /// change restarts the gateways. Default: none.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 32, "additionalProperties" = {"type": "string", "maxLength": 1024}))]
    pub attributes: BTreeMap<String, String>,
}
