//! The peers of a gateway, and the keys of others.

use serde::{Deserialize, Serialize};
use serde_with_macros::{apply, skip_serializing_none};

/// An accepted peer.
#[apply(crate = "serde_with_macros", Vec => #[serde(default, skip_serializing_if = "Vec::is_empty")])]
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Peer {
    /// The name of the peer. Absent: rules name the peer by its key.
    pub name: Option<String>,
    /// The public keys of the peer.
    pub public_keys: Vec<String>,
    /// The names in the peer's certificate.
    pub certificate_names: Vec<String>,
    /// Whether the peer is refused.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub suspend: bool,
    /// The time from which the peer is refused (RFC 3339).
    pub expiration_time: Option<String>,
    /// Number of carriers that are up and proved this peer.
    #[serde(default)]
    pub carriers: u32,
    /// Exit: the public key of this gateway that the newest carrier in `carriers` has.
    pub presented_key: Option<String>,
}

/// Connections that were refused because no list has their key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct UnknownKeys {
    /// Number of connections since the start.
    pub count: u64,
    /// The last key. The peer has perhaps not proved that it has the private key.
    pub last: String,
}
