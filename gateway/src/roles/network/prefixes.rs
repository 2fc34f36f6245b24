//! A table from networks to values. A look-up finds the longest prefix that contains an address.
//!
//! A look-up masks the address once for each prefix length in the table. Most configurations have
//! few lengths, so a look-up among thousands of networks stays fast.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;

/// A value for each network.
#[derive(Debug)]
pub(super) struct Prefixes<T> {
    v4: Lengths<T>,
    v6: Lengths<T>,
}

/// Values by prefix length, and by network address.
type Lengths<T> = BTreeMap<u8, BTreeMap<IpAddr, T>>;

impl<T> Prefixes<T> {
    /// If a network occurs twice, its last value applies.
    pub(super) fn of(networks: impl IntoIterator<Item = (IpNet, T)>) -> Self {
        let mut prefixes = Self {
            v4: BTreeMap::new(),
            v6: BTreeMap::new(),
        };
        for (network, value) in networks {
            let lengths = match network {
                IpNet::V4(_) => &mut prefixes.v4,
                IpNet::V6(_) => &mut prefixes.v6,
            };
            let of_length = lengths.entry(network.prefix_len()).or_default();
            of_length.insert(network.network(), value);
        }
        prefixes
    }

    pub(super) fn is_empty(&self) -> bool {
        self.v4.is_empty() && self.v6.is_empty()
    }

    /// All networks, the shortest prefixes first, IPv4 before IPv6.
    pub(super) fn iter(&self) -> impl Iterator<Item = (IpNet, &T)> {
        let lengths = self.v4.iter().chain(&self.v6);
        lengths.flat_map(|(length, networks)| {
            let network = |address: &IpAddr| IpNet::new(*address, *length).ok();
            let networks = networks.iter();
            networks.filter_map(move |(address, value)| Some((network(address)?, value)))
        })
    }

    /// The value of the longest prefix that contains the address.
    pub(super) fn longest(&self, address: IpAddr) -> Option<&T> {
        let lengths = match address {
            IpAddr::V4(_) => &self.v4,
            IpAddr::V6(_) => &self.v6,
        };
        lengths.iter().rev().find_map(|(length, networks)| {
            let network = IpNet::new(address, *length).ok()?;
            networks.get(&network.network())
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn networks() -> impl Strategy<Value = Vec<IpNet>> {
        let v4 = (0..64_u32, 26..=32_u8).prop_map(|(low, length)| {
            let address = std::net::Ipv4Addr::from_bits(0x0a48_0000 | low);
            IpNet::new(address.into(), length).unwrap().trunc()
        });
        let v6 = (0..64_u128, 122..=128_u8).prop_map(|(low, length)| {
            let address = std::net::Ipv6Addr::from_bits(0xfd72_u128 << 112 | low);
            IpNet::new(address.into(), length).unwrap().trunc()
        });
        prop::collection::vec(prop_oneof![v4, v6], 0..40)
    }

    proptest! {
        #[test]
        fn the_longest_prefix_counts_and_of_the_same_the_last(networks in networks()) {
            let numbered = networks.iter().enumerate();
            let table = Prefixes::of(numbered.map(|(number, network)| (*network, number)));
            prop_assert_eq!(table.is_empty(), networks.is_empty());
            prop_assert_eq!(table.iter().count(), networks.iter().collect::<std::collections::BTreeSet<_>>().len());
            for low in 0..64 {
                let v4 = std::net::Ipv4Addr::from_bits(0x0a48_0000 | low);
                let v6 = std::net::Ipv6Addr::from_bits(0xfd72_u128 << 112 | u128::from(low));
                for address in [IpAddr::from(v4), v6.into()] {
                    let having = networks.iter().enumerate();
                    let having = having.filter(|(_, network)| network.contains(&address));
                    let expected = having.max_by_key(|(_, network)| network.prefix_len());
                    prop_assert_eq!(table.longest(address).copied(), expected.map(|(number, _)| number));
                }
            }
        }
    }
}
