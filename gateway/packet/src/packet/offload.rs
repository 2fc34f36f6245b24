//! Checks a virtio header against its packet.

use super::network::Network;
use super::transport::Transport;
use super::{Fragment, GSO_SIZE_MIN_TCP, Gso, Malformed, TCP, UDP, UDP_SEGMENTS_MAX};
use crate::VirtioHeader;
use crate::checksum::{Sum, pseudo_header, set_word, word_at};

/// Offset of the checksum within a TCP header (RFC 9293).
pub(crate) const TCP_CHECKSUM_OFFSET: u16 = 16;
/// Offset of the checksum within a UDP header (RFC 768).
pub(crate) const UDP_CHECKSUM_OFFSET: u16 = 6;
/// SYN and RST. Segmentation would copy them to each segment, so a super-packet must not have them.
const TCP_SYN_RST: u8 = 0x02 | 0x04;

/// The headers that a virtio header is checked against.
pub(super) struct Headers<'a> {
    pub(super) network: &'a Network,
    pub(super) transport: &'a Transport,
}

impl Headers<'_> {
    /// Start and offset of a checksum that may be completed. `None`: the packet has no such
    /// checksum.
    fn checksum_place(&self) -> Option<(u16, u16)> {
        let Network {
            protocol,
            header_length,
            fragment,
            authenticated,
            ..
        } = *self.network;
        if fragment != Fragment::None || authenticated || !self.transport.is_exact {
            return None;
        }
        let start = u16::try_from(header_length).ok()?;
        match protocol {
            TCP => Some((start, TCP_CHECKSUM_OFFSET)),
            UDP => Some((start, UDP_CHECKSUM_OFFSET)),
            _ => None,
        }
    }

    fn pseudo_sum(&self, packet: &[u8]) -> u16 {
        let Network {
            source,
            protocol,
            header_length,
            ..
        } = *self.network;
        pseudo_header(
            packet,
            source.is_ipv6(),
            protocol,
            packet.len() - header_length,
        )
        .fold()
    }

    fn gso_of(&self, gso_type: u8) -> Option<fn(u16, bool) -> Gso> {
        let tcp = |size, ecn| Gso::Tcp { size, ecn };
        let udp = |size, _| Gso::Udp { size };
        let is_ipv6 = self.network.source.is_ipv6();
        match (gso_type & !VirtioHeader::GSO_ECN, self.network.protocol) {
            (VirtioHeader::GSO_TCPV4, TCP) if !is_ipv6 => Some(tcp),
            (VirtioHeader::GSO_TCPV6, TCP) if is_ipv6 => Some(tcp),
            (VirtioHeader::GSO_UDP_L4, UDP) if gso_type == VirtioHeader::GSO_UDP_L4 => Some(udp),
            _ => None,
        }
    }
}

/// Checks a virtio header. Returns the segmentation that the header requests, and whether the
/// checksum is incomplete.
///
/// The function accepts the canonical form only. In this form, unused fields are 0.
pub(super) fn check(
    header: VirtioHeader,
    packet: &[u8],
    headers: &Headers<'_>,
) -> Result<(Gso, bool), Malformed> {
    if header.flags & !VirtioHeader::NEEDS_CSUM != 0 {
        return Err(Malformed::Flags(header.flags));
    }
    let needs_checksum = header.flags & VirtioHeader::NEEDS_CSUM != 0;
    let place = (header.checksum_start, header.checksum_offset);
    let expected = if needs_checksum {
        headers.checksum_place()
    } else {
        Some((0, 0))
    };
    if expected != Some(place) {
        return Err(Malformed::ChecksumPlace {
            start: place.0,
            offset: place.1,
        });
    }
    if needs_checksum {
        let field = word_at(packet, usize::from(place.0) + usize::from(place.1));
        if field != headers.pseudo_sum(packet) {
            return Err(Malformed::PartialChecksum);
        }
    }
    Ok((check_gso(header, packet, headers)?, needs_checksum))
}

fn check_gso(header: VirtioHeader, packet: &[u8], headers: &Headers<'_>) -> Result<Gso, Malformed> {
    let payload_offset = headers.transport.payload_offset;
    let payload = packet.len().saturating_sub(payload_offset);
    let size = header.gso_size;
    let is_gso = header.gso_type != VirtioHeader::GSO_NONE;
    let expected = if is_gso { payload_offset } else { 0 };
    if usize::from(header.header_length) != expected {
        return Err(Malformed::VirtioHeaderLength(header.header_length));
    }
    let size_error = Malformed::GsoSize { size, payload };
    if !is_gso {
        return if size == 0 {
            Ok(Gso::None)
        } else {
            Err(size_error)
        };
    }
    let needs_checksum = header.flags & VirtioHeader::NEEDS_CSUM != 0;
    let gso = headers.gso_of(header.gso_type).filter(|_| needs_checksum);
    let gso = gso.ok_or(Malformed::GsoType(header.gso_type))?;
    let gso = gso(size, header.gso_type & VirtioHeader::GSO_ECN != 0);
    let fits = match gso {
        Gso::Udp { .. } => size > 0 && payload.div_ceil(usize::from(size)) <= UDP_SEGMENTS_MAX,
        _ => size >= GSO_SIZE_MIN_TCP,
    };
    if !fits || payload <= usize::from(size) {
        return Err(size_error);
    }
    if headers.transport.tcp_flags & TCP_SYN_RST != 0 {
        return Err(Malformed::GsoFlags);
    }
    Ok(gso)
}

/// Converts the kernel's virtio header to the canonical form that [`check`] accepts.
///
/// The kernel's `header_length` is only a hint (the length of its linear buffer). The flag
/// DATA_VALID is removed. If the incomplete checksum belongs to an inner packet of a forwarded
/// tunnel, this function completes the checksum.
pub(super) fn canonical(
    header: VirtioHeader,
    packet: &mut [u8],
    headers: &Headers<'_>,
) -> VirtioHeader {
    let mut canonical = VirtioHeader::default();
    if header.flags & VirtioHeader::NEEDS_CSUM != 0 {
        let place = (header.checksum_start, header.checksum_offset);
        let at = usize::from(place.0) + usize::from(place.1);
        if headers.checksum_place() == Some(place) {
            canonical.flags = VirtioHeader::NEEDS_CSUM;
            (canonical.checksum_start, canonical.checksum_offset) = place;
            set_word(packet, at, headers.pseudo_sum(packet));
        } else {
            let summed = packet.get(usize::from(place.0)..).unwrap_or_default();
            let checksum = Sum::default().bytes(summed).checksum();
            // In UDP, 0 means no checksum (RFC 768). In TCP, 0 and 0xffff are equivalent.
            set_word(packet, at, if checksum == 0 { u16::MAX } else { checksum });
        }
    }
    let payload_offset = headers.transport.payload_offset;
    let is_more = packet.len() > payload_offset + usize::from(header.gso_size);
    if header.gso_type != VirtioHeader::GSO_NONE && is_more {
        canonical.gso_type = header.gso_type;
        canonical.gso_size = header.gso_size;
        canonical.header_length = u16::try_from(payload_offset).unwrap_or_default();
    }
    canonical
}
