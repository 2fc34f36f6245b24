//! The source in an OPEN_FROM: `family u8 | client | server | client port u16 | server port u16`.
//! Family 4 is IPv4, 6 is IPv6. Family 0 has no further fields.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::session::Source;

const UNKNOWN: u8 = 0;
const IPV4: u8 = 4;
const IPV6: u8 = 6;
/// Bytes of the longest source: family, two addresses and two ports.
pub(super) const SOURCE_BYTES_MAX: usize = 1 + 2 * 16 + 2 * 2;

/// Reads a source and returns the bytes after it. `None`: the source is incomplete, or has an
/// unknown family.
pub(super) fn read(bytes: &[u8]) -> Option<(Source, &[u8])> {
    let (family, rest) = bytes.split_first()?;
    let (ips, rest): ([IpAddr; 2], _) = match *family {
        UNKNOWN => return Some((Source::Unknown, rest)),
        IPV4 => {
            let (client, rest) = rest.split_first_chunk::<4>()?;
            let (server, rest) = rest.split_first_chunk::<4>()?;
            ([*client, *server].map(|ip| Ipv4Addr::from(ip).into()), rest)
        }
        IPV6 => {
            let (client, rest) = rest.split_first_chunk::<16>()?;
            let (server, rest) = rest.split_first_chunk::<16>()?;
            ([*client, *server].map(|ip| Ipv6Addr::from(ip).into()), rest)
        }
        _ => return None,
    };
    let ([a, b, c, d], rest) = rest.split_first_chunk::<4>()?;
    let source = Source::Tcp {
        client: SocketAddr::new(ips[0], u16::from_be_bytes([*a, *b])),
        server: SocketAddr::new(ips[1], u16::from_be_bytes([*c, *d])),
    };
    Some((source, rest))
}

/// Writes a source. Addresses of different families, which [`Source::of`] never makes, become
/// family 0.
pub(super) fn write(source: Source, out: &mut Vec<u8>) {
    let Source::Tcp { client, server } = source else {
        return out.push(UNKNOWN);
    };
    match (client.ip(), server.ip()) {
        (IpAddr::V4(client), IpAddr::V4(server)) => {
            out.push(IPV4);
            out.extend(client.octets());
            out.extend(server.octets());
        }
        (IpAddr::V6(client), IpAddr::V6(server)) => {
            out.push(IPV6);
            out.extend(client.octets());
            out.extend(server.octets());
        }
        _ => return out.push(UNKNOWN),
    }
    out.extend(client.port().to_be_bytes());
    out.extend(server.port().to_be_bytes());
}
