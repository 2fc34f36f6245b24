//! The gate: whether bytes are one well-formed IP packet, and what the tunnel needs to know of it.
//!
//! All that a peer sends comes through [`check`] or [`check_plain`] before it reaches the device, and what
//! the device reads comes through [`from_device`]. What passes makes the kernel do nothing that a plain
//! packet of a neighbour would not: all lengths agree, a checksum is completed only where the transport's
//! is, and a super-packet is just what the kernel itself would have made. It does not judge whether source
//! and destination are this tunnel's: `networks.rs` does.
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

/// Bytes of the longest IP packet, without the virtio header; of a super-packet too.
pub const PACKET_BYTES_MAX: usize = 65_535;
/// The least segment of a TCP super-packet, in bytes of payload: TCP_MIN_GSO_SIZE of the kernel, its least
/// segment size of 48 without 40 bytes of options.
pub const GSO_SIZE_MIN_TCP: u16 = 8;
/// Segments of a UDP super-packet: UDP_MAX_SEGMENTS of the kernel.
pub const UDP_SEGMENTS_MAX: usize = 128;

/// Protocol numbers of IANA.
pub(crate) const ICMPV4: u8 = 1;
pub(crate) const TCP: u8 = 6;
pub(crate) const UDP: u8 = 17;
pub(crate) const ICMPV6: u8 = 58;

/// Which part of a datagram a packet is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fragment {
    /// All of it.
    None,
    /// The first fragment: it has the transport header.
    First,
    /// One of the others.
    Later,
}

/// Whether a packet is a super-packet: several segments with one header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gso {
    /// One packet.
    None,
    /// Segments of TCP.
    Tcp {
        /// Bytes of payload in each but the last.
        size: u16,
        /// CWR is for the first segment.
        ecn: bool,
    },
    /// Datagrams of UDP.
    Udp {
        /// Bytes of payload in each but the last.
        size: u16,
    },
}

/// What a checked packet is. Only this crate makes one, so having it means that the packet was checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Packet {
    /// Where it comes from.
    pub source: IpAddr,
    /// Where it goes to.
    pub destination: IpAddr,
    /// Protocol behind the IP header and its extension headers (IANA).
    pub protocol: u8,
    /// Source and destination port of TCP and UDP; `None` of other protocols, and of fragments.
    pub ports: Option<(u16, u16)>,
    /// Bytes of the IP packet.
    pub length: usize,
    /// Bytes of the IP header with options and extension headers: where the transport header is.
    pub header_length: usize,
    /// Where the payload behind a TCP or UDP header begins; else `header_length`.
    pub payload_offset: usize,
    /// Which part of a datagram it is.
    pub fragment: Fragment,
    /// TTL of IPv4, hop limit of IPv6.
    pub hop_limit: u8,
    /// DSCP, and ECN in the lowest two bits.
    pub traffic_class: u8,
    /// Whether it is a super-packet.
    pub gso: Gso,
    /// The transport's checksum is still to be completed.
    pub needs_checksum: bool,
    /// Flags of TCP, FIN the lowest; else 0.
    pub tcp_flags: u8,
}

impl Packet {
    /// IPv6, else IPv4.
    #[must_use]
    pub fn is_ipv6(&self) -> bool {
        self.source.is_ipv6()
    }

    /// A part of a datagram: it has no ports that a rule could judge.
    #[must_use]
    pub fn is_fragment(&self) -> bool {
        self.fragment != Fragment::None
    }

    /// Packets that a super-packet is on a link; 1 of a plain one.
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

/// Checks what a peer sent as virtio header and IP packet.
///
/// The virtio header must be in the one form that [`from_device`] makes: no flag but NEEDS_CSUM (a peer's
/// DATA_VALID is not believed), fields of no use 0.
///
/// # Errors
/// Why it must not reach the device.
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

/// Checks what a peer sent as an IP packet alone, whose checksums are complete.
///
/// # Errors
/// Why it must not reach the device.
pub fn check_plain(packet: &[u8]) -> Result<Packet, Malformed> {
    let (network, transport) = parse(packet)?;
    Ok(checked(packet, &network, &transport, (Gso::None, false)))
}

/// Checks what was read from the device, and brings its virtio header into the one form that the other
/// end's [`check`] takes: true header length, no DATA_VALID, no checksum to be completed elsewhere than in
/// the transport header, no super-packet of one segment.
///
/// # Errors
/// Why it is not carried: a packet of the kernel's own may be for one link alone.
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
        // A checksum was completed elsewhere than in the transport header: what was read may be what was written.
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
