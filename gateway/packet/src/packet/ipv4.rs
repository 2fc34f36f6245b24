//! The IPv4 header (RFC 791, RFC 1122 3.2.1).

use std::net::{IpAddr, Ipv4Addr};

use super::network::{Network, fragment};
use super::{Fragment, Malformed, TCP};
use crate::checksum::{Sum, word_at};

/// Bytes of a header without options.
const HEADER_BYTES: usize = 20;
/// Options for loose and strict source routes (RFC 791, 3.1). A source route hides the final
/// destination.
const SOURCE_ROUTES: [u8; 2] = [131, 137];

/// Reads the header of a packet whose version is 4.
pub(super) fn read(packet: &[u8]) -> Result<Network, Malformed> {
    let header: &[u8; HEADER_BYTES] = packet.first_chunk().ok_or(Malformed::Short(packet.len()))?;
    let [
        first,
        traffic_class,
        _,
        _,
        _,
        _,
        _,
        _,
        hop_limit,
        protocol,
        _,
        _,
        a,
        b,
        c,
        d,
        e,
        f,
        g,
        h,
    ] = *header;
    let header_length = usize::from(first & 0xf) * 4;
    let options = packet
        .get(HEADER_BYTES..header_length)
        .ok_or(Malformed::HeaderLength(header_length))?;
    let total = usize::from(word_at(packet, 2));
    if total != packet.len() {
        return Err(Malformed::Length {
            header: total,
            packet: packet.len(),
        });
    }
    if !Sum::default().bytes(header).bytes(options).is_right() {
        return Err(Malformed::HeaderChecksum);
    }
    check_options(options)?;
    let fragment = read_fragment(packet, header_length, protocol)?;
    Ok(Network {
        source: IpAddr::V4(Ipv4Addr::new(a, b, c, d)),
        destination: IpAddr::V4(Ipv4Addr::new(e, f, g, h)),
        protocol,
        header_length,
        fragment,
        hop_limit,
        traffic_class,
        authenticated: false,
    })
}

fn read_fragment(packet: &[u8], header_length: usize, protocol: u8) -> Result<Fragment, Malformed> {
    let field = word_at(packet, 6);
    let (more, offset) = (field & 0x2000 != 0, usize::from(field & 0x1fff) * 8);
    if !more && offset == 0 {
        return Ok(Fragment::None);
    }
    // This fragment would overwrite the TCP header of the first fragment (RFC 3128).
    if protocol == TCP && offset == 8 {
        return Err(Malformed::Fragment);
    }
    fragment(offset, more, packet.len() - header_length)
}

/// Checks that each option fits into the header, and that no option is a source route.
fn check_options(mut options: &[u8]) -> Result<(), Malformed> {
    while let [kind, rest @ ..] = options {
        match kind {
            0 => return Ok(()),
            1 => options = rest,
            _ if SOURCE_ROUTES.contains(kind) => return Err(Malformed::SourceRoute),
            _ => {
                let length = rest.first().map_or(0, |length| usize::from(*length));
                if length < 2 {
                    return Err(Malformed::Option);
                }
                options = options.get(length..).ok_or(Malformed::Option)?;
            }
        }
    }
    Ok(())
}
