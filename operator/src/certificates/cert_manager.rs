//! Requests to cert-manager, for tunnels that name an issuer. Pure.

use kube::CustomResource;
use kube::core::ObjectMeta;
use muxtunnel_crds::IssuerRef;
use serde::{Deserialize, Serialize};

/// The fields of a Certificate that the operator uses. Source: cert-manager.io, API reference,
/// `cert-manager.io/v1`.
#[derive(CustomResource, Serialize, Deserialize, Debug, Clone, PartialEq)]
#[kube(
    group = "cert-manager.io",
    version = "v1",
    kind = "Certificate",
    plural = "certificates",
    namespaced,
    status = "CertificateStatus",
    schema = "disabled"
)]
#[serde(rename_all = "camelCase")]
pub struct CertificateSpec {
    /// The Secret that cert-manager writes.
    pub secret_name: String,
    /// SPIFFE IDs.
    pub uris: Vec<String>,
    /// Key usages.
    pub usages: Vec<String>,
    /// The issuer that signs.
    pub issuer_ref: IssuerRef,
    /// How cert-manager creates the private key.
    pub private_key: PrivateKey,
}

/// How cert-manager creates the private key of a Certificate.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct PrivateKey {
    /// Always `ECDSA`.
    pub algorithm: String,
    /// Size of the curve, in bits.
    pub size: i64,
    /// Always `Always`: a renewed certificate gets a new key.
    pub rotation_policy: String,
}

/// The status of a Certificate.
#[derive(Serialize, Deserialize, Debug, Clone, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct CertificateStatus {
    /// Types: `Ready`, `Issuing`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<StatusCondition>,
}

/// A condition of a Certificate.
#[derive(Serialize, Deserialize, Debug, Clone, Default, PartialEq)]
pub struct StatusCondition {
    /// The condition's type.
    #[serde(rename = "type")]
    pub type_: String,
    /// True, False or Unknown.
    pub status: String,
    /// The message for users.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

impl Certificate {
    /// The Certificate of a gateway with `identity` and a key usage. cert-manager decides its
    /// lifetime, and renews it.
    pub fn of(
        metadata: ObjectMeta,
        (secret_name, identity): (String, String),
        usage: &str,
        issuer_ref: IssuerRef,
    ) -> Self {
        Self {
            metadata,
            spec: CertificateSpec {
                secret_name,
                uris: vec![identity],
                usages: ["digital signature", usage].map(str::to_owned).into(),
                issuer_ref,
                private_key: PrivateKey {
                    algorithm: "ECDSA".to_owned(),
                    size: 256,
                    rotation_policy: "Always".to_owned(),
                },
            },
            status: None,
        }
    }

    /// cert-manager's message with the reason why the certificate is not issued yet. `None` if the
    /// certificate is issued.
    pub fn pending(&self) -> Option<String> {
        let conditions = self.status.iter().flat_map(|status| &status.conditions);
        let ready = conditions.into_iter().find(|one| one.type_ == "Ready");
        match ready {
            Some(ready) if ready.status == "True" => None,
            Some(ready) => Some(ready.message.clone().unwrap_or_default()),
            None => Some("cert-manager has not processed the Certificate yet".to_owned()),
        }
    }
}
