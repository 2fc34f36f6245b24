//! How carriers are secured.

mod fields;

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use crate::{ConfigError, ServerTls, Ssh};
use fields::Fields;

/// Most entries of `peers`.
pub const PEERS_MAX: usize = 256;

/// How carriers are secured; `mode` says which. There is no default, so that the insecure form is written
/// out. Both ends must have the same.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "mode", try_from = "Fields")]
pub enum Security {
    /// Carriers as they are: anyone on the path reads and changes the traffic.
    None {},
    /// TLS 1.3, with a certificate on both sides.
    MutualTls(MutualTls),
    /// Noise with static keys.
    Noise(Noise),
    /// TLS 1.3, with a certificate on the exit's side alone: the exit accepts every entry.
    ServerTls(ServerTls),
    /// What SSH itself has: keys of both sides, or a user certificate.
    #[serde(rename = "SSH")]
    Ssh(Ssh),
}

/// TLS 1.3 (RFC 8446), with a certificate on both sides. The files are PEM; changed ones are used for new
/// carriers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct MutualTls {
    /// This gateway's certificate, and those between it and the authority.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// The authorities that the other end's certificate may come from.
    pub ca: PathBuf,
    /// Names, one of which has to be in the other end's certificate (subjectAltName): DNS names, IP addresses,
    /// or URIs such as `spiffe://example.org/exit`. 1..=[`PEERS_MAX`].
    pub peers: Vec<String>,
}

/// Noise: IK where an entry knows its one exit, XX where there are several. The files have 32 bytes each, in
/// base64; changed ones are used for new carriers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Noise {
    /// This gateway's private key (X25519).
    pub private_key: PathBuf,
    /// The public keys that the other end may have, 1..=[`PEERS_MAX`].
    pub peers: Vec<PublicKey>,
    /// A secret that both ends have as well.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub psk: Option<PathBuf>,
}

/// A public key of X25519, in base64.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PublicKey(pub [u8; 32]);

/// What is no key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a key: 32 bytes in base64, as `muxgate keygen` prints it")]
pub struct KeyError;

/// The 32 bytes of a key in base64; white space around it does not matter.
///
/// # Errors
/// [`KeyError`].
pub fn decode_key(text: &str) -> Result<Zeroizing<[u8; 32]>, KeyError> {
    let bytes = STANDARD.decode(text.trim()).map_err(|_| KeyError)?;
    let key = Zeroizing::new(bytes).as_slice().try_into();
    key.map(Zeroizing::new).map_err(|_| KeyError)
}

/// The same in base64; wiped from memory once it is dropped, as a private key has to be.
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
    /// The files that it names.
    #[must_use]
    pub fn files(&self) -> Vec<&Path> {
        match self {
            Self::None {} => Vec::new(),
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

    /// The same without `peers`: what a running gateway cannot take over.
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
            other => other,
        }
    }

    /// The same with the peers of `other`, where both are of one mode.
    pub(crate) fn with_peers_of(&self, other: &Self) -> Self {
        match (self.clone(), other.clone()) {
            (Self::MutualTls(tls), Self::MutualTls(MutualTls { peers, .. })) => {
                Self::MutualTls(MutualTls { peers, ..tls })
            }
            (Self::Noise(noise), Self::Noise(Noise { peers, .. })) => {
                Self::Noise(Noise { peers, ..noise })
            }
            (own, _) => own,
        }
    }

    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        let (peers, empty) = match self {
            Self::None {} | Self::ServerTls(_) | Self::Ssh(_) => return Ok(()),
            Self::MutualTls(tls) => (tls.peers.len(), tls.peers.iter().any(String::is_empty)),
            Self::Noise(noise) => (noise.peers.len(), false),
        };
        let problem = if peers == 0 {
            "is empty, so no carrier could come up: name who the other end may be".to_owned()
        } else if peers > PEERS_MAX {
            format!("{peers} entries, at most {PEERS_MAX}")
        } else if empty {
            "has an empty entry".to_owned()
        } else {
            return Ok(());
        };
        Err(ConfigError::field("security.peers", problem))
    }
}
