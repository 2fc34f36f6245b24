//! Why the tunnel does not carry a packet.

use std::net::IpAddr;

use crate::DropReason;

/// Why the tunnel does not carry a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// Fewer bytes than the virtio header and the shortest IP header.
    #[error("the packet has {0} bytes, fewer than its headers")]
    Short(usize),
    /// More bytes than an IP packet may have.
    #[error("the packet has {0} bytes, more than 65,535")]
    Long(usize),
    /// Neither IPv4 nor IPv6.
    #[error("the IP version is {0}, expected 4 or 6")]
    Version(u8),
    /// The IPv4 header is longer than the packet, or shorter than 20 bytes.
    #[error("the IPv4 header has {0} bytes, more than the packet or fewer than 20")]
    HeaderLength(usize),
    /// The length in the IP header differs from the length of the packet.
    #[error("the IP header has a length of {header} bytes, but the packet has {packet} bytes")]
    Length {
        /// Total length of IPv4, or payload length of IPv6 plus 40.
        header: usize,
        /// Actual bytes of the packet.
        packet: usize,
    },
    /// The checksum of the IPv4 header is wrong.
    #[error("the checksum of the IPv4 header is wrong")]
    HeaderChecksum,
    /// An IPv4 option that does not fit into the header.
    #[error("an IPv4 option does not fit into the header")]
    Option,
    /// Source routing, or an IPv6 routing header with segments left. Either hides the final
    /// destination.
    #[error("the packet has a source route, which hides its final destination")]
    SourceRoute,
    /// An IPv6 extension header is truncated or misplaced, or the packet has too many of them.
    #[error(
        "an IPv6 extension header is truncated or misplaced, or the packet has more than {0} of these headers"
    )]
    Extension(usize),
    /// A fragment that no correct sender produces.
    #[error(
        "the fragment overlaps the transport header, is truncated, or ends beyond 65,535 bytes"
    )]
    Fragment,
    /// The TCP, UDP or ICMP header is truncated, or its length does not fit the packet.
    #[error("the TCP, UDP or ICMP header is truncated, or its length does not fit the packet")]
    Transport,
    /// Routers do not forward packets from this source address.
    #[error("packets from {0} are not carried between networks")]
    Source(IpAddr),
    /// Routers do not forward packets to this destination address, or it is a multicast group.
    #[error("packets to {0} are not carried between networks")]
    Destination(IpAddr),
    /// Source and destination are the same.
    #[error("source and destination are both {0}")]
    SameAddress(IpAddr),
    /// An ICMP message that is only for hosts of one link: a redirect, or neighbour discovery.
    #[error("ICMP type {0} is for hosts of one link and is not carried")]
    LinkMessage(u8),
    /// The virtio header has a flag other than NEEDS_CSUM.
    #[error("the virtio header has the flags {0:#04x}, expected only NEEDS_CSUM")]
    Flags(u8),
    /// The virtio header places the incomplete checksum outside the checksum field of the transport
    /// header.
    #[error(
        "the virtio header names the offset {start}+{offset}, where the packet has no checksum"
    )]
    ChecksumPlace {
        /// `checksum_start`.
        start: u16,
        /// `checksum_offset`.
        offset: u16,
    },
    /// The incomplete checksum is not the sum of the pseudo header.
    #[error("the checksum field does not hold the sum of the pseudo header")]
    PartialChecksum,
    /// The GSO type does not match the packet's IP version and protocol.
    #[error("the virtio header has the GSO type {0:#04x}, which does not match the packet")]
    GsoType(u8),
    /// The segment size is too small, is at least as large as the payload, or yields too many
    /// segments.
    #[error(
        "the virtio header has a GSO size of {size} bytes, invalid for {payload} payload bytes"
    )]
    GsoSize {
        /// `gso_size`.
        size: u16,
        /// Bytes after the transport header.
        payload: usize,
    },
    /// The header length in the virtio header is not the length of the super-packet's headers, or
    /// is not 0 for a single packet.
    #[error("the virtio header has a header length of {0}, which does not match the packet")]
    VirtioHeaderLength(u16),
    /// A TCP super-packet has SYN or RST.
    #[error("a TCP super-packet has SYN or RST")]
    GsoFlags,
}

impl Malformed {
    /// The reason under which metrics count the packet.
    #[must_use]
    pub fn reason(&self) -> DropReason {
        match self {
            Self::Source(_) | Self::Destination(_) | Self::LinkMessage(_) => {
                DropReason::AddressNotCarried
            }
            _ => DropReason::Malformed,
        }
    }
}
