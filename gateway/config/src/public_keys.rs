//! Carriers by public keys: this gateway's private key, and the peers that it accepts.

use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_with_macros::skip_serializing_none;

use crate::gateway_key::{GatewayKey, role_of};
use crate::peers::{Peer, PeerList, check_peers, check_rules_of_peers};
use crate::{Config, ConfigError, Role, Rule, Security};

/// Maximum number of keys of a gateway.
pub const OWN_KEYS_MAX: usize = 2;

/// TLS 1.3 with raw public keys (RFC 7250) on both sides. If a file or the list of peers changes,
/// the gateway verifies the peers of its carriers again.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PublicKeys {
    /// The files with this gateway's private keys, 1..=[`OWN_KEYS_MAX`], the newest last: Ed25519,
    /// PKCS #8 in PEM. Two keys are in use while the peers change to the newer one.
    pub private_key_files: Vec<PathBuf>,
    /// Exit: the accepted peers, 0..=[`PEERS_MAX`](crate::PEERS_MAX) together with those of
    /// `peers_file`. An exit without a peer accepts no carrier. The peers of an entry are its exits,
    /// which have their keys in `connect`. The peers of a rendezvous are its `members`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub peers: Vec<Peer>,
    /// A file with further peers or members, one line `[OPTION...] KEY [NAME]` for each. At an entry, the
    /// file has the keys of its exits in place of `connect[].publicKeys`. The names are those in
    /// `connect`.
    pub peers_file: Option<PathBuf>,
    /// The rendezvous of a leaf, which [`Config::trusted`] adds. `connect` and `rendezvous` have
    /// their keys.
    #[serde(skip)]
    pub places: Vec<Peer>,
}

impl PublicKeys {
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
    let list = PeerList::of(config.role);
    let files = &keys.private_key_files;
    if !(1..=OWN_KEYS_MAX).contains(&files.len()) {
        let count = files.len();
        let problem = format!("has {count} files, but a gateway has 1 or {OWN_KEYS_MAX} keys");
        return Err(ConfigError::field("security.privateKeyFiles", problem));
    }
    check_peers(&keys.peers, list, &[]).map_err(|found| found.within("security.peers"))?;
    check_rules_of_peers(config.role, &keys.peers)?;
    check_rules(config, keys, list.roles()[0])
}

/// Refuses rules whose key never is the identity of a peer. Such a rule would never apply, so a rule
/// that denies targets would deny nothing. A line of `peersFile` may get a name later, so rules name
/// the peers of this file by name.
fn check_rules<'a>(config: &'a Config, keys: &PublicKeys, role: Role) -> Result<(), ConfigError> {
    let of_rules = |rules: &'a [Rule]| rules.iter().map(|rule| rule.peer.as_ref()).collect();
    let listens = config.allow_listen.iter().map(|rule| rule.peer.as_ref());
    let networks = config.network.iter().flat_map(|network| &network.peers);
    let lists: [(_, _, Vec<Option<&String>>); 4] = [
        ("allow", "", of_rules(&config.allow)),
        ("deny", "", of_rules(&config.deny)),
        ("allowListen", "", listens.collect()),
        (
            "network.peers",
            ".identity",
            networks.map(|peer| Some(&peer.identity)).collect(),
        ),
    ];
    let all = lists.iter().flat_map(|(list, rest, peers)| {
        let peers = peers.iter().enumerate();
        peers.filter_map(move |(at, peer)| Some((format!("{list}[{at}]{rest}"), (*peer)?)))
    });
    for (field, peer) in all.filter(|(_, peer)| role_of(peer).is_some()) {
        let key = GatewayKey::of_role(peer, role);
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
