//! Addresses that an exit gives to its entries: one of each pool for each identity, and for each session without one.
//!
//! The place of an identity in a pool is a hash of it, so that it has the same address at the next exit, and behind a restart.
//! Where another entry has that place, the next free one is taken: then the order in which entries came counts. An address
//! stays with its identity while the process lives, until a new entry finds no other: it gets the address of the one whose
//! last session ended first.
//!
//! Bounds: [`POOL_ADDRESSES_MAX`] addresses of a pool, however large its network is, and as many identities of at most
//! [`PEER_BYTES_MAX`](muxtunnel_gateway_config) bytes.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use ipnet::IpNet;
use parking_lot::Mutex;
use sha2::{Digest, Sha256};

use super::addresses::Owner;

/// Addresses of a pool that are given out, of however large a network: the first ones.
const POOL_ADDRESSES_MAX: u32 = 65_536;
/// The network's own address, and the first, which is for the exit.
const RESERVED: u32 = 2;

/// The pools of an exit.
#[derive(Debug, Clone, Default)]
pub(super) struct Pools(Arc<Mutex<Vec<Pool>>>);

/// What one session has of the pools, until it is dropped.
#[derive(Debug)]
pub(super) struct Lease {
    pools: Pools,
    owner: Owner,
}

impl Drop for Lease {
    fn drop(&mut self) {
        let mut pools = self.pools.0.lock();
        pools.iter_mut().for_each(|pool| pool.release(&self.owner));
    }
}

impl Pools {
    /// `is_free`: whether an address may be given out.
    pub(super) fn of(
        networks: impl IntoIterator<Item = IpNet>,
        is_free: impl Fn(IpAddr) -> bool,
    ) -> Self {
        let pools = networks
            .into_iter()
            .map(|network| Pool::new(network, &is_free));
        Self(Arc::new(Mutex::new(pools.collect())))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }

    /// An address of each pool that has one and none of `own`, for one more session of `owner`.
    pub(super) fn lease(&self, owner: &Owner, own: &[IpAddr]) -> (Vec<IpAddr>, Lease) {
        let mut pools = self.0.lock();
        let wanted = pools
            .iter_mut()
            .filter(|pool| !own.iter().any(|address| pool.network.contains(address)));
        let addresses = wanted.filter_map(|pool| pool.assign(owner)).collect();
        drop(pools);
        let lease = Lease {
            pools: self.clone(),
            owner: owner.clone(),
        };
        (addresses, lease)
    }

    /// Whose an address of a pool is.
    pub(super) fn owner_of(&self, address: IpAddr) -> Option<Owner> {
        let pools = self.0.lock();
        let mut owners = pools.iter().filter_map(|pool| pool.owner_of(address));
        owners.next().cloned()
    }
}

/// The addresses of one network.
#[derive(Debug)]
struct Pool {
    network: IpNet,
    /// By the offset from the network's address: whether it may be given out.
    free: Vec<bool>,
    /// How many may.
    count: usize,
    leases: BTreeMap<Owner, Held>,
    owners: BTreeMap<u32, Owner>,
    /// Those without a session, by when the last one ended.
    released: BTreeMap<u64, Owner>,
    releases: u64,
}

#[derive(Debug, Clone, Copy)]
struct Held {
    offset: u32,
    /// Of its owner.
    sessions: u32,
    /// Without a session: the place in [`Pool::released`].
    released: u64,
}

impl Pool {
    fn new(network: IpNet, is_free: &impl Fn(IpAddr) -> bool) -> Self {
        let network = network.trunc();
        let host_bits = u32::from(network.max_prefix_len() - network.prefix_len());
        let size = 1_u32.checked_shl(host_bits).unwrap_or(POOL_ADDRESSES_MAX);
        let has_broadcast = network.network().is_ipv4() && size <= POOL_ADDRESSES_MAX;
        let size = size.min(POOL_ADDRESSES_MAX);
        let end = size - u32::from(has_broadcast);
        let may = |offset| (RESERVED..end).contains(&offset) && is_free(at(network, offset));
        let free: Vec<_> = (0..size).map(may).collect();
        Self {
            network,
            count: free.iter().filter(|may| **may).count(),
            free,
            leases: BTreeMap::new(),
            owners: BTreeMap::new(),
            released: BTreeMap::new(),
            releases: 0,
        }
    }

    /// The address of `owner`, who has one more session; `None`: all are of entries that have a session.
    fn assign(&mut self, owner: &Owner) -> Option<IpAddr> {
        if let Some(held) = self.leases.get_mut(owner) {
            if held.sessions == 0 {
                self.released.remove(&held.released);
            }
            held.sessions += 1;
            return Some(at(self.network, held.offset));
        }
        let offset = self.unowned(owner)?;
        let held = Held {
            offset,
            sessions: 1,
            released: 0,
        };
        self.leases.insert(owner.clone(), held);
        self.owners.insert(offset, owner.clone());
        Some(at(self.network, offset))
    }

    /// An offset that nobody has: the next one from the place of `owner`, else that of the owner who was released first.
    fn unowned(&mut self, owner: &Owner) -> Option<u32> {
        if self.leases.len() < self.count {
            let size = self.free.len() as u64;
            let place = place(owner) % size;
            let mut places = (place..size).chain(0..place).map(|offset| offset as u32);
            return places
                .find(|offset| self.free[*offset as usize] && !self.owners.contains_key(offset));
        }
        let (_, released) = self.released.pop_first()?;
        self.forget(&released)
    }

    /// Returns the offset that it had.
    fn forget(&mut self, owner: &Owner) -> Option<u32> {
        let held = self.leases.remove(owner)?;
        self.owners.remove(&held.offset);
        Some(held.offset)
    }

    /// One session of `owner` less.
    fn release(&mut self, owner: &Owner) {
        let Some(held) = self.leases.get_mut(owner) else {
            return;
        };
        held.sessions = held.sessions.saturating_sub(1);
        if held.sessions > 0 {
            return;
        }
        if matches!(owner, Owner::Session(_)) {
            self.forget(owner);
            return;
        }
        self.releases += 1;
        held.released = self.releases;
        self.released.insert(self.releases, owner.clone());
    }

    fn owner_of(&self, address: IpAddr) -> Option<&Owner> {
        let offset = offset(self.network, address)?;
        self.owners.get(&offset)
    }
}

/// Where in a pool the search for an address begins. A part of docs/ip.md: with it the addresses of entries change.
fn place(owner: &Owner) -> u64 {
    match owner {
        Owner::Peer(identity) => {
            let [a, b, c, d, e, f, g, h, ..] = Sha256::digest(identity.as_bytes()).into();
            u64::from_be_bytes([a, b, c, d, e, f, g, h])
        }
        Owner::Session(number) => *number,
        Owner::Side => 0,
    }
}

fn at(network: IpNet, offset: u32) -> IpAddr {
    match network.network() {
        IpAddr::V4(first) => Ipv4Addr::from_bits(first.to_bits().saturating_add(offset)).into(),
        IpAddr::V6(first) => {
            Ipv6Addr::from_bits(first.to_bits().saturating_add(offset.into())).into()
        }
    }
}

/// `None`: it is none of the network's, or too far behind its beginning to be given out.
fn offset(network: IpNet, address: IpAddr) -> Option<u32> {
    let offset = match (network.network(), address) {
        (IpAddr::V4(first), IpAddr::V4(address)) => {
            u128::from(address.to_bits().checked_sub(first.to_bits())?)
        }
        (IpAddr::V6(first), IpAddr::V6(address)) => {
            address.to_bits().checked_sub(first.to_bits())?
        }
        _ => return None,
    };
    u32::try_from(offset).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(identity: &str) -> Owner {
        Owner::Peer(identity.into())
    }

    fn pool(network: &str) -> Pool {
        Pool::new(network.parse().unwrap(), &|_| true)
    }

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn an_identity_has_the_address_of_its_hash_also_behind_a_restart() {
        for (network, laptop, phone) in [
            ("10.72.0.0/24", "10.72.0.55", "10.72.0.244"),
            ("fd72::/64", "fd72::8337", "fd72::7bf4"),
        ] {
            for order in [["laptop", "phone"], ["phone", "laptop"]] {
                let mut pool = pool(network);
                order.map(|identity| pool.assign(&peer(identity)).unwrap());
                assert_eq!(pool.assign(&peer("laptop")), Some(address(laptop)));
                assert_eq!(pool.assign(&peer("phone")), Some(address(phone)));
                assert_eq!(pool.owner_of(address(phone)), Some(&peer("phone")));
            }
        }
    }

    #[test]
    fn the_networks_address_the_exits_the_broadcast_and_those_of_others_are_not_given_out() {
        let taken = address("10.72.0.4");
        let mut pool = Pool::new("10.72.0.0/29".parse().unwrap(), &|other| other != taken);
        let mut given: Vec<_> = (0..4)
            .map(|number| pool.assign(&peer(&number.to_string())).unwrap())
            .collect();
        given.sort();
        assert_eq!(
            given,
            ["10.72.0.2", "10.72.0.3", "10.72.0.5", "10.72.0.6"].map(address)
        );
        assert_eq!(pool.assign(&peer("one more")), None);
        // IPv6 has no broadcast.
        let mut least = super::tests::pool("fd72::/126");
        let mut given = ["a", "b"].map(|identity| least.assign(&peer(identity)).unwrap());
        given.sort();
        assert_eq!(given, ["fd72::2", "fd72::3"].map(address));
        assert_eq!(least.assign(&peer("c")), None);
    }

    #[test]
    fn where_all_are_taken_the_one_that_was_released_first_is_given_to_another() {
        let mut pool = pool("10.72.0.0/29");
        let owners = ["a", "b", "c", "d", "e"].map(peer);
        let addresses = owners.each_ref().map(|owner| pool.assign(owner).unwrap());
        pool.assign(&owners[1]).unwrap();
        for owner in [&owners[1], &owners[3], &owners[2]] {
            pool.release(owner);
        }
        assert_eq!(
            pool.assign(&peer("f")),
            Some(addresses[3]),
            "b has a session"
        );
        assert_eq!(pool.assign(&owners[2]), Some(addresses[2]), "it kept it");
        assert_eq!(pool.assign(&peer("g")), None);
        assert_eq!(pool.owner_of(addresses[3]), Some(&peer("f")));
        assert_eq!(pool.leases.len(), 5);
    }

    #[test]
    fn a_session_without_an_identity_has_an_address_until_it_ends() {
        let pools = Pools::of(
            ["10.72.0.0/24", "fd72::/64"].map(|net| net.parse().unwrap()),
            |_| true,
        );
        let (first, second) = (Owner::Session(7), Owner::Session(8));
        let (mine, lease) = pools.lease(&first, &[]);
        let (others, _other) = pools.lease(&second, &[address("fd72::1")]);
        assert_eq!(mine, ["10.72.0.7", "fd72::7"].map(address));
        assert_eq!(
            others,
            [address("10.72.0.8")],
            "it has one of the other pool"
        );
        assert_eq!(pools.owner_of(mine[1]), Some(first));
        drop(lease);
        assert_eq!(pools.owner_of(mine[1]), None);
        assert_eq!(pools.owner_of(others[0]), Some(second));
        assert_eq!(pools.owner_of(address("192.0.2.1")), None);
    }

    #[test]
    fn a_large_network_is_bounded() {
        for network in ["10.0.0.0/8", "fd72::/64", "::/0"] {
            let mut pool = pool(network);
            let may = POOL_ADDRESSES_MAX - RESERVED;
            for number in 0..u64::from(may) {
                assert!(pool.assign(&Owner::Session(number)).is_some(), "{number}");
            }
            assert_eq!(pool.assign(&peer("one more")), None);
        }
    }
}
