//! The header that a TUN device with IFF_VNET_HDR puts in front of each packet.
//!
//! `struct virtio_net_hdr` of `linux/virtio_net.h`; virtio 1.2, section 5.1.6. The device is set to
//! little endian (TUNSETVNETLE), so both ends of a tunnel agree whatever machines they are.

/// Bytes of the header: flags 1, type 1, and four fields of 2.
pub const VIRTIO_HEADER_BYTES: usize = 1 + 1 + 2 + 2 + 2 + 2;

/// What the kernel leaves to its reader of a packet: a checksum, and segmentation.
///
/// The default is the header of a plain packet: complete checksums, nothing to be segmented.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VirtioHeader {
    /// [`Self::NEEDS_CSUM`] and [`Self::DATA_VALID`].
    pub flags: u8,
    /// [`Self::GSO_NONE`] and the others, with [`Self::GSO_ECN`].
    pub gso_type: u8,
    /// Bytes of the IP and the transport header of a super-packet.
    pub header_length: u16,
    /// Bytes of payload in each segment but the last.
    pub gso_size: u16,
    /// Offset in the IP packet from which on bytes are summed.
    pub checksum_start: u16,
    /// Offset of the checksum field from `checksum_start`.
    pub checksum_offset: u16,
}

impl VirtioHeader {
    /// The checksum field holds the sum of the pseudo header alone.
    pub const NEEDS_CSUM: u8 = 1;
    /// The kernel has verified the checksum. A peer is not believed: [`crate::check`] refuses it.
    pub const DATA_VALID: u8 = 2;
    /// One packet.
    pub const GSO_NONE: u8 = 0;
    /// A super-packet of TCP over IPv4.
    pub const GSO_TCPV4: u8 = 1;
    /// A super-packet of TCP over IPv6.
    pub const GSO_TCPV6: u8 = 4;
    /// A super-packet of UDP over either (USO): each segment is a datagram.
    pub const GSO_UDP_L4: u8 = 5;
    /// Of TCP, beside its type: the super-packet has CWR, which is for its first segment.
    pub const GSO_ECN: u8 = 0x80;

    /// Splits `framed` into header and IP packet; `None` if it is shorter than the header.
    #[must_use]
    pub fn read(framed: &[u8]) -> Option<(Self, &[u8])> {
        let (header, packet) = framed.split_first_chunk()?;
        Some((Self::from_bytes(*header), packet))
    }

    /// The header as the device is given it.
    #[must_use]
    pub fn to_bytes(self) -> [u8; VIRTIO_HEADER_BYTES] {
        let [l0, l1] = self.header_length.to_le_bytes();
        let [g0, g1] = self.gso_size.to_le_bytes();
        let [s0, s1] = self.checksum_start.to_le_bytes();
        let [o0, o1] = self.checksum_offset.to_le_bytes();
        [self.flags, self.gso_type, l0, l1, g0, g1, s0, s1, o0, o1]
    }

    pub(crate) fn from_bytes(bytes: [u8; VIRTIO_HEADER_BYTES]) -> Self {
        let [flags, gso_type, l0, l1, g0, g1, s0, s1, o0, o1] = bytes;
        Self {
            flags,
            gso_type,
            header_length: u16::from_le_bytes([l0, l1]),
            gso_size: u16::from_le_bytes([g0, g1]),
            checksum_start: u16::from_le_bytes([s0, s1]),
            checksum_offset: u16::from_le_bytes([o0, o1]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As read from a device: 1,448 bytes a segment behind headers of 52, little endian.
    const READ: [u8; 10] = [0x01, 0x01, 0x34, 0x00, 0xa8, 0x05, 0x14, 0x00, 0x10, 0x00];

    #[test]
    fn a_header_is_little_endian() {
        let mut framed = READ.to_vec();
        framed.push(0x45);
        let (header, packet) = VirtioHeader::read(&framed).unwrap();
        let expected = VirtioHeader {
            flags: VirtioHeader::NEEDS_CSUM,
            gso_type: VirtioHeader::GSO_TCPV4,
            header_length: 52,
            gso_size: 1448,
            checksum_start: 20,
            checksum_offset: 16,
        };
        assert_eq!(header, expected);
        assert_eq!(packet, [0x45]);
        assert_eq!(header.to_bytes(), READ);
    }

    #[test]
    fn a_header_that_is_cut_is_none() {
        assert_eq!(VirtioHeader::read(&READ[..9]), None);
        assert_eq!(VirtioHeader::default().to_bytes(), [0; 10]);
    }
}
