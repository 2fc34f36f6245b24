//! The ssh server of an exit. Pure.

use muxtunnel_crds::{ClientsType, ServiceSettings, Ssh, SshAlgorithms, SshHostKey, SshLogin};

use super::Clients;

/// The port and the files of OpenSSH formats of an exit's ssh server.
#[derive(Debug, Clone, PartialEq)]
pub struct ValidatedSsh {
    /// The port.
    pub port: u16,
    /// The Secret with the files. The gateways mount the Secret, and the operator never reads it.
    pub secret: String,
    /// The Secret's keys with host keys.
    pub host_keys: Vec<&'static str>,
    /// The Secret's key with the public keys of users.
    pub authorized_keys: Option<&'static str>,
    /// The Secret's key with the authorities of users' certificates.
    pub trusted_user_ca_keys: Option<&'static str>,
    /// The ciphers that the server offers.
    pub algorithms: SshAlgorithms,
    /// The clients that the NetworkPolicy permits.
    pub clients: Clients,
    /// The settings of the Service for the port.
    pub settings: ServiceSettings,
    /// The port of the nodes.
    pub node_port: Option<u16>,
}

impl ValidatedSsh {
    pub(super) fn of(asked: &Ssh) -> Self {
        let host_keys = match &asked.host_keys[..] {
            [] => &[SshHostKey::Ed25519],
            asked => asked,
        };
        let logins = match &asked.logins[..] {
            [] => &[SshLogin::AuthorizedKeys],
            asked => asked,
        };
        let service = asked.service.clone().unwrap_or_default();
        let file = |login, file| logins.contains(&login).then_some(file);
        Self {
            port: asked.port(),
            secret: asked.secret_ref.name.clone(),
            host_keys: host_keys.iter().map(|key| host_key_file(*key)).collect(),
            authorized_keys: file(SshLogin::AuthorizedKeys, "authorized_keys"),
            trusted_user_ca_keys: file(SshLogin::TrustedUserCaKeys, "trusted_user_ca_keys"),
            algorithms: asked.algorithms.unwrap_or_default(),
            clients: Clients::of(asked.from.as_ref(), ClientsType::Namespace),
            node_port: service.node_port,
            settings: service.settings,
        }
    }
}

const fn host_key_file(key: SshHostKey) -> &'static str {
    match key {
        SshHostKey::Ed25519 => "ssh_host_ed25519_key",
        SshHostKey::Ecdsa => "ssh_host_ecdsa_key",
    }
}
