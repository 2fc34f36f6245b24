//! What a packet that passed has to be: RFC 791, RFC 8200, RFC 9293, RFC 768 and the kernel's rules for
//! super-packets, written apart from the code that is checked.

use std::net::IpAddr;

use crate::{Fragment, Gso, Packet};

fn number(bytes: &[u8], at: usize) -> usize {
    usize::from(bytes[at]) << 8 | usize::from(bytes[at + 1])
}

/// The folded sum of RFC 1071.
fn sum(bytes: &[u8]) -> usize {
    let mut sum = 0;
    for (at, byte) in bytes.iter().enumerate() {
        sum += usize::from(*byte) << (8 * ((at + 1) % 2));
    }
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    sum
}

fn pseudo(ip: &[u8], packet: &Packet) -> Vec<u8> {
    let addresses = if packet.is_ipv6() {
        &ip[8..40]
    } else {
        &ip[12..20]
    };
    let length = u16::try_from(ip.len() - packet.header_length).unwrap_or_default();
    [addresses, &[0, packet.protocol], &length.to_be_bytes()].concat()
}

/// The checksum of TCP or UDP is right; of all else `true`.
pub(super) fn has_right_checksum(framed: &[u8], packet: &Packet) -> bool {
    let ip = &framed[10..];
    let is_known = [6, 17].contains(&packet.protocol) && packet.fragment == Fragment::None;
    !is_known || sum(&[&pseudo(ip, packet), &ip[packet.header_length..]].concat()) == 0xffff
}

/// Takes out the identification of IPv4, and the checksum over it.
pub(super) fn clear_identification(ip: &mut [u8]) {
    if ip[0] >> 4 == 4 && ip[6] & 0x40 != 0 {
        ip[4..6].fill(0);
        ip[10..12].fill(0);
    }
}

/// Panics where a packet that passed is not what `packet` says, or may do more than a plain one.
pub(super) fn recheck(framed: &[u8], packet: &Packet) {
    let ip = &framed[10..];
    assert!(ip.len() <= 65_535);
    assert_eq!(packet.length, ip.len());
    for address in [packet.source, packet.destination] {
        assert!(!address.is_loopback() && !address.is_multicast() && !address.is_unspecified());
        match address {
            IpAddr::V4(address) => assert!(!address.is_broadcast() && !address.is_link_local()),
            IpAddr::V6(address) => assert!(address.to_ipv4_mapped().is_none()),
        }
    }
    let transport = match ip[0] >> 4 {
        4 => ipv4(ip, packet),
        6 => ipv6(ip, packet),
        version => unreachable!("IP version {version}"),
    };
    assert_eq!(transport, packet.header_length);
    transport_header(ip, packet);
    virtio(framed, packet);
}

fn ipv4(ip: &[u8], packet: &Packet) -> usize {
    let header = usize::from(ip[0] % 16) * 4;
    assert!(header >= 20 && header <= ip.len());
    assert_eq!(number(ip, 2), ip.len());
    assert_eq!(sum(&ip[..header]), 0xffff);
    assert_eq!(
        packet.source,
        IpAddr::from([ip[12], ip[13], ip[14], ip[15]])
    );
    assert_eq!(
        packet.destination,
        IpAddr::from([ip[16], ip[17], ip[18], ip[19]])
    );
    assert_eq!((packet.protocol, packet.hop_limit), (ip[9], ip[8]));
    assert_eq!(packet.traffic_class, ip[1]);
    let offset = number(ip, 6) % 0x2000 * 8;
    let more = ip[6] & 0x20 != 0;
    assert_eq!(packet.is_fragment(), more || offset > 0);
    assert_eq!(packet.fragment == Fragment::Later, offset > 0);
    assert!(offset + ip.len() - header <= 65_535);
    header
}

fn ipv6(ip: &[u8], packet: &Packet) -> usize {
    assert_eq!(number(ip, 4) + 40, ip.len());
    let mut protocol = ip[6];
    let mut at = 40;
    let mut fragment = Fragment::None;
    while [0, 43, 44, 51, 60].contains(&protocol) && fragment != Fragment::Later {
        let length = match protocol {
            44 => 8,
            51 => usize::from(ip[at + 1]) * 4 + 8,
            _ => usize::from(ip[at + 1]) * 8 + 8,
        };
        if protocol == 44 {
            let is_first = number(ip, at + 2) < 8;
            fragment = if is_first {
                Fragment::First
            } else {
                Fragment::Later
            };
        }
        assert!(protocol != 43 || ip[at + 3] == 0, "it is routed on");
        protocol = ip[at];
        at += length;
        assert!(at <= ip.len());
    }
    assert_eq!((packet.protocol, packet.fragment), (protocol, fragment));
    assert_eq!(packet.hop_limit, ip[7]);
    at
}

fn transport_header(ip: &[u8], packet: &Packet) {
    let transport = &ip[packet.header_length..];
    let expected = match packet.protocol {
        _ if packet.is_fragment() => None,
        6 => {
            let header = usize::from(transport[12] >> 4) * 4;
            assert!(header >= 20 && header <= transport.len());
            assert_eq!(packet.tcp_flags, transport[13]);
            Some(header)
        }
        17 => {
            let length = number(transport, 4);
            assert!(length >= 8 && length <= transport.len());
            Some(8)
        }
        _ => None,
    };
    let ports = expected.map(|_| (number(transport, 0), number(transport, 2)));
    assert_eq!(
        packet.ports.map(|(from, to)| (from.into(), to.into())),
        ports
    );
    assert_eq!(
        packet.payload_offset,
        packet.header_length + expected.unwrap_or_default()
    );
}

fn virtio(framed: &[u8], packet: &Packet) {
    let field = |at: usize| usize::from(framed[at + 1]) << 8 | usize::from(framed[at]);
    let ip = &framed[10..];
    let (flags, kind) = (framed[0], framed[1]);
    let payload = ip.len() - packet.payload_offset;
    assert_eq!(packet.needs_checksum, flags == 1);
    if flags != 1 {
        assert_eq!(framed[..10], [0; 10], "a plain packet has a plain header");
        return;
    }
    assert!(packet.fragment == Fragment::None);
    assert_eq!(field(6), packet.header_length);
    let offset = match packet.protocol {
        6 => 16,
        17 => {
            assert_eq!(
                number(ip, packet.header_length + 4),
                ip.len() - packet.header_length
            );
            6
        }
        protocol => unreachable!("a checksum of protocol {protocol}"),
    };
    assert_eq!(field(8), offset);
    assert_eq!(
        number(ip, packet.header_length + offset),
        sum(&pseudo(ip, packet))
    );
    let size = field(4);
    match (packet.gso, packet.protocol, packet.is_ipv6()) {
        (Gso::None, ..) => {
            assert_eq!(framed[1..6], [0; 5]);
            return;
        }
        (Gso::Tcp { ecn, .. }, 6, false) => assert_eq!(kind, 1 | u8::from(ecn) << 7),
        (Gso::Tcp { ecn, .. }, 6, true) => assert_eq!(kind, 4 | u8::from(ecn) << 7),
        (Gso::Udp { .. }, 17, _) => {
            assert_eq!(kind, 5);
            assert!(payload <= size * 128);
        }
        other => unreachable!("a super-packet of {other:?}"),
    }
    assert_eq!(field(2), packet.payload_offset);
    assert!(size > 0 && size < payload);
    assert!(packet.tcp_flags & 0x06 == 0);
}
