//! Joins arriving packets into super-packets for the device: the reverse of `segment.rs`.
//!
//! The module works like the kernel's GRO. Packets that a sender split from one super-packet become
//! that super-packet again. A split of the result yields the same packets. Only packets with
//! correct checksums are joined. The order within a flow is kept.
//!
//! Read next: `coalesce/candidate.rs`, which decides which packets may be joined.

mod candidate;
#[cfg(test)]
mod tests;

use candidate::Candidate;

use crate::checksum::{Sum, pseudo_header, set_word};
use crate::packet::{TCP, TCP_CHECKSUM_OFFSET, UDP_CHECKSUM_OFFSET};
use crate::{PACKET_BYTES_MAX, Packet, VIRTIO_HEADER_BYTES, VirtioHeader};

/// Maximum number of flows whose packets are held at a time.
pub const COALESCE_FLOWS_MAX: usize = 8;
/// Maximum number of packets in one super-packet. This is the kernel's UDP_GRO_CNT_MAX. Before
/// Linux 6.8, the kernel's UDP_MAX_SEGMENTS has the same value.
pub const COALESCE_SEGMENTS_MAX: usize = 64;

/// Receiver of framed packets for the device.
pub type Emit<'a> = &'a mut dyn FnMut(&[u8]);

/// Joins consecutive packets of a flow. Holds at most ([`COALESCE_FLOWS_MAX`] + 1) x 64 KiB, which
/// is 576 KiB.
///
/// The owner calls [`Self::flush`] when no further packet has arrived, so held packets do not wait
/// for later packets.
#[derive(Debug)]
pub struct Coalescer {
    with_udp: bool,
    /// Flows, the oldest first. The first `held` flows are in use. The remaining entries keep their
    /// buffers for later flows.
    flows: Vec<Held>,
    held: usize,
    /// Buffer for a packet that is joined with no other packet. The packet gets its virtio header
    /// in this buffer.
    alone: Vec<u8>,
}

/// Packets of one flow that are joined so far.
#[derive(Debug)]
struct Held {
    /// Room for the virtio header, the first packet, and the payload of the later packets.
    bytes: Vec<u8>,
    first: Candidate,
    /// Expected sequence number of the next packet.
    sequence: u32,
    segments: usize,
    /// Whether the last packet had PSH.
    push: bool,
}

impl Coalescer {
    /// `with_udp`: whether the device accepts super-packets of UDP (USO, Linux 6.2). Otherwise the
    /// coalescer passes on each datagram alone.
    #[must_use]
    pub fn new(with_udp: bool) -> Self {
        Self {
            with_udp,
            flows: Vec::new(),
            held: 0,
            alone: Vec::new(),
        }
    }

    /// Adds a plain packet. `checked` is the result of [`crate::check_plain`] for the packet.
    /// Passes complete packets to `emit`.
    pub fn push(&mut self, packet: &[u8], checked: &Packet, emit: Emit<'_>) {
        let candidate = Candidate::of(packet, checked, self.with_udp);
        let Some(candidate) = candidate else {
            self.flush_flows(|held| held.first.may_be_flow_of(checked), emit);
            self.emit_alone(packet, emit);
            return;
        };
        if let Some(at) = self.position(&candidate) {
            let joined = self.join(at, &candidate, packet);
            if !joined || self.is_complete(at, &candidate) {
                self.flush_at(at, emit);
            }
            if joined {
                return;
            }
        }
        if !candidate.may_begin() {
            self.emit_alone(packet, emit);
            return;
        }
        if self.held == COALESCE_FLOWS_MAX {
            self.flush_at(0, emit);
        }
        self.hold(candidate, packet);
    }

    /// Passes all held packets to `emit`.
    pub fn flush(&mut self, emit: Emit<'_>) {
        self.flush_flows(|_| true, emit);
    }

    fn emit_alone(&mut self, packet: &[u8], emit: Emit<'_>) {
        frame(&mut self.alone, packet);
        emit(&self.alone);
    }

    fn position(&self, candidate: &Candidate) -> Option<usize> {
        let mut held = self.flows.iter().take(self.held);
        held.position(|held| held.first.is_flow_of(candidate))
    }

    fn hold(&mut self, candidate: Candidate, packet: &[u8]) {
        if self.flows.len() == self.held {
            self.flows.push(Held {
                bytes: Vec::new(),
                first: candidate,
                sequence: 0,
                segments: 0,
                push: false,
            });
        }
        let Some(held) = self.flows.get_mut(self.held) else {
            return;
        };
        frame(&mut held.bytes, packet);
        held.sequence = candidate.sequence_after();
        held.segments = 1;
        held.push = false;
        held.first = candidate;
        self.held += 1;
    }

    /// If the packet is the next segment of its flow, appends the payload to the flow. Returns
    /// whether it appended the payload.
    fn join(&mut self, at: usize, candidate: &Candidate, packet: &[u8]) -> bool {
        let Some(held) = self.flows.get_mut(at) else {
            return false;
        };
        let payload = packet.get(candidate.payload_offset..).unwrap_or_default();
        let first = held.bytes.get(VIRTIO_HEADER_BYTES..).unwrap_or_default();
        let fits = first.len() + payload.len() <= PACKET_BYTES_MAX;
        let follows = candidate.follows(&held.first, held.segments, held.sequence);
        if !fits || !follows || !candidate.has_same_headers(packet, first) {
            return false;
        }
        held.bytes.extend_from_slice(payload);
        held.sequence = candidate.sequence_after();
        held.segments += 1;
        held.push = candidate.push;
        true
    }

    /// Whether the super-packet is complete after `last`, the packet that was joined last.
    fn is_complete(&self, at: usize, last: &Candidate) -> bool {
        let Some(held) = self.flows.get(at) else {
            return true;
        };
        let size = held.first.payload;
        last.push
            || last.payload < size
            || held.segments == COALESCE_SEGMENTS_MAX
            || held.bytes.len() + size > VIRTIO_HEADER_BYTES + PACKET_BYTES_MAX
    }

    fn flush_flows(&mut self, which: impl Fn(&Held) -> bool, emit: Emit<'_>) {
        let mut at = 0;
        while at < self.held {
            if self.flows.get(at).is_some_and(&which) {
                self.flush_at(at, emit);
            } else {
                at += 1;
            }
        }
    }

    /// Passes the held packet of a flow to `emit`, and moves the buffer of the flow behind the
    /// buffers in use.
    fn flush_at(&mut self, at: usize, emit: Emit<'_>) {
        let flows = self.flows.get_mut(at..self.held).unwrap_or_default();
        if let Some(held) = flows.first_mut() {
            held.finish();
            emit(&held.bytes);
            flows.rotate_left(1);
            self.held -= 1;
        }
    }
}

impl Held {
    /// Writes the headers of the super-packet.
    fn finish(&mut self) {
        let framed = self.bytes.split_first_chunk_mut::<VIRTIO_HEADER_BYTES>();
        let (2.., Some((header, packet))) = (self.segments, framed) else {
            return;
        };
        let Candidate {
            ipv6,
            protocol,
            header_length,
            payload_offset,
            payload,
            ..
        } = self.first;
        let word = |number: usize| u16::try_from(number).unwrap_or(u16::MAX);
        let length = packet.len();
        if ipv6 {
            set_word(packet, 4, word(length - header_length));
        } else {
            set_word(packet, 2, word(length));
            set_word(packet, 10, 0);
            let header = packet.get(..header_length).unwrap_or_default();
            let checksum = Sum::default().bytes(header).checksum();
            set_word(packet, 10, checksum);
        }
        let pseudo = pseudo_header(packet, ipv6, protocol, length - header_length).fold();
        let transport = packet.get_mut(header_length..).unwrap_or_default();
        let (gso_type, checksum_offset) = if protocol == TCP {
            if let (true, Some(flags)) = (self.push, transport.get_mut(13)) {
                *flags |= candidate::PSH;
            }
            let v4 = VirtioHeader::GSO_TCPV4;
            (
                if ipv6 { VirtioHeader::GSO_TCPV6 } else { v4 },
                TCP_CHECKSUM_OFFSET,
            )
        } else {
            set_word(transport, 4, word(length - header_length));
            (VirtioHeader::GSO_UDP_L4, UDP_CHECKSUM_OFFSET)
        };
        set_word(transport, checksum_offset.into(), pseudo);
        *header = VirtioHeader {
            flags: VirtioHeader::NEEDS_CSUM,
            gso_type,
            header_length: word(payload_offset),
            gso_size: word(payload),
            checksum_start: word(header_length),
            checksum_offset,
        }
        .to_bytes();
    }
}

/// Writes a default virtio header and `packet`.
fn frame(framed: &mut Vec<u8>, packet: &[u8]) {
    framed.clear();
    framed.extend(VirtioHeader::default().to_bytes());
    framed.extend_from_slice(packet);
}
