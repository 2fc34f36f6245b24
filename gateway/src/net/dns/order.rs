//! Orders the addresses of a name (RFC 6724, section 6).
//!
//! The rules need the address from which this host sends to each address. The kernel selects this
//! source when a UDP socket is connected, which sends no packet.

use std::cmp::Reverse;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

/// The policy table of section 2.1: prefix, its length, precedence and label.
const POLICY: [(Ipv6Addr, u32, u8, u8); 9] = [
    (Ipv6Addr::LOCALHOST, 128, 50, 0),
    (Ipv6Addr::new(0, 0, 0, 0, 0, 0xffff, 0, 0), 96, 35, 4),
    (Ipv6Addr::UNSPECIFIED, 96, 1, 3),
    (Ipv6Addr::new(0x2001, 0, 0, 0, 0, 0, 0, 0), 32, 5, 5),
    (Ipv6Addr::new(0x2002, 0, 0, 0, 0, 0, 0, 0), 16, 30, 2),
    (Ipv6Addr::new(0x3ffe, 0, 0, 0, 0, 0, 0, 0), 16, 1, 12),
    (Ipv6Addr::new(0xfec0, 0, 0, 0, 0, 0, 0, 0), 10, 1, 11),
    (Ipv6Addr::new(0xfc00, 0, 0, 0, 0, 0, 0, 0), 7, 3, 13),
    (Ipv6Addr::UNSPECIFIED, 0, 40, 1),
];
const LINK_LOCAL: u8 = 0x2;
const SITE_LOCAL: u8 = 0x5;
const GLOBAL: u8 = 0xe;

/// Sorts the addresses by the routes of this host. Addresses that the rules do not distinguish keep
/// their order.
pub(super) fn sort(addresses: &mut [SocketAddr]) {
    if addresses.len() > 1 {
        sort_by(addresses, source);
    }
}

/// Works as [`sort`]. `source` returns the source for an address; `None`: no route.
fn sort_by(addresses: &mut [SocketAddr], source: impl Fn(SocketAddr) -> Option<IpAddr>) {
    addresses.sort_by_cached_key(|address| {
        let to = address.ip();
        let (label, precedence) = policy(to);
        let Some(from) = source(*address) else {
            return (
                true,
                Reverse((false, false, precedence)),
                scope(to),
                Reverse(0),
            );
        };
        let preferred = (
            scope(from) == scope(to),
            policy(from).0 == label,
            precedence,
        );
        (
            false,
            Reverse(preferred),
            scope(to),
            Reverse(common(from, to)),
        )
    });
}

fn source(address: SocketAddr) -> Option<IpAddr> {
    let any: IpAddr = match address {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    socket.connect(address).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

fn mapped(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    }
}

/// The label and the precedence of an address.
fn policy(address: IpAddr) -> (u8, u8) {
    let bits = mapped(address).to_bits();
    // The prefixes are sorted by decreasing length, so the first match is the longest match.
    let found = POLICY
        .iter()
        .find(|(prefix, length, ..)| (bits ^ prefix.to_bits()).leading_zeros() >= *length);
    found.map_or((1, 40), |(.., precedence, label)| (*label, *precedence))
}

fn scope(address: IpAddr) -> u8 {
    match address {
        IpAddr::V4(v4) if v4.is_loopback() || v4.is_link_local() => LINK_LOCAL,
        IpAddr::V4(_) => GLOBAL,
        IpAddr::V6(v6) if v6.is_multicast() => v6.octets()[1] & 0xf,
        IpAddr::V6(v6) if v6.is_loopback() || v6.is_unicast_link_local() => LINK_LOCAL,
        IpAddr::V6(v6) if v6.segments()[0] & 0xffc0 == 0xfec0 => SITE_LOCAL,
        IpAddr::V6(_) => GLOBAL,
    }
}

/// The number of equal bits at the beginning of the network parts of two IPv6 addresses (rule 9).
/// The rule does not apply to IPv4: it would override the order of the server.
fn common(one: IpAddr, other: IpAddr) -> u32 {
    match (one, other) {
        (IpAddr::V6(one), IpAddr::V6(other)) => {
            (one.to_bits() ^ other.to_bits()).leading_zeros().min(64)
        }
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sorts addresses, each with its source; "-": no route.
    fn sorted(routes: &[(&str, &str)]) -> Vec<String> {
        let parse = |text: &str| -> SocketAddr { SocketAddr::new(text.parse().unwrap(), 1) };
        let mut addresses: Vec<_> = routes.iter().map(|(to, _)| parse(to)).collect();
        sort_by(&mut addresses, |address| {
            let (_, from) = routes.iter().find(|(to, _)| parse(to) == address)?;
            from.parse().ok()
        });
        addresses.iter().map(|to| to.ip().to_string()).collect()
    }

    /// The examples of RFC 6724, section 10.2.
    #[test]
    fn the_examples_of_the_rfc_have_its_order() {
        let (global6, other6) = ("2001:db8:1::1", "2001:db8:1::2");
        let (private, public) = ("198.51.100.121", "198.51.100.117");
        assert_eq!(
            sorted(&[(public, "169.254.13.78"), (global6, other6)]),
            [global6, public]
        );
        assert_eq!(
            sorted(&[(global6, "fe80::1"), (private, public)]),
            [private, global6]
        );
        assert_eq!(
            sorted(&[("10.1.2.3", "10.1.2.4"), (global6, other6)]),
            [global6, "10.1.2.3"]
        );
        assert_eq!(
            sorted(&[(global6, other6), ("fe80::1", "fe80::2")]),
            ["fe80::1", global6]
        );
        let six_to_four = ("2002:c633:6401::1", "2002:c633:6401::2");
        assert_eq!(
            sorted(&[(global6, six_to_four.1), six_to_four]),
            [six_to_four.0, global6]
        );
    }

    #[test]
    fn an_address_without_a_route_is_last() {
        assert_eq!(
            sorted(&[("2001:db8::1", "-"), ("10.0.0.1", "10.0.0.2")]),
            ["10.0.0.1", "2001:db8::1"]
        );
    }

    #[test]
    fn local_addresses_of_ipv6_come_after_ipv4() {
        assert_eq!(
            sorted(&[("fd00::1", "fd00::2"), ("10.0.0.1", "10.0.0.2")]),
            ["10.0.0.1", "fd00::1"]
        );
    }

    #[test]
    fn addresses_that_are_alike_keep_the_order_of_the_server() {
        let source = "10.0.0.130";
        let order = ["10.0.0.9", "10.0.0.131", "192.0.2.1", "10.0.0.1"];
        assert_eq!(sorted(&order.map(|to| (to, source))), order);
    }
}
