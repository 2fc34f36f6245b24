//! References to other objects, and addresses.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with_macros::skip_serializing_none;

use crate::patterns;

/// A Secret of the same namespace.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct SecretRef {
    /// Name of the Secret.
    #[schemars(length(min = 1, max = 253), regex(pattern = patterns::OBJECT_NAME))]
    pub name: String,
}

/// A key of a Secret of the same namespace, whose value is a file of users.
#[skip_serializing_none]
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "camelCase")]
pub struct UsersSecretRef {
    /// Name of the Secret.
    #[schemars(length(min = 1, max = 253), regex(pattern = patterns::OBJECT_NAME))]
    pub name: String,
    /// The key of the file in the Secret. Default: users.
    #[schemars(length(min = 1, max = 253), regex(pattern = patterns::SECRET_KEY))]
    pub key: Option<String>,
}

/// An issuer of cert-manager.
#[skip_serializing_none]
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct IssuerRef {
    /// Name of the issuer.
    #[schemars(length(min = 1, max = 253), regex(pattern = patterns::OBJECT_NAME))]
    pub name: String,
    /// Kind of the issuer: Issuer (in the object's namespace) or ClusterIssuer. Default: Issuer.
    #[schemars(length(min = 1, max = 63), regex(pattern = "^[A-Z][A-Za-z0-9]*$"))]
    pub kind: Option<String>,
    /// API group of the issuer. Default: cert-manager.io.
    #[schemars(length(min = 1, max = 253), regex(pattern = patterns::OBJECT_NAME))]
    pub group: Option<String>,
}

impl IssuerRef {
    /// The kind of the issuer.
    #[must_use]
    pub fn kind(&self) -> &str {
        self.kind.as_deref().unwrap_or("Issuer")
    }

    /// The API group of the issuer.
    #[must_use]
    pub fn group(&self) -> &str {
        self.group.as_deref().unwrap_or("cert-manager.io")
    }
}

/// A Service as a target.
#[skip_serializing_none]
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct ServiceRef {
    /// Name of the Service.
    #[schemars(length(min = 1, max = 63), regex(pattern = patterns::LABEL))]
    pub name: String,
    /// Namespace of the Service. A namespace other than the object's must permit the reference by a
    /// ReferenceGrant (Gateway API) or a MuxGrant. Default: the object's namespace.
    #[schemars(length(min = 1, max = 63), regex(pattern = patterns::LABEL))]
    pub namespace: Option<String>,
}

/// A MuxExit of the same namespace.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct ExitRef {
    /// Name of the MuxExit.
    #[schemars(length(min = 1, max = 40), regex(pattern = patterns::NAME))]
    pub name: String,
}

/// A host and a port.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct HostPort {
    /// DNS name or IP address (IPv6 without brackets).
    #[schemars(length(min = 1, max = 253), regex(pattern = patterns::HOST))]
    pub host: String,
    /// Port.
    #[schemars(range(min = 1, max = 65535))]
    pub port: u16,
}
