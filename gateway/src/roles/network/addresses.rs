//! Whose an address is: the entry's side or the exit's, and which entry's.

use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use muxtunnel_gateway_config::{self as config, Cidr};
use muxtunnel_packet::{DropReason, Packet};

use crate::io::transport::Side;

/// Whose addresses are: the entry that proved this; `None`: they are all of the other side's.
pub(super) type Owner = Option<Arc<str>>;

/// The networks of both sides. An address belongs to the longest prefix.
pub(super) struct Addresses {
    side: Side,
    entry: Vec<IpNet>,
    exit: Vec<IpNet>,
    /// The networks of each entry; empty: one entry at a time has all.
    peers: Vec<(Arc<str>, Vec<IpNet>)>,
    peers_reach_each_other: bool,
}

/// Where an address is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Entry,
    Exit,
}

impl Addresses {
    pub(super) fn of(configured: &config::Network, side: Side) -> Self {
        let peers = configured.peers.iter();
        let peers = peers.map(|peer| (Arc::from(peer.identity.as_str()), networks(&peer.cidrs)));
        Self {
            side,
            entry: networks(&configured.entry_cidrs),
            exit: networks(&configured.exit_cidrs),
            peers: peers.collect(),
            peers_reach_each_other: configured.peers_reach_each_other,
        }
    }

    /// Whether one entry at a time has all networks of the entry's side.
    pub(super) fn has_one_entry(&self) -> bool {
        self.side == Side::Accepts && self.peers.is_empty()
    }

    /// Whom a session with the peer of that identity belongs to; `None`: it has no networks.
    pub(super) fn owner(&self, identity: Option<&str>) -> Option<Owner> {
        if self.peers.is_empty() {
            return Some(None);
        }
        let (known, _) = self
            .peers
            .iter()
            .find(|(peer, _)| Some(&**peer) == identity)?;
        Some(Some(Arc::clone(known)))
    }

    /// Whose a packet is that leaves this side.
    ///
    /// # Errors
    /// The packet is none of this side's, or its destination has no owner.
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

    /// Whether a packet of `from` may arrive: `None`: at the interface; else it is another entry's.
    ///
    /// # Errors
    /// Its source is not one of `from` (BCP 38), or its destination is not on this side.
    pub(super) fn arrives(
        &self,
        from: &Owner,
        packet: &Packet,
    ) -> Result<Option<Owner>, DropReason> {
        let (here, there) = self.here_and_there();
        if self.place(packet.source) != Some(there) {
            return Err(DropReason::SourceNotRemote);
        }
        if !self.peers.is_empty() && self.entry_of(packet.source).as_ref() != Ok(from) {
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

    /// The side with the longest prefix that has it; the exit's where they are as long.
    fn place(&self, address: IpAddr) -> Option<Place> {
        match (longest(&self.entry, address), longest(&self.exit, address)) {
            (None, None) => None,
            (entry, exit) if entry > exit => Some(Place::Entry),
            _ => Some(Place::Exit),
        }
    }

    /// The entry with the longest prefix that has it.
    fn entry_of(&self, address: IpAddr) -> Result<Owner, DropReason> {
        if self.peers.is_empty() {
            return Ok(None);
        }
        let peers = self.peers.iter();
        let having = peers.filter_map(|(peer, networks)| Some((longest(networks, address)?, peer)));
        match having.max_by_key(|(length, _)| *length) {
            Some((_, peer)) => Ok(Some(Arc::clone(peer))),
            None => Err(DropReason::NoRoute),
        }
    }
}

fn networks(cidrs: &[Cidr]) -> Vec<IpNet> {
    cidrs.iter().filter_map(|cidr| cidr.network()).collect()
}

/// The length of the longest prefix that has it, bits.
fn longest(networks: &[IpNet], address: IpAddr) -> Option<u8> {
    let having = networks.iter().filter(|network| network.contains(&address));
    having.map(IpNet::prefix_len).max()
}
