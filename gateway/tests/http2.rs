//! HTTP/2 and HBONE against programs that nobody here wrote, and against peers that abuse the protocol.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test"
)]

#[path = "common/authority.rs"]
mod authority;
mod common;
#[path = "common/envoy.rs"]
mod envoy;
#[path = "common/frames.rs"]
mod frames;

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::time::Duration;

use authority::{Authority, Files};
use common::*;
use envoy::Envoy;
use frames::{Peer, assert_small};

const MIB: usize = 1 << 20;
const EXIT: &str = "exit.example.com";
const ENTRY: &str = "spiffe://cluster.local/ns/default/sa/entry";
/// Certificates are good until then.
const LATER: i32 = 2100;

/// What is on the ends of a tunnel, one of which is Envoy.
struct Ends {
    _envoy: Envoy,
    gate: Gate,
    client: TcpStream,
    server: TcpStream,
}

/// The files of exit and entry, where there is TLS.
struct Tls {
    exit: Files,
    entry: Files,
}

impl Tls {
    fn new(dir: &Path) -> Self {
        let authority = Authority::new();
        Self {
            exit: authority.issue(dir, EXIT, LATER),
            entry: authority.issue(dir, ENTRY, LATER),
        }
    }
}

fn security(files: Option<(&Files, &str)>) -> String {
    files.map_or("{mode: None}".to_owned(), |(files, peer)| {
        files.security(peer)
    })
}

/// An exit of ours that is allowed to dial `target`.
fn exit(protocol: &str, tls: Option<&Tls>, target: SocketAddr) -> (Gate, SocketAddr) {
    let carrier = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let security = security(tls.map(|tls| (&tls.exit, ENTRY)));
    let gate = Gate::with_file(&format!(
        "role: Exit\nprotocol: {protocol}\nsecurity: {security}\nlisten: '{carrier}'\nadmin: ADMIN\n\
         workers: 1\nallow: ['{target}']\nmemory: {{receive: 16Mi}}\nlimits: {{streams: 64}}\n"
    ));
    (gate.until_ready(), carrier)
}

/// An entry of ours, and where it listens for a forward to `target`.
fn entry(
    protocol: &str,
    tls: Option<&Tls>,
    exit: SocketAddr,
    target: SocketAddr,
) -> (Gate, SocketAddr) {
    let forward = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let security = security(tls.map(|tls| (&tls.entry, EXIT)));
    let gate = Gate::with_file(&format!(
        "role: Entry\nprotocol: {protocol}\nsecurity: {security}\nconnect: '{exit}'\nadmin: ADMIN\n\
         workers: 1\nforwards:\n\
         - {{name: a, listen: '{forward}', target: {{host: {}, port: {}}}}}\n",
        target.ip(),
        target.port()
    ));
    (gate.until_ready(), forward)
}

/// A stream of an Envoy to an exit of ours.
fn from_envoy(protocol: &str, tls: Option<&Tls>, listener: &TcpListener) -> Ends {
    let target = listener.local_addr().unwrap();
    let (gate, carrier) = exit(protocol, tls, target);
    let envoy = envoy::entry(carrier, target, tls.map(|tls| (&tls.entry, EXIT)));
    let client = connect(envoy.address);
    Ends {
        server: accept(listener),
        client,
        gate,
        _envoy: envoy,
    }
}

/// A stream of an entry of ours to an Envoy.
fn to_envoy(protocol: &str, tls: Option<&Tls>, listener: &TcpListener) -> Ends {
    let target = listener.local_addr().unwrap();
    let envoy = envoy::exit(target, tls.map(|tls| (&tls.exit, ENTRY)));
    let (gate, forward) = entry(protocol, tls, envoy.address, target);
    let client = connect(forward);
    Ends {
        server: accept(listener),
        client,
        gate,
        _envoy: envoy,
    }
}

/// What `stream` makes carries bulk, one way after the other: an Envoy ends a stream whose target ends first. Resets arrive
/// as such behind `ours`, but not behind the Envoy, which knows none.
fn assert_interoperates(ours: Side, stream: &dyn Fn(&TcpListener) -> Ends) {
    let (listener, _) = target();
    let mut ends = stream(&listener);
    let (up, down) = (pattern(1, 16 * MIB), pattern(2, 16 * MIB));
    let sends = send_in_background(&ends.client, up.clone(), true);
    assert!(read_all(&ends.server) == up);
    sends.join().unwrap();
    ends.server.write_all(&[7]).unwrap();
    ends.client.read_exact(&mut [0]).unwrap();
    let sends = send_in_background(&ends.server, down.clone(), true);
    assert!(read_all(&ends.client) == down);
    sends.join().unwrap();
    until("the stream is completed", || {
        ends.gate.status()["streams"]["closed"]["completed"] == 1
    });
    drop(ends);

    for resets in [Side::Entry, Side::Exit] {
        let mut ends = stream(&listener);
        ends.client.write_all(b"1").unwrap();
        ends.server.read_exact(&mut [0]).unwrap();
        let (cut, other) = match resets {
            Side::Entry => (ends.client, ends.server),
            Side::Exit => (ends.server, ends.client),
        };
        socket2::SockRef::from(&cut)
            .set_linger(Some(Duration::ZERO))
            .unwrap();
        drop(cut);
        if resets == ours {
            assert_reset_or_end(&other);
        } else {
            assert_reset(&other);
        }
    }
}

/// Where in a tunnel.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Entry,
    Exit,
}

#[test]
fn an_envoy_reaches_targets_through_an_exit_by_h2c() {
    assert_interoperates(Side::Exit, &|listener| from_envoy("HTTP2", None, listener));
}

#[test]
fn an_entry_reaches_targets_through_an_envoy_by_h2c() {
    assert_interoperates(Side::Entry, &|listener| to_envoy("HTTP2", None, listener));
}

#[test]
fn an_envoy_and_an_exit_speak_hbone_with_identities_of_a_mesh() {
    let dir = tempfile::tempdir().unwrap();
    let tls = Tls::new(dir.path());
    assert_interoperates(Side::Exit, &|listener| {
        from_envoy("HBONE", Some(&tls), listener)
    });
}

#[test]
fn an_entry_and_an_envoy_speak_hbone_with_identities_of_a_mesh() {
    let dir = tempfile::tempdir().unwrap();
    let tls = Tls::new(dir.path());
    assert_interoperates(Side::Entry, &|listener| {
        to_envoy("HBONE", Some(&tls), listener)
    });
}

#[test]
fn an_envoy_is_refused_what_the_policy_denies() {
    let (listener, allowed) = target();
    let (_other, denied) = target();
    let (gate, carrier) = exit("HTTP2", None, allowed);
    let envoy = envoy::entry(carrier, denied, None);
    assert_reset_or_end(&connect(envoy.address));
    assert_eq!(gate.status()["streams"]["refused"]["MT0204"], 1);
    drop((listener, envoy));
}

/// Envoy has no way to reset a client whose CONNECT was refused.
fn assert_reset_or_end(client: &TcpStream) {
    let mut client = client;
    assert!(matches!(client.read(&mut [0]), Ok(0) | Err(_)));
}

const PROTOCOL_ERROR: u32 = 1;
const ENHANCE_YOUR_CALM: u32 = 11;

/// Each abuse is an end of the connection with a code, the exit keeps below 64 MiB, and serves others.
#[test]
fn peers_that_abuse_the_protocol_are_cut_off() {
    let (listener, target) = target();
    let (gate, carrier) = exit("HTTP2", None, target);
    type Abuse<'a> = (&'a str, &'a dyn Fn(&mut Peer), &'a [u32]);
    let abuses: [Abuse<'_>; 5] = [
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
        // CVE-2025-8671: the exit is made to reset, by windows that are too large.
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
        // CVE-2024-27316 and its like.
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
                while peer.frame(0, 0, 1, &[7]) {}
            },
            &[ENHANCE_YOUR_CALM],
        ),
    ];
    for (name, abuse, codes) in abuses {
        let mut peer = Peer::new(carrier);
        abuse(&mut peer);
        let code = peer.end();
        assert!(codes.contains(&code), "{name}: {code}");
    }
    assert_small(&gate);
    let (_entry, forward) = entry("HTTP2", None, carrier, target);
    let client = connect(forward);
    let server = std::iter::repeat_with(|| accept(&listener));
    // Targets of the abusers may stand in the backlog before it.
    (&client).write_all(b"hello").unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    let hears = |mut server: TcpStream| {
        let mut said = Vec::new();
        // Those of the abusers were reset.
        let _ = server.read_to_end(&mut said);
        said == b"hello"
    };
    assert!(server.take(200).any(hears));
}

/// Floods of what costs nothing to send and is answered: the exit's memory is bounded, and it serves others.
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
            // Nothing of the answers is read.
            if !peer.frame(kind, 0, 0, payload) {
                break;
            }
        }
        assert_small(&gate);
    }
    let (_entry, forward) = entry("HTTP2", None, carrier, target);
    assert_bulk(&connect(forward), accept(&listener), MIB);
}
