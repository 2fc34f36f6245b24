//! Two leaf gateways that meet at a rendezvous: muxgate processes on loopback, tested through their
//! clients and targets.

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

use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};

use common::*;
use ends::{Ends, by_keys, gateway_key};

const SECRET: &str = "0123456789abcdef0123456789abcdef";
const OTHER: &str = "fedcba9876543210fedcba9876543210";
/// The secret of entries.
const VISITS: &str = "00112233445566778899aabbccddeeff";

fn loopback(port: u16) -> SocketAddr {
    ([127, 0, 0, 1], port).into()
}

/// The files of secrets, and the port of the rendezvous.
struct Place {
    port: u16,
    dir: tempfile::TempDir,
    secrets: PathBuf,
    right: PathBuf,
    /// The entry's file.
    visits: PathBuf,
    wrong: PathBuf,
    /// The `security` of exit and entry.
    securities: [String; 2],
}

impl Place {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = dir.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        Self {
            port: free_port(),
            secrets: file(
                "secrets",
                &format!("# all\ndb {SECRET} {VISITS}\nweb {OTHER} {VISITS}\n"),
            ),
            right: file("right", &format!("{SECRET}\n")),
            visits: file("visits", &format!("{VISITS}\n")),
            wrong: file("wrong", OTHER),
            securities: std::array::from_fn(|_| "{mode: None}".to_owned()),
            dir,
        }
    }

    fn rendezvous(&self) -> Gate {
        let (listen, secrets) = (
            loopback(self.port).to_string(),
            self.secrets.to_str().unwrap(),
        );
        Gate::with_flags(&["rendezvous", "--listen", &listen, "--secrets", secrets]).until_ready()
    }

    fn exit(&self, secret: &Path, target: SocketAddr) -> Gate {
        let (secret, security) = (secret.display(), &self.securities[0]);
        Gate::with_file(&format!(
            "role: Exit\nsecurity: {security}\nconnect:\n- name: far\n  address: {}\nadmin: ADMIN\nworkers: 2\n\
             rendezvous: {{name: db, secretFile: '{secret}'}}\nallow: [{target_rule}]\n",
            loopback(self.port),
            target_rule = common::rule(&target)
        ))
    }

    fn entry(&self, secret: &Path, forward: SocketAddr, target: SocketAddr) -> Gate {
        let (secret, security) = (secret.display(), &self.securities[1]);
        Gate::with_file(&format!(
            "role: Entry\nsecurity: {security}\nconnect:\n- name: far\n  address: localhost:{}\nadmin: ADMIN\n\
             rendezvous: {{name: db, secretFile: '{secret}'}}\npool: {{min: 3, max: 3}}\n\
             forwards:\n- {{name: a, listen: '{forward}', targets: [{{host: 127.0.0.1, port: {}}}]}}\n",
            self.port,
            target.port()
        ))
    }
}

/// Sends one message in each direction. Each sender then ends its half.
fn exchange(forward: SocketAddr, listener: &TcpListener, length: usize) {
    let client = connect(forward);
    let sending = send_in_background(&client, pattern(1, length), true);
    let target = accept(listener);
    assert!(read_all(&target) == pattern(1, length));
    sending.join().unwrap();
    let sending = send_in_background(&target, pattern(2, length), true);
    assert!(read_all(&client) == pattern(2, length));
    sending.join().unwrap();
}

#[test]
fn leaves_prove_to_each_other_who_they_are_past_the_rendezvous() {
    let (mut place, (listener, address)) = (Place::new(), target());
    let Ends { exit, entry } = by_keys(place.dir.path());
    place.securities = [exit, entry];
    let _rendezvous = place.rendezvous();
    let _exit = place.exit(&place.right, address).until_ready();
    let forward = loopback(free_port());
    let _entry = place.entry(&place.visits, forward, address).until_ready();
    exchange(forward, &listener, 4 << 20);

    // The exit refuses a peer that has the secret of the name but an unknown key.
    gateway_key(&place.dir.path().join("stranger.key"));
    place.securities[1] = place.securities[1].replace("entry.key", "stranger.key");
    let stranger = place.entry(&place.visits, loopback(free_port()), address);
    stranger.line(&["MT0235", "does not accept this gateway's key"]);
    until("the stranger is not ready", || {
        stranger.get("/readyz").0 == 503
    });
}

#[test]
fn leaves_meet_and_their_session_has_all_that_any_has() {
    let (place, (listener, address)) = (Place::new(), target());
    let rendezvous = place.rendezvous();
    let exit = place.exit(&place.right, address).until_ready();
    let forward = loopback(free_port());
    let entry = place.entry(&place.visits, forward, address).until_ready();
    until("both gateways have three carriers", || {
        let carriers = |gate: &Gate| gate.status()["carriers"].as_array().unwrap().len();
        carriers(&entry) == 3 && carriers(&exit) == 3
    });
    exchange(forward, &listener, 8 << 20);
    rendezvous.line(&["INFO", "Joined the connections of two leaves", "db"]);
    assert_eq!(rendezvous.status()["role"], "Rendezvous");
    // A reset arrives as a reset, and an end of file as an end of file.
    let client = connect(forward);
    let target = accept(&listener);
    target.set_nonblocking(false).unwrap();
    reset(target);
    assert_reset(&client);
    entry.signal("TERM");
    assert!(entry.wait().success());
    until("the exit has no carriers", || {
        exit.status()["carriers"].as_array().unwrap().is_empty()
    });
    rendezvous.signal("TERM");
    assert!(rendezvous.wait().success());
}

#[test]
fn who_has_another_secret_or_nobody_to_visit_is_refused_and_told_why() {
    let (place, (_listener, address)) = (Place::new(), target());
    let rendezvous = place.rendezvous();
    let forward = loopback(free_port());
    let entry = place.entry(&place.visits, forward, address);
    entry.line(&["WARN", "MT0221", "no exit is registered under the name"]);
    let stranger = place.entry(&place.wrong, loopback(free_port()), address);
    stranger.line(&["WARN", "MT0221", "secret for this role is wrong"]);
    let impostor = place.exit(&place.wrong, address);
    impostor.line(&["WARN", "secret for this role is wrong"]);
    assert_eq!(impostor.get("/readyz").0, 503);
    assert_eq!(entry.get("/readyz").0, 503);
    rendezvous.line(&["WARN", "MT0221", "secret for this role is wrong"]);
    assert!(metric(&rendezvous, "muxgate_opens_refused_total{code=\"MT0221\"}") >= 3);
    // The visitor waits, so the exit may still register later.
    let _exit = place.exit(&place.right, address).until_ready();
    let _entry = entry.until_ready();
}

#[test]
fn streams_outlive_a_rendezvous_that_is_replaced() {
    let (place, (listener, address)) = (Place::new(), target());
    let rendezvous = place.rendezvous();
    let _exit = place.exit(&place.right, address).until_ready();
    let forward = loopback(free_port());
    let _entry = place.entry(&place.visits, forward, address).until_ready();
    let mut client = connect(forward);
    let target = accept(&listener);
    client.write_all(b"before ").unwrap();
    drop(rendezvous);
    client.write_all(b"after").unwrap();
    client.shutdown(std::net::Shutdown::Write).unwrap();
    let _another = place.rendezvous();
    assert_eq!(read_all(&target), b"before after");
}

#[test]
fn an_exit_that_is_replaced_is_visited_under_the_same_name() {
    let (place, (listener, address)) = (Place::new(), target());
    let _rendezvous = place.rendezvous();
    let exit = place.exit(&place.right, address).until_ready();
    let forward = loopback(free_port());
    let _entry = place.entry(&place.visits, forward, address).until_ready();
    drop(exit);
    let _exit = place.exit(&place.right, address).until_ready();
    until("the new exit has all carriers", || {
        _exit.status()["carriers"].as_array().unwrap().len() == 3
    });
    exchange(forward, &listener, 1 << 10);
}

#[test]
fn strangers_without_a_word_are_bounded_and_leave_room_for_leaves() {
    let (place, (listener, address)) = (Place::new(), target());
    let rendezvous = place.rendezvous();
    let silent: Vec<TcpStream> = (0..400).map(|_| connect(loopback(place.port))).collect();
    until("excess connections were evicted or dropped early", || {
        let count = |name| metric(&rendezvous, name);
        let evicted = count("muxgate_handshakes_evicted_total ");
        evicted + count("muxgate_handshakes_dropped_total ") >= 400 - 256
    });
    rendezvous.line(&["WARN", "MT0221", "too many"]);
    let _exit = place.exit(&place.right, address).until_ready();
    let forward = loopback(free_port());
    let _entry = place.entry(&place.visits, forward, address).until_ready();
    exchange(forward, &listener, 1 << 10);
    // Each of these connections was closed.
    for tcp in &silent {
        if let Err(error) = end_of(tcp) {
            assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
        }
    }
}

/// Replaces a file atomically, so that no reader sees an incomplete file.
fn replace(file: &Path, text: &str) {
    let staged = file.with_extension("new");
    std::fs::write(&staged, text).unwrap();
    std::fs::rename(staged, file).unwrap();
}

#[test]
fn the_secret_of_an_entry_registers_nothing_and_that_of_an_exit_visits_nothing() {
    let (place, (listener, address)) = (Place::new(), target());
    let rendezvous = place.rendezvous();
    let intruder = place.exit(&place.visits, address);
    intruder.line(&[
        "Cannot register at the rendezvous",
        "secret for this role is wrong",
    ]);
    let _exit = place.exit(&place.right, address).until_ready();
    let forward = loopback(free_port());
    let _entry = place.entry(&place.visits, forward, address).until_ready();
    exchange(forward, &listener, 1 << 10);
    let visitor = place.entry(&place.right, loopback(free_port()), address);
    visitor.line(&["No carrier", "secret for this role is wrong"]);
    assert_eq!(intruder.get("/readyz").0, 503);
    rendezvous.line(&[
        "WARN",
        "MT0221",
        "name=\"db\"",
        "secret for this role is wrong",
    ]);
}

#[test]
fn changed_secrets_are_for_who_comes_next_and_meetings_go_on() {
    let (place, (listener, address)) = (Place::new(), target());
    let rendezvous = place.rendezvous();
    let exit = place.exit(&place.right, address).until_ready();
    let forward = loopback(free_port());
    let entry = place.entry(&place.visits, forward, address).until_ready();
    let mut client = connect(forward);
    let target = accept(&listener);
    client.write_all(b"before ").unwrap();
    // An invalid file has no effect.
    replace(&place.secrets, &format!("db {SECRET} {VISITS}\nweb"));
    rendezvous.line(&[
        "ERROR",
        "MT0231",
        "line 2",
        "last valid secrets remain in force",
    ]);
    assert_eq!(exit.get("/readyz").0, 200);
    replace(&place.secrets, &format!("db {OTHER} {VISITS}\n"));
    rendezvous.line(&["INFO", "Secrets reloaded", "registrations_ended=1"]);
    // The exit cannot register, because it still has the old secret.
    exit.line(&[
        "Cannot register at the rendezvous",
        "secret for this role is wrong",
    ]);
    client.write_all(b"after").unwrap();
    client.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(read_all(&target), b"before after");
    assert_eq!(entry.status()["carriers"].as_array().unwrap().len(), 3);
    // Leaves also reload their file.
    replace(&place.right, &format!("{OTHER}\n"));
    let _exit = exit.until_ready();
    let another = loopback(free_port());
    let _entry = place.entry(&place.visits, another, address).until_ready();
    exchange(another, &listener, 1 << 10);
    for log in [rendezvous.log(), entry.log()] {
        assert!(!log.contains(SECRET) && !log.contains(OTHER));
    }
}

#[test]
fn a_rendezvous_says_who_waits_who_meets_and_what_was_refused() {
    let (place, (listener, address)) = (Place::new(), target());
    let rendezvous = place.rendezvous();
    let about = || rendezvous.status()["rendezvous"].clone();
    assert_eq!(about()["names"], 2);
    assert_eq!(about()["registered"], serde_json::json!([]));
    let early = place.entry(&place.visits, loopback(free_port()), address);
    rendezvous.line(&["WARN", "MT0221", "name=\"db\"", "check that the exit runs"]);
    drop(early);
    let silent = connect(loopback(place.port));
    until("one connection is unauthenticated", || {
        about()["strangers"] == 1
    });
    let _exit = place.exit(&place.right, address).until_ready();
    let forward = loopback(free_port());
    let entry = place.entry(&place.visits, forward, address).until_ready();
    until("three pairs of connections are joined", || {
        about()["meeting"] == 3
    });
    exchange(forward, &listener, 1 << 20);
    let said = about();
    assert_eq!(said["registered"], serde_json::json!(["db"]));
    assert_eq!((&said["met"], &said["waiting"]), (&3.into(), &0.into()));
    assert!(said["bytes"].as_u64().unwrap() > 2 << 20, "{said}");
    assert!(rendezvous.status()["streams"]["refused"]["MT0221"].as_u64() >= Some(1));
    let (_, page) = rendezvous.get("/metrics");
    for (state, count) in [("stranger", 1), ("registered", 1), ("meeting", 3)] {
        let line = format!("muxgate_rendezvous_leaves{{state=\"{state}\"}} {count}.0\n");
        assert!(page.contains(&line), "no {line} in {page}");
    }
    assert_eq!(metric(&rendezvous, "muxgate_rendezvous_meetings_total"), 3);
    assert!(metric(&rendezvous, "muxgate_rendezvous_bytes_total") > 2 << 20);
    drop((silent, entry));
    until("no connection is joined or unauthenticated", || {
        about()["meeting"] == 0 && about()["strangers"] == 0
    });
    // Other roles do not have these metrics.
    assert!(!_exit.get("/metrics").1.contains("muxgate_rendezvous"));
}

#[test]
fn a_file_without_a_secret_that_will_do_is_said_at_once() {
    let place = Place::new();
    std::fs::write(&place.right, "short").unwrap();
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_muxgate"))
        .args([
            "exit",
            "--security",
            "none",
            "--rendezvous",
            "127.0.0.1:1",
            "--name",
            "db",
        ])
        .arg("--secret-file")
        .arg(&place.right)
        .output()
        .unwrap();
    assert!(!output.status.success());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("the secret has 5 bytes"), "{said}");
}
