//! Security of carriers.

mod fields;

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

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
    /// Noise with static keys.
    Noise(Noise),
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

/// Noise with pattern IK if an entry accepts one key, and pattern XX if it accepts several. Each
/// file has 32 bytes in base64. If a file changes, new carriers use its new content.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Noise {
    /// This gateway's private key (X25519).
    pub private_key: PathBuf,
    /// The accepted public keys of the other end, 1..=[`PEERS_MAX`].
    pub peers: Vec<PublicKey>,
    /// A pre-shared key of both ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub psk: Option<PathBuf>,
}

/// An X25519 public key, in base64.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PublicKey(pub [u8; 32]);

/// The text is not a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a key: expected 32 bytes in base64, as `muxgate keygen` prints it")]
pub struct KeyError;

/// Decodes the 32 bytes of a key from base64. White space around the text is ignored.
///
/// # Errors
/// [`KeyError`]: not base64, or not 32 bytes.
pub fn decode_key(text: &str) -> Result<Zeroizing<[u8; 32]>, KeyError> {
    let bytes = STANDARD.decode(text.trim()).map_err(|_| KeyError)?;
    let key = Zeroizing::new(bytes).as_slice().try_into();
    key.map(Zeroizing::new).map_err(|_| KeyError)
}

/// Encodes a key in base64. The text may be a private key, so its memory is wiped when it is
/// dropped.
#[must_use]
pub fn encode_key(key: &[u8; 32]) -> Zeroizing<String> {
    Zeroizing::new(STANDARD.encode(key))
}

impl FromStr for PublicKey {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Self, KeyError> {
        decode_key(text).map(|key| Self(*key))
    }
}

impl TryFrom<String> for PublicKey {
    type Error = KeyError;

    fn try_from(text: String) -> Result<Self, KeyError> {
        text.parse()
    }
}

impl From<PublicKey> for String {
    fn from(key: PublicKey) -> Self {
        key.to_string()
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&encode_key(&self.0))
    }
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
            Self::Noise(noise) => [Some(&noise.private_key), noise.psk.as_ref()]
                .into_iter()
                .flatten()
                .map(PathBuf::as_path)
                .collect(),
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
            Self::Noise(noise) => Self::Noise(Noise {
                peers: Vec::new(),
                ..noise
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
            (Self::Noise(noise), Self::Noise(Noise { peers, .. })) => {
                Self::Noise(Noise { peers, ..noise })
            }
            (Self::PublicKeys(keys), Self::PublicKeys(PublicKeys { peers, .. })) => {
                Self::PublicKeys(PublicKeys { peers, ..keys })
            }
            (own, _) => own,
        }
    }

    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        let (peers, empty) = match self {
            Self::None {} | Self::PublicKeys(_) | Self::ServerTls(_) | Self::Ssh(_) => {
                return Ok(());
            }
            Self::MutualTls(tls) => (tls.peers.len(), tls.peers.iter().any(String::is_empty)),
            Self::Noise(noise) => (noise.peers.len(), false),
        };
        let problem = if peers == 0 {
            "is empty, so the gateway would reject every carrier: list the accepted peers"
                .to_owned()
        } else if peers > PEERS_MAX {
            format!("has {peers} entries, at most {PEERS_MAX} are allowed")
        } else if empty {
            "has an empty entry".to_owned()
        } else {
            return Ok(());
        };
        Err(ConfigError::field("security.peers", problem))
    }
}
