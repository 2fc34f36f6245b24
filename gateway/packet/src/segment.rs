//! A super-packet as the packets that it is on a link.
//!
//! The kernel's own rules (`tcp_gso_segment`, `__udp_gso_segment`, `inet_gso_segment`): TCP's sequence number
//! goes on, FIN and PSH are the last segment's and CWR the first's, the identification of IPv4 counts up.

use crate::checksum::{Sum, pseudo_header, set_word, word_at};
use crate::packet::{TCP, TCP_CHECKSUM_OFFSET, UDP_CHECKSUM_OFFSET};
use crate::{Gso, Malformed, Packet, VIRTIO_HEADER_BYTES, check};

const FIN_PSH: u8 = 0x01 | 0x08;
const CWR: u8 = 0x80;
/// Of the TCP header: sequence number, and flags.
const SEQUENCE_OFFSET: usize = 4;
const FLAGS_OFFSET: usize = 13;
/// Of the UDP header.
const UDP_LENGTH_OFFSET: usize = 4;

/// The plain packets of a framed one, one after the other, with complete checksums.
#[derive(Clone, Debug)]
pub struct Segments<'a> {
    bytes: &'a [u8],
    packet: Packet,
    /// Payload that is not in a segment yet begins here.
    next: usize,
    /// Segments so far.
    index: usize,
    /// Segments in all.
    count: usize,
}

impl<'a> Segments<'a> {
    /// The segments of what passes [`check`].
    ///
    /// # Errors
    /// Those of [`check`].
    pub fn new(framed: &'a [u8]) -> Result<Self, Malformed> {
        Ok(Self::of(framed, &check(framed)?))
    }

    /// The segments of `framed`, of which `packet` is what its check returned.
    #[must_use]
    pub fn of(framed: &'a [u8], packet: &Packet) -> Self {
        let bytes = framed.get(VIRTIO_HEADER_BYTES..).unwrap_or_default();
        Self {
            bytes,
            packet: *packet,
            next: packet.payload_offset,
            index: 0,
            // With another packet's bytes there is nothing to be had.
            count: if bytes.len() == packet.length {
                packet.segments()
            } else {
                0
            },
        }
    }

    /// Segments that are still to come.
    #[must_use]
    pub fn remaining(&self) -> usize {
        self.count - self.index
    }

    /// Bytes of the next segment; 0 if there is none.
    #[must_use]
    pub fn next_length(&self) -> usize {
        match self.remaining() {
            0 => 0,
            _ => self.packet.payload_offset + self.next_payload().len(),
        }
    }

    /// Appends the next plain packet to `out`; `false` if there is none.
    pub fn append_next(&mut self, out: &mut Vec<u8>) -> bool {
        if self.remaining() == 0 {
            return false;
        }
        let begin = out.len();
        let payload = self.next_payload();
        let headers = self.bytes.get(..self.packet.payload_offset);
        out.extend_from_slice(headers.unwrap_or_default());
        out.extend_from_slice(payload);
        let segment = out.get_mut(begin..).unwrap_or_default();
        if self.packet.gso != Gso::None {
            self.number(segment);
        }
        if self.packet.needs_checksum {
            complete(segment, &self.packet);
        }
        self.next += payload.len();
        self.index += 1;
        true
    }

    fn next_payload(&self) -> &'a [u8] {
        let rest = self.bytes.get(self.next..).unwrap_or_default();
        match self.packet.gso {
            Gso::None => rest,
            Gso::Tcp { size, .. } | Gso::Udp { size } => rest.get(..size.into()).unwrap_or(rest),
        }
    }

    /// Writes what differs between the segments of a super-packet, all but the transport's checksum.
    fn number(&self, segment: &mut [u8]) {
        let Packet {
            header_length,
            payload_offset,
            gso,
            ..
        } = self.packet;
        let length = segment.len();
        let word = |number: usize| u16::try_from(number).unwrap_or(u16::MAX);
        if self.packet.is_ipv6() {
            set_word(segment, 4, word(length - 40));
        } else {
            set_word(segment, 2, word(length));
            let id = word_at(segment, 4).wrapping_add(word(self.index));
            set_word(segment, 4, id);
            set_word(segment, 10, 0);
            let header = segment.get(..header_length).unwrap_or_default();
            let checksum = Sum::default().bytes(header).checksum();
            set_word(segment, 10, checksum);
        }
        let Some(transport) = segment.get_mut(header_length..) else {
            return;
        };
        if matches!(gso, Gso::Udp { .. }) {
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
            if self.remaining() > 1 {
                *flags &= !FIN_PSH;
            }
            if self.index > 0 {
                *flags &= !CWR;
            }
        }
    }
}

/// Completes the checksum of a plain packet's TCP or UDP header.
fn complete(segment: &mut [u8], packet: &Packet) {
    let Packet {
        protocol,
        header_length,
        ..
    } = *packet;
    let offset = if protocol == TCP {
        TCP_CHECKSUM_OFFSET
    } else {
        UDP_CHECKSUM_OFFSET
    };
    let length = segment.len() - header_length.min(segment.len());
    let sum = pseudo_header(segment, packet.is_ipv6(), protocol, length);
    let Some(transport) = segment.get_mut(header_length..) else {
        return;
    };
    set_word(transport, offset.into(), 0);
    let checksum = sum.bytes(transport).checksum();
    // 0 of UDP would be no checksum (RFC 768).
    let is_none = checksum == 0 && protocol != TCP;
    set_word(
        transport,
        offset.into(),
        if is_none { u16::MAX } else { checksum },
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check_plain;
    use crate::testing::{Build, framed, has_right_checksum, partial, super_packet};

    fn all(framed: &[u8]) -> Vec<Vec<u8>> {
        let mut segments = Segments::new(framed).unwrap();
        let mut all = Vec::new();
        while segments.remaining() > 0 {
            let mut out = vec![0xaa; 3];
            let length = segments.next_length();
            assert!(segments.append_next(&mut out));
            assert_eq!(out.len(), 3 + length);
            all.push(out.split_off(3));
        }
        assert_eq!(
            (
                segments.next_length(),
                segments.append_next(&mut Vec::new())
            ),
            (0, false)
        );
        all
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
    fn bytes_that_are_not_the_checked_ones_have_no_segments() {
        let bytes = super_packet(&Build::tcp4().payload(2500).bytes(), 1000);
        let packet = check(&bytes).unwrap();
        assert_eq!(
            Segments::of(&bytes[..bytes.len() - 1], &packet).remaining(),
            0
        );
    }
}
