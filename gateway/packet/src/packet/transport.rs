//! The transport header: ports, and the offset of the payload.

use super::network::Network;
use super::{Fragment, ICMPV4, ICMPV6, Malformed, TCP, UDP};
use crate::checksum::word_at;

/// Bytes of a TCP header without options (RFC 9293, 3.1).
pub(crate) const TCP_HEADER_BYTES: usize = 20;
/// Bytes of a UDP header (RFC 768).
pub(crate) const UDP_HEADER_BYTES: usize = 8;
/// ICMP type for one link only: redirect (RFC 792).
const ICMPV4_REDIRECT: u8 = 5;
/// ICMPv6 types for one link only: router and neighbour solicitation and advertisement, and
/// redirect (RFC 4861).
const ICMPV6_NEIGHBOUR: std::ops::RangeInclusive<u8> = 133..=137;

/// The fields of a transport header.
#[derive(Clone, Copy, Debug)]
pub(super) struct Transport {
    pub(super) ports: Option<(u16, u16)>,
    /// The ports of a first fragment.
    pub(super) fragment_ports: Option<(u16, u16)>,
    /// Offset in the IP packet of the bytes after the transport header.
    pub(super) payload_offset: usize,
    pub(super) tcp_flags: u8,
    /// Whether the UDP datagram fills the packet. True for other protocols.
    pub(super) is_exact: bool,
}

/// Reads the header that follows the IP header.
///
/// A first fragment must contain the whole transport header (RFC 7112, RFC 3128). Later fragments
/// have no transport header. The result for a fragment, including the first one, has no `ports`.
pub(super) fn read(packet: &[u8], network: &Network) -> Result<Transport, Malformed> {
    let none = Transport {
        ports: None,
        fragment_ports: None,
        payload_offset: network.header_length,
        tcp_flags: 0,
        is_exact: true,
    };
    if network.fragment == Fragment::Later {
        return Ok(none);
    }
    let bytes = packet.get(network.header_length..).unwrap_or_default();
    let transport = match (network.protocol, network.source.is_ipv6()) {
        (TCP, _) => tcp(bytes)?,
        (UDP, _) => udp(bytes, network.fragment)?,
        (ICMPV4, false) => {
            return link_message(bytes, |kind| kind == ICMPV4_REDIRECT).map(|()| none);
        }
        (ICMPV6, true) => {
            return link_message(bytes, |kind| ICMPV6_NEIGHBOUR.contains(&kind)).map(|()| none);
        }
        _ => return Ok(none),
    };
    if network.fragment == Fragment::First {
        let fragment_ports = transport.ports;
        return Ok(Transport {
            fragment_ports,
            ..none
        });
    }
    Ok(Transport {
        payload_offset: network.header_length + transport.payload_offset,
        ..transport
    })
}

fn tcp(bytes: &[u8]) -> Result<Transport, Malformed> {
    let header: &[u8; TCP_HEADER_BYTES] = bytes.first_chunk().ok_or(Malformed::Transport)?;
    let [.., offset, flags, _, _, _, _, _, _] = *header;
    let payload_offset = usize::from(offset >> 4) * 4;
    if payload_offset < TCP_HEADER_BYTES || payload_offset > bytes.len() {
        return Err(Malformed::Transport);
    }
    Ok(Transport {
        ports: Some((word_at(header, 0), word_at(header, 2))),
        fragment_ports: None,
        payload_offset,
        tcp_flags: flags,
        is_exact: true,
    })
}

/// UDP options (RFC 9868) may follow a datagram, so the length of the datagram may be less than the
/// payload of the IP packet.
fn udp(bytes: &[u8], fragment: Fragment) -> Result<Transport, Malformed> {
    let header: &[u8; UDP_HEADER_BYTES] = bytes.first_chunk().ok_or(Malformed::Transport)?;
    let length = usize::from(word_at(header, 4));
    let is_whole = fragment == Fragment::None;
    if length < UDP_HEADER_BYTES || is_whole && length > bytes.len() {
        return Err(Malformed::Transport);
    }
    Ok(Transport {
        ports: Some((word_at(header, 0), word_at(header, 2))),
        fragment_ports: None,
        payload_offset: UDP_HEADER_BYTES,
        tcp_flags: 0,
        is_exact: length == bytes.len(),
    })
}

fn link_message(bytes: &[u8], refused: impl Fn(u8) -> bool) -> Result<(), Malformed> {
    match bytes.first() {
        None => Err(Malformed::Transport),
        Some(kind) if refused(*kind) => Err(Malformed::LinkMessage(*kind)),
        Some(_) => Ok(()),
    }
}
