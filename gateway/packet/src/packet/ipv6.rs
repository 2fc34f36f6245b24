//! The IPv6 header and its extension headers (RFC 8200 3 and 4, RFC 7112).

use std::net::{IpAddr, Ipv6Addr};

use super::network::{Network, fragment};
use super::{Fragment, Malformed};
use crate::checksum::word_at;

/// Bytes of the header without extension headers.
const HEADER_BYTES: usize = 40;
/// Maximum number of extension headers of a packet. RFC 8200 4.1 lists six kinds, of which one may
/// occur twice.
pub(super) const EXTENSIONS_MAX: usize = 8;

const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const AUTHENTICATION: u8 = 51;
const DESTINATION_OPTIONS: u8 = 60;

/// The end of the chain of extension headers.
struct Chain {
    protocol: u8,
    header_length: usize,
    fragment: Fragment,
    authenticated: bool,
}

/// Reads the headers of a packet whose version is 6.
pub(super) fn read(packet: &[u8]) -> Result<Network, Malformed> {
    let header: &[u8; HEADER_BYTES] = packet.first_chunk().ok_or(Malformed::Short(packet.len()))?;
    let [v, t, _, _, _, _, next, hop_limit, addresses @ ..] = header;
    let payload = usize::from(word_at(packet, 4));
    if payload + HEADER_BYTES != packet.len() {
        return Err(Malformed::Length {
            header: payload + HEADER_BYTES,
            packet: packet.len(),
        });
    }
    let address = |at: usize| {
        let bytes = addresses
            .get(at..)
            .and_then(|bytes| bytes.first_chunk::<16>());
        IpAddr::V6(Ipv6Addr::from(bytes.copied().unwrap_or_default()))
    };
    let chain = walk(packet, *next)?;
    Ok(Network {
        source: address(0),
        destination: address(16),
        protocol: chain.protocol,
        header_length: chain.header_length,
        fragment: chain.fragment,
        hop_limit: *hop_limit,
        traffic_class: v << 4 | t >> 4,
        authenticated: chain.authenticated,
    })
}

/// Walks the extension headers, up to the first header of another kind or to the fragment header of
/// a later fragment.
///
/// Other extension headers (mobility, HIP, Shim6, ESP) end the walk. Bytes after such a header are
/// not parsed.
fn walk(packet: &[u8], first: u8) -> Result<Chain, Malformed> {
    let mut chain = Chain {
        protocol: first,
        header_length: HEADER_BYTES,
        fragment: Fragment::None,
        authenticated: false,
    };
    for _ in 0..=EXTENSIONS_MAX {
        let at = chain.header_length;
        let header = packet.get(at..).unwrap_or_default();
        let length = match chain.protocol {
            HOP_BY_HOP if at != HEADER_BYTES => return Err(misplaced()),
            HOP_BY_HOP | ROUTING | DESTINATION_OPTIONS => length_of(header, 8, 1)?,
            AUTHENTICATION => length_of(header, 4, 2)?,
            FRAGMENT => 8,
            _ => return Ok(chain),
        };
        let header = header.get(..length).ok_or_else(misplaced)?;
        match chain.protocol {
            // Segments are left, so the packet has a later destination than the checked one.
            ROUTING if header.get(3) != Some(&0) => return Err(Malformed::SourceRoute),
            AUTHENTICATION => chain.authenticated = true,
            FRAGMENT if chain.fragment != Fragment::None => return Err(Malformed::Fragment),
            FRAGMENT => chain.fragment = read_fragment(header, packet.len() - at - length)?,
            _ => {}
        }
        chain.protocol = header.first().copied().unwrap_or_default();
        chain.header_length += length;
        if chain.fragment == Fragment::Later {
            return Ok(chain);
        }
    }
    Err(misplaced())
}

/// The length of an extension header in bytes: (its second byte + `more`) * `unit`.
fn length_of(header: &[u8], unit: usize, more: usize) -> Result<usize, Malformed> {
    let length = header.get(1).ok_or_else(misplaced)?;
    Ok((usize::from(*length) + more) * unit)
}

fn read_fragment(header: &[u8], length: usize) -> Result<Fragment, Malformed> {
    let field = word_at(header, 2);
    fragment(usize::from(field & 0xfff8), field & 1 != 0, length)
}

fn misplaced() -> Malformed {
    Malformed::Extension(EXTENSIONS_MAX)
}
