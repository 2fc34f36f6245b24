//! The ssh server of an exit. Pure.

use muxtunnel_contract::ports;
use muxtunnel_crds::{
    ExitSsh, Gateway, GatewayService, MuxTunnelSpec, ServiceType, Side, SshAlgorithms, SshHostKey,
    SshLogin,
};
use muxtunnel_gateway_config::{ADMIN_PORT, CARRIER_PORT};

use super::Clients;
use crate::tunnel_controller::references::is_reverse;

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
    /// The Service for the port.
    pub service: GatewayService,
}

impl ValidatedSsh {
    pub(super) fn of(asked: &ExitSsh) -> Self {
        let host_keys = match &asked.host_keys[..] {
            [] => &[SshHostKey::Ed25519],
            asked => asked,
        };
        let logins = match &asked.logins[..] {
            [] => &[SshLogin::AuthorizedKeys],
            asked => asked,
        };
        let file = |login, file| logins.contains(&login).then_some(file);
        Self {
            port: asked.port,
            secret: asked.secret_name.clone(),
            host_keys: host_keys.iter().map(|key| host_key_file(*key)).collect(),
            authorized_keys: file(SshLogin::AuthorizedKeys, "authorized_keys"),
            trusted_user_ca_keys: file(SshLogin::TrustedUserCaKeys, "trusted_user_ca_keys"),
            algorithms: asked.algorithms.unwrap_or_default(),
            clients: Clients::of(asked.from.as_ref()),
            service: asked.service.clone().unwrap_or_default(),
        }
    }
}

const fn host_key_file(key: SshHostKey) -> &'static str {
    match key {
        SshHostKey::Ed25519 => "ssh_host_ed25519_key",
        SshHostKey::Ecdsa => "ssh_host_ecdsa_key",
    }
}

/// Why the ssh server is invalid, as a sentence.
pub(super) fn problem(spec: &MuxTunnelSpec) -> Option<String> {
    if ssh(spec.entry.as_ref()).is_some() {
        return Some("entry.ssh: only exits have an ssh server: use exit.ssh".to_owned());
    }
    let asked = ssh(spec.exit.as_ref())?;
    let port = asked.port;
    if spec.side == Side::Entry {
        let sentence =
            "exit.ssh: side Entry has no exit: set exit.ssh in the MuxTunnel of the exit";
        return Some(sentence.to_owned());
    }
    let is_probe = spec.wan.is_some() && port == ports::WAN_PROBE;
    if matches!(port, 0 | CARRIER_PORT | ADMIN_PORT) || is_probe {
        return Some(format!(
            "exit.ssh.port {port} is reserved for gateways: choose another port"
        ));
    }
    let mut reverse = spec.forwards.iter().filter(|forward| is_reverse(forward));
    if let Some(forward) = reverse.find(|forward| forward.listen.port == port) {
        let name = &forward.name;
        return Some(format!(
            "forward {name}: listen.port {port} is also exit.ssh.port: choose another port"
        ));
    }
    let service = asked.service.as_ref();
    let type_ = service.and_then(|service| service.type_);
    let is_exposed = type_.unwrap_or_default() != ServiceType::ClusterIP;
    let sentence = "exit.ssh.service of a type other than ClusterIP needs exit.ssh.from, the clients that may reach the \
                    port: namespaces, podLabels, ipBlocks, or all: true";
    (is_exposed && asked.from.is_none()).then(|| sentence.to_owned())
}

/// The ssh server of one side in the spec.
pub(super) fn ssh(gateway: Option<&Gateway>) -> Option<&ExitSsh> {
    gateway?.ssh.as_deref()
}
