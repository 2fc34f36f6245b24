//! The peers of a gateway: the identities that each may prove, and its rules.

mod file;

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, de};
use serde_with_macros::{apply, skip_serializing_none};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::gateway_key::{GatewayKey, KEY_BYTES, role_of};
use crate::text::{by_text, is_default};
use crate::{ConfigError, PeerLimits, Role, Rule};
pub use file::{parse_peers, readable_peers};

/// Maximum number of peers of a gateway.
pub const PEERS_MAX: usize = 256;
/// Maximum number of keys of a peer. Two keys are in use while the peer changes its key.
pub const PEER_KEYS_MAX: usize = 4;
/// Maximum number of names in certificates of a peer.
pub const PEER_NAMES_MAX: usize = 32;
/// Maximum number of rules in `allow` and in `deny` of a peer.
pub const PEER_RULES_MAX: usize = 32;
/// Maximum length of the name of a peer, in characters.
const NAME_LENGTH_MAX: usize = 63;
/// Maximum length of a name in a certificate, in bytes.
const CERTIFICATE_NAME_BYTES_MAX: usize = 2048;

/// A gateway that may be the other end of carriers.
#[apply(crate = "serde_with_macros", Vec => #[serde(default, skip_serializing_if = "Vec::is_empty")])]
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Peer {
    /// The peer's identity in rules (`peer=`). Default: the text of its key, or the name in its
    /// certificate.
    pub name: Option<String>,
    /// Mode PublicKeys: the peer's keys, 1..=[`PEER_KEYS_MAX`]. A peer without a name has one key.
    pub public_keys: Vec<GatewayKey>,
    /// Mode Certificates: the peer's certificate must contain one of these names (subjectAltName),
    /// 1..=[`PEER_NAMES_MAX`]. A name is a DNS name, an IP address or a URI such as
    /// `spiffe://example.org/entry`. A URI that ends in `/*` matches each longer path. A peer
    /// without a name of its own has one name here.
    pub certificate_names: Vec<String>,
    /// Whether the peer is refused, and its carriers and streams end.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub suspend: bool,
    /// The time from which the peer is refused, and its carriers and streams end.
    #[serde(default, deserialize_with = "some")]
    pub expiration_time: Option<ExpirationTime>,
    /// Of the targets that the exit allows, those that the peer may reach, at most
    /// [`PEER_RULES_MAX`] rules. Empty: all of them.
    pub allow: Vec<Rule>,
    /// Targets that the peer may not reach, at most [`PEER_RULES_MAX`] rules.
    pub deny: Vec<Rule>,
    /// Limits of the peer's carriers and streams. Default: only the limits of the exit.
    #[serde(default, skip_serializing_if = "is_default")]
    pub limits: PeerLimits,
}

/// A list of peers, which determines the roles of their keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerList {
    /// The exits of an entry.
    Exits,
    /// The entries of an exit.
    Entries,
    /// The members of a rendezvous: entries and exits.
    Members,
    /// The rendezvous of a leaf.
    Places,
}

impl PeerList {
    /// The list of a gateway of `role`.
    #[must_use]
    pub const fn of(role: Role) -> Self {
        match role {
            Role::Entry => Self::Exits,
            Role::Exit => Self::Entries,
            Role::Rendezvous => Self::Members,
        }
    }

    /// The roles that the keys may have.
    #[must_use]
    pub const fn roles(self) -> &'static [Role] {
        match self {
            Self::Exits => &[Role::Exit],
            Self::Entries => &[Role::Entry],
            Self::Members => &[Role::Entry, Role::Exit],
            Self::Places => &[Role::Rendezvous],
        }
    }

    /// Whether the gateway dials the peers.
    #[must_use]
    pub const fn is_dialled(self) -> bool {
        matches!(self, Self::Exits | Self::Places)
    }

    fn check(self, key: GatewayKey) -> Result<(), String> {
        let role = key.role();
        match self.roles() {
            [one] => key
                .has_role(*one)
                .map(drop)
                .map_err(|error| error.to_string()),
            roles if roles.contains(&role) => Ok(()),
            _ => Err(format!(
                "the key of {} ({}1...), but a member is an entry (mte1...) or an exit (mtx1...)",
                role.noun(),
                role.prefix()
            )),
        }
    }
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
pub(crate) fn some<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<ExpirationTime>, D::Error> {
    ExpirationTime::deserialize(deserializer).map(Some)
}

/// A time in UTC, as RFC 3339 text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExpirationTime(OffsetDateTime);

impl ExpirationTime {
    /// Whether the time has come at `now`, in seconds since 1970.
    #[must_use]
    pub fn has_come(self, now: u64) -> bool {
        i64::try_from(now).is_ok_and(|now| self.seconds() <= now)
    }

    /// The time in whole seconds since 1970.
    #[must_use]
    pub const fn seconds(self) -> i64 {
        self.0.unix_timestamp()
    }
}

impl FromStr for ExpirationTime {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // A year outside of these has no text.
        let time = OffsetDateTime::parse(text, &Rfc3339).ok();
        let time = time.and_then(|time| time.checked_to_offset(time::UtcOffset::UTC));
        let time = time.filter(|time| (0..=9999).contains(&time.year()));
        time.map(Self)
            .ok_or_else(|| format!("{text:?} is not a time such as 2027-01-31T18:00:00Z"))
    }
}

impl fmt::Display for ExpirationTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.format(&Rfc3339).unwrap_or_default())
    }
}

by_text!(ExpirationTime: {"type": "string", "format": "date-time", "maxLength": 64});

impl Peer {
    /// A peer that has only this key.
    #[must_use]
    pub fn with_key(key: GatewayKey) -> Self {
        Self {
            public_keys: vec![key],
            ..Self::default()
        }
    }

    /// A peer whose certificate contains this name.
    #[must_use]
    pub fn with_certificate_name(name: String) -> Self {
        Self {
            certificate_names: vec![name],
            ..Self::default()
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

    /// The identity of this peer. `proved`: the key, or the listed name in the certificate, that a
    /// carrier proved.
    #[must_use]
    pub fn identity(&self, proved: &impl ToString) -> String {
        self.name.clone().unwrap_or_else(|| proved.to_string())
    }

    /// The identity of this peer, if it needs no proof to know it: a peer without a name has one key, or
    /// one name in certificates.
    #[must_use]
    pub fn only_identity(&self) -> Option<String> {
        let key = self.public_keys.first().map(ToString::to_string);
        let proved = key.or_else(|| self.certificate_names.first().cloned());
        proved.map(|proved| self.identity(&proved))
    }

    /// Why the peer is refused at `now`, in seconds since 1970.
    #[must_use]
    pub fn refused_at(&self, now: u64) -> Option<String> {
        match self.expiration_time {
            _ if self.suspend => Some("is suspended".to_owned()),
            Some(time) if time.has_come(now) => Some(format!("has expired at {time}")),
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

impl PeerProblem {
    /// The error of a peer in the list `list` of a configuration.
    pub(crate) fn within(self, list: &str) -> ConfigError {
        let field = format!("{list}[{}].{}", self.index, self.field);
        ConfigError::field(field.trim_end_matches('.'), self.problem)
    }
}

/// Checks the peers of `list` in mode PublicKeys. `own`: the bytes of the gateway's own keys that are
/// known.
///
/// # Errors
/// The first problem.
pub fn check_peers(
    peers: &[Peer],
    list: PeerList,
    own: &[[u8; KEY_BYTES]],
) -> Result<(), PeerProblem> {
    let mut keys = BTreeSet::new();
    check_each(peers, |peer| {
        if !peer.certificate_names.is_empty() {
            return Err(of_other_mode("certificateNames", "publicKeys"));
        }
        let check = |key: &GatewayKey| {
            list.check(*key)?;
            match own.contains(key.bytes()) {
                false => Ok((*key.bytes(), key.to_string())),
                true => Err(format!(
                    "{key} is this gateway's own key: enter the key of the other end, and give each gateway a key of \
                     its own"
                )),
            }
        };
        let own = ("publicKeys", &*peer.public_keys, PEER_KEYS_MAX);
        // Several addresses may be those of one gateway.
        check_identities(peer, own, (&mut keys, list.is_dialled()), check)
    })
}

/// Checks the peers of mode Certificates. `are_exits`: they are the exits of an entry.
///
/// # Errors
/// The first problem.
pub fn check_certificate_peers(peers: &[Peer], are_exits: bool) -> Result<(), PeerProblem> {
    let mut names = BTreeSet::new();
    check_each(peers, |peer| {
        if !peer.public_keys.is_empty() {
            return Err(of_other_mode("publicKeys", "certificateNames"));
        }
        let check = |name: &String| match certificate_name_problem(name) {
            Some(problem) => Err(problem),
            None => Ok((name.clone(), format!("{name:?}"))),
        };
        let own = ("certificateNames", &*peer.certificate_names, PEER_NAMES_MAX);
        check_identities(peer, own, (&mut names, are_exits), check)
    })
}

/// Checks the number and the names of peers, and each peer by `check`, which returns a field and its
/// problem.
fn check_each<'a>(
    peers: &'a [Peer],
    mut check: impl FnMut(&'a Peer) -> Result<(), (String, String)>,
) -> Result<(), PeerProblem> {
    let mut names = BTreeSet::new();
    for (index, peer) in peers.iter().enumerate() {
        let wrong = |(field, problem)| PeerProblem {
            index,
            field,
            problem,
        };
        if index >= PEERS_MAX {
            let problem = format!("is one peer too many: at most {PEERS_MAX} are allowed");
            return Err(wrong((String::new(), problem)));
        }
        if let Some(name) = &peer.name {
            check_name(name).map_err(|problem| wrong(("name".to_owned(), problem)))?;
            if !names.insert(name) {
                let problem = format!("{name:?} is the name of another peer as well");
                return Err(wrong(("name".to_owned(), problem)));
            }
        }
        check(peer).map_err(wrong)?;
    }
    Ok(())
}

/// Checks that a peer has 1 to `most` identities in `field`, each once, and a name if it has several.
/// `known`: those of other peers, which it may have only if `are_shared`. `check` checks one identity,
/// and returns it with its text.
fn check_identities<T, K: Ord + Clone>(
    peer: &Peer,
    (field, identities, most): (&str, &[T], usize),
    (known, are_shared): (&mut BTreeSet<K>, bool),
    check: impl Fn(&T) -> Result<(K, String), String>,
) -> Result<(), (String, String)> {
    let what = match field {
        "publicKeys" => "keys",
        _ => "names",
    };
    let count = identities.len();
    if !(1..=most).contains(&count) {
        let problem = format!("has {count} {what}, but a peer has 1 to {most}");
        return Err((field.to_owned(), problem));
    }
    if peer.name.is_none() && count > 1 {
        let problem = format!("is missing: a peer with several {what} needs a name");
        return Err(("name".to_owned(), problem));
    }
    let mut of_peer = BTreeSet::new();
    for (at, identity) in identities.iter().enumerate() {
        let wrong = |problem| (format!("{field}[{at}]"), problem);
        let (identity, text) = check(identity).map_err(wrong)?;
        let is_elsewhere = !known.insert(identity.clone()) && !are_shared;
        if is_elsewhere || !of_peer.insert(identity) {
            return Err(wrong(format!("{text} is listed twice: remove one of both")));
        }
    }
    Ok(())
}

fn of_other_mode(field: &str, instead: &str) -> (String, String) {
    let problem = format!("is not a field of this security mode: write {instead}");
    (field.to_owned(), problem)
}

/// The problem of a name in certificates. `None`: the name is valid.
pub(crate) fn certificate_name_problem(name: &str) -> Option<String> {
    let stem = name.strip_suffix("/*").unwrap_or(name);
    let is_pattern = stem.len() < name.len();
    let plain = |b: u8| b.is_ascii_graphic() && b != b'*' && b != b',';
    if stem.is_empty() || name.len() > CERTIFICATE_NAME_BYTES_MAX || !stem.bytes().all(plain) {
        return Some(format!(
            "{name:?} is not a name in a certificate, such as exit.example.com or spiffe://example.org/exit"
        ));
    }
    let is_uri = stem
        .split_once("://")
        .is_some_and(|(_, rest)| !rest.is_empty());
    if is_pattern && !is_uri {
        return Some(format!(
            "{name:?} ends in /*, which only a URI such as spiffe://example.org/ns/* may do"
        ));
    }
    let only = only_spelling(name);
    (only != name).then(|| {
        format!("{name:?} is another spelling of {only:?}: write {only:?}, so that two peers with one name are found")
    })
}

/// The spelling of a name that is valid here, of all that TLS takes for the same name. URIs are
/// compared as text.
fn only_spelling(name: &str) -> String {
    match name.parse::<IpAddr>() {
        Ok(address) => address.to_string(),
        Err(_) if name.contains([':', '/']) => name.to_owned(),
        Err(_) => name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase(),
    }
}

/// The rules of the peer that has proved `identity`. `has_file`: further peers, which have no rules,
/// are in a file. A peer that no list has may reach nothing: its carriers are about to end.
pub(crate) fn rules_of<'a>(peers: &'a [Peer], has_file: bool, identity: &str) -> PeerRules<'a> {
    let unlisted = || PeerRules {
        allow: (!has_file).then_some(&[][..]),
        deny: &[],
    };
    peer_of(peers, identity).map_or_else(unlisted, Peer::rules)
}

/// The peer that has proved `identity`.
pub(crate) fn peer_of<'a>(peers: &'a [Peer], identity: &str) -> Option<&'a Peer> {
    let key: Option<GatewayKey> = identity.parse().ok();
    peers.iter().find(|peer| match &peer.name {
        Some(name) => name == identity,
        None => {
            key.is_some_and(|key| peer.public_keys.contains(&key))
                || peer.certificate_names.iter().any(|name| name == identity)
        }
    })
}

/// Checks the limits of peers, the lengths of the lists of rules, and that each rule is for its peer
/// alone.
pub(crate) fn check_rules_of_peers(role: Role, peers: &[Peer]) -> Result<(), ConfigError> {
    for (at, peer) in peers.iter().enumerate() {
        if let Some((field, problem)) = peer.limits.problem() {
            let field = format!("security.peers[{at}].limits.{field}");
            return Err(ConfigError::field(field, problem));
        }
        for (list, rules) in [("allow", &peer.allow), ("deny", &peer.deny)] {
            let field = format!("security.peers[{at}].{list}");
            if !rules.is_empty() && role != Role::Exit {
                let problem = "only an exit has rules for its peers: write the rules at the exit";
                return Err(ConfigError::field(field, problem));
            }
            ConfigError::unless_at_most(&field, rules.len(), PEER_RULES_MAX)?;
            if let Some(rule) = rules.iter().find(|rule| rule.peer.is_some()) {
                let problem = format!(
                    "{rule} has peer=, but the rules of a peer are for this peer: remove peer="
                );
                return Err(ConfigError::field(field, problem));
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
    match role_of(name) {
        Some(_) => Err("begins like a key: choose another name".to_owned()),
        None => Ok(()),
    }
}

/// An element of `security.peers` in the file: text, or a peer with its fields.
pub(crate) enum Listed {
    Text(String),
    Peer(Box<Peer>),
}

impl<'de> Deserialize<'de> for Listed {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;
        impl<'de> Visitor<'de> for Either {
            type Value = Listed;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the identity of a peer, or its fields")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Listed, E> {
                Ok(Listed::Text(text.to_owned()))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Listed, A::Error> {
                let peer = Peer::deserialize(MapAccessDeserializer::new(map))?;
                Ok(Listed::Peer(Box::new(peer)))
            }
        }
        deserializer.deserialize_any(Either)
    }
}
