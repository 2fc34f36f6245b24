//! Security of carriers.

mod fields;

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::{ConfigError, PeerRules, PublicKeys, SSH_IDENTITY, ServerTls, Ssh};
use fields::Fields;

/// Maximum number of entries in `peers`.
pub const PEERS_MAX: usize = 256;

/// Security of carriers, selected by `mode`. There is no default, so that an insecure configuration
/// is explicit. Both ends must have the same mode.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "mode", try_from = "Fields")]
pub enum Security {
    /// No encryption: anyone on the path can read and change the traffic.
    None {},
    /// TLS 1.3 with raw public keys on both sides.
    PublicKeys(PublicKeys),
    /// TLS 1.3 with a certificate on both sides.
    MutualTls(MutualTls),
    /// TLS 1.3 with a certificate on the exit's side only: the exit accepts every entry.
    ServerTls(ServerTls),
    /// The security of SSH: keys of both sides, or a user certificate.
    #[serde(rename = "SSH")]
    Ssh(Ssh),
}

/// TLS 1.3 (RFC 8446) with a certificate on both sides. The files are PEM. If a file changes, new
/// carriers use its new content.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct MutualTls {
    /// This gateway's certificate, followed by the intermediate certificates.
    pub certificate: PathBuf,
    /// The private key of the certificate.
    pub key: PathBuf,
    /// The certificates of the authorities that the gateway trusts for the other end.
    pub ca: PathBuf,
    /// Accepted peers: the other end's certificate must contain one of these names
    /// (subjectAltName). A name is a DNS name, an IP address or a URI such as
    /// `spiffe://example.org/exit`. 1..=[`PEERS_MAX`] names.
    pub peers: Vec<String>,
}

impl Security {
    /// The files that the configuration names.
    #[must_use]
    pub fn files(&self) -> Vec<&Path> {
        match self {
            Self::None {} => Vec::new(),
            Self::PublicKeys(keys) => keys.files(),
            Self::MutualTls(tls) => vec![&tls.certificate, &tls.key, &tls.ca],
            Self::ServerTls(tls) => tls.files(),
            Self::Ssh(ssh) => ssh.files(),
        }
    }

    /// The rules of the peer that has proved `identity`. The users of SSH have no rules here: their
    /// identities begin with [`SSH_IDENTITY`].
    #[must_use]
    pub fn rules_of(&self, identity: Option<&str>) -> PeerRules<'_> {
        let identity = identity.filter(|identity| !identity.starts_with(SSH_IDENTITY));
        match (self, identity) {
            (Self::PublicKeys(keys), Some(identity)) => keys.rules_of(identity),
            _ => PeerRules::default(),
        }
    }

    /// Whether a peer has rules.
    #[must_use]
    pub fn has_rules(&self) -> bool {
        let mut peers = match self {
            Self::PublicKeys(keys) => keys.peers.iter(),
            _ => [].iter(),
        };
        peers.any(|peer| !peer.allow.is_empty() || !peer.deny.is_empty())
    }

    /// The security without `peers`: the part that needs a restart.
    pub(crate) fn without_peers(&self) -> Self {
        match self.clone() {
            Self::MutualTls(tls) => Self::MutualTls(MutualTls {
                peers: Vec::new(),
                ..tls
            }),
            Self::PublicKeys(keys) => Self::PublicKeys(PublicKeys {
                peers: Vec::new(),
                ..keys
            }),
            other => other,
        }
    }

    /// The security with the peers of `other`, if both have the same mode.
    pub(crate) fn with_peers_of(&self, other: &Self) -> Self {
        match (self.clone(), other.clone()) {
            (Self::MutualTls(tls), Self::MutualTls(MutualTls { peers, .. })) => {
                Self::MutualTls(MutualTls { peers, ..tls })
            }
            (Self::PublicKeys(keys), Self::PublicKeys(PublicKeys { peers, .. })) => {
                Self::PublicKeys(PublicKeys { peers, ..keys })
            }
            (own, _) => own,
        }
    }

    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        let Self::MutualTls(MutualTls { peers, .. }) = self else {
            return Ok(());
        };
        let problem = if peers.is_empty() {
            "is empty, so the gateway would reject every carrier: list the accepted peers"
                .to_owned()
        } else if peers.len() > PEERS_MAX {
            format!(
                "has {} entries, at most {PEERS_MAX} are allowed",
                peers.len()
            )
        } else if peers.iter().any(String::is_empty) {
            "has an empty entry".to_owned()
        } else {
            return Ok(());
        };
        Err(ConfigError::field("security.peers", problem))
    }
}
