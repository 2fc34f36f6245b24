//! The serialized form of `security`: the fields of all modes, so that an error names the field and
//! its mode.

use std::path::PathBuf;

use serde::Deserialize;

use super::{Certificates, Security};
use crate::peers::{Listed, Peer};
use crate::text::named;
use crate::{GatewayKeyError, PublicKeys, ServerTls, Ssh, SshAlgorithms};

named! {
    #[derive(Clone, Copy)]
    enum Mode {
        None = "None",
        PublicKeys = "PublicKeys",
        Certificates = "Certificates",
        ServerTls = "ServerTls",
        Ssh = "SSH",
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Fields {
    mode: Mode,
    certificate: Option<PathBuf>,
    key: Option<PathBuf>,
    ca: Option<PathBuf>,
    peers: Option<Vec<Listed>>,
    private_key_files: Option<Vec<PathBuf>>,
    peers_file: Option<PathBuf>,
    allow_anonymous: Option<bool>,
    server_name: Option<String>,
    host_keys: Option<Vec<PathBuf>>,
    authorized_keys: Option<PathBuf>,
    #[serde(rename = "trustedUserCAKeys")]
    trusted_user_ca_keys: Option<PathBuf>,
    algorithms: Option<SshAlgorithms>,
    user: Option<String>,
    known_hosts: Option<PathBuf>,
    host_key_alias: Option<String>,
}

impl TryFrom<Fields> for Security {
    type Error = String;

    fn try_from(mut fields: Fields) -> Result<Self, String> {
        let mode = fields.mode;
        let missing = |name: &str| format!("missing field `{name}` of mode {}", mode.as_str());
        let security = match mode {
            Mode::None => Self::None {},
            Mode::PublicKeys => Self::PublicKeys(PublicKeys {
                private_key_files: fields
                    .private_key_files
                    .take()
                    .ok_or_else(|| missing("privateKeyFiles"))?,
                peers: listed(fields.peers.take(), |text| {
                    let key = text.parse().map(Peer::with_key);
                    key.map_err(|error: GatewayKeyError| error.to_string())
                })?,
                peers_file: fields.peers_file.take(),
                places: Vec::new(),
            }),
            Mode::Certificates => Self::Certificates(Certificates {
                certificate: fields
                    .certificate
                    .take()
                    .ok_or_else(|| missing("certificate"))?,
                key: fields.key.take().ok_or_else(|| missing("key"))?,
                ca: fields.ca.take().ok_or_else(|| missing("ca"))?,
                peers: listed(fields.peers.take(), |text| {
                    Ok(Peer::with_certificate_name(text))
                })?,
            }),
            Mode::ServerTls => Self::ServerTls(ServerTls {
                certificate: fields.certificate.take(),
                key: fields.key.take(),
                allow_anonymous: fields.allow_anonymous.take().unwrap_or_default(),
                ca: fields.ca.take(),
                server_name: fields.server_name.take(),
            }),
            Mode::Ssh => Self::Ssh(Ssh {
                host_keys: fields.host_keys.take().unwrap_or_default(),
                authorized_keys: fields.authorized_keys.take(),
                trusted_user_ca_keys: fields.trusted_user_ca_keys.take(),
                algorithms: fields.algorithms.take().unwrap_or_default(),
                user: fields.user.take(),
                key: fields.key.take(),
                certificate: fields.certificate.take(),
                known_hosts: fields.known_hosts.take(),
                host_key_alias: fields.host_key_alias.take(),
            }),
        };
        match fields.left() {
            Some(name) => Err(format!("`{name}` is not a field of mode {}", mode.as_str())),
            None => Ok(security),
        }
    }
}

impl Fields {
    /// Returns the name of a field that is set but does not belong to the mode.
    fn left(&self) -> Option<&'static str> {
        let all = [
            ("certificate", self.certificate.is_some()),
            ("key", self.key.is_some()),
            ("ca", self.ca.is_some()),
            ("peers", self.peers.is_some()),
            ("privateKeyFiles", self.private_key_files.is_some()),
            ("peersFile", self.peers_file.is_some()),
            ("allowAnonymous", self.allow_anonymous.is_some()),
            ("serverName", self.server_name.is_some()),
            ("hostKeys", self.host_keys.is_some()),
            ("authorizedKeys", self.authorized_keys.is_some()),
            ("trustedUserCAKeys", self.trusted_user_ca_keys.is_some()),
            ("algorithms", self.algorithms.is_some()),
            ("user", self.user.is_some()),
            ("knownHosts", self.known_hosts.is_some()),
            ("hostKeyAlias", self.host_key_alias.is_some()),
        ];
        all.iter()
            .find(|(_, is_left)| *is_left)
            .map(|(name, _)| *name)
    }
}

/// The peers of a list. `of_text` returns the peer of a text: a key, or a name in a certificate.
fn listed(
    peers: Option<Vec<Listed>>,
    of_text: impl Fn(String) -> Result<Peer, String>,
) -> Result<Vec<Peer>, String> {
    let peer = |(index, listed)| match listed {
        Listed::Peer(peer) => Ok(*peer),
        Listed::Text(text) => {
            of_text(text).map_err(|problem| format!("`peers[{index}]`: {problem}"))
        }
    };
    let peers = peers.into_iter().flatten().enumerate();
    peers.map(peer).collect()
}
