//! The header before each packet of a TUN device with IFF_VNET_HDR.
//!
//! The header is `struct virtio_net_hdr` of `linux/virtio_net.h` (virtio 1.2, section 5.1.6). The
//! device is set to little endian (TUNSETVNETLE), so both ends of a tunnel use the same byte order.

/// Bytes of the header: flags 1, type 1, and four fields of 2 bytes.
pub const VIRTIO_HEADER_BYTES: usize = 1 + 1 + 2 + 2 + 2 + 2;

/// The work that the reader of a packet must do: complete a checksum, and segment the packet.
///
/// The default is the header of a single packet with complete checksums.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VirtioHeader {
    /// Flags such as [`Self::NEEDS_CSUM`] and [`Self::DATA_VALID`].
    pub flags: u8,
    /// One of the types such as [`Self::GSO_NONE`], with [`Self::GSO_ECN`] as a flag.
    pub gso_type: u8,
    /// Bytes of the IP and transport headers of a super-packet.
    pub header_length: u16,
    /// Bytes of payload in each segment except the last.
    pub gso_size: u16,
    /// Offset in the IP packet of the first byte that the checksum covers.
    pub checksum_start: u16,
    /// Offset of the checksum field from `checksum_start`.
    pub checksum_offset: u16,
}

impl VirtioHeader {
    /// The checksum is incomplete: its field holds only the sum of the pseudo header.
    pub const NEEDS_CSUM: u8 = 1;
    /// The kernel has verified the checksum. [`crate::check`] rejects this flag from a peer.
    pub const DATA_VALID: u8 = 2;
    /// A single packet.
    pub const GSO_NONE: u8 = 0;
    /// A super-packet of TCP over IPv4.
    pub const GSO_TCPV4: u8 = 1;
    /// A super-packet of TCP over IPv6.
    pub const GSO_TCPV6: u8 = 4;
    /// A super-packet of UDP over IPv4 or IPv6 (USO). Each segment is a datagram.
    pub const GSO_UDP_L4: u8 = 5;
    /// Flag of TCP types: only the first segment of the super-packet has CWR.
    pub const GSO_ECN: u8 = 0x80;

    /// Splits `framed` into header and IP packet. Returns `None` if `framed` is shorter than the
    /// header.
    #[must_use]
    pub fn read(framed: &[u8]) -> Option<(Self, &[u8])> {
        let (header, packet) = framed.split_first_chunk()?;
        Some((Self::from_bytes(*header), packet))
    }

    /// The bytes of the header for the device.
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

    /// A header read from a device: 1,448 bytes of payload per segment, and 52 bytes of headers.
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
