//! Invariants of each accepted packet, which an independent parser checks. The tests of this crate
//! and the gateway's fuzz target use this module.

use crate::Packet;

/// Compares `packet`, which [`check`](crate::check) returned, with the bytes of `framed`.
///
/// # Panics
/// If `packet` and the bytes differ, or if a peer must not send such a packet.
pub fn assert_sound(framed: &[u8], packet: &Packet) {
    let (header, ip) = framed.split_at(10);
    let number = |at: usize| usize::from(u16::from_be_bytes([ip[at], ip[at + 1]]));
    let little = |at: usize| usize::from(u16::from_le_bytes([header[at], header[at + 1]]));
    let declared = match ip[0] >> 4 {
        4 => number(2),
        _ => number(4) + 40,
    };
    assert_eq!((declared, packet.length), (ip.len(), ip.len()));
    assert!(packet.header_length <= packet.payload_offset && packet.payload_offset <= ip.len());
    assert!(header[0] <= 1, "a peer's DATA_VALID must not be accepted");
    let (start, offset, size) = (little(6), little(8), little(4));
    if header[0] == 1 {
        assert_eq!(start, packet.header_length);
        assert_eq!(offset, if packet.protocol == 6 { 16 } else { 6 });
        assert!(start + offset + 2 <= packet.payload_offset);
    } else {
        assert_eq!(start, 0);
        assert_eq!(
            header[1], 0,
            "a super-packet must have an incomplete checksum"
        );
    }
    if header[1] == 0 {
        assert_eq!((size, packet.segments()), (0, 1));
    } else {
        assert!(size > 0 && ip.len() - packet.payload_offset > size);
        assert!(packet.segments() > 1 && packet.ports.is_some() && !packet.is_fragment());
    }
}
