//! Carriers by public keys: this gateway's private key, and the peers that it accepts.

mod peers_file;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::gateway_key::{GatewayKey, KEY_BYTES, KeyRole};
use crate::{Config, ConfigError, PEERS_MAX, Role, Rule, Security};
pub use peers_file::{parse_peers, readable_peers};

/// Maximum number of keys of a gateway.
pub const OWN_KEYS_MAX: usize = 2;
/// Maximum number of keys of a peer. Two keys are in use while the peer changes its key.
pub const PEER_KEYS_MAX: usize = 4;
/// Maximum number of rules in `allow` and in `deny` of a peer.
pub const PEER_RULES_MAX: usize = 32;
/// Maximum length of the name of a peer, in characters.
const NAME_LENGTH_MAX: usize = 63;

/// TLS 1.3 with raw public keys (RFC 7250) on both sides. If a file or the list of peers changes,
/// the gateway verifies the peers of its carriers again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PublicKeys {
    /// The files with this gateway's private keys, 1..=[`OWN_KEYS_MAX`], the newest last: Ed25519,
    /// PKCS #8 in PEM. Two keys are in use while the peers change to the newer one.
    pub private_key_files: Vec<PathBuf>,
    /// The accepted peers, 0..=[`PEERS_MAX`] together with those of `peers_file`. An exit without a
    /// peer accepts no carrier.
    pub peers: Vec<Peer>,
    /// A file with further peers, one line `[OPTION...] KEY [NAME]` for each peer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peers_file: Option<PathBuf>,
}

/// A gateway that may be the other end of carriers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Peer {
    /// The peer's identity in rules (`peer=`). Default: the text of its key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The peer's keys, 1..=[`PEER_KEYS_MAX`]. A peer without a name has one key.
    pub public_keys: Vec<GatewayKey>,
    /// Whether the peer is refused, and its carriers and streams end.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub suspend: bool,
    /// The time from which the peer is refused, and its carriers and streams end.
    #[serde(
        default,
        deserialize_with = "some",
        skip_serializing_if = "Option::is_none"
    )]
    pub expiration_time: Option<ExpirationTime>,
    /// Of the targets that the exit allows, those that the peer may reach, at most
    /// [`PEER_RULES_MAX`] rules. Empty: all of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allow: Vec<Rule>,
    /// Targets that the peer may not reach, at most [`PEER_RULES_MAX`] rules.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub deny: Vec<Rule>,
}

/// The rules that apply to one peer, in addition to the rules of the exit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PeerRules<'a> {
    /// Of the targets that the exit allows, those that the peer may reach. `None`: all of them.
    pub allow: Option<&'a [Rule]>,
    /// Targets that the peer may not reach.
    pub deny: &'a [Rule],
}

/// Reads a value that must not be null, because a peer without an expiration time never expires.
fn some<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<ExpirationTime>, D::Error> {
    ExpirationTime::deserialize(deserializer).map(Some)
}

/// A time in UTC, as RFC 3339 text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExpirationTime(OffsetDateTime);

impl ExpirationTime {
    /// Parses RFC 3339 text.
    ///
    /// # Errors
    /// A text with the expected form.
    pub fn parse(text: &str) -> Result<Self, String> {
        // A year outside of these has no text.
        let time = OffsetDateTime::parse(text, &Rfc3339).ok();
        let time = time.and_then(|time| time.checked_to_offset(time::UtcOffset::UTC));
        let time = time.filter(|time| (0..=9999).contains(&time.year()));
        time.map(Self)
            .ok_or_else(|| format!("{text:?} is not a time such as 2027-01-31T18:00:00Z"))
    }

    /// Whether the time has come at `now`, in seconds since 1970.
    #[must_use]
    pub fn has_come(self, now: u64) -> bool {
        i64::try_from(now).is_ok_and(|now| self.0.unix_timestamp() <= now)
    }

    /// The time as RFC 3339 text.
    #[must_use]
    pub fn text(self) -> String {
        self.0.format(&Rfc3339).unwrap_or_default()
    }
}

impl Serialize for ExpirationTime {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text())
    }
}

impl<'de> Deserialize<'de> for ExpirationTime {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).map_err(de::Error::custom)
    }
}

impl Peer {
    /// A peer that has only this key.
    #[must_use]
    pub fn with_key(key: GatewayKey) -> Self {
        Self {
            name: None,
            public_keys: vec![key],
            suspend: false,
            expiration_time: None,
            allow: Vec::new(),
            deny: Vec::new(),
        }
    }

    /// The rules of the peer.
    #[must_use]
    pub fn rules(&self) -> PeerRules<'_> {
        PeerRules {
            allow: (!self.allow.is_empty()).then_some(&self.allow),
            deny: &self.deny,
        }
    }

    /// The identity that a carrier with the key `key` of this peer proves.
    #[must_use]
    pub fn identity(&self, key: &GatewayKey) -> String {
        self.name.clone().unwrap_or_else(|| key.to_string())
    }

    /// Why the peer is refused at `now`, in seconds since 1970.
    #[must_use]
    pub fn refused_at(&self, now: u64) -> Option<String> {
        match self.expiration_time {
            _ if self.suspend => Some("is suspended".to_owned()),
            Some(time) if time.has_come(now) => Some(format!("has expired at {}", time.text())),
            _ => None,
        }
    }
}

/// The problem of one peer in a list.
#[derive(Debug, PartialEq, Eq)]
pub struct PeerProblem {
    /// The index of the peer.
    pub index: usize,
    /// The field of the peer.
    pub field: String,
    /// The problem, and what to do.
    pub problem: String,
}

/// Checks a list of peers of a gateway of `role`. `own`: the bytes of the gateway's own keys that are
/// known.
///
/// # Errors
/// The first problem.
pub fn check_peers(
    peers: &[Peer],
    role: KeyRole,
    own: &[[u8; KEY_BYTES]],
) -> Result<(), PeerProblem> {
    let (mut names, mut keys) = (BTreeSet::new(), BTreeSet::new());
    for (index, peer) in peers.iter().enumerate() {
        let wrong = |field: &str, problem: String| PeerProblem {
            index,
            field: field.to_owned(),
            problem,
        };
        if index >= PEERS_MAX {
            let problem = format!("is one peer too many: at most {PEERS_MAX} are allowed");
            return Err(wrong("", problem));
        }
        if let Some(name) = &peer.name {
            check_name(name).map_err(|problem| wrong("name", problem))?;
            if !names.insert(name) {
                let problem = format!("{name:?} is the name of another peer as well");
                return Err(wrong("name", problem));
            }
        }
        let count = peer.public_keys.len();
        if !(1..=PEER_KEYS_MAX).contains(&count) {
            let problem = format!("has {count} keys, but a peer has 1 to {PEER_KEYS_MAX}");
            return Err(wrong("publicKeys", problem));
        }
        if peer.name.is_none() && count > 1 {
            let problem = "is missing: a peer with several keys needs a name".to_owned();
            return Err(wrong("name", problem));
        }
        for (at, key) in peer.public_keys.iter().enumerate() {
            let field = format!("publicKeys[{at}]");
            let key = key.has_role(role);
            let key = key.map_err(|error| wrong(&field, error.to_string()))?;
            if own.contains(key.bytes()) {
                let problem = format!(
                    "{key} is this gateway's own key: enter the key of the other end, and give each gateway a key of \
                     its own"
                );
                return Err(wrong(&field, problem));
            }
            if !keys.insert(*key.bytes()) {
                let problem = format!("{key} is listed twice: remove one of both");
                return Err(wrong(&field, problem));
            }
        }
    }
    Ok(())
}

/// A name must differ from the text of every key, because both are identities.
fn check_name(name: &str) -> Result<(), String> {
    let may = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b"-_.".contains(&b);
    if !(1..=NAME_LENGTH_MAX).contains(&name.len()) || !name.bytes().all(may) {
        let shown = if name.len() <= 20 { name } else { "the text" };
        return Err(format!(
            "{shown:?} is not a name: expected 1 to {NAME_LENGTH_MAX} lower-case letters, digits, -, _ and ."
        ));
    }
    match begins_like_a_key(name) {
        true => Err("begins like a key: choose another name".to_owned()),
        false => Ok(()),
    }
}

fn begins_like_a_key(text: &str) -> bool {
    let begins = |role: KeyRole| {
        let rest = text.strip_prefix(role.prefix());
        rest.is_some_and(|rest| rest.starts_with('1'))
    };
    KeyRole::ALL.into_iter().any(begins)
}

/// An element of `security.peers` in the file: text, or a peer with its fields.
pub(crate) enum Listed {
    Text(String),
    Peer(Peer),
}

impl<'de> Deserialize<'de> for Listed {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;
        impl<'de> Visitor<'de> for Either {
            type Value = Listed;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("the identity of a peer, or its fields")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Listed, E> {
                Ok(Listed::Text(text.to_owned()))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Listed, A::Error> {
                Peer::deserialize(MapAccessDeserializer::new(map)).map(Listed::Peer)
            }
        }
        deserializer.deserialize_any(Either)
    }
}

/// The role of a gateway as the owner of a key, and the role of its peers.
#[must_use]
pub const fn key_roles(role: Role) -> (KeyRole, KeyRole) {
    match role {
        Role::Entry => (KeyRole::Entry, KeyRole::Exit),
        Role::Exit => (KeyRole::Exit, KeyRole::Entry),
        Role::Rendezvous => (KeyRole::Rendezvous, KeyRole::Exit),
    }
}

impl PublicKeys {
    /// The rules of the peer that has proved `identity`. A line of `peers_file` has no rules. A peer
    /// that no list has may reach nothing: its carriers are about to end.
    #[must_use]
    pub fn rules_of(&self, identity: &str) -> PeerRules<'_> {
        let key: Option<GatewayKey> = identity.parse().ok();
        let peer = self.peers.iter().find(|peer| match &peer.name {
            Some(name) => name == identity,
            None => key.is_some_and(|key| peer.public_keys.contains(&key)),
        });
        let unlisted = || PeerRules {
            allow: self.peers_file.is_none().then_some(&[][..]),
            deny: &[],
        };
        peer.map_or_else(unlisted, Peer::rules)
    }

    pub(crate) fn files(&self) -> Vec<&Path> {
        let peers = self.peers_file.as_deref();
        let keys = self.private_key_files.iter().map(PathBuf::as_path);
        keys.chain(peers).collect()
    }
}

/// Checks the peers of mode PublicKeys, and that rules name them by their identity.
pub(crate) fn check(config: &Config) -> Result<(), ConfigError> {
    let Security::PublicKeys(keys) = &config.security else {
        return Ok(());
    };
    if config.role == Role::Rendezvous {
        let problem =
            "a rendezvous does not see the security of the carriers that it joins: use mode None";
        return Err(ConfigError::field("security.mode", problem));
    }
    let (_, peers) = key_roles(config.role);
    let files = &keys.private_key_files;
    if !(1..=OWN_KEYS_MAX).contains(&files.len()) {
        let count = files.len();
        let problem = format!("has {count} files, but a gateway has 1 or {OWN_KEYS_MAX} keys");
        return Err(ConfigError::field("security.privateKeyFiles", problem));
    }
    if let Err(found) = check_peers(&keys.peers, peers, &[]) {
        let field = format!("security.peers[{}].{}", found.index, found.field);
        return Err(ConfigError::field(
            field.trim_end_matches('.'),
            found.problem,
        ));
    }
    check_rules_of_peers(config.role, &keys.peers)?;
    if config.role == Role::Entry && keys.peers.is_empty() && keys.peers_file.is_none() {
        let problem =
            "is empty, so the entry could not reach any exit: list the exit's key (mtx1...)";
        return Err(ConfigError::field("security.peers", problem));
    }
    check_rules(config, keys, peers)
}

/// Checks the lengths of the lists, and that each rule is for its peer alone.
fn check_rules_of_peers(role: Role, peers: &[Peer]) -> Result<(), ConfigError> {
    for (at, peer) in peers.iter().enumerate() {
        for (list, rules) in [("allow", &peer.allow), ("deny", &peer.deny)] {
            let field = format!("security.peers[{at}].{list}");
            let problem = if rules.is_empty() {
                continue;
            } else if role != Role::Exit {
                "only an exit has rules for its peers: write the rules at the exit".to_owned()
            } else if rules.len() > PEER_RULES_MAX {
                let length = rules.len();
                format!("has {length} entries, at most {PEER_RULES_MAX} are allowed")
            } else if let Some(rule) = rules.iter().find(|rule| rule.peer.is_some()) {
                format!("{rule} has peer=, but the rules of a peer are for this peer: remove peer=")
            } else {
                continue;
            };
            return Err(ConfigError::field(field, problem));
        }
    }
    Ok(())
}

/// Refuses rules whose key never is the identity of a peer. Such a rule would never apply, so a rule
/// that denies targets would deny nothing. A line of `peersFile` may get a name later, so rules name
/// the peers of this file by name.
fn check_rules(config: &Config, keys: &PublicKeys, role: KeyRole) -> Result<(), ConfigError> {
    let rules = |field: &'static str, rules: &[crate::Rule]| {
        let peers = rules.iter().map(|rule| rule.peer.clone());
        peers
            .enumerate()
            .map(|(at, peer)| (format!("{field}[{at}]"), peer))
            .collect::<Vec<_>>()
    };
    let listens = config.allow_listen.iter().map(|rule| rule.peer.clone());
    let listens = listens.enumerate();
    let listens = listens.map(|(at, peer)| (format!("allowListen[{at}]"), peer));
    let networks = config.network.iter().flat_map(|network| &network.peers);
    let networks = networks.enumerate().map(|(at, peer)| {
        let field = format!("network.peers[{at}].identity");
        (field, Some(peer.identity.clone()))
    });
    let all = rules("allow", &config.allow)
        .into_iter()
        .chain(rules("deny", &config.deny))
        .chain(listens)
        .chain(networks);
    for (field, peer) in all {
        let Some(peer) = peer.filter(|peer| begins_like_a_key(peer)) else {
            continue;
        };
        let key = GatewayKey::of_role(&peer, role);
        let key =
            key.map_err(|error| ConfigError::field(&*field, format!("the peer is {error}")))?;
        let owner = keys
            .peers
            .iter()
            .find(|peer| peer.public_keys.contains(&key));
        let problem = match owner.map(|owner| &owner.name) {
            Some(None) => continue,
            Some(Some(name)) => {
                format!("the peer with this key has the name {name:?}: write peer={name}")
            }
            None if keys.peers_file.is_some() => {
                "names a peer by its key: give the peer a name in peersFile, and write peer=NAME"
                    .to_owned()
            }
            None => continue,
        };
        return Err(ConfigError::field(field, problem));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
