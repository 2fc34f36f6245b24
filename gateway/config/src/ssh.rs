//! SSH (RFC 4251): the keys of SSH carriers, and the second listener of an exit.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_with_macros::skip_serializing_none;

use crate::check::check_addr_port;
use crate::connect::has_hosts;
use crate::security::check_sides;
use crate::text::is_default;
use crate::{Config, ConfigError, Protocol, Role, Security};

/// Maximum number of host keys of an exit. More than one key of each type is not useful.
pub const HOST_KEYS_MAX: usize = 8;
/// The begin of every identity that SSH proves. No other identity begins so.
pub const SSH_IDENTITY: &str = "ssh:";

/// Keys and identities of both ends of SSH carriers. The files have OpenSSH's formats. If a file
/// changes, new carriers use its new content, and the gateway verifies the identities of
/// established carriers again.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Ssh {
    /// Exit: its 1..=[`HOST_KEYS_MAX`] private keys, Ed25519 or ECDSA, not encrypted.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub host_keys: Vec<PathBuf>,
    /// Exit: the keys that may log in, as in sshd's `authorized_keys`. An exit needs this field or
    /// `trusted_user_ca_keys`, or both.
    pub authorized_keys: Option<PathBuf>,
    /// Exit: the authorities whose user certificates may log in, as in sshd's `TrustedUserCAKeys`.
    #[serde(rename = "trustedUserCAKeys")]
    pub trusted_user_ca_keys: Option<PathBuf>,
    /// Exit: the ciphers.
    #[serde(skip_serializing_if = "is_default")]
    pub algorithms: SshAlgorithms,
    /// Entry: the user name for the login.
    pub user: Option<String>,
    /// Entry: its private key, Ed25519 or ECDSA, not encrypted.
    pub key: Option<PathBuf>,
    /// Entry: the certificate of `key`. Default: login with the key only.
    pub certificate: Option<PathBuf>,
    /// Entry: the accepted keys of its exits, as in ssh's `known_hosts`. A host that the file does
    /// not list is rejected.
    pub known_hosts: Option<PathBuf>,
    /// Entry: the name of its exits in `known_hosts`, like ssh's `HostKeyAlias`. Default: the host
    /// and port of `connect`.
    pub host_key_alias: Option<String>,
}

/// The ciphers of an ssh server. `Default`: AES-GCM and ChaCha20-Poly1305. Compatible: also aes256-ctr
/// with an encrypt-then-MAC code, for clients that have neither cipher of `Default`. Default: Default.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub enum SshAlgorithms {
    /// AES-GCM and ChaCha20-Poly1305.
    #[default]
    Default,
    /// Also aes256-ctr with an encrypt-then-MAC code, for clients that have neither cipher of
    /// Default, such as paramiko before 3.5.
    Compatible,
}

/// A second listener of an exit, for SSH carriers. The `protocol` of the exit may be any protocol
/// except SSH.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SshListener {
    /// The listen address, `addr:port`.
    pub listen: String,
    /// The same as [`Ssh::host_keys`].
    pub host_keys: Vec<PathBuf>,
    /// The same as [`Ssh::authorized_keys`].
    pub authorized_keys: Option<PathBuf>,
    /// The same as [`Ssh::trusted_user_ca_keys`].
    #[serde(rename = "trustedUserCAKeys")]
    pub trusted_user_ca_keys: Option<PathBuf>,
    /// The same as [`Ssh::algorithms`].
    #[serde(default, skip_serializing_if = "is_default")]
    pub algorithms: SshAlgorithms,
}

impl Ssh {
    pub(crate) fn files(&self) -> Vec<&Path> {
        let files = [
            &self.authorized_keys,
            &self.trusted_user_ca_keys,
            &self.key,
            &self.certificate,
            &self.known_hosts,
        ];
        let files = files.into_iter().flatten().chain(&self.host_keys);
        files.map(PathBuf::as_path).collect()
    }

    /// Checks that the fields of an exit are set. `field` is the path of the struct in the
    /// configuration.
    fn check_exit(&self, field: &str) -> Result<(), ConfigError> {
        let (problem, name) = if self.host_keys.is_empty() {
            ("is empty: an exit needs a host key", "hostKeys")
        } else if self.host_keys.len() > HOST_KEYS_MAX {
            ("has too many files: at most 8 are allowed", "hostKeys")
        } else if self.authorized_keys.is_none() && self.trusted_user_ca_keys.is_none() {
            let problem = "no user could log in: set this field or trustedUserCAKeys";
            (problem, "authorizedKeys")
        } else {
            return Ok(());
        };
        Err(ConfigError::field(format!("{field}.{name}"), problem))
    }
}

impl SshListener {
    /// The keys of the listener.
    #[must_use]
    pub fn keys(&self) -> Ssh {
        Ssh {
            host_keys: self.host_keys.clone(),
            authorized_keys: self.authorized_keys.clone(),
            trusted_user_ca_keys: self.trusted_user_ca_keys.clone(),
            algorithms: self.algorithms,
            ..Ssh::default()
        }
    }
}

/// Checks that each side has the fields that it needs, and no field of the other side.
pub(crate) fn check(config: &Config) -> Result<(), ConfigError> {
    if let Some(listener) = &config.ssh {
        check_listener(config, listener)?;
    }
    let Security::Ssh(ssh) = &config.security else {
        return Ok(());
    };
    let needed = Some("is missing: an entry requires this field in mode SSH");
    let alias =
        "is missing: the field is required if connect does not contain the exit's host name";
    let alias = Some(alias).filter(|_| !has_hosts(config));
    let (authorized_keys, authorities) = (&ssh.authorized_keys, &ssh.trusted_user_ca_keys);
    let fields = [
        ("hostKeys", !ssh.host_keys.is_empty(), true, None),
        ("authorizedKeys", authorized_keys.is_some(), true, None),
        ("trustedUserCAKeys", authorities.is_some(), true, None),
        ("algorithms", !is_default(&ssh.algorithms), true, None),
        ("user", ssh.user.is_some(), false, needed),
        ("key", ssh.key.is_some(), false, needed),
        ("certificate", ssh.certificate.is_some(), false, None),
        ("knownHosts", ssh.known_hosts.is_some(), false, needed),
        ("hostKeyAlias", ssh.host_key_alias.is_some(), false, alias),
    ];
    check_sides("SSH", config.role, &fields)?;
    for (field, text) in [("user", &ssh.user), ("hostKeyAlias", &ssh.host_key_alias)] {
        if text.as_deref() == Some("") {
            return Err(ConfigError::field(format!("security.{field}"), "is empty"));
        }
    }
    match config.role {
        Role::Entry => Ok(()),
        Role::Exit | Role::Rendezvous => ssh.check_exit("security"),
    }
}

fn check_listener(config: &Config, listener: &SshListener) -> Result<(), ConfigError> {
    let problem = if config.role != Role::Exit {
        "only an exit has a listener for SSH: remove the field"
    } else if config.protocol == Protocol::Ssh {
        "with protocol SSH, listen already accepts SSH carriers: remove the field"
    } else if config.is_stdio() {
        "is not supported with listen: stdio: remove the field"
    } else {
        check_addr_port("ssh.listen", &listener.listen)?;
        return listener.keys().check_exit("ssh");
    };
    Err(ConfigError::field("ssh", problem))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(yaml: &str) -> Result<Config, String> {
        Config::from_yaml(yaml).map_err(|error| error.to_string())
    }

    const EXIT: &str = "role: Exit\nlisten: 0.0.0.0:22\nprotocol: SSH\n";
    const ENTRY: &str = "role: Entry\nconnect:\n- name: far\n  address: far:22\nprotocol: SSH\n";
    const EXIT_KEYS: &str = "security: {mode: SSH, hostKeys: [/h], authorizedKeys: /a}\n";
    const ENTRY_KEYS: &str = "security: {mode: SSH, user: a, key: /k, knownHosts: /n}\n";

    #[test]
    fn each_side_has_its_own_fields() {
        for good in [
            format!("{EXIT}{EXIT_KEYS}"),
            format!("{EXIT}security: {{mode: SSH, hostKeys: [/h, /i], trustedUserCAKeys: /c}}\n"),
            format!("{ENTRY}{ENTRY_KEYS}"),
            format!("{ENTRY}{ENTRY_KEYS}")
                .replace("/n}", "/n, certificate: /c, hostKeyAlias: far}"),
        ] {
            let config = check(&good).unwrap();
            assert_eq!(check(&config.to_yaml().unwrap()), Ok(config));
        }
        for (text, field) in [
            (format!("{EXIT}{ENTRY_KEYS}"), "security.user"),
            (format!("{ENTRY}{EXIT_KEYS}"), "security.hostKeys"),
            (
                format!("{EXIT}{EXIT_KEYS}").replace("hostKeys: [/h], ", ""),
                "security.hostKeys",
            ),
            (
                format!("{EXIT}{EXIT_KEYS}").replace(", authorizedKeys: /a", ""),
                "security.authorizedKeys",
            ),
            (
                format!("{ENTRY}{ENTRY_KEYS}").replace("user: a, ", ""),
                "security.user",
            ),
            (
                format!("{ENTRY}{ENTRY_KEYS}").replace("user: a", "user: ''"),
                "security.user",
            ),
            (
                format!("{ENTRY}{ENTRY_KEYS}").replace(", knownHosts: /n", ""),
                "security.knownHosts",
            ),
            (
                format!("{ENTRY}{ENTRY_KEYS}").replace("far:22", "unix:/far"),
                "security.hostKeyAlias",
            ),
            (format!("{EXIT}security: {{mode: None}}\n"), "security.mode"),
            (
                format!("{EXIT}{EXIT_KEYS}").replace("protocol: SSH\n", ""),
                "security.mode",
            ),
            (
                format!("{EXIT}{EXIT_KEYS}transport: WebSocket\nwebSocket: {{path: /}}\n"),
                "webSocket",
            ),
        ] {
            let error = check(&text).unwrap_err();
            assert!(error.contains(field), "{text}: {error}");
        }
    }

    #[test]
    fn an_exit_of_another_protocol_may_have_a_listener_besides() {
        let exit = "role: Exit\nlisten: 0.0.0.0:1\nsecurity: {mode: None}\n";
        let keys = "listen: '0.0.0.0:22', hostKeys: [/h], authorizedKeys: /a";
        let config = check(&format!("{exit}ssh: {{{keys}}}\n")).unwrap();
        assert_eq!(check(&config.to_yaml().unwrap()), Ok(config.clone()));
        let crate::Gateway::Exit(gateway) = config.gateway().unwrap() else {
            panic!("the gateway is not an exit");
        };
        let (session, listen) = gateway.ssh.unwrap();
        assert_eq!((session.protocol, &*listen), (Protocol::Ssh, "0.0.0.0:22"));
        assert_eq!(gateway.session.protocol, Protocol::Native);
        for (text, field) in [
            (
                format!("{exit}ssh: {{{keys}}}\n").replace("[/h]", "[]"),
                "ssh.hostKeys",
            ),
            (
                format!("{exit}ssh: {{{keys}}}\n").replace("0.0.0.0:22", "22"),
                "ssh.listen",
            ),
            (format!("{EXIT}{EXIT_KEYS}ssh: {{{keys}}}\n"), "ssh"),
            (format!("{ENTRY}{ENTRY_KEYS}ssh: {{{keys}}}\n"), "ssh"),
        ] {
            let error = check(&text).unwrap_err();
            assert!(error.contains(field), "{text}: {error}");
        }
    }
}
