//! Users who have only ssh, and reach the targets of an exit with it.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{GatewayService, ListenFrom, rules};

const fn default_port() -> u16 {
    2222
}

/// A further port of exit gateways, at which users log in with ssh (`ssh -N -L`, `-D` and `-R`), whatever the protocol of
/// the carriers is. What they may dial is what an entry may: the targets of forwards, and what `policy` allows.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = rules::ssh_port_reserved(),
    validation = rules::ssh_from_needed()
)]
pub struct ExitSsh {
    /// Port of the gateways and of their Service NAME-exit-ssh. 64000 and 64001 are taken. Default: 2222.
    #[serde(default = "default_port")]
    #[schemars(range(min = 1, max = 65535))]
    pub port: u16,
    /// The Secret with the keys, in the tunnel's namespace: those that `hostKeys` and `logins` name, each a file as
    /// OpenSSH has it. Changed ones reach running gateways without a restart, and end the sessions of users who may no
    /// longer log in.
    #[schemars(
        length(min = 1, max = 253),
        regex(pattern = rules::SECRET_NAME)
    )]
    pub secret_name: String,
    /// The private keys by which the gateways prove who they are, without a passphrase. Ed25519 is the Secret's key
    /// ssh_host_ed25519_key, ECDSA ssh_host_ecdsa_key. Default: Ed25519.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 2), extend("x-kubernetes-list-type" = "set"))]
    pub host_keys: Vec<SshHostKey>,
    /// By what users log in. AuthorizedKeys is the Secret's key authorized_keys, TrustedUserCAKeys trusted_user_ca_keys.
    /// Default: AuthorizedKeys.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 2), extend("x-kubernetes-list-type" = "set"))]
    pub logins: Vec<SshLogin>,
    /// The clients that the gateways' NetworkPolicy lets in, as in `listen.from` of forwards. Required where `service` is no
    /// ClusterIP. Default: the pods of the tunnel's namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<ListenFrom>,
    /// The Service in front of the port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<GatewayService>,
}

/// A kind of host key.
#[derive(
    JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord,
)]
pub enum SshHostKey {
    /// Ed25519.
    Ed25519,
    /// ECDSA, for clients that are limited to it.
    #[serde(rename = "ECDSA")]
    Ecdsa,
}

/// By what users of ssh log in.
#[derive(
    JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord,
)]
pub enum SshLogin {
    /// Their public keys, in the form of sshd's `AuthorizedKeysFile`.
    AuthorizedKeys,
    /// Certificates that these authorities have signed, in the form of sshd's `TrustedUserCAKeys`.
    #[serde(rename = "TrustedUserCAKeys")]
    TrustedUserCaKeys,
}
