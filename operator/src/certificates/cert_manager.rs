//! Certificates of cert-manager: what is asked of it where a tunnel names an issuer. Pure.

use kube::CustomResource;
use kube::core::ObjectMeta;
use muxtunnel_crds::IssuerRef;
use serde::{Deserialize, Serialize};

use super::authority::Purpose;

/// Shortest life that cert-manager gives, in seconds.
const LIFE_MIN: i64 = 3600;

/// A Certificate, as far as it matters here. Source: cert-manager.io, API reference, `cert-manager.io/v1`.
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
    /// The Secret that it is written to.
    pub secret_name: String,
    /// SPIFFE IDs.
    pub uris: Vec<String>,
    /// What it is good for.
    pub usages: Vec<String>,
    /// Its life, as Go writes durations.
    pub duration: String,
    /// How long before its end it is renewed.
    pub renew_before: String,
    /// Who signs it.
    pub issuer_ref: IssuerRef,
    /// Its key.
    pub private_key: PrivateKey,
}

/// The key of a Certificate.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct PrivateKey {
    /// ECDSA.
    pub algorithm: String,
    /// Of the curve.
    pub size: i64,
    /// Always: a renewed certificate has a key of its own.
    pub rotation_policy: String,
}

/// How far cert-manager is.
#[derive(Serialize, Deserialize, Debug, Clone, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct CertificateStatus {
    /// Ready, Issuing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<StatusCondition>,
}

/// A condition of a Certificate; it may lack what matters least.
#[derive(Serialize, Deserialize, Debug, Clone, Default, PartialEq)]
pub struct StatusCondition {
    /// Its type.
    #[serde(rename = "type")]
    pub type_: String,
    /// True, False or Unknown.
    pub status: String,
    /// What a person needs to know.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

impl Certificate {
    /// The one of a gateway of side `purpose` with `identity`, for `life` seconds; it is renewed as our own are, once two
    /// thirds of that are over.
    #[must_use]
    pub fn of(
        metadata: ObjectMeta,
        secret_name: String,
        identity: String,
        purpose: Purpose,
        life: i64,
        issuer_ref: IssuerRef,
    ) -> Self {
        let life = life.max(LIFE_MIN);
        let usage = match purpose {
            Purpose::Entry => "client auth",
            Purpose::Exit => "server auth",
        };
        Self {
            metadata,
            spec: CertificateSpec {
                secret_name,
                uris: vec![identity],
                usages: ["digital signature", usage].map(str::to_owned).into(),
                duration: go_duration(life),
                renew_before: go_duration(life / 3),
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

    /// Why it is not there yet, in cert-manager's words; `None`: it is.
    #[must_use]
    pub fn pending(&self) -> Option<String> {
        let conditions = self.status.iter().flat_map(|status| &status.conditions);
        let ready = conditions.into_iter().find(|one| one.type_ == "Ready");
        match ready {
            Some(ready) if ready.status == "True" => None,
            Some(ready) => Some(ready.message.clone().unwrap_or_default()),
            None => Some("cert-manager has not looked at it yet".to_owned()),
        }
    }
}

/// As the API server has it back from Go: whole hours, minutes and seconds.
fn go_duration(seconds: i64) -> String {
    let (hours, rest) = (seconds / 3600, seconds % 3600);
    format!("{hours}h{}m{}s", rest / 60, rest % 60)
}
