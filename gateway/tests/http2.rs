//! HTTP/2 and HBONE with third-party programs, and with peers that abuse the protocol.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::time::Duration;

use crate::common::frames::Peer;
use crate::common::interop::*;
use crate::common::*;

/// A stream from an Envoy to our exit.
fn from_envoy(protocol: &str, tls: Option<&Tls>, listener: &TcpListener) -> Ends {
    let target = listener.local_addr().unwrap();
    let (gate, carrier) = exit(protocol, tls, target);
    let envoy = crate::common::envoy::entry(carrier, target, tls.map(|tls| (&tls.entry, EXIT)));
    let client = connect(envoy.address);
    Ends {
        server: accept(listener),
        client,
        gate,
        peer: Box::new(envoy),
    }
}

/// A stream from our entry to an Envoy.
fn to_envoy(protocol: &str, tls: Option<&Tls>, listener: &TcpListener) -> Ends {
    let target = listener.local_addr().unwrap();
    let envoy = crate::common::envoy::exit(target, tls.map(|tls| (&tls.exit, ENTRY)));
    let (gate, forward) = entry(protocol, tls, envoy.address, target);
    let client = connect(forward);
    Ends {
        server: accept(listener),
        client,
        gate,
        peer: Box::new(envoy),
    }
}

#[test]
fn an_envoy_reaches_targets_through_an_exit_by_h2c() {
    assert_interoperates(Some(Side::Exit), &|listener| {
        from_envoy("HTTP2", None, listener)
    });
}

#[test]
fn an_entry_reaches_targets_through_an_envoy_by_h2c() {
    assert_interoperates(Some(Side::Entry), &|listener| {
        to_envoy("HTTP2", None, listener)
    });
}

#[test]
fn an_envoy_and_an_exit_speak_hbone_with_identities_of_a_mesh() {
    let dir = tempfile::tempdir().unwrap();
    let tls = Tls::new(dir.path());
    assert_interoperates(Some(Side::Exit), &|listener| {
        from_envoy("HBONE", Some(&tls), listener)
    });
}

#[test]
fn an_entry_and_an_envoy_speak_hbone_with_identities_of_a_mesh() {
    let dir = tempfile::tempdir().unwrap();
    let tls = Tls::new(dir.path());
    assert_interoperates(Some(Side::Entry), &|listener| {
        to_envoy("HBONE", Some(&tls), listener)
    });
}

#[test]
fn an_envoy_is_refused_what_the_policy_denies() {
    let (listener, allowed) = target();
    let (_other, denied) = target();
    let (gate, carrier) = exit("HTTP2", None, allowed);
    let envoy = crate::common::envoy::entry(carrier, denied, None);
    assert_reset_or_end(&connect(envoy.address));
    assert_eq!(gate.status()["streams"]["refused"]["MT0204"], 1);
    drop((listener, envoy));
}

const PROTOCOL_ERROR: u32 = 1;
const ENHANCE_YOUR_CALM: u32 = 11;

/// The exit ends the connection of each abusive peer with a code. The exit uses less than 64 MiB,
/// and serves other peers.
#[test]
fn peers_that_abuse_the_protocol_are_cut_off() {
    let (listener, target) = target();
    let (gate, carrier) = exit("HTTP2", None, target);
    type Abuse<'a> = (&'a str, &'a dyn Fn(&mut Peer), &'a [u32]);
    let abuses: [Abuse<'_>; 8] = [
        // CVE-2023-44487.
        (
            "rapid reset",
            &|peer| {
                for stream in (1..40_000).step_by(2) {
                    if !(peer.connect(stream, target)
                        && peer.frame(3, 0, stream, &8_u32.to_be_bytes()))
                    {
                        break;
                    }
                }
            },
            &[ENHANCE_YOUR_CALM],
        ),
        // CVE-2025-8671: window updates above the maximum make the exit reset streams.
        (
            "made you reset",
            &|peer| {
                for stream in (1..40_000).step_by(2) {
                    if !(peer.connect(stream, target)
                        && peer.frame(8, 0, stream, &[0x7f, 0xff, 0xff, 0xff]))
                    {
                        break;
                    }
                }
            },
            &[ENHANCE_YOUR_CALM],
        ),
        // CVE-2024-27316 and similar attacks.
        (
            "continuation flood",
            &|peer| {
                peer.frame(1, 0, 1, &[0x02, 7]);
                while peer.frame(9, 0, 1, &[0; 1024]) {}
            },
            &[PROTOCOL_ERROR, ENHANCE_YOUR_CALM],
        ),
        (
            "header bomb",
            &|peer| {
                let mut block = vec![0x40, 1, b'a', 0x7f, 0x80 | 0x40, 0x1e];
                block.extend([b'b'; 4000]);
                block.extend([0xbe; 12_000]);
                for stream in (1..200).step_by(2) {
                    if !peer.frame(1, 4, stream, &block) {
                        break;
                    }
                }
            },
            &[PROTOCOL_ERROR, ENHANCE_YOUR_CALM, 9],
        ),
        (
            "small data",
            &|peer| {
                peer.connect(1, target);
                peer.flood(0, 1, &[7]);
            },
            &[ENHANCE_YOUR_CALM],
        ),
        // CVE-2019-9518.
        (
            "empty data",
            &|peer| {
                peer.connect(1, target);
                peer.flood(0, 1, &[]);
            },
            &[ENHANCE_YOUR_CALM],
        ),
        // The peer answers no SETTINGS, so it may be before the limit for as long as it likes.
        (
            "opens above the limit",
            &|peer| {
                for stream in (1..400_000).step_by(2) {
                    if !peer.connect(stream, target) {
                        break;
                    }
                }
            },
            &[ENHANCE_YOUR_CALM],
        ),
        // A stream with a high number ends all streams with lower numbers.
        (
            "data for ended streams",
            &|peer| {
                peer.connect(2_000_001, target);
                for stream in (1..2_000_000).step_by(2) {
                    if !peer.frame(0, 0, stream, &[7]) {
                        break;
                    }
                }
            },
            &[ENHANCE_YOUR_CALM],
        ),
    ];
    for (name, abuse, codes) in abuses {
        let mut peer = Peer::new(carrier);
        let ends = peer.ends();
        abuse(&mut peer);
        let code = ends.join().unwrap();
        assert!(codes.contains(&code), "{name}: {code}");
    }
    assert_small(&gate);
    let (_entry, forward) = entry("HTTP2", None, carrier, target);
    let client = connect(forward);
    let server = std::iter::repeat_with(|| accept(&listener));
    // Skips connections of the abusers, which may precede this connection in the backlog.
    (&client).write_all(b"hello").unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    let hears = |mut server: TcpStream| {
        let mut said = Vec::new();
        // A read error is expected on connections of the abusers, which were reset.
        let _ = server.read_to_end(&mut said);
        said == b"hello"
    };
    assert!(server.take(200).any(hears));
}

/// Peers send floods of small frames that need an answer, and read no answers. The exit's memory
/// stays bounded, and the exit serves other peers.
#[test]
fn floods_of_pings_and_settings_cost_no_memory() {
    let (listener, target) = target();
    let (gate, carrier) = exit("HTTP2", None, target);
    for (kind, payload) in [(6, &[0; 8][..]), (4, &[0, 4, 0, 1, 0, 0][..])] {
        let mut peer = Peer::new(carrier);
        peer.0
            .set_write_timeout(Some(Duration::from_secs(2)))
            .unwrap();
        for _ in 0..2_000_000 {
            // The peer does not read the answers.
            if !peer.frame(kind, 0, 0, payload) {
                break;
            }
        }
        assert_small(&gate);
    }
    // Each of these frames needs an answer, which the library queues.
    let mut peer = Peer::new(carrier);
    peer.0
        .set_write_timeout(Some(Duration::from_secs(2)))
        .unwrap();
    assert!(peer.connect(2_000_001, target));
    let _abused = accept(&listener);
    let streams = (1..2_000_000).step_by(2);
    for stream in streams {
        if !peer.frame(0, 0, stream, &[7]) {
            break;
        }
    }
    assert_small(&gate);
    let (_entry, forward) = entry("HTTP2", None, carrier, target);
    assert_bulk(&connect(forward), accept(&listener), MIB);
}

/// A GOAWAY names the last processed stream (RFC 9113, section 6.8). Later streams may be opened on
/// another connection.
#[test]
fn an_open_that_the_peer_did_not_look_at_goes_to_another_connection() {
    let (listener, carrier) = target();
    let exit = std::thread::spawn(move || {
        let mut leaves = Peer::accepted(accept(&listener), &[]);
        assert_eq!(leaves.next_of(1).kind, crate::common::frames::HEADERS);
        assert!(leaves.frame(7, 0, 0, &[0; 8]));
        let mut stays = Peer::accepted(accept(&listener), &[]);
        assert_eq!(stays.next_of(1).kind, crate::common::frames::HEADERS);
        // `:status: 200`.
        assert!(stays.frame(crate::common::frames::HEADERS, 4, 1, &[0x88]));
        assert!(stays.frame(crate::common::frames::DATA, 1, 1, b"hello"));
        while stays.next().is_some() {}
    });
    let (entry, forward) = entry("HTTP2", None, carrier, carrier);
    let client = connect(forward);
    assert_eq!(read_all(&client), b"hello");
    drop((client, entry));
    exit.join().unwrap();
}
