//! Decides which packets may be joined.

use std::net::IpAddr;

use crate::checksum::{pseudo_header, word_at};
use crate::packet::{TCP, UDP};
use crate::{Fragment, GSO_SIZE_MIN_TCP, Gso, Packet};

pub(super) const PSH: u8 = 0x08;
const ACK: u8 = 0x10;
const DONT_FRAGMENT: u16 = 0x4000;

/// A packet that may be joined with other packets of its flow.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate {
    pub(super) ipv6: bool,
    pub(super) protocol: u8,
    addresses: (IpAddr, IpAddr),
    ports: (u16, u16),
    /// Bytes of the IP header, without options or extension headers.
    pub(super) header_length: usize,
    pub(super) payload_offset: usize,
    /// Bytes of payload, at least 1.
    pub(super) payload: usize,
    /// Sequence number of TCP. 0 for UDP.
    sequence: u32,
    pub(super) push: bool,
    /// Identification of an IPv4 packet that may be fragmented. Other packets do not use this field
    /// (RFC 6864).
    id: Option<u16>,
}

impl Candidate {
    /// Converts a packet to a candidate. A candidate is TCP with payload and only the flags ACK and
    /// PSH, or UDP with payload. Its IP header has no options, and its checksum is correct.
    pub(super) fn of(packet: &[u8], checked: &Packet, with_udp: bool) -> Option<Self> {
        let ipv6 = checked.is_ipv6();
        let header_length = if ipv6 { 40 } else { 20 };
        let is_plain = checked.gso == Gso::None && !checked.needs_checksum;
        let is_whole = checked.fragment == Fragment::None && packet.len() == checked.length;
        if !is_plain || !is_whole || checked.header_length != header_length {
            return None;
        }
        let transport = packet.get(header_length..)?;
        let payload = packet.len().checked_sub(checked.payload_offset)?;
        let flags = checked.tcp_flags;
        let is_joined = match checked.protocol {
            TCP => flags & !PSH == ACK && payload > 0,
            // Joining would add a checksum to a datagram that has no checksum.
            UDP => {
                let is_exact = usize::from(word_at(transport, 4)) == transport.len();
                with_udp && is_exact && payload > 0 && word_at(transport, 6) != 0
            }
            _ => false,
        };
        if !is_joined {
            return None;
        }
        let sum = pseudo_header(packet, ipv6, checked.protocol, transport.len());
        if !sum.bytes(transport).is_right() {
            return None;
        }
        let sequence = transport.get(4..).and_then(|bytes| bytes.first_chunk());
        let is_tcp = checked.protocol == TCP;
        let may_be_fragmented = !ipv6 && word_at(packet, 6) & DONT_FRAGMENT == 0;
        Some(Self {
            ipv6,
            protocol: checked.protocol,
            addresses: (checked.source, checked.destination),
            ports: checked.ports?,
            header_length,
            payload_offset: checked.payload_offset,
            payload,
            sequence: if is_tcp {
                u32::from_be_bytes(*sequence?)
            } else {
                0
            },
            push: is_tcp && flags & PSH != 0,
            id: may_be_fragmented.then(|| word_at(packet, 4)),
        })
    }

    pub(super) fn is_flow_of(&self, other: &Self) -> bool {
        let tuple = |of: &Self| (of.ports, of.protocol, of.addresses);
        tuple(self) == tuple(other)
    }

    /// Whether `packet` may belong to the flow of this candidate: both have the same addresses and
    /// protocol, and `packet` has the same ports or no ports.
    pub(super) fn may_be_flow_of(&self, packet: &Packet) -> bool {
        self.addresses == (packet.source, packet.destination)
            && self.protocol == packet.protocol
            && packet.ports.is_none_or(|ports| ports == self.ports)
    }

    /// Whether other packets may follow: the packet has no PSH, and is long enough for a segment.
    pub(super) fn may_begin(&self) -> bool {
        let least = if self.protocol == TCP {
            GSO_SIZE_MIN_TCP
        } else {
            1
        };
        !self.push && self.payload >= usize::from(least)
    }

    /// The sequence number of the next packet.
    pub(super) fn sequence_after(&self) -> u32 {
        let payload = u32::try_from(self.payload).unwrap_or_default();
        if self.protocol == TCP {
            self.sequence.wrapping_add(payload)
        } else {
            0
        }
    }

    /// Whether this packet follows directly after `segments` packets, of which `first` is the
    /// first. `sequence` is the expected sequence number.
    pub(super) fn follows(&self, first: &Self, segments: usize, sequence: u32) -> bool {
        let passed = u16::try_from(segments).unwrap_or_default();
        self.payload <= first.payload
            && self.payload_offset == first.payload_offset
            && self.sequence == sequence
            && self.id == first.id.map(|id| id.wrapping_add(passed))
    }

    /// Whether the fields that all segments of one super-packet share are equal. In the IP header,
    /// all fields are shared except lengths, identification and checksum. In TCP, segments share
    /// the acknowledgement, window, urgent pointer, options, and all flags but PSH.
    pub(super) fn has_same_headers(&self, packet: &[u8], held: &[u8]) -> bool {
        let same = |from: usize, to: usize| packet.get(from..to) == held.get(from..to);
        let is_ip_same = if self.ipv6 {
            same(0, 4) && same(6, 8)
        } else {
            same(0, 2) && same(6, 10)
        };
        if !is_ip_same || self.protocol != TCP {
            return is_ip_same;
        }
        // The flags need no comparison: every candidate has ACK, only the last packet may have PSH,
        // and no packet has another flag.
        let at = self.header_length;
        same(at + 8, at + 13) && same(at + 14, at + 16) && same(at + 18, self.payload_offset)
    }
}
