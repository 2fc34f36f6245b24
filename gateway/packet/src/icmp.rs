//! ICMP errors for the senders of packets that the tunnel does not carry (RFC 792, RFC 1191,
//! RFC 1812, RFC 4443, RFC 8201).
//!
//! The caller limits the rate of errors (RFC 1812 4.3.2.8, RFC 4443 2.4 (f)).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::checksum::{Sum, pseudo_header, set_word, word_at};
use crate::packet::{ICMPV4, ICMPV6};
use crate::segment::DONT_FRAGMENT;
use crate::{Fragment, Packet, VIRTIO_HEADER_BYTES, VirtioHeader, check};

/// Bytes of the longest ICMP error for IPv4 (RFC 1812 4.3.2.3). The value for IPv6 is the minimum
/// MTU (RFC 4443 2.4 (c)).
const ANSWER_BYTES_MAX_IPV4: usize = 576;
const ANSWER_BYTES_MAX_IPV6: usize = 1280;
const IPV4_HEADER_BYTES: usize = 20;
const IPV6_HEADER_BYTES: usize = 40;
/// Bytes of an ICMP header: type 1, code 1, checksum 2, and 4 bytes that depend on the type.
const ICMP_HEADER_BYTES: usize = 8;
/// Precedence "internetwork control" (RFC 1812 4.3.2.5).
const TRAFFIC_CLASS: u8 = 0xc0;
const HOP_LIMIT: u8 = 64;
/// Every IPv6 link carries packets of this length in bytes (RFC 8200, 5), so senders ignore a lower
/// MTU.
const MTU_MIN_IPV6: u32 = 1280;

/// Type and code of an error, and the last four bytes of its ICMP header.
struct Message {
    kind: u8,
    code: u8,
    rest: u32,
}

/// Builds the error that reports a path MTU of `mtu` bytes to the sender of `framed`. For IPv4 the
/// error is "fragmentation needed", and is sent if the packet must not be fragmented (RFC 1191).
/// For IPv6 the error is "packet too big" (RFC 8201).
///
/// Returns a framed packet for the sender, or `None` if no error may be sent. `from` is an address
/// of the same IP version, and not an address of the sender's host.
#[must_use]
pub fn too_big(framed: &[u8], mtu: usize, from: IpAddr) -> Option<Vec<u8>> {
    let packet = check(framed).ok()?;
    let bytes = framed.get(VIRTIO_HEADER_BYTES..)?;
    let mtu = u16::try_from(mtu).unwrap_or(u16::MAX).into();
    let message = if packet.is_ipv6() {
        Message {
            kind: 2,
            code: 0,
            rest: MTU_MIN_IPV6.max(mtu),
        }
    } else if word_at(bytes, 6) & DONT_FRAGMENT != 0 {
        Message {
            kind: 3,
            code: 4,
            rest: mtu,
        }
    } else {
        return None;
    };
    answer(bytes, &packet, from, &message)
}

/// Builds the error that tells the sender of `framed` that a rule forbids the packet: code 13 of
/// IPv4 (RFC 1812 5.2.7.1), or code 1 of IPv6 (RFC 4443 3.1).
///
/// Returns a framed packet for the sender, or `None` if no error may be sent. `from` is an address
/// of the same IP version.
#[must_use]
pub fn prohibited(framed: &[u8], from: IpAddr) -> Option<Vec<u8>> {
    let packet = check(framed).ok()?;
    let (kind, code) = if packet.is_ipv6() { (1, 1) } else { (3, 13) };
    let message = Message {
        kind,
        code,
        rest: 0,
    };
    answer(framed.get(VIRTIO_HEADER_BYTES..)?, &packet, from, &message)
}

fn answer(bytes: &[u8], packet: &Packet, from: IpAddr, message: &Message) -> Option<Vec<u8>> {
    if !may_be_answered(bytes, packet) {
        return None;
    }
    match (from, packet.source) {
        (IpAddr::V4(from), IpAddr::V4(to)) => Some(answer_ipv4(bytes, from, to, message)),
        (IpAddr::V6(from), IpAddr::V6(to)) => Some(answer_ipv6(bytes, from, to, message)),
        _ => None,
    }
}

/// Whether an error may be sent for a packet. ICMP errors and later fragments get no error (RFC
/// 1122 3.2.2, RFC 4443 2.4 (e)). The check of the packet has already rejected multicast
/// destinations, and sources that are not a single host.
fn may_be_answered(bytes: &[u8], packet: &Packet) -> bool {
    if packet.fragment == Fragment::Later {
        return false;
    }
    let kind = bytes.get(packet.header_length).copied().unwrap_or_default();
    match packet.protocol {
        // Echo, router discovery, timestamp, information and address mask are not errors. All other
        // types are errors.
        ICMPV4 if !packet.is_ipv6() => matches!(kind, 0 | 8..=10 | 13..=18),
        ICMPV6 if packet.is_ipv6() => kind >= 128,
        _ => true,
    }
}

fn answer_ipv4(bytes: &[u8], from: Ipv4Addr, to: Ipv4Addr, message: &Message) -> Vec<u8> {
    let room = ANSWER_BYTES_MAX_IPV4 - IPV4_HEADER_BYTES - ICMP_HEADER_BYTES;
    let quoted = bytes.get(..room).unwrap_or(bytes);
    let length = IPV4_HEADER_BYTES + ICMP_HEADER_BYTES + quoted.len();
    let mut answer = Vec::with_capacity(VIRTIO_HEADER_BYTES + length);
    answer.extend(VirtioHeader::default().to_bytes());
    answer.extend([
        0x45,
        TRAFFIC_CLASS,
        0,
        0,
        0,
        0,
        0,
        0,
        HOP_LIMIT,
        ICMPV4,
        0,
        0,
    ]);
    answer.extend(from.octets());
    answer.extend(to.octets());
    append_message(&mut answer, message, quoted);
    if let Some(packet) = answer.get_mut(VIRTIO_HEADER_BYTES..) {
        set_word(packet, 2, u16::try_from(length).unwrap_or_default());
        let (header, icmp) = packet.split_at_mut(IPV4_HEADER_BYTES);
        let checksum = Sum::default().bytes(header).checksum();
        set_word(header, 10, checksum);
        let checksum = Sum::default().bytes(icmp).checksum();
        set_word(icmp, 2, checksum);
    }
    answer
}

fn answer_ipv6(bytes: &[u8], from: Ipv6Addr, to: Ipv6Addr, message: &Message) -> Vec<u8> {
    let room = ANSWER_BYTES_MAX_IPV6 - IPV6_HEADER_BYTES - ICMP_HEADER_BYTES;
    let quoted = bytes.get(..room).unwrap_or(bytes);
    let payload = ICMP_HEADER_BYTES + quoted.len();
    let mut answer = Vec::with_capacity(VIRTIO_HEADER_BYTES + IPV6_HEADER_BYTES + payload);
    answer.extend(VirtioHeader::default().to_bytes());
    answer.extend([
        0x60 | TRAFFIC_CLASS >> 4,
        TRAFFIC_CLASS << 4,
        0,
        0,
        0,
        0,
        ICMPV6,
        HOP_LIMIT,
    ]);
    answer.extend(from.octets());
    answer.extend(to.octets());
    append_message(&mut answer, message, quoted);
    if let Some(packet) = answer.get_mut(VIRTIO_HEADER_BYTES..) {
        set_word(packet, 4, u16::try_from(payload).unwrap_or_default());
        let sum = pseudo_header(packet, true, ICMPV6, payload);
        let (_, icmp) = packet.split_at_mut(IPV6_HEADER_BYTES);
        let checksum = sum.bytes(icmp).checksum();
        set_word(icmp, 2, checksum);
    }
    answer
}

fn append_message(answer: &mut Vec<u8>, message: &Message, quoted: &[u8]) {
    answer.extend([message.kind, message.code, 0, 0]);
    answer.extend(message.rest.to_be_bytes());
    answer.extend(quoted);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Build, framed, has_right_checksum};

    const ROUTER4: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 9, 9, 9));
    const ROUTER6: IpAddr = IpAddr::V6(Ipv6Addr::new(0xfd00, 9, 0, 0, 0, 0, 0, 9));

    #[test]
    fn fragmentation_needed_quotes_the_packet_and_names_the_mtu() {
        let packet = Build::udp4(1472).dont_fragment().bytes();
        let answer = too_big(&framed(&packet), 1400, ROUTER4).unwrap();
        let checked = check(&answer).unwrap();
        assert_eq!((checked.source, checked.protocol), (ROUTER4, ICMPV4));
        assert_eq!(checked.destination, check(&framed(&packet)).unwrap().source);
        assert_eq!(checked.length, 576);
        let icmp = &answer[10 + 20..];
        assert_eq!(icmp[..2], [3, 4]);
        assert_eq!(icmp[4..8], [0, 0, 0x05, 0x78]);
        assert_eq!(icmp[8..], packet[..548]);
        assert!(Sum::default().bytes(icmp).is_right());
    }

    #[test]
    fn packet_too_big_quotes_what_fits_into_1280_bytes() {
        let packet = Build::udp6(1452).bytes();
        let answer = too_big(&framed(&packet), 1400, ROUTER6).unwrap();
        let checked = check(&answer).unwrap();
        assert_eq!((checked.source, checked.length), (ROUTER6, 1280));
        assert_eq!(answer[10 + 40..10 + 42], [2, 0]);
        assert_eq!(answer[10 + 44..10 + 48], [0, 0, 0x05, 0x78]);
        assert_eq!(answer[10 + 48..], packet[..1232]);
        assert!(has_right_checksum(&answer[10..]));
    }

    #[test]
    fn no_mtu_below_that_of_ipv6_is_named() {
        let answer = too_big(&framed(&Build::udp6(1452).bytes()), 900, ROUTER6).unwrap();
        assert_eq!(answer[10 + 44..10 + 48], [0, 0, 0x05, 0x00]);
    }

    #[test]
    fn a_packet_that_may_be_fragmented_has_no_answer() {
        assert_eq!(
            too_big(&framed(&Build::udp4(1472).bytes()), 1400, ROUTER4),
            None
        );
    }

    #[test]
    fn what_a_rule_forbids_is_told() {
        let packet = Build::udp4(1472).bytes();
        let answer = prohibited(&framed(&packet), ROUTER4).unwrap();
        let checked = check(&answer).unwrap();
        assert_eq!((checked.source, checked.protocol), (ROUTER4, ICMPV4));
        assert_eq!(checked.destination, check(&framed(&packet)).unwrap().source);
        let icmp = &answer[10 + 20..];
        assert_eq!((&icmp[..2], &icmp[8..]), (&[3, 13][..], &packet[..548]));
        assert!(Sum::default().bytes(icmp).is_right());
        let answer = prohibited(&framed(&Build::tcp6().bytes()), ROUTER6).unwrap();
        assert_eq!(answer[10 + 40..10 + 42], [1, 1]);
        assert!(has_right_checksum(&answer[10..]));
    }

    #[test]
    fn errors_are_not_answered_but_echoes_are() {
        for (kind, answered) in [
            (3, false),
            (4, false),
            (11, false),
            (12, false),
            (8, true),
            (0, true),
        ] {
            let packet = framed(&Build::icmp4(kind).bytes());
            assert_eq!(
                prohibited(&packet, ROUTER4).is_some(),
                answered,
                "type {kind}"
            );
        }
        for (kind, answered) in [
            (1, false),
            (2, false),
            (3, false),
            (127, false),
            (128, true),
            (129, true),
        ] {
            let packet = framed(&Build::icmp6(kind).bytes());
            assert_eq!(
                prohibited(&packet, ROUTER6).is_some(),
                answered,
                "type {kind}"
            );
        }
        let answer = prohibited(&framed(&Build::tcp4().bytes()), ROUTER4).unwrap();
        assert_eq!(prohibited(&answer, ROUTER4), None);
    }

    #[test]
    fn a_first_fragment_is_answered_and_others_are_not() {
        let first = framed(&Build::udp4(64).fragment(0, true).bytes());
        assert!(prohibited(&first, ROUTER4).is_some());
        let later = framed(&Build::udp4(64).fragment(800, true).bytes());
        assert_eq!(prohibited(&later, ROUTER4), None);
        let later = framed(&Build::udp6(64).fragment(800, false).bytes());
        assert_eq!(prohibited(&later, ROUTER6), None);
    }

    #[test]
    fn a_router_of_the_other_version_answers_nothing() {
        assert_eq!(prohibited(&framed(&Build::tcp4().bytes()), ROUTER6), None);
    }
}
