//! TLS with a certificate on the exit's side alone.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::{Config, ConfigError, Role, Security, UNIX_PREFIX};

/// TLS 1.3 (RFC 8446), with a certificate on the exit's side alone, as a web server's. The entry verifies the exit;
/// the exit accepts every entry. The files are PEM; changed ones are used for new carriers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ServerTls {
    /// Exit: its certificate, and those between it and the authority.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate: Option<PathBuf>,
    /// Exit: its private key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<PathBuf>,
    /// Exit: must be true. It confirms that every client that reaches the port may have the exit dial what is
    /// allowed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub allow_anonymous: bool,
    /// Entry: the authorities that the exit's certificate may come from; absent: those of the system.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca: Option<PathBuf>,
    /// Entry: the name that has to be in the exit's certificate, and is asked for; absent: the host of `connect`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server_name: Option<String>,
}

impl ServerTls {
    pub(crate) fn files(&self) -> Vec<&Path> {
        let files = [&self.certificate, &self.key, &self.ca].into_iter();
        files.flatten().map(PathBuf::as_path).collect()
    }
}

/// Each side has its own fields.
pub(crate) fn check(config: &Config) -> Result<(), ConfigError> {
    let Security::ServerTls(tls) = &config.security else {
        return Ok(());
    };
    let wrong =
        |field: &str, problem: &str| Err(ConfigError::field(format!("security.{field}"), problem));
    let is_exit = config.role != Role::Entry;
    for (field, is_there, of_exit) in [
        ("certificate", tls.certificate.is_some(), true),
        ("key", tls.key.is_some(), true),
        ("allowAnonymous", tls.allow_anonymous, true),
        ("ca", tls.ca.is_some(), false),
        ("serverName", tls.server_name.is_some(), false),
    ] {
        match (is_there, of_exit, is_exit) {
            (true, true, false) => return wrong(field, "is the exit's in mode ServerTls"),
            (true, false, true) => return wrong(field, "is the entry's in mode ServerTls"),
            (false, true, true) if field == "allowAnonymous" => {
                let problem = "must be true: mode ServerTls authenticates no entry, so everybody who reaches the \
                               port may have the exit dial what is allowed";
                return wrong(field, problem);
            }
            (false, true, true) => return wrong(field, "an exit needs it in mode ServerTls"),
            _ => {}
        }
    }
    let connect = config.connect.as_deref().unwrap_or(UNIX_PREFIX);
    let has_host = config.rendezvous.is_none() && !connect.contains(UNIX_PREFIX);
    if !is_exit && !has_host && tls.server_name.is_none() {
        let problem = "connect does not say the name that has to be in the exit's certificate";
        return wrong("serverName", problem);
    }
    match &tls.server_name {
        Some(name) if name.is_empty() => wrong("serverName", "is empty"),
        _ => Ok(()),
    }
}
