//! A port of an exit for users of ssh.

use kube::KubeSchema;
use muxtunnel_gateway_config::SshAlgorithms;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with_macros::{apply, skip_serializing_none};

use crate::{Clients, SecretRef, ServiceSettings, rules};

/// An additional port of exit gateways, at which users log in with ssh (`ssh -N -L`, `-D` and
/// `-R`). The port works with every protocol of carriers. Users may dial the same targets as an
/// entry: the targets that `allow` of the exit permits.
#[apply(crate = "serde_with_macros", Vec => #[serde(default, skip_serializing_if = "Vec::is_empty")])]
#[skip_serializing_none]
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = rules::ssh_port_reserved(),
    validation = rules::ssh_from_needed(),
)]
pub struct Ssh {
    /// A Secret with the files that `hostKeys` and `logins` select, in the formats of OpenSSH. Changes
    /// reach running gateways without a restart, and end the sessions of users who may no longer log
    /// in.
    pub secret_ref: SecretRef,
    /// Port of the gateways and of their Service NAME-exit-ssh. 64000 and 64001 are reserved, and
    /// with `wanEmulation` also 64003. Default: 2222.
    #[schemars(range(min = 1, max = 65535))]
    pub port: Option<u16>,
    /// The gateways' private host keys, without a passphrase. Ed25519 selects the Secret's key
    /// ssh_host_ed25519_key, and ECDSA selects ssh_host_ecdsa_key. Default: Ed25519.
    #[schemars(length(max = 2), extend("x-kubernetes-list-type" = "set"))]
    pub host_keys: Vec<SshHostKey>,
    /// The credentials that users can log in with. AuthorizedKeys selects the Secret's key
    /// authorized_keys, and TrustedUserCAKeys selects trusted_user_ca_keys. Default:
    /// AuthorizedKeys.
    #[schemars(length(max = 2), extend("x-kubernetes-list-type" = "set"))]
    pub logins: Vec<SshLogin>,
    /// The ciphers that the server offers. Default: Default.
    pub algorithms: Option<SshAlgorithms>,
    /// The users that may reach the port. Required if `service` is of type NodePort or LoadBalancer.
    /// Default: type Namespace.
    pub from: Option<Clients>,
    /// The Service NAME-exit-ssh in front of the port.
    pub service: Option<SshService>,
}

impl Ssh {
    /// The value in force of the field of the same name.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port.unwrap_or(2222)
    }

    /// The Secret's keys with the host keys.
    pub fn host_keys(&self) -> impl Iterator<Item = &'static str> {
        let asked = match &self.host_keys[..] {
            [] => &[SshHostKey::Ed25519],
            asked => asked,
        };
        asked.iter().map(|key| match key {
            SshHostKey::Ed25519 => "ssh_host_ed25519_key",
            SshHostKey::Ecdsa => "ssh_host_ecdsa_key",
        })
    }

    /// The Secret's key for this kind of credentials, if users can log in with them.
    #[must_use]
    pub fn login(&self, login: SshLogin) -> Option<&'static str> {
        let asked = match &self.logins[..] {
            [] => &[SshLogin::AuthorizedKeys],
            asked => asked,
        };
        asked.contains(&login).then_some(match login {
            SshLogin::AuthorizedKeys => "authorized_keys",
            SshLogin::TrustedUserCaKeys => "trusted_user_ca_keys",
        })
    }
}

/// The Service in front of the ssh port.
#[skip_serializing_none]
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = rules::node_port_needs_exposure())]
pub struct SshService {
    /// Settings of the Service.
    #[serde(flatten)]
    pub settings: ServiceSettings,
    /// Types NodePort and LoadBalancer: the port of the nodes. Default: the cluster selects a port.
    #[schemars(range(min = 1, max = 65535))]
    pub node_port: Option<u16>,
}

/// A kind of host key. ECDSA is for clients that do not support Ed25519.
#[derive(
    JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord,
)]
pub enum SshHostKey {
    /// Ed25519.
    Ed25519,
    /// ECDSA, for clients that do not support Ed25519.
    #[serde(rename = "ECDSA")]
    Ecdsa,
}

/// Credentials of ssh users. AuthorizedKeys: public keys of users. TrustedUserCAKeys: authorities
/// that sign the certificates of users.
#[derive(
    JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord,
)]
pub enum SshLogin {
    /// Public keys of users, in the format of sshd's `AuthorizedKeysFile`.
    AuthorizedKeys,
    /// Authorities that sign the certificates of users, in the format of sshd's
    /// `TrustedUserCAKeys`.
    #[serde(rename = "TrustedUserCAKeys")]
    TrustedUserCaKeys,
}
