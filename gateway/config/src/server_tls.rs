//! TLS with a certificate on the exit's side only.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_with_macros::skip_serializing_none;

use crate::connect::has_hosts;
use crate::{Config, ConfigError, Role, Security};

/// TLS 1.3 (RFC 8446) with a certificate on the exit's side only, as on a web server. The entry
/// verifies the exit. The exit accepts every entry. The files are PEM. If a file changes, new
/// carriers use its new content.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ServerTls {
    /// Exit: its certificate, followed by the intermediate certificates.
    pub certificate: Option<PathBuf>,
    /// Exit: the private key of the certificate.
    pub key: Option<PathBuf>,
    /// Exit: must be true. The value confirms that you permit every client that reaches the port to
    /// use all allowed targets.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub allow_anonymous: bool,
    /// Entry: the authorities that it trusts for the exit. Default: the system's authorities.
    pub ca: Option<PathBuf>,
    /// Entry: the name that the exit's certificate must contain, sent as SNI. Default: the host of
    /// the address in `connect`.
    pub server_name: Option<String>,
}

impl ServerTls {
    pub(crate) fn files(&self) -> Vec<&Path> {
        let files = [&self.certificate, &self.key, &self.ca].into_iter();
        files.flatten().map(PathBuf::as_path).collect()
    }
}

/// Checks that each side has the fields that it needs, and no field of the other side.
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
            (true, true, false) => {
                return wrong(
                    field,
                    "is only for the exit in mode ServerTls: remove the field",
                );
            }
            (true, false, true) => {
                return wrong(
                    field,
                    "is only for the entry in mode ServerTls: remove the field",
                );
            }
            (false, true, true) if field == "allowAnonymous" => {
                let problem = "must be true in mode ServerTls, which does not authenticate entries: confirm that every client that \
                               reaches the port may use all allowed targets";
                return wrong(field, problem);
            }
            (false, true, true) => {
                return wrong(field, "an exit requires this field in mode ServerTls");
            }
            _ => {}
        }
    }
    if !is_exit && !has_hosts(config) && tls.server_name.is_none() {
        let problem =
            "is missing: the field is required if connect does not contain the exit's host name";
        return wrong("serverName", problem);
    }
    match &tls.server_name {
        Some(name) if name.is_empty() => wrong("serverName", "is empty"),
        _ => Ok(()),
    }
}
