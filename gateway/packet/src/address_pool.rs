//! Addresses of the tunnel that an exit gives to its entries, one an identity.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

/// Addresses that are given out, of however large a network.
pub const POOL_ADDRESSES_MAX: u32 = 65_536;
/// Bytes of an identity, so the pool takes at most 65,536 x (512 + 128) bytes = 40 MiB.
const IDENTITY_BYTES_MAX: usize = 512;
/// The network's own address, and the exit's.
const FIRST: u32 = 2;

/// Why there is no pool, or no address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PoolError {
    /// The network has no address for an entry.
    #[error(
        "the pool {0} has no address for an entry: expected a prefix of at most 30 bits, or 126 of IPv6"
    )]
    Small(IpNet),
    /// Each address is an entry's that has a session now.
    #[error("all {addresses} addresses of the pool {pool} are in use: use a larger one")]
    Exhausted {
        /// The network.
        pool: IpNet,
        /// Addresses that may be given out.
        addresses: u32,
    },
    /// An identity that is too long to be kept.
    #[error("the identity has {0} bytes, more than {IDENTITY_BYTES_MAX}")]
    Identity(usize),
}

/// Addresses of one network by identity.
///
/// An identity has the same address for as long as the process lives, and no other identity needs it: an
/// address whose entry has gone is given to another only when none is left that was never given out, the
/// one that was released first.
#[derive(Clone, Debug)]
pub struct AddressPool {
    network: IpNet,
    /// Addresses that may be given out.
    addresses: u32,
    leases: BTreeMap<String, Lease>,
    /// Identities that have gone, by when.
    released: BTreeMap<u64, String>,
    releases: u64,
}

#[derive(Clone, Copy, Debug)]
struct Lease {
    /// From the network's address.
    offset: u32,
    /// Sessions of the identity; with none, when the last went.
    holders: u32,
    released_at: u64,
}

impl AddressPool {
    /// The pool of a network. Not given out: the network's own address, the first, which is the exit's
    /// ([`Self::gateway`]), and the last of IPv4, which is the broadcast address.
    ///
    /// # Errors
    /// None is left.
    pub fn new(network: IpNet) -> Result<Self, PoolError> {
        let network = network.trunc();
        let host_bits = network.max_prefix_len() - network.prefix_len();
        let broadcast = u32::from(network.network().is_ipv4());
        let size = 1_u32
            .checked_shl(host_bits.into())
            .filter(|size| *size <= 1 << 17);
        let size = size.unwrap_or(1 << 17);
        let addresses = size
            .saturating_sub(FIRST + broadcast)
            .min(POOL_ADDRESSES_MAX);
        if addresses == 0 {
            return Err(PoolError::Small(network));
        }
        Ok(Self {
            network,
            addresses,
            leases: BTreeMap::new(),
            released: BTreeMap::new(),
            releases: 0,
        })
    }

    /// The exit's own address.
    #[must_use]
    pub fn gateway(&self) -> IpAddr {
        self.address(1)
    }

    /// The address of an identity, one more session of which there is.
    ///
    /// # Errors
    /// All are in use, or the identity is too long.
    pub fn assign(&mut self, identity: &str) -> Result<IpAddr, PoolError> {
        if let Some(lease) = self.leases.get_mut(identity) {
            if lease.holders == 0 {
                self.released.remove(&lease.released_at);
            }
            lease.holders = lease.holders.saturating_add(1);
            let offset = lease.offset;
            return Ok(self.address(offset));
        }
        if identity.len() > IDENTITY_BYTES_MAX {
            return Err(PoolError::Identity(identity.len()));
        }
        let offset = self.unused()?;
        let lease = Lease {
            offset,
            holders: 1,
            released_at: 0,
        };
        self.leases.insert(identity.to_owned(), lease);
        Ok(self.address(offset))
    }

    /// One session less of an identity; with the last, its address may become another's.
    pub fn release(&mut self, identity: &str) {
        let Some(lease) = self.leases.get_mut(identity) else {
            return;
        };
        if lease.holders == 1 {
            lease.released_at = self.releases;
            self.released.insert(self.releases, identity.to_owned());
            self.releases = self.releases.wrapping_add(1);
        }
        lease.holders = lease.holders.saturating_sub(1);
    }

    /// An address that nobody has: the next that was never given out, else the one released first.
    fn unused(&mut self) -> Result<u32, PoolError> {
        let given = u32::try_from(self.leases.len()).unwrap_or(u32::MAX);
        if given < self.addresses {
            return Ok(FIRST + given);
        }
        let exhausted = PoolError::Exhausted {
            pool: self.network,
            addresses: self.addresses,
        };
        let (_, identity) = self.released.pop_first().ok_or(exhausted)?;
        let lease = self.leases.remove(&identity).ok_or(exhausted)?;
        Ok(lease.offset)
    }

    fn address(&self, offset: u32) -> IpAddr {
        match self.network.network() {
            IpAddr::V4(first) => {
                IpAddr::V4(Ipv4Addr::from_bits(first.to_bits().saturating_add(offset)))
            }
            IpAddr::V6(first) => IpAddr::V6(Ipv6Addr::from_bits(
                first.to_bits().saturating_add(offset.into()),
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(network: &str) -> AddressPool {
        AddressPool::new(network.parse().unwrap()).unwrap()
    }

    fn address(of: &str) -> IpAddr {
        of.parse().unwrap()
    }

    #[test]
    fn each_identity_has_an_address_of_its_own_and_keeps_it() {
        let mut pool = pool("10.9.0.77/29");
        assert_eq!(pool.gateway(), address("10.9.0.73"));
        assert_eq!(pool.assign("a"), Ok(address("10.9.0.74")));
        assert_eq!(pool.assign("b"), Ok(address("10.9.0.75")));
        assert_eq!(pool.assign("a"), Ok(address("10.9.0.74")));
        pool.release("a");
        pool.release("a");
        assert_eq!(pool.assign("c"), Ok(address("10.9.0.76")));
        assert_eq!(pool.assign("a"), Ok(address("10.9.0.74")));
    }

    #[test]
    fn no_more_are_given_out_than_there_are() {
        let mut pool = pool("10.9.0.0/29");
        for identity in ["a", "b", "c", "d", "e"] {
            pool.assign(identity).unwrap();
        }
        let exhausted = PoolError::Exhausted {
            pool: "10.9.0.0/29".parse().unwrap(),
            addresses: 5,
        };
        assert_eq!(pool.assign("f"), Err(exhausted));
        assert_eq!(pool.assign("e"), Ok(address("10.9.0.6")));
        pool.release("e");
        assert_eq!(pool.assign("f"), Err(exhausted));
    }

    #[test]
    fn the_address_that_was_released_first_goes_to_another() {
        let mut pool = pool("fd00::/126");
        assert_eq!(pool.assign("a"), Ok(address("fd00::2")));
        assert_eq!(pool.assign("b"), Ok(address("fd00::3")));
        pool.release("b");
        pool.release("a");
        pool.release("a");
        pool.release("nobody");
        assert_eq!(pool.assign("c"), Ok(address("fd00::3")));
        assert_eq!(pool.assign("b"), Ok(address("fd00::2")));
        assert!(pool.assign("a").is_err());
    }

    #[test]
    fn the_least_networks_have_one_address() {
        assert_eq!(pool("10.9.0.0/30").assign("a"), Ok(address("10.9.0.2")));
        for network in ["10.9.0.0/31", "10.9.0.0/32", "fd00::/127", "fd00::/128"] {
            let network: IpNet = network.parse().unwrap();
            assert_eq!(
                AddressPool::new(network).unwrap_err(),
                PoolError::Small(network)
            );
        }
    }

    #[test]
    fn a_large_network_is_bounded() {
        for network in ["10.0.0.0/8", "fd00::/64", "::/0"] {
            let mut pool = pool(network);
            for identity in 0..POOL_ADDRESSES_MAX {
                pool.assign(&identity.to_string()).unwrap();
            }
            assert!(pool.assign("one more").is_err());
        }
        assert_eq!(
            pool("fd00::/64").assign(&"a".repeat(513)),
            Err(PoolError::Identity(513))
        );
    }
}
