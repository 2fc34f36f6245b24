//! The assignment that an acceptor sends to its dialler: the dialler's addresses, and the DNS
//! servers of the acceptor's side.
//!
//! Every protocol encodes each item as `id u16 | length u16 | value`. A receiver skips an unknown
//! id, so later versions can add items. An assignment has at most [`ASSIGNMENT_BYTES_MAX`] bytes.

use std::net::IpAddr;

/// Maximum number of addresses in [`Assignment::addresses`].
pub const ASSIGNED_ADDRESSES_MAX: usize = 8;
/// Maximum number of servers in [`Assignment::dns_servers`], as in the C library's resolver (MAXNS,
/// resolv.h).
pub const DNS_SERVERS_MAX: usize = 3;
/// Maximum number of domains in [`Assignment::dns_domains`]. All versions of the C library's
/// resolver support this number (MAXDNSRCH, resolv.h).
pub const DNS_DOMAINS_MAX: usize = 6;
/// Longest domain in bytes, without the root (RFC 1035, section 2.3.4).
pub const DNS_DOMAIN_BYTES_MAX: usize = 253;
/// Bytes of the longest encoded assignment. Each item has 4 bytes before its value.
pub const ASSIGNMENT_BYTES_MAX: usize = (ASSIGNED_ADDRESSES_MAX + DNS_SERVERS_MAX) * (4 + 16)
    + DNS_DOMAINS_MAX * (4 + DNS_DOMAIN_BYTES_MAX);

const ADDRESS: u16 = 1;
const DNS_SERVER: u16 = 2;
const DNS_DOMAIN: u16 = 3;

/// The assignment of an acceptor to its dialler.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Assignment {
    /// Addresses for the dialler's exclusive use, at most [`ASSIGNED_ADDRESSES_MAX`].
    pub addresses: Vec<IpAddr>,
    /// DNS servers of the acceptor's side, at most [`DNS_SERVERS_MAX`].
    pub dns_servers: Vec<IpAddr>,
    /// Search domains, at most [`DNS_DOMAINS_MAX`], each a valid [domain](is_dns_domain).
    pub dns_domains: Vec<String>,
}

/// Whether `text` is a valid domain for a resolver's configuration: 1 to [`DNS_DOMAIN_BYTES_MAX`]
/// letters, digits, `-`, `_` and `.`, without a hyphen or dot at the beginning.
#[must_use]
pub fn is_dns_domain(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    (1..=DNS_DOMAIN_BYTES_MAX).contains(&text.len())
        && text.bytes().all(allowed)
        && !text.starts_with(['-', '.'])
}

impl Assignment {
    /// Whether the assignment has no items.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.addresses.is_empty() && self.dns_servers.is_empty() && self.dns_domains.is_empty()
    }

    /// Encodes the assignment. Omits items beyond the bounds, and invalid domains.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let addresses = self.addresses.iter().take(ASSIGNED_ADDRESSES_MAX);
        addresses.for_each(|address| push_address(&mut out, ADDRESS, *address));
        let servers = self.dns_servers.iter().take(DNS_SERVERS_MAX);
        servers.for_each(|server| push_address(&mut out, DNS_SERVER, *server));
        let domains = self
            .dns_domains
            .iter()
            .filter(|domain| is_dns_domain(domain));
        domains
            .take(DNS_DOMAINS_MAX)
            .for_each(|domain| push(&mut out, DNS_DOMAIN, domain.as_bytes()));
        out
    }

    /// Decodes an assignment. Returns `None` if it is malformed or has too many items.
    #[must_use]
    pub fn decode(mut bytes: &[u8]) -> Option<Self> {
        let mut assignment = Self::default();
        while !bytes.is_empty() {
            let (&[a, b, c, d], rest) = bytes.split_first_chunk()?;
            let length = usize::from(u16::from_be_bytes([c, d]));
            let (value, rest) = rest.split_at_checked(length)?;
            bytes = rest;
            match u16::from_be_bytes([a, b]) {
                ADDRESS => assignment.addresses.push(address(value)?),
                DNS_SERVER => assignment.dns_servers.push(address(value)?),
                DNS_DOMAIN => {
                    let domain = std::str::from_utf8(value).ok();
                    let domain = domain.filter(|domain| is_dns_domain(domain))?;
                    assignment.dns_domains.push(domain.to_owned());
                }
                _ => {}
            }
        }
        let is_bounded = assignment.addresses.len() <= ASSIGNED_ADDRESSES_MAX
            && assignment.dns_servers.len() <= DNS_SERVERS_MAX
            && assignment.dns_domains.len() <= DNS_DOMAINS_MAX;
        is_bounded.then_some(assignment)
    }
}

fn push(out: &mut Vec<u8>, id: u16, value: &[u8]) {
    out.extend(id.to_be_bytes());
    out.extend(u16::try_from(value.len()).unwrap_or(u16::MAX).to_be_bytes());
    out.extend(value);
}

fn push_address(out: &mut Vec<u8>, id: u16, address: IpAddr) {
    match address {
        IpAddr::V4(address) => push(out, id, &address.octets()),
        IpAddr::V6(address) => push(out, id, &address.octets()),
    }
}

fn address(value: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(value).map(IpAddr::from).ok();
    v4.or_else(|| <[u8; 16]>::try_from(value).map(IpAddr::from).ok())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn some() -> Assignment {
        Assignment {
            addresses: vec!["10.72.0.9".parse().unwrap(), "fd72::9".parse().unwrap()],
            dns_servers: vec!["10.96.0.10".parse().unwrap()],
            dns_domains: vec!["svc.cluster.local".to_owned()],
        }
    }

    #[test]
    fn an_assignment_has_the_bytes_of_the_specification() {
        let bytes = [
            &b"\0\x01\0\x04\x0a\x48\0\x09"[..],
            b"\0\x01\0\x10\xfd\x72\0\0\0\0\0\0\0\0\0\0\0\0\0\x09",
            b"\0\x02\0\x04\x0a\x60\0\x0a",
            b"\0\x03\0\x11svc.cluster.local",
        ]
        .concat();
        assert_eq!(some().encode(), bytes);
        assert_eq!(Assignment::decode(&bytes), Some(some()));
        let later = [&bytes[..], b"\0\x63\0\x01?"].concat();
        assert_eq!(Assignment::decode(&later), Some(some()));
        assert_eq!(Assignment::decode(b""), Some(Assignment::default()));
    }

    #[test]
    fn what_nobody_says_is_malformed() {
        for bytes in [
            &b"\0"[..],
            b"\0\x01\0\x05\x0a\x48\0\x09",
            b"\0\x01\0\x03\x0a\x48\0",
            b"\0\x02\0\x00",
            b"\0\x03\0\x00",
            b"\0\x03\0\x01\n",
            b"\0\x03\0\x03a b",
            b"\0\x03\0\x02-a",
            b"\0\x03\0\x01\xff",
        ] {
            assert_eq!(Assignment::decode(bytes), None, "{bytes:?}");
        }
        let four = b"\0\x02\0\x04\x0a\x60\0\x0a".repeat(DNS_SERVERS_MAX + 1);
        assert_eq!(Assignment::decode(&four), None);
        assert!(Assignment::decode(&four[8..]).is_some());
    }

    #[test]
    fn what_is_beyond_the_bounds_is_not_written() {
        let assignment = Assignment {
            addresses: vec![IpAddr::from([0xfd; 16]); 99],
            dns_servers: vec![IpAddr::from([0xfd; 16]); 99],
            dns_domains: vec!["a".repeat(DNS_DOMAIN_BYTES_MAX); 99],
        };
        let bytes = assignment.encode();
        assert_eq!(bytes.len(), ASSIGNMENT_BYTES_MAX);
        assert!(Assignment::decode(&bytes).is_some());
        let malformed = Assignment {
            dns_domains: vec!["a\nnameserver 192.0.2.1".to_owned()],
            ..Assignment::default()
        };
        assert_eq!(malformed.encode(), b"");
    }

    proptest! {
        #[test]
        fn what_is_read_is_written_so(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            if let Some(assignment) = Assignment::decode(&bytes) {
                prop_assert_eq!(Assignment::decode(&assignment.encode()), Some(assignment));
            }
        }
    }
}
