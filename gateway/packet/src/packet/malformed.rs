//! Why bytes are no packet that the tunnel carries.

use std::net::IpAddr;

use crate::DropReason;

/// Why bytes are no packet that the tunnel carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// Fewer bytes than the virtio header and the least IP header.
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
    /// The length that the IP header has is not that of the packet.
    #[error("the IP header has a length of {header} bytes, the packet has {packet}")]
    Length {
        /// IPv4: total length. IPv6: payload length and 40.
        header: usize,
        /// Bytes there are.
        packet: usize,
    },
    /// The checksum of the IPv4 header is wrong.
    #[error("the checksum of the IPv4 header is wrong")]
    HeaderChecksum,
    /// An IPv4 option that does not fit into the header.
    #[error("an IPv4 option does not fit into the header")]
    Option,
    /// Source routing, or an IPv6 routing header with segments left: the destination is not the last.
    #[error("the packet has a source route, which hides its destination")]
    SourceRoute,
    /// An IPv6 extension header that is cut, misplaced, or one too many.
    #[error("an IPv6 extension header is cut, misplaced, or one of more than {0}")]
    Extension(usize),
    /// A fragment that no sender makes.
    #[error("the fragment overlaps the transport header, is cut, or ends beyond 65,535 bytes")]
    Fragment,
    /// The TCP or UDP header is cut, or its length is not the packet's.
    #[error("the TCP or UDP header is cut, or its length is not that of the packet")]
    Transport,
    /// The source cannot be that of a packet between networks.
    #[error("the source {0} is not carried")]
    Source(IpAddr),
    /// The destination cannot be that of a packet between networks, or is a multicast group.
    #[error("the destination {0} is not carried")]
    Destination(IpAddr),
    /// Source and destination are the same.
    #[error("source and destination are both {0}")]
    SameAddress(IpAddr),
    /// An ICMP redirect, or neighbour discovery: for hosts of one link.
    #[error("ICMP type {0} is for hosts of one link and is not carried")]
    LinkMessage(u8),
    /// A flag other than NEEDS_CSUM.
    #[error("the virtio header has the flags {0:#04x}")]
    Flags(u8),
    /// A checksum is to be completed where that of the transport header is not.
    #[error("the virtio header has a checksum at {start}+{offset}, the packet does not")]
    ChecksumPlace {
        /// `checksum_start`.
        start: u16,
        /// `checksum_offset`.
        offset: u16,
    },
    /// The field of a checksum to be completed does not hold the sum of the pseudo header.
    #[error("the checksum field does not hold the sum of the pseudo header")]
    PartialChecksum,
    /// Not the type of a super-packet of this IP version and protocol.
    #[error("the virtio header has the GSO type {0:#04x}, which the packet is not")]
    GsoType(u8),
    /// A segment size that is too small, not smaller than the payload, or makes too many segments.
    #[error("the virtio header has a GSO size of {size} for {payload} bytes of payload")]
    GsoSize {
        /// `gso_size`.
        size: u16,
        /// Bytes behind the transport header.
        payload: usize,
    },
    /// Not the length of the headers of a super-packet, or one where there is none.
    #[error("the virtio header has a header length of {0}, the packet does not")]
    VirtioHeaderLength(u16),
    /// A super-packet of TCP with SYN or RST.
    #[error("a super-packet has SYN or RST")]
    GsoFlags,
}

impl Malformed {
    /// The reason that metrics have for it.
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
