//! What holds whatever a stranger says, or is in a file of ssh: a function for each such parser, which panics where it
//! does not hold.
//!
//! `make fuzz` looks for inputs that break one; those that it keeps are in `gateway/fuzz/corpus/`, a folder a
//! function, and the tests here go through them. Not part of muxgate.

use muxtunnel_proto::rendezvous::{WORD_BYTES_MAX, decode, encode};

use crate::ingress::listener::oracle;
use crate::io::ssh::oracle as ssh;
use crate::io::transport::web_socket_oracle;

/// Panics where something does not hold for an input.
pub type Oracle = fn(&[u8]);

/// All of them, by the name of target and corpus.
pub const ALL: [(&str, Oracle); 13] = [
    ("authorized_keys", ssh::authorized_keys),
    ("detect", oracle::detect),
    ("http", oracle::http),
    ("http2", crate::session::http2::oracle::oracle),
    ("http3", crate::session::http3::oracle::oracle),
    ("known_hosts", ssh::known_hosts),
    ("packet", packet),
    ("proxy", crate::io::proxy_header::oracle),
    ("quic", crate::session::quic::wire::oracle),
    ("rendezvous", rendezvous),
    ("socks4", oracle::socks4),
    ("socks5", oracle::socks5),
    ("web_socket", web_socket_oracle),
];

/// The function of a name.
///
/// # Panics
/// There is none.
#[must_use]
pub fn named(name: &str) -> Oracle {
    let found = ALL.iter().find(|(known, _)| *known == name);
    found.map_or_else(|| unreachable!("no oracle {name}"), |(_, oracle)| *oracle)
}

/// A word is read as what would be written, needs all of its bytes, and no more than there may be.
fn rendezvous(input: &[u8]) {
    let Ok(Some((word, consumed))) = decode(input) else {
        return;
    };
    assert!(consumed <= WORD_BYTES_MAX);
    assert_eq!(encode(&word), &input[..consumed]);
    for end in 0..consumed {
        assert_eq!(decode(&input[..end]), Ok(None));
    }
}

/// A packet that is taken from a peer is what a second reading of its bytes finds, stays so through all that is done with it,
/// and what an interface brings is taken by the peer.
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

/// What a packet is cut into fits, is taken by the peer, has the whole payload, and is the same again once it was joined.
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
        // The header of the transport is the first fragment's, whose checksum was completed.
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
    // Where nothing may be fragmented the identification means nothing, and counts from the first of what was joined.
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
