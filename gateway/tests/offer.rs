//! The offer of an exit, requested on the admin port of its entry: muxgate processes on loopback.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    reason = "a test"
)]

#[path = "common/authority.rs"]
mod authority;
mod common;
#[path = "common/ends.rs"]
mod ends;

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use authority::Authority;
use common::*;
use ends::*;

/// The maximum length of an offer.
const OFFER_BYTES: usize = 64 << 10;
const NOTHING: &str =
    "the exit refused the request: MT0204: offer.muxtunnel.invalid:1: this exit has no offer\n";

/// The authority of a test, and the folder of its files.
struct Tunnel {
    _dir: tempfile::TempDir,
    ends: Ends,
    protocol: &'static str,
    carrier: SocketAddr,
    target: SocketAddr,
}

impl Tunnel {
    fn of(protocol: &'static str, target: SocketAddr) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (_, _, ends) = tls(dir.path(), &Authority::new());
        Self {
            _dir: dir,
            ends,
            protocol,
            carrier: carrier_address(),
            target,
        }
    }

    /// The exit's configuration with `more` lines, which may include `offer`.
    fn exit_text(&self, more: &str) -> String {
        let Self {
            protocol,
            carrier,
            target,
            ..
        } = self;
        let security = &self.ends.exit;
        format!(
            "role: Exit\nprotocol: {protocol}\nsecurity: {security}\nlisten: '{carrier}'\nadmin: ADMIN\n\
             workers: 2\nallow: ['{target}', '*']\n{more}"
        )
    }

    fn exit(&self, more: &str) -> Gate {
        Gate::with_file(&self.exit_text(more)).until_ready()
    }

    fn entry_by(&self, connect: SocketAddr) -> (Gate, SocketAddr) {
        entry(&self.ends.entry, self.protocol, connect, self.target)
    }

    fn entry(&self) -> (Gate, SocketAddr) {
        let (gate, forward) = self.entry_by(self.carrier);
        (gate.until_ready(), forward)
    }
}

/// Text of this length in which each part identifies its position.
fn text(bytes: usize) -> String {
    let lines = (0..).map(|line| format!("line {line}"));
    let mut text = String::new();
    for line in lines {
        text += &line;
        text.push('\n');
        if text.len() >= bytes {
            text.truncate(bytes - 1);
            return text + ".";
        }
    }
    text
}

/// The value of a counter of a gateway's streams.
fn streams(gate: &Gate, what: &str) -> u64 {
    gate.status()["streams"][what].as_u64().unwrap()
}

/// The configuration line with the offer `text` as JSON, because JSON is valid YAML.
fn offering(text: &str) -> String {
    format!("offer: {}\n", serde_json::to_string(text).unwrap())
}

#[test]
fn an_entry_gives_what_its_exit_offers_while_streams_go_on() {
    for protocol in ["Native", "Jmux"] {
        let (listener, target) = target();
        let tunnel = Tunnel::of(protocol, target);
        let first = text(1000);
        let exit = tunnel.exit(&offering(&first));
        let (entry, forward) = tunnel.entry();
        let client = connect(forward);
        let server = accept(&listener);
        assert_eq!(entry.get("/offer"), (200, first));
        for longer in [text(OFFER_BYTES), text(OFFER_BYTES - 1)] {
            exit.rewrite(&tunnel.exit_text(&offering(&longer)));
            until("the entry returns the current offer", || {
                entry.get("/offer") == (200, longer.clone())
            });
        }
        exit.rewrite(&tunnel.exit_text(""));
        until("the entry reports that the exit has no offer", || {
            entry.get("/offer") == (502, NOTHING.to_owned())
        });
        assert_bulk(&client, server, MIB);
        drop(client);
        assert_eq!(exit.get("/offer").0, 404);
        for gate in [&entry, &exit] {
            until("all streams are over", || streams(gate, "open") == 0);
            assert!(streams(gate, "opened") >= 4);
            gate.line(&["Stream closed", "offer.muxtunnel.invalid:1", "completed"]);
            assert!(!gate.log().contains("-reset"), "an offer ends in order");
        }
        // The forward had one stream.
        assert_eq!(entry.status()["forwards"][0]["streams"]["opened"], 1);
        exit.line(&["Open refused", "MT0204", "has no offer"]);
    }
}

#[test]
fn whichever_worker_has_a_session_gives_the_offer() {
    let (_listener, target) = target();
    let tunnel = Tunnel::of("Native", target);
    let one = format!("limits: {{carriers: 1}}\n{}", offering("text"));
    let _exit = tunnel.exit(&one);
    let forward = free_port();
    let entry = Gate::with_file(&format!(
        "role: Entry\nsecurity: {}\nconnect: '{}'\nadmin: ADMIN\nworkers: 6\npool: {{min: 1, max: 1}}\n\
         forwards:\n- {{name: a, listen: '127.0.0.1:{forward}', target: {{host: 127.0.0.1, port: 1}}}}\n",
        tunnel.ends.entry, tunnel.carrier
    ));
    until("a worker has a session", || {
        entry.get("/offer") == (200, "text".to_owned())
    });
    let carriers = entry.status()["carriers"].as_array().map(Vec::len);
    assert_eq!(carriers, Some(1));
}

#[test]
fn an_entry_without_a_session_says_so() {
    let (_listener, target) = target();
    let tunnel = Tunnel::of("Native", target);
    let (entry, _) = tunnel.entry_by(tunnel.carrier);
    let expected = "no session with an exit is established\n".to_owned();
    assert_eq!(entry.get("/offer"), (503, expected));
}

#[test]
fn an_exit_that_knows_nobody_refuses_by_a_reason_that_is_told() {
    let (_listener, target) = target();
    // The exit refuses the request itself. It never looks up the name of the offer, which a search
    // list could complete.
    let pair = Pair::to("Native", target);
    assert_eq!(pair.entry.get("/offer"), (502, NOTHING.to_owned()));
}

#[test]
fn one_request_at_a_time_and_none_for_ever() {
    let (_listener, target) = target();
    let tunnel = Tunnel::of("Native", target);
    let exit = tunnel.exit(&offering("text"));
    let (entry, _) = tunnel.entry();
    exit.signal("STOP");
    let answers = std::thread::scope(|scope| {
        let ask = || scope.spawn(|| entry.get("/offer"));
        let mut answers = [ask(), ask()].map(|answer| answer.join().unwrap());
        answers.sort();
        answers
    });
    exit.signal("CONT");
    let [busy, late] = answers;
    let expected = "another request is in progress; try again later\n".to_owned();
    assert_eq!(busy, (429, expected));
    let expected = "the exit did not send its whole offer within 10 s\n".to_owned();
    assert_eq!(late, (504, expected));
    assert_eq!(entry.get("/offer"), (200, "text".to_owned()));
    until("the streams of the first request are closed", || {
        streams(&entry, "open") == 0 && streams(&exit, "open") == 0
    });
}

/// A path to `exit`, and the number of bytes from the exit after which the path cuts a carrier. 0:
/// never.
fn cutting_path(exit: SocketAddr) -> (SocketAddr, Arc<AtomicUsize>) {
    let (listener, address) = target();
    let left = Arc::new(AtomicUsize::new(0));
    let told = Arc::clone(&left);
    std::thread::spawn(move || {
        for near in listener.incoming().flatten() {
            let far = TcpStream::connect(exit).unwrap();
            for (mut from, mut to, counts) in [
                (near.try_clone().unwrap(), far.try_clone().unwrap(), false),
                (far, near, true),
            ] {
                let left = Arc::clone(&told);
                std::thread::spawn(move || {
                    let mut bytes = vec![0; 1 << 16];
                    while let Ok(mut length @ 1..) = from.read(&mut bytes) {
                        let before = left.load(Ordering::Relaxed);
                        let cuts = counts && before > 0 && before <= length;
                        if cuts {
                            length = before;
                        }
                        if counts {
                            left.store(before.saturating_sub(length), Ordering::Relaxed);
                        }
                        if to.write_all(&bytes[..length]).is_err() || cuts {
                            break;
                        }
                    }
                    let _ = to.shutdown(Shutdown::Both);
                    let _ = from.shutdown(Shutdown::Both);
                });
            }
        }
    });
    (address, left)
}

#[test]
fn an_offer_that_is_cut_is_never_taken_for_a_short_one() {
    let (_listener, target) = target();
    // With JMUX, a session ends with its carrier.
    let tunnel = Tunnel::of("Jmux", target);
    let whole = text(OFFER_BYTES);
    let _exit = tunnel.exit(&offering(&whole));
    let (path, left) = cutting_path(tunnel.carrier);
    let (entry, _) = tunnel.entry_by(path);
    let entry = entry.until_ready();
    assert_eq!(entry.get("/offer"), (200, whole.clone()));
    for bytes in [1_000, 40_000] {
        left.store(bytes, Ordering::Relaxed);
        let (status, line) = entry.get("/offer");
        assert_eq!(status, 502, "{line}");
        let expected = "the stream was cut after ";
        assert!(
            line.starts_with(expected) && line.ends_with(": carrier-lost\n"),
            "{line}"
        );
        until("the entry has another session", || {
            entry.get("/offer") == (200, whole.clone())
        });
    }
}

#[test]
fn through_a_rendezvous_as_well() {
    let (_listener, target) = target();
    let tunnel = Tunnel::of("Native", target);
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    const SECRET: &str = "0123456789abcdef0123456789abcdef";
    const VISITS: &str = "fedcba9876543210fedcba9876543210";
    let secrets = file("names", &format!("db {SECRET} {VISITS}\n"));
    let meet = tunnel.carrier.to_string();
    let meet_gate = Gate::with_flags(&["rendezvous", "--listen", &meet, "--secrets", &secrets]);
    let leaf = |role: &str, secret: &str, security: &str, more: &str| {
        let secret = file(role, secret);
        Gate::with_file(&format!(
            "role: {role}\nsecurity: {security}\nconnect: '{meet}'\nadmin: ADMIN\n\
             rendezvous: {{name: db, secretFile: '{secret}'}}\n{more}"
        ))
        .until_ready()
    };
    let _exit = leaf("Exit", SECRET, &tunnel.ends.exit, &offering("text"));
    let entry = leaf("Entry", VISITS, &tunnel.ends.entry, "");
    assert_eq!(entry.get("/offer"), (200, "text".to_owned()));
    assert_eq!(meet_gate.get("/offer").0, 404);
}

#[test]
fn a_client_that_names_the_target_itself_gets_the_same_and_an_end_in_order() {
    let (_listener, target) = target();
    let tunnel = Tunnel::of("Native", target);
    let whole = text(OFFER_BYTES);
    let _exit = tunnel.exit(&offering(&whole));
    let port = free_port();
    let _entry = Gate::with_file(&format!(
        "role: Entry\nsecurity: {}\nconnect: '{}'\nadmin: ADMIN\nforwards:\n\
         - {{name: a, listen: '127.0.0.1:{port}', protocol: Socks5, proxyProtocol: {{send: true}}}}\n",
        tunnel.ends.entry, tunnel.carrier
    ))
    .until_ready();
    let client = connect(([127, 0, 0, 1], port).into());
    let name = "offer.muxtunnel.invalid";
    let mut said = vec![5, 1, 0, 5, 1, 0, 3, name.len() as u8];
    said.extend(name.bytes());
    said.extend([0, 1]);
    // The entry ignores what its client sends.
    said.extend([b'x'; 300_000]);
    let sending = send_in_background(&client, said, true);
    let answer = read_all(&client);
    sending.join().unwrap();
    let granted = [5, 0, 5, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    assert_eq!(answer[..granted.len()], granted);
    assert!(answer[granted.len()..] == *whole.as_bytes());
}
