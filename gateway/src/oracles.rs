//! Properties of the parsers of foreign input, from peers and from ssh's files. Each parser has one
//! function, which panics if a property does not hold.
//!
//! `make fuzz` searches for inputs that break a property. `make fuzz` stores inputs in
//! `gateway/fuzz/corpus/`, in one folder per function, and the tests here replay them. This module
//! is not part of the muxgate binary.

use muxtunnel_proto::rendezvous::{WORD_BYTES_MAX, decode, encode, opening, ticket_in};

use crate::ingress::listener::oracle;
use crate::io::ssh::oracle as ssh;
use crate::io::transport::{tls_oracle as tls, web_socket_oracle};

/// Panics if a property does not hold for the input.
pub type Oracle = fn(&[u8]);

/// All oracles, by the name of their target and corpus.
pub const ALL: [(&str, Oracle); 18] = [
    ("authorized_keys", ssh::authorized_keys),
    ("detect", oracle::detect),
    ("egress", crate::net::egress::oracle::answer),
    ("http", oracle::http),
    ("http2", crate::session::http2::oracle::oracle),
    ("http3", crate::session::http3::oracle::oracle),
    ("known_hosts", ssh::known_hosts),
    ("packet", packet),
    ("proxy", crate::io::proxy_header::oracle),
    ("quic", crate::session::quic::wire::oracle),
    ("rendezvous", rendezvous),
    ("response", crate::roles::entry::response_oracle),
    ("socks4", oracle::socks4),
    ("socks5", oracle::socks5),
    ("tls_certificate", tls::certificates),
    ("tls_handshake", tls::handshakes),
    ("tls_record", tls::records),
    ("web_socket", web_socket_oracle),
];

/// The oracle with this name.
///
/// # Panics
/// An oracle with this name does not exist.
#[must_use]
pub fn named(name: &str) -> Oracle {
    let found = ALL.iter().find(|(known, _)| *known == name);
    found.map_or_else(|| unreachable!("no oracle {name}"), |(_, oracle)| *oracle)
}

/// Checks that a decoded message encodes to the bytes from which it was decoded, requires all of
/// these bytes, and is within the size limit. Checks the same of an opening.
fn rendezvous(input: &[u8]) {
    if let Some(first) = input.first_chunk()
        && let Some(ticket) = ticket_in(first)
    {
        assert_eq!(opening(&ticket), *first);
    }
    let Ok(Some((word, consumed))) = decode(input) else {
        return;
    };
    assert!(consumed <= WORD_BYTES_MAX);
    assert_eq!(encode(&word), &input[..consumed]);
    for end in 0..consumed {
        assert_eq!(decode(&input[..end]), Ok(None));
    }
}

/// Checks that a peer's packet is parsed identically after each modification of its bytes, and that
/// the peer accepts every packet that an interface delivers.
fn packet(input: &[u8]) {
    use muxtunnel_packet::{check, clamp_mss, from_device, mark_congestion, prohibited, too_big};
    let mut bytes = input.to_vec();
    if let Ok(brought) = from_device(&mut bytes) {
        assert_eq!(check(&bytes), Ok(brought));
    }
    let Ok(taken) = check(input) else {
        return;
    };
    muxtunnel_packet::oracle::assert_sound(input, &taken);
    let mut bytes = input.to_vec();
    clamp_mss(&mut bytes, &taken, 1280);
    mark_congestion(&mut bytes);
    let after = check(&bytes).map(|packet| (packet.source, packet.destination, packet.ports));
    assert_eq!(after, Ok((taken.source, taken.destination, taken.ports)));
    for answer in [
        prohibited(input, taken.destination),
        too_big(input, 1280, taken.destination),
    ]
    .into_iter()
    .flatten()
    {
        assert_eq!(
            check(&answer).map(|packet| packet.destination),
            Ok(taken.source)
        );
    }
    for mtu in [100, 1280, 65_535] {
        cut(input, &taken, mtu);
    }
}

/// Checks that the segments of a packet fit the MTU, are accepted by the peer, and contain the
/// whole payload. Joining the segments yields the same packet again.
fn cut(framed: &[u8], packet: &muxtunnel_packet::Packet, mtu: usize) {
    use muxtunnel_packet::{Coalescer, Segments, check, check_plain};
    let all = |framed: &[u8], mtu| {
        let packet = check(framed).ok()?;
        let (mut segments, mut all) = (Segments::of(framed, &packet, mtu)?, Vec::new());
        while let Some(length) = segments.next_length() {
            let mut segment = Vec::new();
            assert!(segments.append_next(&mut segment) && segment.len() == length);
            all.push(segment);
        }
        Some(all)
    };
    let Some(mut segments) = all(framed, mtu) else {
        assert!(mtu < packet.length);
        return;
    };
    let is_fragmented =
        |checked: &muxtunnel_packet::Packet| checked.is_fragment() && !packet.is_fragment();
    let (mut payload, mut joined) = (Vec::new(), Vec::new());
    let mut emit = |framed: &[u8]| joined.push(framed.to_vec());
    let mut coalescer = Coalescer::new(true);
    for segment in &segments {
        let checked = check_plain(segment);
        let Ok(checked) = checked else {
            unreachable!("{checked:?}: {segment:02x?}");
        };
        assert!(segment.len() <= mtu);
        // The first fragment contains the transport header, whose checksum was completed.
        let begin = match is_fragmented(&checked) {
            true => checked.header_length + if payload.is_empty() { 20 } else { 0 },
            false => checked.payload_offset,
        };
        payload.extend_from_slice(&segment[begin..]);
        coalescer.push(segment, &checked, &mut emit);
    }
    coalescer.flush(&mut emit);
    assert!(framed.ends_with(&payload));
    assert!(payload.len() + 20 >= framed.len() - 10 - packet.payload_offset);
    let again = joined.iter().map(|framed| all(framed, 65_535));
    let mut again: Vec<_> = again.flatten().flatten().collect();
    // The identification of a packet that must not be fragmented has no meaning. So the check sets
    // the identification as if it were counted from the first segment.
    for bytes in again.iter_mut().chain(&mut segments) {
        if bytes[0] >> 4 == 4 && bytes[6] & 0x40 != 0 {
            bytes[4..6].fill(0);
            bytes[10..12].fill(0);
        }
    }
    assert_eq!(again, segments);
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn all_that_was_ever_found_holds() {
        for (name, oracle) in ALL {
            let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
                .join("fuzz/corpus")
                .join(name);
            let entries = std::fs::read_dir(&folder)
                .unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
            let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
            files.sort();
            assert!(files.len() >= 10, "{name} has {} inputs", files.len());
            for file in files {
                let input = std::fs::read(&file).unwrap();
                if let Err(cause) = std::panic::catch_unwind(|| oracle(&input)) {
                    eprintln!("with {}", file.display());
                    std::panic::resume_unwind(cause);
                }
            }
        }
    }
}
