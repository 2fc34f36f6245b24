//! The peers of an exit: which MuxPeers it accepts, and their rules. Pure.
//!
//! A fault ends no carrier. A wrong item of `networkCIDRs` or `reversePorts` is left out. With a fault
//! in another field, the peer keeps the keys, names and networks that it has in the gateways'
//! configuration, as far as the MuxPeer still lists them, and each field without a fault has its new
//! value. So a reduction always takes effect, and a new key, name or network needs a MuxPeer without a
//! fault. If the object cannot be decoded, its rules and limits stay as well, and it gets no new reverse
//! port, because an unreadable rule may be one that denies.

mod size;
mod taken;

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;

use kube::ResourceExt;
use muxtunnel_codes::Code;
use muxtunnel_crds::{MuxExitSpec, MuxPeer, SecurityMode};
use muxtunnel_gateway_config::{
    Cidr, GatewayKey, KEY_BYTES, NetworkPeer, Peer, PeerLimits, PeerList, Role, Rule,
    check_certificate_peers, check_network_of_peer, check_peers,
};
use serde_yaml::Value;

use super::{Dereferenced, each, rules};
use crate::tunnel_controller::dereference::LiveConfig;
use crate::tunnel_controller::document::{NETWORK_PEERS, PEERS, cidrs_of, items, lessened};
use crate::tunnel_controller::end::End;
use crate::tunnel_controller::hindrance::Hindrance;
use crate::tunnel_controller::problem::Problem;
use crate::undecoded;
pub(in crate::tunnel_controller) use size::size;
use taken::Taken;

/// A MuxPeer of the exit.
#[derive(Debug, Clone, PartialEq)]
pub struct JudgedPeer {
    /// The object.
    pub object: Arc<MuxPeer>,
    /// The peer for the gateways' configuration, or why the exit does not accept the MuxPeer as it is.
    pub verdict: Result<Peer, Problem>,
    /// What remains in effect of a MuxPeer with a fault.
    pub kept: Option<Peer>,
    /// The peer for gateways of another security mode, which may still run after a change of the
    /// mode.
    pub former: Option<Peer>,
    /// The networks of the peer.
    pub networks: Vec<Cidr>,
    /// The names of the reverse ports that the peer may serve.
    pub reverse_ports: Vec<String>,
}

impl JudgedPeer {
    /// The peer in the gateways' configuration.
    #[must_use]
    pub fn served(&self) -> Option<&Peer> {
        self.verdict.as_ref().ok().or(self.kept.as_ref())
    }

    /// The peer, whatever the security mode of the exit.
    #[must_use]
    pub fn of_any_mode(&self) -> Option<&Peer> {
        self.served().or(self.former.as_ref())
    }

    /// The networks of a peer that has networks.
    pub(super) fn network(&self) -> Option<NetworkPeer> {
        let served = self.served().filter(|_| !self.networks.is_empty())?;
        Some(NetworkPeer {
            identity: served.name.clone()?,
            cidrs: self.networks.clone(),
        })
    }
}

/// Judges the peers of an exit, in the order of their creation. If two peers have a key, a
/// certificate name, a network or a reverse port in common, the older object has it, then the object
/// with the lower name. So nobody takes over a peer by a second object. The gateway refuses a whole list with one
/// wrong peer, so each peer passes the gateway's own check here. `exit`: the spec, if it is applied.
/// Otherwise the peers are judged by their own fields, because gateways do not have this spec.
#[must_use]
pub(super) fn judged(
    exit: Option<&MuxExitSpec>,
    named: &Dereferenced,
    namespace: &str,
) -> Vec<JudgedPeer> {
    let mut peers = named.credentials.peers.clone();
    peers.retain(|peer| peer.metadata.deletion_timestamp.is_none());
    peers.sort_by_key(|peer| (peer.creation_timestamp(), peer.name_any()));
    let judge = Judge::new(exit, named, namespace);
    // A peer of the other mode takes nothing from those of the exit's mode.
    let mut modes = [Taken::default(), Taken::default()];
    let sizes = size::sizes(&judge.documents);
    for object in &peers {
        let name = object.name_any();
        if let Some(size) = sizes.get(&*name) {
            modes[mode_of(object)].reserve(name, *size);
        }
    }
    let judged = peers.into_iter().map(|object| {
        let mode = mode_of(&object);
        let mut judged = judge.peer(object, &mut modes[mode]);
        if let Some(unsuited) = judge.unsuited(&judged.object) {
            let problem = match &judged.verdict {
                Err(own) if own.code == Code::UnknownValue => own.clone(),
                _ => unsuited,
            };
            let found = std::mem::replace(&mut judged.verdict, Err(problem));
            judged.former = found.ok().or(judged.kept.take());
        }
        judged
    });
    judged.collect()
}

/// 0: public keys. 1: certificates.
fn mode_of(object: &MuxPeer) -> usize {
    usize::from(!object.spec.certificate_names.is_empty())
}

fn key_bytes(text: &str) -> Option<[u8; KEY_BYTES]> {
    let key = GatewayKey::of_role(text, Role::Exit).ok()?;
    Some(*key.bytes())
}

fn wrong(detail: impl Into<String>) -> Problem {
    Problem::new(Code::InvalidSpec, detail)
}

/// Those of `asked` that pass `check`, and why another one is left out.
fn permitted<T: Clone>(
    asked: &[T],
    check: impl Fn(&T) -> Result<(), Problem>,
) -> (Vec<T>, Option<Problem>) {
    let (mut permitted, mut problem) = (Vec::new(), None);
    for item in asked {
        match check(item) {
            Ok(()) => permitted.push(item.clone()),
            Err(found) => problem = problem.or(Some(found)),
        }
    }
    (permitted, problem)
}

/// Judges each peer by its own fields, those of the exit and those of older peers.
struct Judge<'a> {
    exit: Option<&'a MuxExitSpec>,
    namespace: &'a str,
    /// The known keys of the exit itself.
    own: Vec<[u8; KEY_BYTES]>,
    /// The ConfigMap of running gateways.
    live: Option<&'a LiveConfig>,
    /// The configurations of running gateways.
    documents: Vec<&'a Value>,
}

impl<'a> Judge<'a> {
    fn new(exit: Option<&'a MuxExitSpec>, named: &'a Dereferenced, namespace: &'a str) -> Self {
        let own = named.credentials.own.iter();
        let own = own.filter_map(|own| own.status.public_key.as_deref());
        let config_map = named.live.config_maps.get(&End::Exit);
        Self {
            exit,
            namespace,
            own: own.filter_map(key_bytes).collect(),
            live: config_map,
            documents: config_map.map_or(Vec::new(), |own| own.documents.values().collect()),
        }
    }

    fn peer(&self, object: Arc<MuxPeer>, taken: &mut Taken) -> JudgedPeer {
        let mut judged = JudgedPeer {
            verdict: Err(Problem::new(Code::ExitFull, "")),
            kept: None,
            former: None,
            networks: Vec::new(),
            reverse_ports: Vec::new(),
            object,
        };
        if let Err(full) = taken.place(&judged.object.name_any()) {
            judged.verdict = Err(full);
            return judged;
        }
        let object = &*judged.object;
        let (networks, ports) = self.asked(object);
        let check_network = |network: &Cidr| self.check_network(*network, taken);
        let (mut networks, wrong_network) = permitted(&networks, check_network);
        let check_port = |name: &String| self.check_port(name, taken);
        let (mut ports, wrong_port) = permitted(&ports, check_port);
        let own = self.own_fields(object).and_then(|peer| {
            taken.check(&peer)?;
            taken.check_size(size(&peer, &networks, &ports))?;
            Ok(peer)
        });
        let (peer, fault) = match own {
            Ok(peer) => (peer, None),
            Err(fault) => {
                let last_networks = self.last_networks(object);
                networks = lessened(&last_networks, &networks);
                let more = (&*last_networks, &mut networks, &mut ports);
                match self.last(object, taken, more) {
                    Some(last) => (last, Some(fault)),
                    None => {
                        judged.verdict = Err(fault);
                        return judged;
                    }
                }
            }
        };
        taken.add(&peer, &networks, &ports, size(&peer, &networks, &ports));
        (judged.networks, judged.reverse_ports) = (networks, ports);
        match fault.or(wrong_port).or(wrong_network) {
            None => judged.verdict = Ok(peer),
            Some(fault) => (judged.verdict, judged.kept) = (Err(fault), Some(peer)),
        }
        judged
    }

    /// The networks and reverse ports that the object names. If it cannot be decoded, only those that
    /// the gateways have.
    fn asked<'b>(&self, object: &'b MuxPeer) -> (Cow<'b, [Cidr]>, Cow<'b, [String]>) {
        let (networks, ports) = (&object.spec.network_cidrs, &object.spec.reverse_ports);
        if undecoded::reason(object).is_none() {
            return (networks.into(), ports.into());
        }
        let networks = lessened(&self.last_networks(object), networks);
        let had = self.last_ports(&object.name_any());
        let kept = ports.iter().filter(|port| had.contains(&port.as_str()));
        (networks.into(), kept.cloned().collect())
    }

    /// The peer without its networks and reverse ports.
    fn own_fields(&self, object: &MuxPeer) -> Result<Peer, Problem> {
        if let Some(reason) = undecoded::reason(object) {
            return Err(Hindrance::Undecoded(reason.to_owned()).problem());
        }
        let spec = &object.spec;
        let keys = each("publicKeys", &spec.public_keys, |text| {
            GatewayKey::of_role(text, Role::Entry)
        });
        let peer = Peer {
            public_keys: keys.map_err(|problem| Problem::new(Code::KeyInvalid, problem))?,
            certificate_names: spec.certificate_names.clone(),
            ..self.without_identities(object)
        };
        self.check(&peer).map(|()| peer)
    }

    /// The fields that need no check.
    fn without_identities(&self, object: &MuxPeer) -> Peer {
        let spec = &object.spec;
        let limits = spec.limits.unwrap_or_default();
        Peer {
            name: Some(object.name_any()),
            suspend: spec.suspend,
            expiration_time: spec.expiration_time,
            allow: rules::canonical(&spec.allow, self.namespace),
            deny: rules::canonical(&spec.deny, self.namespace),
            limits: PeerLimits {
                carriers: limits.carriers.or(Some(PeerLimits::CARRIERS_DEFAULT)),
                ..limits
            },
            ..Peer::default()
        }
    }

    /// The gateway's check.
    fn check(&self, peer: &Peer) -> Result<(), Problem> {
        let one = std::slice::from_ref(peer);
        let checked = match peer.certificate_names.is_empty() {
            true => check_peers(one, PeerList::Entries, &self.own),
            false => check_certificate_peers(one, false),
        };
        checked.map_err(|found| {
            let code = match found.field.starts_with("publicKeys") {
                true => Code::KeyInvalid,
                false => Code::InvalidSpec,
            };
            Problem::new(code, format!("{} {}", found.field, found.problem))
        })
    }

    /// What the gateways have of a MuxPeer with a fault, without what it no longer lists and what older
    /// peers have. `None` if no key and no name is left. Shortens `more`, its last networks, its
    /// networks and its reverse ports, to the room that there is.
    fn last(
        &self,
        object: &MuxPeer,
        taken: &Taken,
        more: (&[Cidr], &mut Vec<Cidr>, &mut Vec<String>),
    ) -> Option<Peer> {
        let (spec, name) = (&object.spec, object.name_any());
        let peers = self
            .documents
            .iter()
            .flat_map(|document| items(document, &PEERS));
        let is_it = |peer: &&Value| peer.get("name").and_then(Value::as_str) == Some(&name);
        let found = peers.filter(is_it).cloned();
        let mut found = found.filter_map(|peer| serde_yaml::from_value::<Peer>(peer).ok());
        let mut last = taken.without(found.next()?);
        let keys = &mut last.public_keys;
        keys.retain(|key| spec.public_keys.contains(&key.to_string()));
        let names = &mut last.certificate_names;
        names.retain(|name| spec.certificate_names.contains(name));
        let last_rules = (last.allow.clone(), last.deny.clone());
        let mut new = match undecoded::reason(object) {
            Some(_) => {
                let ends = [last.expiration_time, spec.expiration_time];
                Peer {
                    suspend: last.suspend || spec.suspend,
                    expiration_time: ends.into_iter().flatten().min_by_key(|end| end.seconds()),
                    ..last
                }
            }
            None => Peer {
                public_keys: last.public_keys,
                certificate_names: last.certificate_names,
                ..self.without_identities(object)
            },
        };
        self.shorten(&mut new, last_rules, more, taken);
        self.check(&new).ok().map(|()| new)
    }

    /// Shortens a peer to the room that there is, if necessary to what the gateways have of it. Only
    /// `suspend`, `expirationTime` and `limits` need no room, because they may be reductions.
    fn shorten(
        &self,
        peer: &mut Peer,
        last_rules: (Vec<Rule>, Vec<Rule>),
        (last_networks, networks, ports): (&[Cidr], &mut Vec<Cidr>, &mut Vec<String>),
        taken: &Taken,
    ) {
        let is_full = |peer: &Peer, networks: &[Cidr], ports: &[String]| {
            taken.check_size(size(peer, networks, ports)).is_err()
        };
        if is_full(peer, networks, ports) {
            let had = self.last_ports(peer.name.as_deref().unwrap_or_default());
            ports.retain(|port| had.contains(&port.as_str()));
        }
        if is_full(peer, networks, ports) {
            (peer.allow, peer.deny) = last_rules;
        }
        if is_full(peer, networks, ports) {
            // The others are parts of a network that the gateways have. They may be many.
            networks.retain(|network| last_networks.contains(network));
        }
    }

    /// The reverse ports that the gateways have of the MuxPeer `name`.
    fn last_ports(&self, name: &str) -> Vec<&'a str> {
        let documents = self.documents.iter().copied();
        let listens = documents.flat_map(size::listens);
        let own = listens.filter(|(peer, _)| peer == name);
        let own: BTreeSet<_> = own.map(|(_, port)| port).collect();
        let ports = self.live.into_iter().flat_map(|live| &live.reverse_ports);
        let ports = ports.filter(|(_, port)| own.contains(port));
        ports.map(|(name, _)| name.as_str()).collect()
    }

    /// The networks that the gateways have of a MuxPeer.
    fn last_networks(&self, object: &MuxPeer) -> Vec<Cidr> {
        let name = object.name_any();
        let mut documents = self.documents.iter();
        let found = documents.find_map(|document| {
            let mut peers = items(document, &NETWORK_PEERS).iter();
            peers.find(|peer| peer.get("identity").and_then(Value::as_str) == Some(&name))
        });
        found.map_or(Vec::new(), cidrs_of)
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
                return Some(Problem::new(Code::ExitHasNoKeys, detail));
            }
            SecurityMode::PublicKeys => ("PublicKeys", "publicKeys", spec.public_keys.is_empty()),
            SecurityMode::Certificates => {
                let is_missing = spec.certificate_names.is_empty();
                ("Certificates", "certificateNames", is_missing)
            }
        };
        is_missing.then(|| wrong(format!("the exit has security mode {name}: set {field}")))
    }

    /// Whether the peer may serve the reverse port `name`.
    fn check_port(&self, name: &str, taken: &Taken) -> Result<(), Problem> {
        // Without the exit's spec, an older peer may name ports that it never had.
        let Some(exit) = self.exit else {
            return Ok(());
        };
        if !exit.reverse_ports.iter().any(|port| port.name == name) {
            return Err(wrong(format!(
                "reversePorts has {name}, which is not in reversePorts of the MuxExit: correct the name, or add the port there"
            )));
        }
        taken.check_port(name)
    }

    /// Whether the peer may have the network `network`.
    fn check_network(&self, network: Cidr, taken: &Taken) -> Result<(), Problem> {
        let checked = check_network_of_peer(network, &[network]);
        let checked = checked.map_err(|problem| wrong(format!("networkCIDRs: {problem}")));
        // Without the exit's spec, an older peer may name networks that it never had.
        let Some(exit) = self.exit else {
            return checked;
        };
        let Some(own) = &exit.network else {
            let detail = "networkCIDRs needs network of the MuxExit: remove networkCIDRs";
            return Err(wrong(detail));
        };
        if !own.peer_cidrs.iter().any(|bound| bound.has(network)) {
            return Err(wrong(format!(
                "networkCIDRs: {network} is not within network.peerCIDRs of the MuxExit"
            )));
        }
        checked?;
        let overlaps = |pool: &&Cidr| pool.has(network) || network.has(**pool);
        let pool = own.address_pools.iter().find(overlaps);
        match pool.filter(|_| !network.is_single()) {
            Some(pool) => {
                let detail = format!(
                    "networkCIDRs has {network}, which has addresses of network.addressPools {pool} of the MuxExit: choose \
                     another network, or single addresses of the pool"
                );
                Err(Problem::new(Code::NetworkConflict, detail))
            }
            None => taken.check_network(network),
        }
    }
}
