//! TLS with a certificate on the exit's side only.

use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_with_macros::skip_serializing_none;

use crate::connect::has_hosts;
use crate::security::check_sides;
use crate::{Config, ConfigError, Security};

/// TLS 1.3 (RFC 8446) with a certificate on the exit's side only, as on a web server. The entry
/// verifies the exit. The exit accepts every entry. The files are PEM. If a file changes, new
/// carriers use its new content.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ServerTls {
    /// Exit: its certificate, followed by the intermediate certificates.
    pub certificate: Option<PathBuf>,
    /// Exit: the private key of the certificate.
    pub key: Option<PathBuf>,
    /// Exit: must be true. The value confirms that you permit every client that reaches the port to
    /// use all allowed targets.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
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
    let needed = Some("an exit requires this field in mode ServerTls");
    let confirmed = "must be true in mode ServerTls, which does not authenticate entries: confirm that every client that \
                     reaches the port may use all allowed targets";
    let named =
        "is missing: the field is required if connect does not contain the exit's host name";
    let named = Some(named).filter(|_| !has_hosts(config));
    let fields = [
        ("certificate", tls.certificate.is_some(), true, needed),
        ("key", tls.key.is_some(), true, needed),
        ("allowAnonymous", tls.allow_anonymous, true, Some(confirmed)),
        ("ca", tls.ca.is_some(), false, None),
        ("serverName", tls.server_name.is_some(), false, named),
    ];
    check_sides("ServerTls", config.role, &fields)?;
    match &tls.server_name {
        Some(name) if name.is_empty() => Err(ConfigError::field("security.serverName", "is empty")),
        _ => Ok(()),
    }
}
