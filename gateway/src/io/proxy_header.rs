//! The PROXY protocol passes the address of a client. A sender in front of a port passes the
//! address to the gateway, and an exit passes the address to a target. The gateway writes version
//! 2. Ports of forwards read version 2; ports of carriers read versions 1 and 2
//! ([`crate::ingress::trusted_proxies`]).
//!
//! Source: "The PROXY protocol, versions 1 & 2", sections 2.1 and 2.2. A header without a TCP
//! client (a LOCAL connection, UNKNOWN, another family) carries no address. The parser skips
//! extensions (TLVs).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use muxtunnel_proto::Source;

/// Number of bytes before the addresses: signature 12, version and command 1, family 1, length 2.
pub(crate) const HEAD_BYTES: usize = 16;
/// Maximum number of bytes after the head: the addresses and extensions of a header of 536 bytes,
/// which fits into any packet.
const BODY_BYTES_MAX: usize = 520;
const SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";
const LOCAL: u8 = 0x20;
const PROXY: u8 = 0x21;
const UNSPECIFIED: u8 = 0;
const TCP_IPV4: u8 = 0x11;
const TCP_IPV6: u8 = 0x21;
/// Maximum length of a header of either version, in bytes.
pub(crate) const HEADER_BYTES_MAX: usize = HEAD_BYTES + BODY_BYTES_MAX;

/// The first bytes of a version 1 header, which is a line of text.
const LINE_BEGIN: &[u8] = b"PROXY ";
const LINE_END: &[u8] = b"\r\n";
/// Length of the shortest line, `PROXY UNKNOWN` with its line end. No version 2 header is shorter.
const LINE_BYTES_MIN: usize = 15;
/// Length of the longest line in bytes (section 2.1).
const LINE_BYTES_MAX: usize = 107;

/// How much of a header has been read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Progress {
    /// At least this many bytes are missing. A read of this length does not go beyond the header.
    Needs(usize),
    /// The header is complete and contains this source.
    Whole(Source),
}

/// Parses the first bytes of a connection. `bytes` must not extend beyond the header.
///
/// # Errors
/// A description of the invalid bytes.
pub(crate) fn progress(bytes: &[u8]) -> Result<Progress, &'static str> {
    let begins_with = |begin: &[u8]| bytes.iter().zip(begin).all(|(byte, begun)| byte == begun);
    if begins_with(LINE_BEGIN) && !bytes.is_empty() {
        return line_progress(bytes);
    }
    if !begins_with(&SIGNATURE) {
        return Err("does not begin with a PROXY header");
    }
    let Some((head, body)) = bytes.split_first_chunk() else {
        let least = if bytes.is_empty() {
            LINE_BYTES_MIN
        } else {
            HEAD_BYTES
        };
        return Ok(Progress::Needs(least - bytes.len()));
    };
    match body_bytes(head)?.saturating_sub(body.len()) {
        0 => source(head, body).map(Progress::Whole),
        more => Ok(Progress::Needs(more)),
    }
}

/// Works like [`progress`], for a line of text (version 1).
fn line_progress(bytes: &[u8]) -> Result<Progress, &'static str> {
    if let Some(line) = bytes.strip_suffix(LINE_END) {
        let said = std::str::from_utf8(line).ok().and_then(line_source);
        let said = said.ok_or("has a PROXY header of version 1 that cannot be read");
        return said.map(Progress::Whole);
    }
    let is_half = bytes.last() == LINE_END.first();
    let end = if is_half { 1 } else { LINE_END.len() };
    let needs = end.max(LINE_BYTES_MIN.saturating_sub(bytes.len()));
    if bytes.len() + needs > LINE_BYTES_MAX {
        return Err("has a PROXY header of version 1 of more than 107 bytes");
    }
    Ok(Progress::Needs(needs))
}

/// The source in a line, which is given without its line end.
fn line_source(line: &str) -> Option<Source> {
    let mut words = line.split(' ').skip(1);
    let family = words.next()?;
    if family == "UNKNOWN" {
        // The words after UNKNOWN have no meaning.
        return Some(Source::Unknown);
    }
    let words: Vec<&str> = words.collect();
    let [client, server, client_port, server_port] = words[..] else {
        return None;
    };
    let ip = |text: &str| match family {
        "TCP4" => text.parse::<Ipv4Addr>().ok().map(IpAddr::V4),
        "TCP6" => text.parse::<Ipv6Addr>().ok().map(IpAddr::V6),
        _ => None,
    };
    let end = |address: &str, port: &str| Some(SocketAddr::new(ip(address)?, line_port(port)?));
    Some(Source::of(
        end(client, client_port)?,
        end(server, server_port)?,
    ))
}

/// Parses a decimal number without a sign or leading zeros.
fn line_port(text: &str) -> Option<u16> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit());
    let is_padded = text.len() > 1 && text.starts_with('0');
    text.parse().ok().filter(|_| is_plain && !is_padded)
}

/// Checks the head. Returns the number of bytes that follow the head.
///
/// # Errors
/// A description of the invalid head.
pub(crate) fn body_bytes(head: &[u8; HEAD_BYTES]) -> Result<usize, &'static str> {
    let [signature @ .., command, _, high, low] = head;
    if *signature != SIGNATURE {
        return Err("does not begin with the signature of the PROXY protocol, version 2");
    }
    if !matches!(*command, LOCAL | PROXY) {
        return Err("has a PROXY header of an unknown version or command");
    }
    match usize::from(u16::from_be_bytes([*high, *low])) {
        length if length > BODY_BYTES_MAX => Err("has a PROXY header of more than 536 bytes"),
        length => Ok(length),
    }
}

/// The source in a checked head and its body.
///
/// # Errors
/// A description of the invalid body.
pub(crate) fn source(head: &[u8; HEAD_BYTES], body: &[u8]) -> Result<Source, &'static str> {
    let ends = match (head[12], head[13]) {
        (PROXY, TCP_IPV4) => ends::<4>(body, |ip| Ipv4Addr::from(ip).into()),
        (PROXY, TCP_IPV6) => ends::<16>(body, |ip| Ipv6Addr::from(ip).into()),
        _ => return Ok(Source::Unknown),
    };
    let [client, server] = ends.ok_or("has a PROXY header that is too short for its addresses")?;
    Ok(Source::of(client, server))
}

/// Reads two addresses of `N` bytes, then their ports.
fn ends<const N: usize>(body: &[u8], ip: fn([u8; N]) -> IpAddr) -> Option<[SocketAddr; 2]> {
    let (client, rest) = body.split_first_chunk::<N>()?;
    let (server, rest) = rest.split_first_chunk::<N>()?;
    let ([a, b, c, d], _) = rest.split_first_chunk::<4>()?;
    Some([
        SocketAddr::new(ip(*client), u16::from_be_bytes([*a, *b])),
        SocketAddr::new(ip(*server), u16::from_be_bytes([*c, *d])),
    ])
}

/// Encodes `source` as a header.
pub(crate) fn header(source: Source) -> Vec<u8> {
    let (command, family, body) = match source {
        Source::Unknown => (LOCAL, UNSPECIFIED, Vec::new()),
        Source::Tcp { client, server } => {
            let mut body = Vec::new();
            for end in [client, server] {
                match end.ip() {
                    IpAddr::V4(ip) => body.extend(ip.octets()),
                    IpAddr::V6(ip) => body.extend(ip.octets()),
                }
            }
            body.extend(client.port().to_be_bytes());
            body.extend(server.port().to_be_bytes());
            let family = if client.is_ipv4() { TCP_IPV4 } else { TCP_IPV6 };
            (PROXY, family, body)
        }
    };
    let mut bytes = SIGNATURE.to_vec();
    bytes.extend([command, family]);
    // The body has at most 36 bytes.
    bytes.extend((body.len() as u16).to_be_bytes());
    bytes.extend(body);
    bytes
}

/// Checks any input of a sender: the bounds hold, and a parsed source stays the same when it is
/// encoded and parsed again.
#[cfg(any(test, feature = "oracles"))]
pub(crate) fn oracle(input: &[u8]) {
    oracle_of_pieces(input);
    let Some((head, rest)) = input.split_first_chunk() else {
        return;
    };
    let Ok(length) = body_bytes(head) else {
        return;
    };
    assert!(length <= BODY_BYTES_MAX);
    let Some(Ok(said)) = rest.get(..length).map(|body| source(head, body)) else {
        return;
    };
    let written = header(said);
    let (head, body) = written
        .split_first_chunk()
        .unwrap_or((&[0; HEAD_BYTES], &[]));
    assert_eq!(body_bytes(head), Ok(body.len()));
    assert_eq!(source(head, body), Ok(said));
}

/// Checks that a header of either version is read to its end, in pieces of any size, and that no
/// byte after the header is read.
#[cfg(any(test, feature = "oracles"))]
fn oracle_of_pieces(input: &[u8]) {
    let mut read = 0;
    let said = loop {
        match progress(&input[..read]) {
            Ok(Progress::Whole(said)) => break said,
            Ok(Progress::Needs(more)) if more <= input.len() - read => read += more,
            Ok(Progress::Needs(_)) | Err(_) => return,
        }
        assert!(read <= HEADER_BYTES_MAX);
    };
    for end in 0..read {
        let more = progress(&input[..end]);
        let is_within = |more| more > 0 && end + more <= read;
        assert!(matches!(more, Ok(Progress::Needs(more)) if is_within(more)));
    }
    assert_eq!(progress(&header(said)), Ok(Progress::Whole(said)));
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(bytes: &[u8]) -> Result<Source, &'static str> {
        let (head, body) = bytes.split_first_chunk().unwrap();
        assert!(body_bytes(head)? <= body.len());
        source(head, body)
    }

    fn header_of(command: u8, family: u8, body: &[u8]) -> Vec<u8> {
        let length = (body.len() as u16).to_be_bytes();
        [&SIGNATURE[..], &[command, family], &length, body].concat()
    }

    fn tcp(client: &str, server: &str) -> Source {
        Source::of(client.parse().unwrap(), server.parse().unwrap())
    }

    const V4: &[u8] = b"\xc0\x00\x02\x07\x0a\x00\x00\x01\xc3\x50\x00\x50";

    #[test]
    fn a_header_says_where_the_client_is_and_what_it_connected_to() {
        let v4 = tcp("192.0.2.7:50000", "10.0.0.1:80");
        let v6 = tcp("[2001:db8::7]:50000", "[::1]:80");
        assert_eq!(header(v4), header_of(0x21, 0x11, V4));
        for source in [v4, v6, Source::Unknown] {
            assert_eq!(read(&header(source)), Ok(source));
        }
        // Adds an extension after the addresses.
        let extended = [V4, b"\x04\x00\x01\x00"].concat();
        assert_eq!(read(&header_of(0x21, 0x11, &extended)), Ok(v4));
    }

    #[test]
    fn what_is_no_tcp_client_says_nothing_and_what_is_no_header_is_refused() {
        for (command, family) in [(0x20, 0x11), (0x21, 0x00), (0x21, 0x31), (0x21, 0x12)] {
            let said = read(&header_of(command, family, V4));
            assert_eq!(said, Ok(Source::Unknown), "{command:#x} {family:#x}");
        }
        for bad in [
            header_of(0x21, 0x11, &V4[..11]),
            header_of(0x21, 0x21, &[0; 35]),
            header_of(0x11, 0x11, V4),
            header_of(0x21, 0x11, &[0; 521]),
            b"PROXY TCP4 192.0.2.7 10.0.0.1 50000 80\r\n".to_vec(),
        ] {
            assert!(read(&bad).is_err(), "{bad:?}");
        }
    }

    /// The result for a connection that begins with `bytes`, and how many of these bytes were read.
    fn read_in_pieces(bytes: &[u8]) -> (Result<Source, &'static str>, usize) {
        let mut read = 0;
        loop {
            match progress(&bytes[..read]) {
                Ok(Progress::Needs(more)) => read = (read + more).min(bytes.len()),
                Ok(Progress::Whole(said)) => return (Ok(said), read),
                Err(problem) => return (Err(problem), read),
            }
        }
    }

    #[test]
    fn both_versions_are_read_to_their_end_and_no_further() {
        let v4 = tcp("192.0.2.7:50000", "10.0.0.1:80");
        let v6 = tcp("[2001:db8::7]:50000", "[2001:db8::1]:80");
        let mapped = tcp("192.0.2.7:50000", "10.0.0.1:80");
        let line = |text: &str| format!("{text}\r\n").into_bytes();
        let longest = "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff";
        for (bytes, expected) in [
            (line("PROXY TCP4 192.0.2.7 10.0.0.1 50000 80"), v4),
            (line("PROXY TCP6 2001:db8::7 2001:db8::1 50000 80"), v6),
            (
                line("PROXY TCP6 ::ffff:192.0.2.7 ::ffff:10.0.0.1 50000 80"),
                mapped,
            ),
            (line("PROXY UNKNOWN"), Source::Unknown),
            (
                line(&format!("PROXY UNKNOWN {longest} {longest} 65535 65535")),
                Source::Unknown,
            ),
            (header(v4), v4),
            (header(v6), v6),
            (header(Source::Unknown), Source::Unknown),
            (header_of(0x21, 0x11, &[V4, &[0; 508]].concat()), v4),
        ] {
            let followed = [&bytes[..], b"\r\nPROXY behind it"].concat();
            assert_eq!(read_in_pieces(&followed), (Ok(expected), bytes.len()));
            oracle(&followed);
        }
    }

    #[test]
    fn what_is_no_header_of_either_version_is_refused_as_soon_as_it_is_seen() {
        for (bytes, most) in [
            (
                &b"\x16\x03\x01\x40\0\x01\0\x3f\xfc\x03\x03\0\0\0\0\0"[..],
                15,
            ),
            (b"PROXI TCP4 192.0.2.7 10.0.0.1 1 2\r\n", 15),
            (b"PROXY TCP5 192.0.2.7 10.0.0.1 1 2\r\n", 107),
            (b"PROXY TCP4 192.0.2.7 10.0.0.1 01 2\r\n", 107),
            (b"PROXY TCP4 192.0.2.7 10.0.0.1 +1 2\r\n", 107),
            (b"PROXY TCP4 192.0.2.7 10.0.0.1 1 65536\r\n", 107),
            (b"PROXY TCP4 192.0.2.7  10.0.0.1 1 2\r\n", 107),
            (b"PROXY TCP4 2001:db8::7 2001:db8::1 1 2\r\n", 107),
            (b"PROXY TCP4 192.0.2.7 10.0.0.1 1\r\n", 107),
            (&[b"PROXY UNKNOWN ", &[b'x'; 200][..]].concat(), 107),
            (&header_of(0x21, 0x11, &[0; 521]), 16),
            (&header_of(0x31, 0x11, V4), 16),
        ] {
            let (said, read) = read_in_pieces(bytes);
            assert!(said.is_err() && read <= most, "{read} of {bytes:?}");
        }
        // One byte is enough to exclude a header.
        assert!(progress(b"G").is_err() && progress(b"\x16").is_err());
    }

    proptest! {
        #[test]
        fn no_pieces_break_anything(line in "PROXY (TCP4|TCP6|UNKNOWN)?[ -~\\r\\n]{0,120}", any: Vec<u8>) {
            oracle(line.as_bytes());
            oracle(&any);
        }

        #[test]
        fn no_header_breaks_anything(head: [u8; HEAD_BYTES], body: Vec<u8>) {
            let _ = body_bytes(&head);
            let _ = source(&head, &body);
        }
    }
}
