//! What the MuxPeers of an exit have. Tables find an owner without a comparison of all pairs, because
//! anyone who may create MuxPeers decides how many names and networks there are. Pure.

use std::collections::BTreeMap;
use std::net::IpAddr;

use muxtunnel_codes::Code;
use muxtunnel_gateway_config::{Cidr, KEY_BYTES, PEERS_MAX, Peer};

use crate::tunnel_controller::problem::Problem;

/// Bytes of each MuxPeer in the gateways' configuration that no other MuxPeer takes.
const PEER_BYTES: usize = 1 << 10;
/// Bytes in addition, which the MuxPeers of an exit share. Both bounds together leave room for a second
/// configuration in the ConfigMap, that of earlier pods in a roll-out.
const SHARED_BYTES: usize = 128 << 10;

/// The keys, names, networks and reverse ports of the older MuxPeers of one security mode, with their
/// owners.
#[derive(Default)]
pub(super) struct Taken {
    /// Number of MuxPeers.
    count: usize,
    /// Bytes of [`SHARED_BYTES`], with those of `reserved`.
    bytes: usize,
    /// Bytes of [`SHARED_BYTES`] that younger MuxPeers have in the gateways' configuration, by name. So no
    /// growth of an older one ends their carriers.
    reserved: BTreeMap<String, usize>,
    /// Bytes of [`SHARED_BYTES`] that the present MuxPeer has there.
    own: usize,
    keys: BTreeMap<[u8; KEY_BYTES], String>,
    /// Names that are no patterns.
    names: BTreeMap<String, String>,
    /// The patterns without their final `*`.
    stems: BTreeMap<String, String>,
    /// By the first address: the last address. Networks of different owners do not overlap.
    networks: BTreeMap<Address, (Address, Cidr, String)>,
    reverse_ports: BTreeMap<String, String>,
}

/// An address that is ordered within its family.
type Address = (bool, u128);

impl Taken {
    /// Reserves what the MuxPeer `name` has: `bytes` bytes in the gateways' configuration.
    pub(super) fn reserve(&mut self, name: String, bytes: usize) {
        let bytes = shared(bytes);
        self.bytes = self.bytes.saturating_add(bytes);
        self.reserved.insert(name, bytes);
    }

    /// Takes a place for one more MuxPeer, the present one from now on. Whatever the verdict is, the
    /// operator has to read the object, so the places bound its work.
    pub(super) fn place(&mut self, name: &str) -> Result<(), Problem> {
        self.own = self.reserved.remove(name).unwrap_or(0);
        self.bytes = self.bytes.saturating_sub(self.own);
        if self.count == PEERS_MAX {
            let detail = format!("the exit has {PEERS_MAX} older MuxPeers: delete some of them");
            return Err(Problem::new(Code::ExitFull, detail));
        }
        self.count += 1;
        Ok(())
    }

    /// Checks that no older peer has a key or a name of `peer`.
    pub(super) fn check(&self, peer: &Peer) -> Result<(), Problem> {
        for key in &peer.public_keys {
            if let Some(owner) = self.keys.get(key.bytes()) {
                let detail = format!("MuxPeer {owner} has the key {key} as well, and is older");
                return Err(Problem::new(Code::KeyConflict, detail));
            }
        }
        for name in &peer.certificate_names {
            if let Some((other, owner)) = self.of_name(name) {
                let detail = format!(
                    "certificateNames has {name}, and the older MuxPeer {owner} has {other}: a certificate could belong to both"
                );
                return Err(Problem::new(Code::KeyConflict, detail));
            }
        }
        Ok(())
    }

    /// Checks that the present peer has room for `bytes` bytes: it had them, or they are free beside older
    /// peers and the reserved bytes.
    pub(super) fn check_size(&self, bytes: usize) -> Result<(), Problem> {
        let room = PEER_BYTES + SHARED_BYTES.saturating_sub(self.bytes).max(self.own);
        if bytes <= room {
            return Ok(());
        }
        let detail = format!(
            "the peer has {bytes} bytes in the gateways' configuration, and the other MuxPeers leave it {room}: use fewer or \
             wider rules, names and networks, or delete other MuxPeers"
        );
        Err(Problem::new(Code::ExitFull, detail))
    }

    /// The peer without keys and names of older peers.
    pub(super) fn without(&self, mut peer: Peer) -> Peer {
        let keys = &mut peer.public_keys;
        keys.retain(|key| !self.keys.contains_key(key.bytes()));
        let names = &mut peer.certificate_names;
        names.retain(|name| self.of_name(name).is_none());
        peer
    }

    /// A name or pattern that a certificate may have together with `name`, and its owner.
    fn of_name(&self, name: &str) -> Option<(String, &str)> {
        let own_stem = name.strip_suffix('*').filter(|stem| stem.ends_with('/'));
        let above = own_stem.unwrap_or(name);
        let slashes = above.match_indices('/').map(|(at, _)| &above[..=at]);
        let mut stems = slashes.filter_map(|stem| Some((stem, self.stems.get(stem)?)));
        if let Some((stem, owner)) = stems.next() {
            return Some((format!("{stem}*"), owner));
        }
        let found = match own_stem {
            None => self.names.get_key_value(name),
            Some(stem) => first_below(&self.names, stem),
        };
        if let Some((other, owner)) = found {
            return Some((other.clone(), owner));
        }
        let (below, owner) = first_below(&self.stems, own_stem?)?;
        Some((format!("{below}*"), owner))
    }

    /// Checks that no older peer has an address of `network`.
    pub(super) fn check_network(&self, network: Cidr) -> Result<(), Problem> {
        let Some((first, last)) = bounds(network) else {
            return Ok(());
        };
        let before = self.networks.range(..=last).next_back();
        match before.filter(|(_, (end, ..))| *end >= first) {
            Some((_, (_, other, owner))) => {
                let detail = format!(
                    "networkCIDRs has {network}, and the older MuxPeer {owner} has {other}: choose networks that do not overlap"
                );
                Err(Problem::new(Code::NetworkConflict, detail))
            }
            None => Ok(()),
        }
    }

    /// Checks that no older peer has the reverse port `name`. Otherwise each peer would have the port in
    /// some pods of the exit.
    pub(super) fn check_port(&self, name: &str) -> Result<(), Problem> {
        let Some(owner) = self.reverse_ports.get(name) else {
            return Ok(());
        };
        let detail = format!(
            "reversePorts has {name}, and the older MuxPeer {owner} has it as well: remove the port from one of both"
        );
        Err(Problem::new(Code::PortConflict, detail))
    }

    /// Adds what a peer of `bytes` bytes has. It has been checked.
    pub(super) fn add(&mut self, peer: &Peer, networks: &[Cidr], ports: &[String], bytes: usize) {
        self.bytes = self.bytes.saturating_add(shared(bytes));
        let owner = peer.name.clone().unwrap_or_default();
        let ports = ports.iter().map(|port| (port.clone(), owner.clone()));
        self.reverse_ports.extend(ports);
        let keys = peer.public_keys.iter().map(|key| *key.bytes());
        self.keys.extend(keys.map(|key| (key, owner.clone())));
        for name in &peer.certificate_names {
            match name.strip_suffix('*').filter(|stem| stem.ends_with('/')) {
                Some(stem) => self.stems.insert(stem.to_owned(), owner.clone()),
                None => self.names.insert(name.clone(), owner.clone()),
            };
        }
        let bounded = networks.iter();
        let bounded = bounded.filter_map(|network| Some((bounds(*network)?, *network)));
        let mut bounded: Vec<_> = bounded.collect();
        // A network comes before those that it contains, which the table does not need.
        bounded.sort_by_key(|((first, last), _)| (*first, std::cmp::Reverse(*last)));
        let mut covered = None;
        for ((first, last), network) in bounded {
            if covered.is_none_or(|covered| last > covered) {
                self.networks.insert(first, (last, network, owner.clone()));
                covered = Some(last);
            }
        }
    }
}

/// The part of `bytes` that is not within [`PEER_BYTES`].
fn shared(bytes: usize) -> usize {
    bytes.saturating_sub(PEER_BYTES)
}

/// The first name that begins with `stem`.
fn first_below<'a>(
    names: &'a BTreeMap<String, String>,
    stem: &str,
) -> Option<(&'a String, &'a String)> {
    let found = names.range(stem.to_owned()..).next();
    found.filter(|(name, _)| name.starts_with(stem))
}

/// The first and the last address.
fn bounds(network: Cidr) -> Option<(Address, Address)> {
    let network = network.network()?;
    let address = |address: IpAddr| match address {
        IpAddr::V4(v4) => (false, v4.to_bits().into()),
        IpAddr::V6(v6) => (true, v6.to_bits()),
    };
    Some((address(network.network()), address(network.broadcast())))
}

#[cfg(test)]
mod tests {
    use muxtunnel_gateway_config::NETWORK_CIDRS_MAX;

    use super::*;

    fn named(owner: &str, names: &[&str]) -> Peer {
        Peer {
            name: Some(owner.to_owned()),
            certificate_names: names.iter().map(|name| (*name).to_owned()).collect(),
            ..Peer::default()
        }
    }

    #[test]
    fn a_certificate_belongs_to_one_peer_alone() {
        for (one, other, expected) in [
            ("spiffe://a/ns/x", "spiffe://a/ns/x", true),
            ("spiffe://a/ns/x", "spiffe://a/ns/y", false),
            ("spiffe://a/ns/*", "spiffe://a/ns/x/mt/near/entry", true),
            ("spiffe://a/ns/*", "spiffe://a/ns/*", true),
            ("spiffe://a/*", "spiffe://a/ns/*", true),
            ("spiffe://a/ns/*", "spiffe://a/nsx", false),
            ("spiffe://a/ns/*", "spiffe://a/nsx/*", false),
            // Without a slash, the text is the whole name.
            ("a*", "ab", false),
        ] {
            for (one, other) in [(one, other), (other, one)] {
                let mut taken = Taken::default();
                taken.add(&named("older", &["m", "spiffe://z/*", one]), &[], &[], 0);
                let checked = taken.check(&named("newer", &[other]));
                assert_eq!(checked.is_err(), expected, "{one} {other}");
                let rest = taken.without(named("newer", &["kept", other]));
                assert_eq!(rest.certificate_names.len(), 2 - usize::from(expected));
            }
        }
    }

    #[test]
    fn an_address_belongs_to_one_peer_alone() {
        let parsed = |texts: &[&str]| -> Vec<Cidr> {
            texts.iter().map(|text| text.parse().unwrap()).collect()
        };
        let mut taken = Taken::default();
        let own = [
            "10.1.0.0/16",
            "10.1.2.0/24",
            "10.3.0.0/24",
            "fd00::/64",
            "10.0.0.7",
        ];
        taken.add(&named("older", &[]), &parsed(&own), &[], 0);
        taken.add(&named("second", &[]), &parsed(&["10.2.0.0/16"]), &[], 0);
        for (network, owner) in [
            ("10.1.2.3", Some("older")),
            ("10.1.255.0/24", Some("older")),
            ("10.0.0.0/8", Some("older")),
            ("10.2.1.0/24", Some("second")),
            ("10.2.0.0/15", Some("older")),
            ("10.0.0.0/29", Some("older")),
            ("fd00::1", Some("older")),
            ("::/1", None),
            ("10.0.0.8/29", None),
            ("10.3.1.0/24", None),
            ("10.4.0.0/14", None),
            ("fd00:0:0:1::/64", None),
        ] {
            let found = taken.check_network(network.parse().unwrap());
            let detail = found.err().map(|problem| problem.detail);
            let names = |owner: &str| format!("the older MuxPeer {owner} has");
            match owner {
                Some("older") if network == "10.2.0.0/15" => assert!(detail.is_some()),
                Some(owner) => assert!(detail.unwrap().contains(&names(owner)), "{network}"),
                None => assert_eq!(detail, None, "{network}"),
            }
        }
    }

    #[test]
    fn a_peer_has_the_room_that_it_had_and_what_the_others_leave() {
        let mut taken = Taken::default();
        taken.reserve("first".to_owned(), PEER_BYTES / 2);
        taken.reserve("second".to_owned(), PEER_BYTES + SHARED_BYTES / 2);
        taken.reserve("third".to_owned(), PEER_BYTES + SHARED_BYTES / 2 + 7);
        let room = |taken: &Taken, bytes: usize| {
            taken.check_size(bytes).unwrap();
            assert_eq!(
                taken.check_size(bytes + 1).unwrap_err().code,
                Code::ExitFull
            );
        };
        taken.place("first").unwrap();
        room(&taken, PEER_BYTES);
        taken.add(&named("first", &[]), &[], &[], PEER_BYTES);
        // Each one has what it had, although all together have more than there is.
        taken.place("second").unwrap();
        room(&taken, PEER_BYTES + SHARED_BYTES / 2);
        taken.add(&named("second", &[]), &[], &[], PEER_BYTES + 100);
        taken.place("third").unwrap();
        let bytes = PEER_BYTES + SHARED_BYTES - 100;
        room(&taken, bytes);
        taken.add(&named("third", &[]), &[], &[], bytes);
        taken.place("new").unwrap();
        room(&taken, PEER_BYTES);
    }

    /// 256 peers with 64 networks each. A comparison of all pairs would take 134 million steps.
    #[test]
    fn a_full_exit_is_read_once() {
        let mut taken = Taken::default();
        for peer in 0..PEERS_MAX {
            taken.place(&peer.to_string()).unwrap();
            let number =
                |network: usize| u32::try_from(peer * NETWORK_CIDRS_MAX + network).unwrap();
            let networks = (0..NETWORK_CIDRS_MAX)
                .map(|network| Cidr::single(std::net::Ipv4Addr::from_bits(number(network)).into()));
            let networks: Vec<_> = networks.collect();
            for network in &networks {
                taken.check_network(*network).unwrap();
            }
            taken.add(&named(&peer.to_string(), &[]), &networks, &[], 0);
        }
        assert_eq!(taken.place("last").unwrap_err().code, Code::ExitFull);
        assert_eq!(taken.networks.len(), PEERS_MAX * NETWORK_CIDRS_MAX);
    }
}
