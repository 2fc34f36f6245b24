//! Which peer has which addresses: the routes of an exit with several entries.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;

/// Prefixes of all peers. Of 64 bytes or less each: at most 256 KiB.
pub const PREFIXES_MAX: usize = 4096;

/// Why a prefix is not a peer's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PeersError {
    /// Another peer has just this one.
    #[error("{prefix} is already peer {peer}'s")]
    Taken {
        /// The prefix.
        prefix: IpNet,
        /// Whose it is.
        peer: u32,
    },
    /// There are as many as there may be.
    #[error("there are {PREFIXES_MAX} prefixes already, the most that is kept")]
    Full,
}

/// Prefixes and their peers; a peer is a number of the owner's.
#[derive(Clone, Debug, Default)]
pub struct Peers {
    /// By length, the longest last. IPv4 has lengths of its own, by the first of the key.
    lengths: BTreeMap<(bool, u8), BTreeMap<u128, u32>>,
    prefixes: usize,
}

impl Peers {
    /// Gives a peer a prefix. It may be within one of another peer: the longest counts.
    ///
    /// # Errors
    /// It is another peer's, or there are too many.
    pub fn insert(&mut self, prefix: IpNet, peer: u32) -> Result<(), PeersError> {
        let prefix = prefix.trunc();
        let address = prefix.network();
        let key = (address.is_ipv6(), prefix.prefix_len());
        let known = self
            .lengths
            .get(&key)
            .and_then(|of_length| of_length.get(&bits(address)));
        match known {
            Some(owner) if *owner == peer => return Ok(()),
            Some(owner) => {
                return Err(PeersError::Taken {
                    prefix,
                    peer: *owner,
                });
            }
            None if self.prefixes == PREFIXES_MAX => return Err(PeersError::Full),
            None => {}
        }
        self.lengths
            .entry(key)
            .or_default()
            .insert(bits(address), peer);
        self.prefixes += 1;
        Ok(())
    }

    /// The peer with the longest prefix of an address.
    #[must_use]
    pub fn lookup(&self, address: IpAddr) -> Option<u32> {
        let is_ipv6 = address.is_ipv6();
        let of_version = self.lengths.range((is_ipv6, 0)..=(is_ipv6, 128));
        of_version.rev().find_map(|((_, length), of_length)| {
            let network = IpNet::new(address, *length).ok()?.network();
            of_length.get(&bits(network)).copied()
        })
    }

    /// Takes all prefixes of a peer.
    pub fn remove(&mut self, peer: u32) {
        self.lengths.retain(|_, of_length| {
            of_length.retain(|_, owner| *owner != peer);
            !of_length.is_empty()
        });
        self.prefixes = self.lengths.values().map(BTreeMap::len).sum();
    }
}

fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => address.to_bits().into(),
        IpAddr::V6(address) => address.to_bits(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn insert(peers: &mut Peers, prefix: &str, peer: u32) -> Result<(), PeersError> {
        peers.insert(prefix.parse().unwrap(), peer)
    }

    fn lookup(peers: &Peers, address: &str) -> Option<u32> {
        peers.lookup(address.parse().unwrap())
    }

    #[test]
    fn the_longest_prefix_counts() {
        let mut peers = Peers::default();
        insert(&mut peers, "10.0.0.0/8", 1).unwrap();
        insert(&mut peers, "10.1.0.0/16", 2).unwrap();
        insert(&mut peers, "10.1.2.3/32", 3).unwrap();
        insert(&mut peers, "fd00::/8", 4).unwrap();
        insert(&mut peers, "::/0", 5).unwrap();
        assert_eq!(lookup(&peers, "10.9.9.9"), Some(1));
        assert_eq!(lookup(&peers, "10.1.9.9"), Some(2));
        assert_eq!(lookup(&peers, "10.1.2.3"), Some(3));
        assert_eq!(lookup(&peers, "11.1.2.3"), None);
        assert_eq!(lookup(&peers, "fd00::1"), Some(4));
        assert_eq!(lookup(&peers, "2001:db8::1"), Some(5));
    }

    #[test]
    fn a_prefix_has_one_peer_until_that_is_removed() {
        let mut peers = Peers::default();
        insert(&mut peers, "10.1.0.7/16", 1).unwrap();
        insert(&mut peers, "10.1.0.0/16", 1).unwrap();
        assert_eq!(
            insert(&mut peers, "10.1.0.0/16", 2),
            Err(PeersError::Taken {
                prefix: "10.1.0.0/16".parse().unwrap(),
                peer: 1
            })
        );
        peers.remove(1);
        assert_eq!(lookup(&peers, "10.1.0.1"), None);
        assert_eq!(insert(&mut peers, "10.1.0.0/16", 2), Ok(()));
        assert_eq!(lookup(&peers, "10.1.0.1"), Some(2));
    }

    #[test]
    fn prefixes_are_bounded() {
        let mut peers = Peers::default();
        for index in 0..PREFIXES_MAX {
            let address = std::net::Ipv4Addr::from_bits(u32::try_from(index).unwrap() << 8);
            peers
                .insert(IpNet::new(address.into(), 24).unwrap(), 1)
                .unwrap();
        }
        assert_eq!(insert(&mut peers, "fd00::/64", 2), Err(PeersError::Full));
        assert_eq!(insert(&mut peers, "0.0.0.0/24", 1), Ok(()));
        peers.remove(1);
        assert_eq!(insert(&mut peers, "fd00::/64", 2), Ok(()));
    }
}
