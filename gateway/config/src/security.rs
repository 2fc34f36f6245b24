//! Security of carriers.

mod fields;

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::peers::{
    Peer, PeerRules, check_certificate_peers, check_rules_of_peers, peer_of, rules_of,
};
use crate::{ConfigError, PeerLimits, PublicKeys, Role, SSH_IDENTITY, ServerTls, Ssh};
use fields::Fields;

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
    Certificates(Certificates),
    /// TLS 1.3 with a certificate on the exit's side only: the exit accepts every entry.
    ServerTls(ServerTls),
    /// The security of SSH: keys of both sides, or a user certificate.
    #[serde(rename = "SSH")]
    Ssh(Ssh),
}

/// TLS 1.3 (RFC 8446) with a certificate on both sides. The files are PEM. If a file changes, new
/// carriers use its new content.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Certificates {
    /// This gateway's certificate, followed by the intermediate certificates.
    pub certificate: PathBuf,
    /// The private key of the certificate.
    pub key: PathBuf,
    /// The certificates of the authorities that the gateway trusts for the other end.
    pub ca: PathBuf,
    /// Exit: the accepted peers, 0..=[`PEERS_MAX`](crate::PEERS_MAX). An exit without a peer accepts
    /// no carrier. The peers of an entry are its exits, which have their names in `connect`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub peers: Vec<Peer>,
}

/// A field of a security mode: its name, whether it is set, whether the field is for an exit and not for an
/// entry, and the problem if its side does not set it.
pub(crate) type SideField<'a> = (&'a str, bool, bool, Option<&'a str>);

/// Checks that each side has the fields of `mode` that it needs, and no field of the other side.
pub(crate) fn check_sides(
    mode: &str,
    role: Role,
    fields: &[SideField<'_>],
) -> Result<(), ConfigError> {
    let is_exit = role != Role::Entry;
    for (field, is_set, of_exit, missing) in fields {
        let problem = match (*is_set, *of_exit == is_exit, missing) {
            (true, false, _) => {
                let side = if *of_exit { "exit" } else { "entry" };
                format!("is only for the {side} in mode {mode}: remove the field")
            }
            (false, true, Some(problem)) => (*problem).to_owned(),
            _ => continue,
        };
        return Err(ConfigError::field(format!("security.{field}"), problem));
    }
    Ok(())
}

impl Security {
    /// The files that the configuration names.
    #[must_use]
    pub fn files(&self) -> Vec<&Path> {
        match self {
            Self::None {} => Vec::new(),
            Self::PublicKeys(keys) => keys.files(),
            Self::Certificates(tls) => vec![&tls.certificate, &tls.key, &tls.ca],
            Self::ServerTls(tls) => tls.files(),
            Self::Ssh(ssh) => ssh.files(),
        }
    }

    /// The peers, if the mode has them.
    #[must_use]
    pub fn peers(&self) -> &[Peer] {
        match self {
            Self::PublicKeys(keys) => &keys.peers,
            Self::Certificates(certificates) => &certificates.peers,
            Self::None {} | Self::ServerTls(_) | Self::Ssh(_) => &[],
        }
    }

    /// The rules of the peer that has proved `identity`. The users of SSH have no rules here: their
    /// identities begin with [`SSH_IDENTITY`].
    #[must_use]
    pub fn rules_of(&self, identity: Option<&str>) -> PeerRules<'_> {
        let identity = identity.filter(|identity| !identity.starts_with(SSH_IDENTITY));
        match (self, identity) {
            (Self::PublicKeys(keys), Some(identity)) => {
                rules_of(&keys.peers, keys.peers_file.is_some(), identity)
            }
            (Self::Certificates(certificates), Some(identity)) => {
                rules_of(&certificates.peers, false, identity)
            }
            _ => PeerRules::default(),
        }
    }

    /// The limits of the peer that has proved `identity`. The users of SSH and the peers of a file have
    /// no limits here.
    #[must_use]
    pub fn limits_of(&self, identity: Option<&str>) -> PeerLimits {
        let identity = identity.filter(|identity| !identity.starts_with(SSH_IDENTITY));
        let peer = identity.and_then(|identity| peer_of(self.peers(), identity));
        peer.map_or(PeerLimits::default(), |peer| peer.limits)
    }

    /// Whether a peer has rules.
    #[must_use]
    pub fn has_rules(&self) -> bool {
        let mut peers = self.peers().iter();
        peers.any(|peer| !peer.allow.is_empty() || !peer.deny.is_empty())
    }

    /// The security with `peers`, if the mode has peers.
    pub(crate) fn with_peers(&self, peers: Vec<Peer>) -> Self {
        match self.clone() {
            Self::Certificates(certificates) => Self::Certificates(Certificates {
                peers,
                ..certificates
            }),
            Self::PublicKeys(keys) => Self::PublicKeys(PublicKeys { peers, ..keys }),
            other => other,
        }
    }

    /// The security with the rendezvous of a leaf, if the mode has them.
    pub(crate) fn with_places(self, places: Vec<Peer>) -> Self {
        match self {
            Self::PublicKeys(keys) => Self::PublicKeys(PublicKeys { places, ..keys }),
            other => other,
        }
    }

    /// The security with the peers of `other`, if both have the same mode. Without `other`, it has no
    /// peers: this part needs a restart.
    pub(crate) fn with_peers_of(&self, other: Option<&Self>) -> Self {
        match (self, other) {
            (_, None) => self.with_peers(Vec::new()),
            (Self::Certificates(_), Some(other @ Self::Certificates(_)))
            | (Self::PublicKeys(_), Some(other @ Self::PublicKeys(_))) => {
                self.with_peers(other.peers().to_vec())
            }
            (own, _) => own.clone(),
        }
    }

    pub(crate) fn check(&self, role: Role) -> Result<(), ConfigError> {
        if role != Role::Exit && !self.peers().is_empty() {
            let problem = match role {
                Role::Rendezvous => "is only for an exit: write the gateways into members",
                _ => {
                    "is only for an exit: write the identities of each exit into connect[].publicKeys or \
                     connect[].certificateNames"
                }
            };
            return Err(ConfigError::field("security.peers", problem));
        }
        let Self::Certificates(Certificates { peers, .. }) = self else {
            return Ok(());
        };
        check_certificate_peers(peers, false).map_err(|found| found.within("security.peers"))?;
        check_rules_of_peers(role, peers)
    }
}
