//! Splits a packet or super-packet into packets that fit the path.
//!
//! The rules are the kernel's (`tcp_gso_segment`, `__udp_gso_segment`, `inet_gso_segment`,
//! `ip_do_fragment`). TCP sequence numbers continue, and the IPv4 identification increases by 1.
//! Only the last segment keeps FIN and PSH, and only the first segment keeps CWR. TCP with an
//! incomplete checksum is split into segments that fit the path. A UDP super-packet is split into
//! the datagrams of its sender. Any other packet that is too long is fragmented if it is an IPv4
//! packet that permits fragments.

use crate::checksum::{Sum, pseudo_header, set_word, word_at};
use crate::packet::{TCP, TCP_CHECKSUM_OFFSET, UDP_CHECKSUM_OFFSET};
use crate::{GSO_SIZE_MIN_TCP, Gso, Packet, VIRTIO_HEADER_BYTES};

const FIN_PSH: u8 = 0x01 | 0x08;
const CWR: u8 = 0x80;
/// Flags that prevent splitting, because each segment would have them.
const SYN_RST_URG: u8 = 0x02 | 0x04 | 0x20;
/// Offset of the sequence number in a TCP header.
const SEQUENCE_OFFSET: usize = 4;
/// Offset of the flags in a TCP header.
const FLAGS_OFFSET: usize = 13;
/// Offset of the length in a UDP header.
const UDP_LENGTH_OFFSET: usize = 4;
/// Offset of the fragmentation field in an IPv4 header.
const FRAGMENT_OFFSET: usize = 6;
pub(crate) const DONT_FRAGMENT: u16 = 0x4000;
const MORE_FRAGMENTS: u16 = 0x2000;
/// Bytes of an IPv4 header without options. The module does not fragment a packet with options,
/// because later fragments must not have all of the options.
const IPV4_HEADER_BYTES: usize = 20;
/// Minimum payload of a fragment, so that the first fragment holds the longest TCP header.
const FRAGMENT_BYTES_MIN: usize = 64;

/// Produces the plain packets of a framed packet one by one, with complete checksums.
#[derive(Clone, Debug)]
pub struct Segments<'a> {
    bytes: &'a [u8],
    packet: Packet,
    cut: Cut,
    /// Offset of the first byte that is not in a segment yet.
    next: usize,
    /// Number of segments so far.
    index: usize,
}

/// How a packet is split.
#[derive(Clone, Copy, Debug)]
enum Cut {
    /// Not split.
    Whole,
    /// Split into segments with this many bytes of payload.
    Segments(usize),
    /// Split into fragments with this many bytes after the IP header.
    Fragments(usize),
}

impl Cut {
    /// How to split `bytes` into packets of at most `mtu` bytes. `None`: the packet must not be
    /// split.
    fn of(bytes: &[u8], packet: &Packet, mtu: usize) -> Option<Self> {
        let room = mtu.saturating_sub(packet.payload_offset);
        match packet.gso {
            Gso::None if packet.length <= mtu => return Some(Self::Whole),
            Gso::Tcp { size, .. } | Gso::Udp { size } if usize::from(size) <= room => {
                return Some(Self::Segments(size.into()));
            }
            _ => {}
        }
        if packet.protocol == TCP && packet.needs_checksum {
            let fits = room >= GSO_SIZE_MIN_TCP.into() && packet.tcp_flags & SYN_RST_URG == 0;
            return fits.then_some(Self::Segments(room));
        }
        let size = mtu.saturating_sub(IPV4_HEADER_BYTES) / 8 * 8;
        let may_be_fragmented = packet.gso == Gso::None
            && !packet.is_ipv6()
            && packet.header_length == IPV4_HEADER_BYTES
            && word_at(bytes, FRAGMENT_OFFSET) & DONT_FRAGMENT == 0;
        (may_be_fragmented && size >= FRAGMENT_BYTES_MIN).then_some(Self::Fragments(size))
    }
}

impl<'a> Segments<'a> {
    /// Splits `framed` into packets of at most `mtu` bytes. `packet` is the result of checking
    /// `framed`.
    ///
    /// Returns `None` if the packet is longer than `mtu` and must not be split.
    #[must_use]
    pub fn of(framed: &'a [u8], packet: &Packet, mtu: usize) -> Option<Self> {
        let bytes = framed.get(VIRTIO_HEADER_BYTES..)?;
        if bytes.len() != packet.length {
            return None;
        }
        let cut = Cut::of(bytes, packet, mtu)?;
        let next = match cut {
            Cut::Fragments(_) => packet.header_length,
            Cut::Whole | Cut::Segments(_) => packet.payload_offset,
        };
        Some(Self {
            bytes,
            packet: *packet,
            cut,
            next,
            index: 0,
        })
    }

    /// Bytes of the next segment, or `None` after the last segment.
    #[must_use]
    pub fn next_length(&self) -> Option<usize> {
        Some(self.headers().len() + self.next_payload()?.len())
    }

    /// Appends the next plain packet to `out`. Returns `false` after the last packet.
    pub fn append_next(&mut self, out: &mut Vec<u8>) -> bool {
        let Some(payload) = self.next_payload() else {
            return false;
        };
        let begin = out.len();
        out.extend_from_slice(self.headers());
        out.extend_from_slice(payload);
        let is_last = self.next + payload.len() >= self.bytes.len();
        let segment = out.get_mut(begin..).unwrap_or_default();
        match self.cut {
            Cut::Whole => {}
            Cut::Segments(_) => self.number(segment, is_last),
            Cut::Fragments(_) => self.place(segment, is_last),
        }
        if self.packet.needs_checksum {
            self.complete(segment);
        }
        self.next += payload.len();
        self.index += 1;
        true
    }

    /// The headers at the beginning of each segment.
    fn headers(&self) -> &'a [u8] {
        let length = match self.cut {
            Cut::Fragments(_) => self.packet.header_length,
            Cut::Whole | Cut::Segments(_) => self.packet.payload_offset,
        };
        self.bytes.get(..length).unwrap_or_default()
    }

    fn next_payload(&self) -> Option<&'a [u8]> {
        let rest = self.bytes.get(self.next..)?;
        if rest.is_empty() && self.index > 0 {
            return None;
        }
        match self.cut {
            Cut::Whole => Some(rest),
            Cut::Segments(size) | Cut::Fragments(size) => Some(rest.get(..size).unwrap_or(rest)),
        }
    }

    /// Writes the fields that differ between segments. [`Self::complete`] writes the transport
    /// checksum.
    fn number(&self, segment: &mut [u8], is_last: bool) {
        let Packet {
            header_length,
            payload_offset,
            protocol,
            ..
        } = self.packet;
        let length = segment.len();
        if self.packet.is_ipv6() {
            set_word(segment, 4, word(length - 40));
        } else {
            let id = word_at(segment, 4).wrapping_add(word(self.index));
            set_word(segment, 4, id);
            set_length_ipv4(segment, header_length);
        }
        let Some(transport) = segment.get_mut(header_length..) else {
            return;
        };
        if protocol != TCP {
            set_word(transport, UDP_LENGTH_OFFSET, word(length - header_length));
            return;
        }
        let passed = u32::try_from(self.next - payload_offset).unwrap_or_default();
        if let Some(field) = transport
            .get_mut(SEQUENCE_OFFSET..)
            .and_then(<[u8]>::first_chunk_mut)
        {
            *field = u32::from_be_bytes(*field)
                .wrapping_add(passed)
                .to_be_bytes();
        }
        if let Some(flags) = transport.get_mut(FLAGS_OFFSET) {
            if !is_last {
                *flags &= !FIN_PSH;
            }
            if self.index > 0 {
                *flags &= !CWR;
            }
        }
    }

    /// Writes the offset of a fragment. If the packet is itself a fragment, the offset of the
    /// packet is added, and its flag "more fragments" is kept.
    fn place(&self, fragment: &mut [u8], is_last: bool) {
        let passed = word((self.next - self.packet.header_length) / 8);
        let more = if is_last { 0 } else { MORE_FRAGMENTS };
        let field = word_at(fragment, FRAGMENT_OFFSET).wrapping_add(passed) | more;
        set_word(fragment, FRAGMENT_OFFSET, field);
        set_length_ipv4(fragment, self.packet.header_length);
    }

    /// Completes the checksum of the TCP or UDP header.
    fn complete(&self, segment: &mut [u8]) {
        let Packet {
            protocol,
            header_length,
            ..
        } = self.packet;
        let sum = match self.cut {
            // The checksum covers the whole datagram, and only the first fragment contains the
            // checksum. The field already holds the sum of the pseudo header.
            Cut::Fragments(_) if self.index > 0 => return,
            Cut::Fragments(_) => {
                Sum::default().bytes(self.bytes.get(header_length..).unwrap_or_default())
            }
            Cut::Whole | Cut::Segments(_) => {
                let length = segment.len() - header_length.min(segment.len());
                let sum = pseudo_header(segment, self.packet.is_ipv6(), protocol, length);
                let Some(transport) = segment.get_mut(header_length..) else {
                    return;
                };
                set_word(transport, checksum_offset(protocol), 0);
                sum.bytes(transport)
            }
        };
        // In UDP, 0 means no checksum (RFC 768).
        let checksum = match sum.checksum() {
            0 if protocol != TCP => u16::MAX,
            checksum => checksum,
        };
        set_word(segment, header_length + checksum_offset(protocol), checksum);
    }
}

fn checksum_offset(protocol: u8) -> usize {
    let is_tcp = protocol == TCP;
    usize::from(if is_tcp {
        TCP_CHECKSUM_OFFSET
    } else {
        UDP_CHECKSUM_OFFSET
    })
}

/// Writes the length and the header checksum of an IPv4 packet.
fn set_length_ipv4(packet: &mut [u8], header_length: usize) {
    set_word(packet, 2, word(packet.len()));
    set_word(packet, 10, 0);
    let header = packet.get(..header_length).unwrap_or_default();
    let checksum = Sum::default().bytes(header).checksum();
    set_word(packet, 10, checksum);
}

fn word(number: usize) -> u16 {
    u16::try_from(number).unwrap_or(u16::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Build, framed, has_right_checksum, partial, super_packet};
    use crate::{PACKET_BYTES_MAX, check, check_plain};

    fn cut(framed: &[u8], mtu: usize) -> Option<Vec<Vec<u8>>> {
        let mut segments = Segments::of(framed, &check(framed).unwrap(), mtu)?;
        let mut all = Vec::new();
        while let Some(length) = segments.next_length() {
            let mut out = vec![0xaa; 3];
            assert!(segments.append_next(&mut out));
            assert_eq!(out.len(), 3 + length);
            assert!(length <= mtu, "{length} of {mtu} bytes");
            all.push(out.split_off(3));
        }
        assert!(!segments.append_next(&mut Vec::new()));
        Some(all)
    }

    fn all(framed: &[u8]) -> Vec<Vec<u8>> {
        cut(framed, PACKET_BYTES_MAX).unwrap()
    }

    #[test]
    fn a_super_packet_of_tcp_is_split_as_the_kernel_does() {
        for build in [Build::tcp4(), Build::tcp6()] {
            let build = build
                .flags(0x80 | 0x10 | 0x08 | 0x01)
                .payload(2500)
                .sequence(u32::MAX - 100);
            let segments = all(&super_packet(&build.bytes(), 1000));
            assert_eq!(segments.len(), 3);
            let payload_offset = check_plain(&build.bytes()).unwrap().payload_offset;
            let mut payload = Vec::new();
            for (index, (segment, length)) in segments.iter().zip([1000, 1000, 500]).enumerate() {
                let checked = check_plain(segment).unwrap();
                assert!(has_right_checksum(segment));
                assert_eq!(checked.length, payload_offset + length);
                assert_eq!(checked.tcp_flags, [0x90, 0x10, 0x19][index]);
                let sequence = segment[checked.header_length + 4..].first_chunk().unwrap();
                let passed = u32::try_from(index * 1000).unwrap();
                assert_eq!(
                    u32::from_be_bytes(*sequence),
                    (u32::MAX - 100).wrapping_add(passed)
                );
                if !checked.is_ipv6() {
                    assert_eq!(word_at(segment, 4), 0x1234 + u16::try_from(index).unwrap());
                }
                payload.extend_from_slice(&segment[payload_offset..]);
            }
            assert_eq!(payload, build.bytes()[payload_offset..]);
        }
    }

    #[test]
    fn a_super_packet_of_udp_is_split_into_datagrams() {
        for build in [Build::udp4(2500), Build::udp6(2500)] {
            let segments = all(&super_packet(&build.bytes(), 1000));
            let lengths = segments.iter().map(|segment| {
                let checked = check_plain(segment).unwrap();
                assert!(has_right_checksum(segment));
                word_at(segment, checked.header_length + 4)
            });
            let lengths: Vec<_> = lengths.collect();
            assert_eq!(lengths, [1008, 1008, 508]);
        }
    }

    #[test]
    fn a_plain_packet_is_one_segment_as_it_is() {
        for build in [
            Build::tcp4(),
            Build::udp6(100),
            Build::icmp4(8),
            Build::udp4(64).fragment(8, true),
        ] {
            assert_eq!(all(&framed(&build.bytes())), [build.bytes()]);
        }
    }

    #[test]
    fn a_checksum_is_completed() {
        for build in [
            Build::tcp4(),
            Build::tcp6(),
            Build::udp4(99),
            Build::udp6(99),
        ] {
            assert_eq!(all(&partial(&build.bytes())), [build.bytes()]);
        }
    }

    #[test]
    fn tcp_is_cut_as_short_as_the_path_needs_it() {
        for build in [Build::tcp4().dont_fragment(), Build::tcp6()] {
            let build = build.flags(0x19).payload(2500);
            let headers = check_plain(&build.bytes()).unwrap().payload_offset;
            for framed in [partial(&build.bytes()), super_packet(&build.bytes(), 1400)] {
                let segments = cut(&framed, 1280).unwrap();
                assert_eq!(segments.len(), 2500_usize.div_ceil(1280 - headers));
                let mut payload = Vec::new();
                for segment in &segments {
                    assert!(check_plain(segment).is_ok() && has_right_checksum(segment));
                    payload.extend_from_slice(&segment[headers..]);
                }
                assert_eq!(payload, build.bytes()[headers..]);
            }
        }
    }

    #[test]
    fn what_must_not_be_cut_does_not_fit() {
        let udp = Build::udp4(1300).dont_fragment().bytes();
        let tcp = Build::tcp4().payload(1300);
        for (framed_packet, why) in [
            (framed(&udp), "it must not be fragmented"),
            (framed(&Build::udp6(1300).bytes()), "IPv6"),
            (framed(&Build::icmp6(128).payload(1300).bytes()), "IPv6"),
            (
                framed(&tcp.clone().dont_fragment().bytes()),
                "the checksum is already complete",
            ),
            (partial(&tcp.clone().flags(0x02).bytes()), "SYN"),
            (
                super_packet(&Build::udp4(2600).bytes(), 1300),
                "datagrams of UDP",
            ),
            (
                framed(&Build::udp4(1300).ip_options(&[1, 1, 1, 1]).bytes()),
                "options",
            ),
        ] {
            assert!(cut(&framed_packet, 1280).is_none(), "{why}");
            assert!(cut(&framed_packet, 1400).is_some(), "{why}");
        }
        assert!(cut(&partial(&tcp.bytes()), 44).is_none(), "no room");
        assert!(cut(&framed(&Build::udp4(100).bytes()), 80).is_none());
    }

    /// Reassembles fragments in order: the headers of the first fragment, and all payloads.
    fn reassembled(fragments: &[Vec<u8>], mut offset: usize) -> Vec<u8> {
        let mut whole = fragments[0].clone();
        whole.truncate(20);
        for (index, fragment) in fragments.iter().enumerate() {
            let is_last = index + 1 == fragments.len();
            let field = usize::from(word_at(fragment, FRAGMENT_OFFSET));
            assert_eq!((field & 0x1fff) * 8, offset);
            assert!(is_last || field & 0x2000 != 0);
            assert_eq!(word_at(fragment, 4), 0x1234);
            assert!(check_plain(fragment).is_ok());
            whole.extend_from_slice(&fragment[20..]);
            offset += fragment.len() - 20;
        }
        whole
    }

    #[test]
    fn what_may_be_fragmented_is_and_its_checksum_is_of_the_whole() {
        let packet = Build::udp4(5000).bytes();
        for framed in [framed(&packet), partial(&packet)] {
            let fragments = cut(&framed, 1414).unwrap();
            assert_eq!(fragments.len(), 4);
            let mut whole = reassembled(&fragments, 0);
            assert_eq!(word_at(&fragments[3], FRAGMENT_OFFSET) & 0x2000, 0);
            set_word(&mut whole, FRAGMENT_OFFSET, 0);
            set_length_ipv4(&mut whole, 20);
            assert_eq!(whole, packet);
        }
    }

    #[test]
    fn a_fragment_is_cut_again_and_keeps_its_place() {
        for more in [true, false] {
            let fragment = Build::udp4(1480).fragment(2960, more).bytes();
            let again = cut(&framed(&fragment), 1414).unwrap();
            assert_eq!(again.len(), 2);
            assert_eq!(reassembled(&again, 2960)[20..], fragment[20..]);
            let last = word_at(&again[1], FRAGMENT_OFFSET);
            assert_eq!(last & 0x2000 != 0, more);
        }
    }

    #[test]
    fn bytes_that_are_not_the_checked_ones_have_no_segments() {
        let bytes = super_packet(&Build::tcp4().payload(2500).bytes(), 1000);
        let packet = check(&bytes).unwrap();
        assert!(Segments::of(&bytes[..bytes.len() - 1], &packet, PACKET_BYTES_MAX).is_none());
        assert!(Segments::of(&bytes[..3], &packet, PACKET_BYTES_MAX).is_none());
    }
}
