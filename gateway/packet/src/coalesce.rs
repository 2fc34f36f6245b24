//! Arriving packets as super-packets for the device: the reverse of `segment.rs`.
//!
//! As the kernel's GRO: packets that a sender split from one super-packet become that super-packet again,
//! so that splitting it yields the same packets. Only packets with right checksums are joined. Order
//! within a flow is kept.
//!
//! Read next: `coalesce/candidate.rs`, which packets may be joined.

mod candidate;
#[cfg(test)]
mod tests;

use candidate::Candidate;

use crate::checksum::{Sum, pseudo_header, set_word};
use crate::packet::{TCP, TCP_CHECKSUM_OFFSET, UDP_CHECKSUM_OFFSET};
use crate::{PACKET_BYTES_MAX, Packet, VIRTIO_HEADER_BYTES, VirtioHeader};

/// Flows of which packets are held at once.
pub const COALESCE_FLOWS_MAX: usize = 8;
/// Packets that are joined to one: UDP_MAX_SEGMENTS of kernels before 6.8, and UDP_GRO_CNT_MAX.
pub const COALESCE_SEGMENTS_MAX: usize = 64;

/// What takes framed packets for the device.
pub type Emit<'a> = &'a mut dyn FnMut(&[u8]);

/// Joins consecutive packets of a flow. Holds at most ([`COALESCE_FLOWS_MAX`] + 1) x 64 KiB = 576 KiB.
///
/// The owner calls [`Self::flush`] when no further packet has arrived; nothing is to wait for more.
#[derive(Debug)]
pub struct Coalescer {
    with_udp: bool,
    /// The oldest first; the first `held` are in use, the others keep their buffers.
    flows: Vec<Held>,
    held: usize,
    /// Where packets are framed that are not joined.
    alone: Vec<u8>,
}

/// Packets of one flow that are joined so far.
#[derive(Debug)]
struct Held {
    /// Room for the virtio header, and the first packet, with the payload of the others behind it.
    bytes: Vec<u8>,
    first: Candidate,
    /// Of the next packet.
    sequence: u32,
    segments: usize,
    /// The last packet had PSH.
    push: bool,
}

impl Coalescer {
    /// `with_udp`: the device takes super-packets of UDP (USO, Linux 6.2), else datagrams pass one by one.
    #[must_use]
    pub fn new(with_udp: bool) -> Self {
        Self {
            with_udp,
            flows: Vec::new(),
            held: 0,
            alone: Vec::new(),
        }
    }

    /// Takes a plain packet, of which `checked` is what its check returned. Gives `emit` what is complete.
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

    /// Gives `emit` all that is held.
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

    /// Appends a packet's payload to its flow, if it is what comes next.
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

    /// No packet may follow the one that was joined last.
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

    /// Gives `emit` what is held of a flow, and keeps its buffer behind those in use.
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

/// Writes `packet` behind the header of a plain one.
fn frame(framed: &mut Vec<u8>, packet: &[u8]) {
    framed.clear();
    framed.extend(VirtioHeader::default().to_bytes());
    framed.extend_from_slice(packet);
}
