//! Assigns addresses to entries. Each identity, and each session without an identity, gets one
//! address from each pool.
//!
//! The first candidate for an identity is the address at the hash of the identity. So an entry gets
//! the same address at another exit, and after a restart. If another entry has that address, the
//! entry gets the next free address. In this case, the address depends on the order in which
//! entries connect. An identity keeps its address until the process ends or the pool is full. From
//! a full pool, a new entry gets the address of the entry whose last session ended first.
//!
//! Bounds: a pool has at most [`POOL_ADDRESSES_MAX`] addresses and stores at most as many
//! identities. An identity has at most [`PEER_BYTES_MAX`](muxtunnel_gateway_config) bytes.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use ipnet::IpNet;
use parking_lot::Mutex;
use sha2::{Digest, Sha256};

use super::owner::Owner;

/// Maximum number of addresses of a pool. A pool of a larger network has only the network's first
/// addresses.
const POOL_ADDRESSES_MAX: u32 = 65_536;
/// Number of offsets at the start of a pool that are never assigned: the network's address, and the
/// first host address, which is for the exit.
const RESERVED: u32 = 2;

/// The pools of an exit.
#[derive(Debug, Clone, Default)]
pub(super) struct Pools(Arc<Mutex<Vec<Pool>>>);

/// The right of one session to its addresses. Dropping the lease releases the addresses.
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
    /// `is_free`: whether an address may be assigned.
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

    /// Applies a changed `is_free`. Returns the owners of addresses that are no longer free. They have
    /// lost these addresses.
    pub(super) fn refresh(&self, is_free: impl Fn(IpAddr) -> bool) -> BTreeSet<Owner> {
        let mut pools = self.0.lock();
        let pools = pools.iter_mut();
        pools.flat_map(|pool| pool.refresh(&is_free)).collect()
    }

    /// Assigns addresses for one more session of `owner`: one address of each pool. The function
    /// skips pools without a free address, and pools that contain an address of `own`.
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

    /// The entry that an address of a pool is assigned to.
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
    /// Whether the address at each offset from the network's address may be assigned.
    free: Vec<bool>,
    /// Number of addresses that may be assigned.
    count: usize,
    leases: BTreeMap<Owner, Held>,
    owners: BTreeMap<u32, Owner>,
    /// Owners without a session, in the order in which their last sessions ended.
    released: BTreeMap<u64, Owner>,
    releases: u64,
}

#[derive(Debug, Clone, Copy)]
struct Held {
    offset: u32,
    /// Number of sessions of the owner.
    sessions: u32,
    /// Key in [`Pool::released`], while the owner has no session.
    released: u64,
}

impl Pool {
    fn new(network: IpNet, is_free: &impl Fn(IpAddr) -> bool) -> Self {
        let network = network.trunc();
        let free = free(network, is_free);
        Self {
            network,
            count: count(&free),
            free,
            leases: BTreeMap::new(),
            owners: BTreeMap::new(),
            released: BTreeMap::new(),
            releases: 0,
        }
    }

    /// See [`Pools::refresh`].
    fn refresh(&mut self, is_free: &impl Fn(IpAddr) -> bool) -> Vec<Owner> {
        self.free = free(self.network, is_free);
        self.count = count(&self.free);
        let owned = self.owners.iter();
        let lost = owned.filter(|(offset, _)| !self.free[**offset as usize]);
        let lost: Vec<_> = lost.map(|(_, owner)| owner.clone()).collect();
        for owner in &lost {
            if let Some(held) = self.leases.get(owner)
                && held.sessions == 0
            {
                self.released.remove(&held.released);
            }
            self.forget(owner);
        }
        lost
    }

    /// Counts one more session of `owner` and returns the address of `owner`. Returns `None` if
    /// every address belongs to an owner that has a session.
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

    /// Returns the first free offset from the place of `owner` on. The search wraps around at the
    /// end of the pool. In a full pool, takes the offset of the owner whose last session ended
    /// first.
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

    /// Removes the lease of `owner`. Returns its offset.
    fn forget(&mut self, owner: &Owner) -> Option<u32> {
        let held = self.leases.remove(owner)?;
        self.owners.remove(&held.offset);
        Some(held.offset)
    }

    /// Counts the end of one session of `owner`.
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

/// Whether the address at each offset from the network's address may be assigned.
fn free(network: IpNet, is_free: &impl Fn(IpAddr) -> bool) -> Vec<bool> {
    let host_bits = u32::from(network.max_prefix_len() - network.prefix_len());
    let size = 1_u32.checked_shl(host_bits).unwrap_or(POOL_ADDRESSES_MAX);
    let has_broadcast = network.network().is_ipv4() && size <= POOL_ADDRESSES_MAX;
    let size = size.min(POOL_ADDRESSES_MAX);
    let end = size - u32::from(has_broadcast);
    let may = |offset| (RESERVED..end).contains(&offset) && is_free(at(network, offset));
    (0..size).map(may).collect()
}

fn count(free: &[bool]) -> usize {
    free.iter().filter(|may| **may).count()
}

/// The offset in a pool at which the search for an address begins, as docs/ip.md specifies. A
/// change of this function changes the addresses of entries.
fn place(owner: &Owner) -> u64 {
    match owner {
        Owner::Peer(identity) => {
            let [a, b, c, d, e, f, g, h, ..]: [u8; 32] = Sha256::digest(identity.as_bytes()).into();
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

/// Returns the distance of `address` from the network's first address, even if `address` is beyond the network's last
/// address. Returns `None` if the IP versions differ, if `address` is before the first address, or if the distance
/// exceeds `u32::MAX`.
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
                for identity in order {
                    pool.assign(&peer(identity)).unwrap();
                }
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
            "owner b has a session"
        );
        assert_eq!(
            pool.assign(&owners[2]),
            Some(addresses[2]),
            "the owner kept its address"
        );
        assert_eq!(pool.assign(&peer("g")), None);
        assert_eq!(pool.owner_of(addresses[3]), Some(&peer("f")));
        assert_eq!(pool.leases.len(), 5);
    }

    #[test]
    fn an_address_that_belongs_to_another_entry_from_now_on_is_taken_back() {
        let pools = Pools::of(["10.72.0.0/29".parse().unwrap()], |_| true);
        let owners = ["a", "b", "c"].map(peer);
        let leases = owners.each_ref().map(|owner| pools.lease(owner, &[]));
        let [(first, _), (second, _), _] = &leases;
        let (first, second) = (first[0], second[0]);
        let lost = pools.refresh(|address| address != first);
        assert_eq!(lost.into_iter().collect::<Vec<_>>(), [owners[0].clone()]);
        assert_eq!(pools.owner_of(first), None);
        assert_eq!(pools.owner_of(second), Some(owners[1].clone()));
        // The end of the session that lost its address gives nothing back.
        drop(leases);
        let (again, _lease) = pools.lease(&owners[0], &[]);
        assert_ne!(again, [first]);
        // An address of an entry without a session.
        assert_eq!(pools.refresh(|address| address != second).len(), 1);
        assert_eq!(pools.owner_of(second), None);
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
            "the second session has an address of the IPv4 pool"
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
