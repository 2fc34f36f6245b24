//! Gateways that meet at a rendezvous: where leaves find it, its members, and the checks of the
//! fields.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use serde_with_macros::skip_serializing_none;

use crate::check::check_host_port;
use crate::connect::{check_name, with_keys_of};
use crate::gateway_key::GatewayKey;
use crate::peers::{ExpirationTime, Peer, PeerList, check_peers, some};
use crate::{Config, ConfigError, Role, Security};

/// Maximum number of rendezvous of an exit.
pub const RENDEZVOUS_MAX: usize = 4;

/// A rendezvous where an exit waits for entries.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct MeetingPlace {
    /// Unique name, as in [`Connect::name`](crate::Connect::name).
    pub name: String,
    /// `host:port` of the rendezvous.
    pub address: String,
    /// The keys of the rendezvous, 1..=[`PEER_KEYS_MAX`](crate::PEER_KEYS_MAX).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub public_keys: Vec<GatewayKey>,
}

/// The rendezvous where an exit waits for an entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ConnectRendezvous {
    /// `host:port` of the rendezvous.
    pub address: String,
    /// The keys of the rendezvous, 1..=[`PEER_KEYS_MAX`](crate::PEER_KEYS_MAX).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub public_keys: Vec<GatewayKey>,
}

/// An entry or an exit that may use a rendezvous.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(
    feature = "schemars",
    derive(schemars::JsonSchema),
    schemars(transform = crate::schema::open)
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Member {
    // In a file, a member with one key needs no name.
    /// Unique name of the member.
    #[cfg_attr(
        feature = "schemars",
        schemars(
            required,
            length(min = 1, max = 15),
            regex(pattern = "^[a-z]([-a-z0-9]*[a-z0-9])?$")
        )
    )]
    pub name: Option<String>,
    /// The keys of the member, from `status.publicKeys` of its MuxTunnel or MuxExit. Several keys are
    /// valid while the member replaces its key.
    #[cfg_attr(
        feature = "schemars",
        schemars(
            length(min = 1, max = 4),
            inner(length(max = 63), regex(pattern = "^mt[ex]1[02-9ac-hj-np-z]{59}$")),
            extend("x-kubernetes-list-type" = "set")
        )
    )]
    pub public_keys: Vec<GatewayKey>,
    /// Whether the rendezvous refuses the member. True ends its carriers. Default: false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub suspend: bool,
    /// The time from which the rendezvous refuses the member, by the clock of its gateway. Default:
    /// never.
    #[serde(default, deserialize_with = "some")]
    #[cfg_attr(feature = "schemars", schemars(with = "ExpirationTime"))]
    pub expiration_time: Option<ExpirationTime>,
}

impl Member {
    /// The member as a peer.
    fn peer(&self) -> Peer {
        Peer {
            name: self.name.clone(),
            public_keys: self.public_keys.clone(),
            suspend: self.suspend,
            expiration_time: self.expiration_time,
            ..Peer::default()
        }
    }
}

/// The members of a rendezvous as its peers. Those of `security.peersFile` are not among them.
pub(crate) fn members(config: &Config) -> Vec<Peer> {
    config.members.iter().map(Member::peer).collect()
}

/// The rendezvous of a leaf as peers, which have the name of their element of `connect` or
/// `rendezvous`.
pub(crate) fn places(config: &Config) -> Vec<Peer> {
    let named = |name: &String, keys: &Vec<GatewayKey>| Peer {
        name: Some(name.clone()),
        public_keys: keys.clone(),
        ..Peer::default()
    };
    let visited = config.connect.iter().filter_map(|exit| {
        let rendezvous = exit.rendezvous.as_ref()?;
        Some(named(&exit.name, &rendezvous.public_keys))
    });
    let waits = config.rendezvous.iter();
    let waits = waits.map(|place| named(&place.name, &place.public_keys));
    visited.chain(waits).collect()
}

/// Whether the gateway is a leaf of a rendezvous.
pub(crate) fn has_leaf(config: &Config) -> bool {
    !places(config).is_empty()
}

/// The rendezvous of `running` with the keys of those of the same names in `new`. Without `new`, they
/// have no keys: this part needs a restart.
pub(crate) fn with_keys(
    running: &[MeetingPlace],
    new: Option<&[MeetingPlace]>,
) -> Vec<MeetingPlace> {
    let take = |place: &mut MeetingPlace, new: Option<&MeetingPlace>| {
        place.public_keys = new.map_or(Vec::new(), |new| new.public_keys.clone());
    };
    with_keys_of(running, new, take, |place| &place.name)
}

/// Checks the fields of a rendezvous and of its leaves.
pub(crate) fn check(config: &Config) -> Result<(), ConfigError> {
    let wrong = |field: &str, problem: &str| Err(ConfigError::field(field, problem));
    let has_keys = matches!(config.security, Security::PublicKeys(_));
    if config.role == Role::Rendezvous && !has_keys {
        let problem = "a rendezvous knows its members by their keys: use mode PublicKeys";
        return wrong("security.mode", problem);
    }
    if config.role != Role::Rendezvous && !config.members.is_empty() {
        return wrong("members", "only a rendezvous has members: remove the field");
    }
    if config.role != Role::Exit && !config.rendezvous.is_empty() {
        let problem = match config.role {
            Role::Entry => "only an exit registers at a rendezvous: use connect[].rendezvous",
            _ => "a rendezvous cannot connect to another rendezvous: remove the field",
        };
        return wrong("rendezvous", problem);
    }
    let members = check_peers(&members(config), PeerList::Members, &[]);
    members.map_err(|found| found.within("members"))?;
    if has_leaf(config) && !has_keys {
        let problem = "a rendezvous knows its members by their keys, and with another mode, a stolen ticket would reach the exit: use \
                       mode PublicKeys";
        return wrong("security.mode", problem);
    }
    check_places(config)
}

fn check_places(config: &Config) -> Result<(), ConfigError> {
    let count = config.rendezvous.len();
    if count > RENDEZVOUS_MAX {
        let problem = format!("has {count} rendezvous: at most {RENDEZVOUS_MAX} are allowed");
        return Err(ConfigError::field("rendezvous", problem));
    }
    let mut names = BTreeSet::new();
    for (index, place) in config.rendezvous.iter().enumerate() {
        let at = format!("rendezvous[{index}]");
        check_name(&mut names, &place.name)
            .map_err(|problem| ConfigError::field(format!("{at}.name"), problem))?;
        check_place(&at, &place.address, &place.public_keys)?;
    }
    for (index, exit) in config.connect.iter().enumerate() {
        if let Some(place) = &exit.rendezvous {
            let at = format!("connect[{index}].rendezvous");
            check_place(&at, &place.address, &place.public_keys)?;
        }
    }
    Ok(())
}

fn check_place(at: &str, address: &str, public_keys: &[GatewayKey]) -> Result<(), ConfigError> {
    check_host_port(&format!("{at}.address"), address)?;
    let peer = Peer {
        name: Some("rendezvous".to_owned()),
        public_keys: public_keys.to_vec(),
        ..Peer::default()
    };
    check_peers(&[peer], PeerList::Places, &[])
        .map_err(|found| ConfigError::field(format!("{at}.{}", found.field), found.problem))
}
