//! The maximum segment size of TCP connections through the tunnel (RFC 9293 3.7.1, RFC 6691).

use crate::checksum::{replaced, set_word, word_at};
use crate::packet::{TCP, TCP_CHECKSUM_OFFSET, TCP_HEADER_BYTES};
use crate::{Packet, VIRTIO_HEADER_BYTES};

const SYN: u8 = 0x02;
const END_OF_OPTIONS: u8 = 0;
const NO_OPERATION: u8 = 1;
const MAXIMUM_SEGMENT_SIZE: u8 = 2;
/// Bytes of IP and TCP headers without options, which the MSS does not include.
const HEADERS_IPV4: usize = 20 + TCP_HEADER_BYTES;
const HEADERS_IPV6: usize = 40 + TCP_HEADER_BYTES;

/// Lowers the MSS option of a SYN or SYN-ACK so that segments fit into `mtu` bytes. Returns whether
/// the option changed.
///
/// `packet` is the result of checking `framed`. Updates a complete checksum (RFC 1624). An
/// incomplete checksum does not change: its field holds the sum of the pseudo header, which covers
/// no options.
pub fn clamp_mss(framed: &mut [u8], packet: &Packet, mtu: usize) -> bool {
    if packet.protocol != TCP || packet.tcp_flags & SYN == 0 {
        return false;
    }
    let headers = if packet.is_ipv6() {
        HEADERS_IPV6
    } else {
        HEADERS_IPV4
    };
    let segment_max = u16::try_from(mtu.saturating_sub(headers)).unwrap_or(u16::MAX);
    let begin = VIRTIO_HEADER_BYTES + packet.header_length;
    let end = VIRTIO_HEADER_BYTES + packet.payload_offset;
    let Some(header) = framed.get_mut(begin..end) else {
        return false;
    };
    let mut changed = false;
    let mut at = TCP_HEADER_BYTES;
    while let Some(kind) = header.get(at).copied() {
        let length = match kind {
            END_OF_OPTIONS => break,
            NO_OPERATION => 1,
            _ => usize::from(header.get(at + 1).copied().unwrap_or_default()),
        };
        if length == 0 || kind != NO_OPERATION && length < 2 {
            break;
        }
        if kind == MAXIMUM_SEGMENT_SIZE && length == 4 && at + length <= header.len() {
            changed |= clamp(header, at + 2, segment_max, packet.needs_checksum);
        }
        at += length;
    }
    changed
}

/// Lowers the MSS at offset `at` of a TCP header.
fn clamp(header: &mut [u8], at: usize, segment_max: u16, needs_checksum: bool) -> bool {
    let old = word_at(header, at);
    if old <= segment_max {
        return false;
    }
    set_word(header, at, segment_max);
    if !needs_checksum {
        // At an odd offset, the two bytes of the MSS belong to different words of the sum, so this
        // function swaps the bytes.
        let as_summed = |word: u16| {
            if at.is_multiple_of(2) {
                word
            } else {
                word.swap_bytes()
            }
        };
        let field = usize::from(TCP_CHECKSUM_OFFSET);
        let checksum = replaced(
            word_at(header, field),
            as_summed(old),
            as_summed(segment_max),
        );
        set_word(header, field, checksum);
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Build, framed, has_right_checksum, partial};
    use crate::{check, from_device};

    const SYN_ACK: u8 = 0x12;

    fn syn(build: Build, options: &[u8]) -> Build {
        build.flags(SYN_ACK).options(options).payload(0)
    }

    #[test]
    fn the_option_is_lowered_to_the_mtu_without_headers() {
        for (build, expected) in [(Build::tcp4(), 1360), (Build::tcp6(), 1340)] {
            let options = [2, 4, 0x05, 0xb4, 1, 3, 3, 7];
            let mut bytes = framed(&syn(build, &options).bytes());
            let packet = check(&bytes).unwrap();
            assert!(clamp_mss(&mut bytes, &packet, 1400));
            assert_eq!(word_at(&bytes[10 + packet.header_length..], 22), expected);
            assert!(has_right_checksum(&bytes[10..]));
            assert!(!clamp_mss(&mut bytes, &packet, 1400));
        }
    }

    #[test]
    fn an_option_at_an_odd_place_is_lowered_too() {
        let options = [1, 2, 4, 0x05, 0xb4, 1, 1, 1];
        let mut bytes = framed(&syn(Build::tcp4(), &options).bytes());
        let packet = check(&bytes).unwrap();
        assert!(clamp_mss(&mut bytes, &packet, 1400));
        assert_eq!(word_at(&bytes[10 + 20..], 23), 1360);
        assert!(has_right_checksum(&bytes[10..]));
    }

    #[test]
    fn a_checksum_that_is_still_to_be_completed_stays_as_it_is() {
        let mut bytes = partial(&syn(Build::tcp6(), &[2, 4, 0x05, 0xb4]).bytes());
        let packet = from_device(&mut bytes).unwrap();
        let before = word_at(&bytes, 10 + 40 + 16);
        assert!(clamp_mss(&mut bytes, &packet, 1400));
        assert_eq!(word_at(&bytes, 10 + 40 + 16), before);
        assert_eq!(check(&bytes).unwrap(), packet);
    }

    #[test]
    fn nothing_else_is_changed() {
        let small = syn(Build::tcp4(), &[2, 4, 0x04, 0x00]);
        let established = Build::tcp4().flags(0x10).options(&[2, 4, 0x05, 0xb4]);
        let cut = syn(Build::tcp4(), &[1, 1, 1, 2]);
        let zero = syn(Build::tcp4(), &[9, 0, 2, 4]);
        for build in [small, established, cut, zero, Build::udp4(20)] {
            let before = framed(&build.bytes());
            let packet = check(&before).unwrap();
            let mut bytes = before.clone();
            assert!(!clamp_mss(&mut bytes, &packet, 1400));
            assert_eq!(bytes, before);
        }
    }
}
