//! Maps an address to its side (entry or exit), and to the entry that owns it.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use muxtunnel_gateway_config::{self as config, Cidr, NetworkPeer};
use muxtunnel_packet::{DropReason, Packet};

use super::owner::Owner;
use super::pool::{Lease, Pools};
use super::prefixes::Prefixes;
use crate::io::transport::Side;

/// The addresses of a session.
#[derive(Debug)]
pub(super) struct Joined {
    pub(super) owner: Owner,
    /// Addresses that no other entry has. The list may be empty.
    pub(super) addresses: Vec<IpAddr>,
    /// Must live as long as the session.
    pub(super) lease: Option<Lease>,
}

/// The reason why a session gets no addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum NotJoined {
    #[error("network.peers does not name the peer")]
    Unknown,
    #[error(
        "All addresses of network.pool are assigned to entries with a session: use a larger pool"
    )]
    Exhausted,
}

/// The sessions whose addresses a change of the entries' networks concerns.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Changed {
    /// Whether the addresses are divided among entries for the first time, or are no longer divided.
    is_divided_anew: bool,
    /// The entries whose networks differ.
    identities: BTreeSet<String>,
    /// The owners of addresses of a pool that now belong to another entry.
    evicted: BTreeSet<Owner>,
}

impl Changed {
    /// Whether the change concerns the sessions of an entry.
    pub(super) fn concerns(&self, identity: Option<&str>, owner: Option<&Owner>) -> bool {
        self.is_divided_anew
            || identity.is_some_and(|identity| self.identities.contains(identity))
            || owner.is_some_and(|owner| self.evicted.contains(owner))
    }
}

/// The networks of both sides. An address belongs to the side with the longest prefix that contains
/// it.
pub(super) struct Addresses {
    side: Side,
    places: Prefixes<Place>,
    /// The networks of the entries, as configured.
    configured: RefCell<Vec<NetworkPeer>>,
    /// For each network, the identity of the entry that owns it. A running gateway reloads the list. Without `network.peers` and pools,
    /// one entry at a time owns all networks.
    peers: RefCell<Prefixes<Arc<str>>>,
    pools: Pools,
    /// At an entry: its assigned addresses. They belong to the entry's side, even if a prefix of
    /// the exit contains them.
    own: RefCell<Vec<IpAddr>>,
    /// Number of sessions without an identity so far.
    sessions: Cell<u64>,
    peers_reach_each_other: bool,
}

/// The side of an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Entry,
    Exit,
}

impl Addresses {
    pub(super) fn of(configured: &config::Network, side: Side) -> Self {
        let entry = networks(&configured.entry_cidrs).map(|network| (network, Place::Entry));
        // The exit's networks come last, so a network of both sides belongs to the exit.
        let exit = networks(&configured.exit_cidrs).map(|network| (network, Place::Exit));
        let (places, peers) = (Prefixes::of(entry.chain(exit)), divided(&configured.peers));
        // The pools of an entry do not divide its side.
        let pools = match side {
            Side::Accepts => configured.pool.as_slice(),
            Side::Dials => &[],
        };
        let pools = Pools::of(networks(pools), |address| {
            is_assignable(&places, &peers, address)
        });
        Self {
            side,
            places,
            configured: RefCell::new(configured.peers.clone()),
            peers: RefCell::new(peers),
            pools,
            own: RefCell::default(),
            sessions: Cell::new(0),
            peers_reach_each_other: configured.peers_reach_each_other,
        }
    }

    /// Whether one entry at a time has all networks of the entry's side.
    pub(super) fn has_one_entry(&self) -> bool {
        self.side == Side::Accepts && !self.has_several_entries()
    }

    fn has_several_entries(&self) -> bool {
        !self.peers.borrow().is_empty() || !self.pools.is_empty()
    }

    /// Replaces the networks of the entries.
    pub(super) fn set_peers(&self, new: &[NetworkPeer]) -> Changed {
        let old = self.configured.replace(new.to_vec());
        if old == new {
            return Changed::default();
        }
        let had_several = self.has_several_entries();
        self.peers.replace(divided(new));
        let peers = self.peers.borrow();
        let evicted = self
            .pools
            .refresh(|address| is_assignable(&self.places, &peers, address));
        drop(peers);
        let by_identity = |peers: &[NetworkPeer]| -> BTreeMap<String, Vec<Cidr>> {
            let peers = peers.iter().cloned();
            peers.map(|peer| (peer.identity, peer.cidrs)).collect()
        };
        let (old, new) = (by_identity(&old), by_identity(new));
        let all = old.keys().chain(new.keys());
        let differ = all.filter(|identity| old.get(*identity) != new.get(*identity));
        Changed {
            is_divided_anew: had_several != self.has_several_entries(),
            identities: differ.cloned().collect(),
            evicted,
        }
    }

    /// Returns the addresses of a session whose peer has this `identity`.
    ///
    /// # Errors
    /// [`NotJoined`].
    pub(super) fn join(&self, identity: Option<&str>) -> Result<Joined, NotJoined> {
        if !self.has_several_entries() {
            return Ok(Joined {
                owner: Owner::Side,
                addresses: Vec::new(),
                lease: None,
            });
        }
        let known = self.known(identity);
        if self.pools.is_empty() && known.is_none() {
            return Err(NotJoined::Unknown);
        }
        let is_known = known.is_some();
        let owner = match known.or_else(|| identity.map(Arc::from)) {
            Some(identity) => Owner::Peer(identity),
            None => {
                self.sessions.set(self.sessions.get() + 1);
                Owner::Session(self.sessions.get())
            }
        };
        let mut addresses = self.single_addresses(&owner);
        let (leased, lease) = self.pools.lease(&owner, &addresses);
        addresses.extend(leased);
        if addresses.is_empty() && !is_known {
            return Err(NotJoined::Exhausted);
        }
        Ok(Joined {
            owner,
            addresses,
            lease: Some(lease),
        })
    }

    /// The entry with `identity`, if it has networks.
    fn known(&self, identity: Option<&str>) -> Option<Arc<str>> {
        let peers = self.peers.borrow();
        let mut all = peers.iter();
        let known = all.find(|(_, peer)| Some(&***peer) == identity);
        known.map(|(_, peer)| Arc::clone(peer))
    }

    /// The addresses of those networks of `owner` in `network.peers` that have exactly one address.
    fn single_addresses(&self, owner: &Owner) -> Vec<IpAddr> {
        let is_its = |peer: &Arc<str>| matches!(owner, Owner::Peer(identity) if identity == peer);
        let peers = self.peers.borrow();
        let networks = peers.iter().filter(|(_, peer)| is_its(peer));
        let single =
            networks.filter(|(network, _)| network.prefix_len() == network.max_prefix_len());
        single.map(|(network, _)| network.addr()).collect()
    }

    /// Sets the addresses that the exit has assigned to this entry.
    pub(super) fn set_own(&self, addresses: &[IpAddr]) {
        self.own.replace(addresses.to_vec());
    }

    /// Whether an address is on the exit's side.
    pub(super) fn is_of_exit(&self, address: IpAddr) -> bool {
        self.place(address) == Some(Place::Exit)
    }

    /// Returns the owner of the destination of a packet that leaves this side.
    ///
    /// # Errors
    /// The source is not an address of this side, or the destination is not an address of the other
    /// side, or no entry owns the destination.
    pub(super) fn leaves(&self, packet: &Packet) -> Result<Owner, DropReason> {
        let (here, there) = self.here_and_there();
        if self.place(packet.source) != Some(here) {
            return Err(DropReason::SourceNotLocal);
        }
        if self.place(packet.destination) != Some(there) {
            return Err(DropReason::DestinationNotRemote);
        }
        self.entry_of(packet.destination)
    }

    /// Checks a packet of `from`. Returns the entry that the packet is for, or `None` if the packet
    /// is for the interface.
    ///
    /// # Errors
    /// The source address does not belong to `from` (ingress filtering, BCP 38), or `from` may not
    /// reach the destination.
    pub(super) fn arrives(
        &self,
        from: &Owner,
        packet: &Packet,
    ) -> Result<Option<Owner>, DropReason> {
        let (here, there) = self.here_and_there();
        if self.place(packet.source) != Some(there) {
            return Err(DropReason::SourceNotRemote);
        }
        if self.has_several_entries() && self.entry_of(packet.source).as_ref() != Ok(from) {
            return Err(DropReason::SourceOfOtherPeer);
        }
        match self.place(packet.destination) {
            Some(place) if place == here => Ok(None),
            Some(Place::Entry) if self.peers_reach_each_other => {
                let other = self.entry_of(packet.destination)?;
                match other == *from {
                    true => Err(DropReason::DestinationNotLocal),
                    false => Ok(Some(other)),
                }
            }
            _ => Err(DropReason::DestinationNotLocal),
        }
    }

    fn here_and_there(&self) -> (Place, Place) {
        match self.side {
            Side::Dials => (Place::Entry, Place::Exit),
            Side::Accepts => (Place::Exit, Place::Entry),
        }
    }

    /// The side with the longest prefix that contains `address`. If both sides have this prefix,
    /// the function returns the exit's side.
    fn place(&self, address: IpAddr) -> Option<Place> {
        if self.own.borrow().contains(&address) {
            return Some(Place::Entry);
        }
        self.places.longest(address).copied()
    }

    /// The entry with a lease of `address`, otherwise the entry with the longest prefix that
    /// contains `address`.
    fn entry_of(&self, address: IpAddr) -> Result<Owner, DropReason> {
        if !self.has_several_entries() {
            return Ok(Owner::Side);
        }
        if let Some(owner) = self.pools.owner_of(address) {
            return Ok(owner);
        }
        match self.peers.borrow().longest(address) {
            Some(peer) => Ok(Owner::Peer(Arc::clone(peer))),
            None => Err(DropReason::NoRoute),
        }
    }
}

/// The identity of the entry that owns each network.
fn divided(peers: &[NetworkPeer]) -> Prefixes<Arc<str>> {
    Prefixes::of(peers.iter().flat_map(|peer| {
        let identity: Arc<str> = Arc::from(peer.identity.as_str());
        networks(&peer.cidrs).map(move |network| (network, Arc::clone(&identity)))
    }))
}

/// Whether a pool may assign an address: it is on the entry's side, and no entry owns it.
fn is_assignable(places: &Prefixes<Place>, peers: &Prefixes<Arc<str>>, address: IpAddr) -> bool {
    places.longest(address) == Some(&Place::Entry) && peers.longest(address).is_none()
}

pub(super) fn networks(cidrs: &[Cidr]) -> impl Iterator<Item = IpNet> {
    cidrs.iter().filter_map(|cidr| cidr.network())
}
