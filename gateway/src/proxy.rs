//! The PROXY protocol, version 2: who a client is, as a sender in front of a port writes it to us, and as an
//! exit writes it to a target.
//!
//! Source: "The PROXY protocol, versions 1 & 2", section 2.2. Of what is read, all that is not a TCP client (a
//! LOCAL connection, another family) says nothing; extensions (TLVs) are skipped.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use muxtunnel_proto::Source;

/// Bytes before the addresses: signature 12, version and command 1, family 1, length 2.
pub(crate) const HEAD_BYTES: usize = 16;
/// Most bytes behind them: addresses and extensions of a header of 536 bytes, which fits any packet.
const BODY_BYTES_MAX: usize = 520;
const SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";
const LOCAL: u8 = 0x20;
const PROXY: u8 = 0x21;
const UNSPECIFIED: u8 = 0;
const TCP_IPV4: u8 = 0x11;
const TCP_IPV6: u8 = 0x21;

/// Judges the head; returns how many bytes follow it.
///
/// # Errors
/// What is wrong with it.
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

/// Who the client is, of a head that was judged and its body.
///
/// # Errors
/// What is wrong with it.
pub(crate) fn source(head: &[u8; HEAD_BYTES], body: &[u8]) -> Result<Source, &'static str> {
    let ends = match (head[12], head[13]) {
        (PROXY, TCP_IPV4) => ends::<4>(body, |ip| Ipv4Addr::from(ip).into()),
        (PROXY, TCP_IPV6) => ends::<16>(body, |ip| Ipv6Addr::from(ip).into()),
        _ => return Ok(Source::Unknown),
    };
    let [client, server] = ends.ok_or("has a PROXY header that is too short for its addresses")?;
    Ok(Source::of(client, server))
}

/// Two addresses of `N` bytes, then their ports.
fn ends<const N: usize>(body: &[u8], ip: fn([u8; N]) -> IpAddr) -> Option<[SocketAddr; 2]> {
    let (client, rest) = body.split_first_chunk::<N>()?;
    let (server, rest) = rest.split_first_chunk::<N>()?;
    let ([a, b, c, d], _) = rest.split_first_chunk::<4>()?;
    Some([
        SocketAddr::new(ip(*client), u16::from_be_bytes([*a, *b])),
        SocketAddr::new(ip(*server), u16::from_be_bytes([*c, *d])),
    ])
}

/// The header that says `source`.
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
    // At most 36 bytes.
    bytes.extend((body.len() as u16).to_be_bytes());
    bytes.extend(body);
    bytes
}

/// What holds for whatever a sender in front may write: bounds, and what is read is what would be written.
#[cfg(any(test, feature = "oracles"))]
pub(crate) fn oracle(input: &[u8]) {
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
        // An extension behind the addresses.
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

    proptest! {
        #[test]
        fn no_header_breaks_anything(head: [u8; HEAD_BYTES], body: Vec<u8>) {
            let _ = body_bytes(&head);
            let _ = source(&head, &body);
        }
    }
}
