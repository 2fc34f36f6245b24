//! Validates that bytes are one well-formed IP packet, and extracts the fields that the tunnel
//! needs.
//!
//! Every packet of a peer passes [`check`] or [`check_plain`] before it reaches the device. Every
//! packet of the device passes [`from_device`]. A valid packet has no more effect on the kernel
//! than a packet from a neighbouring host: all lengths agree, the kernel completes only the
//! transport checksum, and the kernel itself could have built each super-packet. The gateway checks
//! whether source and destination belong to the tunnel (`gateway/src/roles/network/addresses.rs`).
//!
//! Read next: `packet/network.rs`, `packet/offload.rs`.

mod ipv4;
mod ipv6;
mod malformed;
mod network;
mod offload;
#[cfg(test)]
mod tests;
mod transport;

use std::net::IpAddr;

pub use malformed::Malformed;
use network::Network;
use offload::Headers;
pub(crate) use offload::{TCP_CHECKSUM_OFFSET, UDP_CHECKSUM_OFFSET};
pub(crate) use transport::TCP_HEADER_BYTES;
use transport::Transport;

use crate::{VIRTIO_HEADER_BYTES, VirtioHeader};

/// Bytes of the longest IP packet or super-packet, without the virtio header.
pub const PACKET_BYTES_MAX: usize = 65_535;
/// Minimum payload of a segment of a TCP super-packet, in bytes. This is the kernel's
/// TCP_MIN_GSO_SIZE: the minimum segment size of 48 bytes minus 40 bytes of options.
pub const GSO_SIZE_MIN_TCP: u16 = 8;
/// Maximum number of segments of a UDP super-packet (UDP_MAX_SEGMENTS of the kernel).
pub const UDP_SEGMENTS_MAX: usize = 128;

/// Protocol numbers of IANA.
pub(crate) const ICMPV4: u8 = 1;
pub(crate) const TCP: u8 = 6;
pub(crate) const UDP: u8 = 17;
pub(crate) const ICMPV6: u8 = 58;

/// Which part of a datagram a packet is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fragment {
    /// The packet is a whole datagram.
    None,
    /// The first fragment, which has the transport header.
    First,
    /// A fragment after the first fragment.
    Later,
}

/// Whether a packet is a super-packet: several segments with one header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gso {
    /// A single packet.
    None,
    /// A super-packet of TCP segments.
    Tcp {
        /// Bytes of payload in each segment except the last.
        size: u16,
        /// Whether only the first segment gets the flag CWR.
        ecn: bool,
    },
    /// A super-packet of UDP datagrams.
    Udp {
        /// Bytes of payload in each datagram except the last.
        size: u16,
    },
}

/// The fields of a checked packet. Only this crate can create a `Packet`, so a `Packet` proves that
/// the check succeeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Packet {
    /// Source address.
    pub source: IpAddr,
    /// Destination address.
    pub destination: IpAddr,
    /// Protocol after the IP header and its extension headers (IANA number).
    pub protocol: u8,
    /// Source and destination port of TCP and UDP. `None` for other protocols and for fragments.
    pub ports: Option<(u16, u16)>,
    /// Source and destination port in the header of a first fragment of TCP or UDP.
    pub fragment_ports: Option<(u16, u16)>,
    /// Bytes of the IP packet.
    pub length: usize,
    /// Bytes of the IP header with options and extension headers. The transport header follows.
    pub header_length: usize,
    /// Offset of the payload after a TCP or UDP header. `header_length` for other packets.
    pub payload_offset: usize,
    /// Which part of a datagram the packet is.
    pub fragment: Fragment,
    /// TTL of IPv4, hop limit of IPv6.
    pub hop_limit: u8,
    /// DSCP, and ECN in the lowest two bits.
    pub traffic_class: u8,
    /// Whether the packet is a super-packet.
    pub gso: Gso,
    /// Whether the transport checksum is incomplete.
    pub needs_checksum: bool,
    /// Flags of TCP, with FIN as the lowest bit. 0 for other protocols.
    pub tcp_flags: u8,
}

impl Packet {
    /// Whether the packet is IPv6. Otherwise it is IPv4.
    #[must_use]
    pub fn is_ipv6(&self) -> bool {
        self.source.is_ipv6()
    }

    /// Whether the packet is a fragment. A fragment has no ports, so rules cannot match its ports.
    #[must_use]
    pub fn is_fragment(&self) -> bool {
        self.fragment != Fragment::None
    }

    /// Number of segments of a super-packet. 1 for a single packet.
    #[must_use]
    pub fn segments(&self) -> usize {
        match self.gso {
            Gso::None => 1,
            Gso::Tcp { size, .. } | Gso::Udp { size } => {
                let payload = self.length - self.payload_offset;
                payload.div_ceil(usize::from(size).max(1))
            }
        }
    }
}

/// Checks a framed packet of a peer.
///
/// The virtio header must have the canonical form that [`from_device`] writes. NEEDS_CSUM is the
/// only permitted flag. DATA_VALID is refused, because the gateway cannot trust a peer's claim that
/// a checksum is correct. Unused fields must be 0.
///
/// # Errors
/// Why the packet must not reach the device.
pub fn check(framed: &[u8]) -> Result<Packet, Malformed> {
    let (header, packet) = VirtioHeader::read(framed).ok_or(Malformed::Short(framed.len()))?;
    let (network, transport) = parse(packet)?;
    let headers = Headers {
        network: &network,
        transport: &transport,
    };
    let offload = offload::check(header, packet, &headers)?;
    Ok(checked(packet, &network, &transport, offload))
}

/// Checks a plain packet of a peer. A plain packet has complete checksums.
///
/// # Errors
/// Why the packet must not reach the device.
pub fn check_plain(packet: &[u8]) -> Result<Packet, Malformed> {
    let (network, transport) = parse(packet)?;
    Ok(checked(packet, &network, &transport, (Gso::None, false)))
}

/// Checks a packet that was read from the device, and writes its virtio header in the canonical
/// form that the other end's [`check`] accepts. In this form the header length is exact and
/// DATA_VALID is absent. Only the transport checksum may be incomplete. A super-packet has at least
/// two segments.
///
/// # Errors
/// The reason why the packet is not carried, for example that it is for hosts of one link only.
pub fn from_device(framed: &mut [u8]) -> Result<Packet, Malformed> {
    let length = framed.len();
    let (bytes, packet) = framed
        .split_first_chunk_mut::<VIRTIO_HEADER_BYTES>()
        .ok_or(Malformed::Short(length))?;
    let (network, transport) = parse(packet)?;
    let headers = Headers {
        network: &network,
        transport: &transport,
    };
    let before = VirtioHeader::from_bytes(*bytes);
    let header = offload::canonical(before, packet, &headers);
    *bytes = header.to_bytes();
    if (before.flags ^ header.flags) & VirtioHeader::NEEDS_CSUM != 0 {
        // `canonical` completed a checksum outside the transport header, and may have changed bytes
        // that were already parsed.
        return check(framed);
    }
    let offload = offload::check(header, packet, &headers)?;
    Ok(checked(packet, &network, &transport, offload))
}

fn parse(packet: &[u8]) -> Result<(Network, Transport), Malformed> {
    if packet.len() > PACKET_BYTES_MAX {
        return Err(Malformed::Long(packet.len()));
    }
    let first = packet.first().ok_or(Malformed::Short(0))?;
    let network = match first >> 4 {
        4 => ipv4::read(packet)?,
        6 => ipv6::read(packet)?,
        version => return Err(Malformed::Version(version)),
    };
    network::check_addresses(network.source, network.destination)?;
    let transport = transport::read(packet, &network)?;
    Ok((network, transport))
}

fn checked(
    packet: &[u8],
    network: &Network,
    transport: &Transport,
    (gso, needs_checksum): (Gso, bool),
) -> Packet {
    Packet {
        source: network.source,
        destination: network.destination,
        protocol: network.protocol,
        ports: transport.ports,
        fragment_ports: transport.fragment_ports,
        length: packet.len(),
        header_length: network.header_length,
        payload_offset: transport.payload_offset,
        fragment: network.fragment,
        hop_limit: network.hop_limit,
        traffic_class: network.traffic_class,
        gso,
        needs_checksum,
        tcp_flags: transport.tcp_flags,
    }
}
