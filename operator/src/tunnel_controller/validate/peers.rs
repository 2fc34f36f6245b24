//! The peers of an exit: which MuxPeers it accepts, and their rules. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use kube::ResourceExt;
use muxtunnel_codes::Code;
use muxtunnel_crds::{MuxExitSpec, MuxPeer, SecurityMode};
use muxtunnel_gateway_config::{
    Cidr, ExpirationTime, GatewayKey, KEY_BYTES, KeyRole, NetworkPeer, PEERS_MAX, Peer, PeerLimits,
    PeerList, check_certificate_peers, check_peers,
};

use super::{connect, network, rules};
use crate::tunnel_controller::dereference::Credentials;
use crate::tunnel_controller::object::Object;
use crate::tunnel_controller::problem::Problem;

/// Longest text of a peer in the gateways' configuration, in bytes. So all peers of an exit fit into
/// its ConfigMap.
const PEER_BYTES_MAX: usize = 3 << 10;

/// A MuxPeer of the exit.
#[derive(Debug, Clone, PartialEq)]
pub struct JudgedPeer {
    /// The object.
    pub object: Arc<MuxPeer>,
    /// The peer for the gateways' configuration, or why the exit does not accept it.
    pub verdict: Result<Peer, Problem>,
    /// The peer for gateways of another security mode, which may still run after a change of the
    /// mode.
    pub former: Option<Peer>,
    /// The networks of the peer.
    pub networks: Vec<Cidr>,
}

impl JudgedPeer {
    /// The peer, if the exit accepts it.
    #[must_use]
    pub fn accepted(&self) -> Option<&Peer> {
        self.verdict.as_ref().ok()
    }

    /// The peer, whatever the security mode of the exit.
    #[must_use]
    pub fn of_any_mode(&self) -> Option<&Peer> {
        self.accepted().or(self.former.as_ref())
    }

    /// The networks of an accepted peer that has networks.
    pub(super) fn network(&self) -> Option<NetworkPeer> {
        let accepted = self.accepted().filter(|_| !self.networks.is_empty())?;
        Some(NetworkPeer {
            identity: accepted.name.clone()?,
            cidrs: self.networks.clone(),
        })
    }
}

/// Judges the peers of an exit, in the order of their creation. If two peers have a key, a
/// certificate name or a network in common, the older object is accepted, then the object with the
/// lower name. So nobody takes over a peer by a second object. The gateway refuses a whole list with
/// one wrong peer, so each peer passes the gateway's own check here.
#[must_use]
pub(super) fn judged(
    credentials: &Credentials,
    object: &Object,
    namespace: &str,
) -> Vec<JudgedPeer> {
    let mut peers = credentials.peers.clone();
    peers.retain(|peer| peer.metadata.deletion_timestamp.is_none());
    peers.sort_by_key(|peer| (peer.creation_timestamp(), peer.name_any()));
    let own = credentials.own.iter();
    let own = own.filter_map(|own| own.status.public_key.as_deref());
    let judge = Judge {
        // Without a decoded spec, the peers are judged by their own fields.
        exit: object
            .exit()
            .filter(|_| object.undecoded().is_none())
            .map(|exit| &exit.spec),
        namespace,
        own: own.filter_map(key_bytes).collect(),
    };
    let mut taken = Taken::default();
    let judged = peers.into_iter().map(|object| {
        let found = judge.peer(&object).and_then(|(peer, networks)| {
            taken.take(&peer, &networks)?;
            Ok((peer, networks))
        });
        let (peer, networks) = match found {
            Ok((peer, networks)) => (Ok(peer), networks),
            Err(problem) => (Err(problem), Vec::new()),
        };
        let (verdict, former) = match judge.unsuited(&object) {
            None => (peer, None),
            Some(problem) => (Err(problem), peer.ok()),
        };
        JudgedPeer {
            object,
            verdict,
            former,
            networks,
        }
    });
    judged.collect()
}

fn key_bytes(text: &str) -> Option<[u8; KEY_BYTES]> {
    let key = GatewayKey::of_role(text, KeyRole::Exit).ok()?;
    Some(*key.bytes())
}

/// The limits in force.
fn limits(asked: PeerLimits) -> PeerLimits {
    PeerLimits {
        carriers: asked.carriers.or(Some(PeerLimits::CARRIERS_DEFAULT)),
        ..asked
    }
}

fn no(code: Code, detail: String) -> Problem {
    Problem { code, detail }
}

/// What the accepted peers have, with the names of the peers.
#[derive(Default)]
struct Taken {
    keys: BTreeMap<[u8; KEY_BYTES], String>,
    names: Vec<(String, String)>,
    networks: Vec<(Cidr, String)>,
    count: usize,
}

impl Taken {
    /// Adds a peer, unless an older peer is in its way.
    fn take(&mut self, peer: &Peer, networks: &[Cidr]) -> Result<(), Problem> {
        for key in &peer.public_keys {
            if let Some(owner) = self.keys.get(key.bytes()) {
                let detail = format!("MuxPeer {owner} has the key {key} as well, and is older");
                return Err(no(Code::KeyConflict, detail));
            }
        }
        for name in &peer.certificate_names {
            let mut owners = self.names.iter();
            if let Some((other, owner)) = owners.find(|(other, _)| covers_same(name, other)) {
                let detail = format!(
                    "certificateNames has {name}, and the older MuxPeer {owner} has {other}: a certificate could belong to both"
                );
                return Err(no(Code::KeyConflict, detail));
            }
        }
        for network in networks {
            let mut owners = self.networks.iter();
            let overlap = |other: &Cidr| other.has(*network) || network.has(*other);
            if let Some((other, owner)) = owners.find(|(other, _)| overlap(other)) {
                let detail = format!(
                    "networkCIDRs has {network}, and the older MuxPeer {owner} has {other}: choose networks that do not overlap"
                );
                return Err(no(Code::NetworkConflict, detail));
            }
        }
        if self.count == PEERS_MAX {
            let detail = format!("the exit has {PEERS_MAX} peers already");
            return Err(no(Code::ExitFull, detail));
        }
        self.count += 1;
        let owner = peer.name.clone().unwrap_or_default();
        let keys = peer.public_keys.iter().map(|key| *key.bytes());
        self.keys.extend(keys.map(|key| (key, owner.clone())));
        let names = peer.certificate_names.iter().cloned();
        self.names.extend(names.map(|name| (name, owner.clone())));
        let networks = networks.iter().copied();
        self.networks
            .extend(networks.map(|network| (network, owner.clone())));
        Ok(())
    }
}

/// Whether a certificate may have a name that both texts accept. A text that ends in `/*` accepts all
/// names below it.
fn covers_same(one: &str, other: &str) -> bool {
    let covers = |pattern: &str, name: &str| {
        let below = pattern
            .strip_suffix('*')
            .filter(|below| below.ends_with('/'));
        pattern == name || below.is_some_and(|below| name.starts_with(below))
    };
    covers(one, other) || covers(other, one)
}

/// Judges one peer by its own fields and those of the exit.
struct Judge<'a> {
    exit: Option<&'a MuxExitSpec>,
    namespace: &'a str,
    /// The known keys of the exit itself.
    own: Vec<[u8; KEY_BYTES]>,
}

impl Judge<'_> {
    fn peer(&self, object: &MuxPeer) -> Result<(Peer, Vec<Cidr>), Problem> {
        let spec = &object.spec;
        let wrong = |problem: String| no(Code::InvalidSpec, problem);
        let keys = connect::keys("publicKeys", &spec.public_keys, KeyRole::Entry);
        let expiration_time = spec.expiration_time.as_ref();
        let expiration_time =
            expiration_time.map(|time| ExpirationTime::parse(&time.0.to_string()));
        let peer = Peer {
            name: Some(object.name_any()),
            public_keys: keys.map_err(|problem| no(Code::KeyInvalid, problem))?,
            certificate_names: spec.certificate_names.clone(),
            suspend: spec.suspend,
            expiration_time: expiration_time
                .transpose()
                .map_err(|problem| wrong(format!("expirationTime: {problem}")))?,
            allow: rules::parsed("allow", &spec.allow, self.namespace).map_err(wrong)?,
            deny: rules::parsed("deny", &spec.deny, self.namespace).map_err(wrong)?,
            limits: limits(spec.limits.unwrap_or_default()),
        };
        let one = std::slice::from_ref(&peer);
        let checked = match peer.certificate_names.is_empty() {
            true => check_peers(one, PeerList::Entries, &self.own),
            false => check_certificate_peers(one, false),
        };
        checked.map_err(|found| {
            let code = match found.field.starts_with("publicKeys") {
                true => Code::KeyInvalid,
                false => Code::InvalidSpec,
            };
            no(code, format!("{} {}", found.field, found.problem))
        })?;
        self.check_reverse_ports(object).map_err(wrong)?;
        let networks = self.networks(object).map_err(wrong)?;
        let text = serde_yaml::to_string(&(
            &peer,
            networks.iter().map(Cidr::to_string).collect::<Vec<_>>(),
        ));
        if text.map_or(usize::MAX, |text| text.len()) > PEER_BYTES_MAX {
            let detail = format!(
                "the peer has more than {PEER_BYTES_MAX} bytes in the gateways' configuration: use fewer or wider \
                 rules and networks"
            );
            return Err(wrong(detail));
        }
        Ok((peer, networks))
    }

    /// Why the exit's security mode does not suit the peer.
    fn unsuited(&self, object: &MuxPeer) -> Option<Problem> {
        let security = self.exit?.security.as_ref();
        let mode = security.and_then(|security| security.mode);
        let spec = &object.spec;
        let (name, field, is_missing) = match mode.unwrap_or_default() {
            SecurityMode::None => {
                let detail = "the exit has security mode None, and accepts every entry: delete the MuxPeer, or set \
                              security.mode of the MuxExit";
                return Some(no(Code::ExitHasNoKeys, detail.to_owned()));
            }
            SecurityMode::PublicKeys => ("PublicKeys", "publicKeys", spec.public_keys.is_empty()),
            SecurityMode::Certificates => {
                let is_missing = spec.certificate_names.is_empty();
                ("Certificates", "certificateNames", is_missing)
            }
        };
        let detail = || format!("the exit has security mode {name}: set {field}");
        is_missing.then(|| no(Code::InvalidSpec, detail()))
    }

    fn check_reverse_ports(&self, object: &MuxPeer) -> Result<(), String> {
        let Some(exit) = self.exit else {
            return Ok(());
        };
        let known = exit.reverse_ports.iter().map(|port| port.name.as_str());
        let known: BTreeSet<_> = known.collect();
        let mut asked = object.spec.reverse_ports.iter();
        match asked.find(|name| !known.contains(name.as_str())) {
            Some(name) => Err(format!(
                "reversePorts has {name}, which is not in reversePorts of the MuxExit: correct the name, or add the port there"
            )),
            None => Ok(()),
        }
    }

    /// The networks of the peer, which the exit's `peerCIDRs` contain.
    fn networks(&self, object: &MuxPeer) -> Result<Vec<Cidr>, String> {
        let networks = network::cidrs("networkCIDRs", &object.spec.network_cidrs)?;
        let Some(exit) = self.exit.filter(|_| !networks.is_empty()) else {
            return Ok(networks);
        };
        let asked = exit.network.as_ref();
        let asked =
            asked.ok_or("networkCIDRs needs network of the MuxExit: remove networkCIDRs")?;
        let bounds = network::peer_cidrs(asked)?;
        let is_within = |network: &Cidr| bounds.iter().any(|bound| bound.has(*network));
        match networks.iter().find(|network| !is_within(network)) {
            Some(network) => Err(format!(
                "networkCIDRs: {network} is not within network.peerCIDRs of the MuxExit"
            )),
            None => Ok(networks),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_belongs_to_one_peer_alone() {
        for (one, other, expected) in [
            ("spiffe://a/ns/x", "spiffe://a/ns/x", true),
            ("spiffe://a/ns/x", "spiffe://a/ns/y", false),
            ("spiffe://a/ns/*", "spiffe://a/ns/x/mt/near/entry", true),
            ("spiffe://a/*", "spiffe://a/ns/*", true),
            ("spiffe://a/ns/*", "spiffe://a/nsx", false),
            // Without a slash, the text is the whole name.
            ("a*", "ab", false),
        ] {
            assert_eq!(covers_same(one, other), expected, "{one} {other}");
            assert_eq!(covers_same(other, one), expected, "{other} {one}");
        }
    }
}
