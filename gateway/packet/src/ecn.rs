//! Explicit Congestion Notification (RFC 3168), and the rules for tunnels (RFC 6040).

use crate::VIRTIO_HEADER_BYTES;
use crate::checksum::{replaced, set_word, word_at};

/// ECN codepoint "congestion experienced", which sets both bits (RFC 3168, 5).
const CONGESTION_EXPERIENCED: u8 = 0b11;
/// Position of the ECN bits in the second byte of an IPv6 header.
const IPV6_SHIFT: u32 = 4;

/// Sets "congestion experienced" in a framed packet, if the packet is ECN-capable.
///
/// Returns whether the packet is marked. If the packet is not marked, the caller drops it. Updates
/// the checksum of the IPv4 header (RFC 1624). Each segment of a super-packet inherits the mark.
pub fn mark_congestion(framed: &mut [u8]) -> bool {
    let Some(packet) = framed.get_mut(VIRTIO_HEADER_BYTES..) else {
        return false;
    };
    match packet.first().map(|first| first >> 4) {
        Some(4) if packet.len() >= 20 => mark_ipv4(packet),
        Some(6) if packet.len() >= 40 => mark_ipv6(packet),
        _ => false,
    }
}

fn mark_ipv4(packet: &mut [u8]) -> bool {
    let old = word_at(packet, 0);
    if old & u16::from(CONGESTION_EXPERIENCED) == 0 {
        return false;
    }
    let new = old | u16::from(CONGESTION_EXPERIENCED);
    if new != old {
        set_word(packet, 0, new);
        let checksum = replaced(word_at(packet, 10), old, new);
        set_word(packet, 10, checksum);
    }
    true
}

fn mark_ipv6(packet: &mut [u8]) -> bool {
    let Some(byte) = packet.get_mut(1) else {
        return false;
    };
    if *byte >> IPV6_SHIFT & CONGESTION_EXPERIENCED == 0 {
        return false;
    }
    *byte |= CONGESTION_EXPERIENCED << IPV6_SHIFT;
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check;
    use crate::testing::{Build, framed};

    #[test]
    fn an_ecn_capable_packet_is_marked_and_stays_well_formed() {
        for build in [Build::tcp4(), Build::tcp6()] {
            for ect in [1, 2] {
                let mut bytes = framed(&build.clone().traffic_class(0b1000_0100 | ect).bytes());
                assert!(mark_congestion(&mut bytes));
                assert_eq!(check(&bytes).unwrap().traffic_class, 0b1000_0111);
            }
        }
    }

    #[test]
    fn a_marked_packet_stays_as_it_is() {
        let before = framed(&Build::udp4(10).traffic_class(3).bytes());
        let mut bytes = before.clone();
        assert!(mark_congestion(&mut bytes));
        assert_eq!(bytes, before);
    }

    #[test]
    fn a_packet_that_is_not_ecn_capable_stays_as_it_is() {
        for build in [Build::tcp4(), Build::tcp6()] {
            let before = framed(&build.traffic_class(0b1000_0100).bytes());
            let mut bytes = before.clone();
            assert!(!mark_congestion(&mut bytes));
            assert_eq!(bytes, before);
        }
    }

    #[test]
    fn cut_packets_are_not_marked() {
        let whole = framed(&Build::udp6(10).traffic_class(1).bytes());
        for end in 0..VIRTIO_HEADER_BYTES + 40 {
            assert!(!mark_congestion(&mut whole[..end].to_vec()));
        }
    }
}
