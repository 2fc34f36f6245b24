//! Two leaf gateways that meet at a rendezvous: muxgate processes on loopback, tested through their
//! clients and targets.

use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};

use crate::common::meeting::{Place, loopback};
use crate::common::*;

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

fn carriers(gate: &Gate) -> usize {
    gate.status()["carriers"].as_array().unwrap().len()
}

#[test]
fn leaves_prove_to_each_other_who_they_are_past_the_rendezvous() {
    let (place, (listener, address)) = (Place::new(), target());
    let _rendezvous = place.rendezvous();
    let _exit = place.exit("exit", address).until_ready();
    let forward = loopback(free_port());
    let _entry = place.entry("entry", forward, address).until_ready();
    exchange(forward, &listener, 4 << 20);
    // The exit refuses a member that is not its peer.
    let stranger = place.entry("member", loopback(free_port()), address);
    stranger.line(&["MT0235", "does not accept this gateway's key"]);
    until("the stranger is not ready", || {
        stranger.get("/readyz").0 == 503
    });
}

#[test]
fn leaves_meet_and_their_session_has_all_that_any_has() {
    let (place, (listener, address)) = (Place::new(), target());
    let rendezvous = place.rendezvous();
    let exit = place.exit("exit", address).until_ready();
    let [forward, second] = [(); 2].map(|()| loopback(free_port()));
    let entry = place.entry("entry", forward, address).until_ready();
    let other = place.entry("entry", second, address).until_ready();
    until("the exit has the carriers of both entries", || {
        carriers(&entry) == 3 && carriers(&other) == 3 && carriers(&exit) == 6
    });
    exchange(forward, &listener, 8 << 20);
    exchange(second, &listener, 1 << 20);
    rendezvous.line(&[
        "INFO",
        "Joined the connections of two leaves",
        "name=\"near\"",
        "exit=\"db\"",
    ]);
    assert_eq!(rendezvous.status()["role"], "Rendezvous");
    // A reset arrives as a reset, and an end of file as an end of file.
    let client = connect(forward);
    let target = accept(&listener);
    target.set_nonblocking(false).unwrap();
    reset(target);
    assert_reset(&client);
    for entry in [entry, other] {
        entry.signal("TERM");
        assert!(entry.wait().success());
    }
    until("the exit has no carriers", || carriers(&exit) == 0);
    rendezvous.signal("TERM");
    assert!(rendezvous.wait().success());
}

#[test]
fn who_is_no_member_or_has_nobody_to_visit_is_refused_and_told_why() {
    let (place, (_listener, address)) = (Place::new(), target());
    let rendezvous = place.rendezvous();
    let entry = place.entry("entry", loopback(free_port()), address);
    entry.line(&[
        "WARN",
        "MT0221",
        "no exit is registered under the requested key",
    ]);
    let stranger = place.entry("stranger", loopback(free_port()), address);
    stranger.line(&["WARN", "MT0235", "does not accept this gateway's key"]);
    let impostor = place.exit("stranger", address);
    impostor.line(&["WARN", "MT0235", "does not accept this gateway's key"]);
    assert_eq!(impostor.get("/readyz").0, 503);
    assert_eq!(entry.get("/readyz").0, 503);
    rendezvous.line(&["WARN", "MT0233", "is not in members"]);
    assert!(metric(&rendezvous, "muxgate_opens_refused_total{code=\"MT0233\"}") >= 2);
    // A gateway with another key in place of the rendezvous learns nothing.
    let misled = Gate::with_file(
        &place
            .exit_file("exit", address)
            .replace(&place.key("rendezvous", 2), &place.key("stranger", 2)),
    );
    misled.line(&[
        "Cannot register at the rendezvous",
        "MT0233",
        "publicKeys of the rendezvous",
    ]);
    // The visitor waits, so the exit may still register later.
    let _exit = place.exit("exit", address).until_ready();
    let _entry = entry.until_ready();
}

#[test]
fn the_key_of_an_entry_registers_nothing_and_that_of_an_exit_visits_nothing() {
    let (place, (listener, address)) = (Place::new(), target());
    let rendezvous = place.rendezvous();
    let intruder = place.exit("entry", address);
    intruder.line(&[
        "Cannot register at the rendezvous",
        "only an exit registers",
    ]);
    rendezvous.line(&["WARN", "MT0221", "name=\"near\"", "only an exit registers"]);
    let _exit = place.exit("exit", address).until_ready();
    let forward = loopback(free_port());
    let _entry = place.entry("entry", forward, address).until_ready();
    exchange(forward, &listener, 1 << 10);
    let visitor = place.entry("exit", loopback(free_port()), address);
    visitor.line(&["only an entry visits"]);
    assert_eq!(intruder.get("/readyz").0, 503);
}

#[test]
fn a_ticket_that_nobody_has_is_refused() {
    let place = Place::new();
    let rendezvous = place.rendezvous();
    let mut guess = connect(loopback(place.port));
    guess.write_all(b"MUXMEETS0123456789abcdef").unwrap();
    rendezvous.line(&["WARN", "MT0221", "the ticket is not valid"]);
    let _ = end_of(&guess);
}

#[test]
fn streams_outlive_a_rendezvous_that_is_replaced() {
    let (place, (listener, address)) = (Place::new(), target());
    let rendezvous = place.rendezvous();
    let _exit = place.exit("exit", address).until_ready();
    let forward = loopback(free_port());
    let entry = place.entry("entry", forward, address).until_ready();
    let mut client = connect(forward);
    let target = accept(&listener);
    client.write_all(b"before ").unwrap();
    drop(rendezvous);
    // After two failures, the entry dials the name of the rendezvous again.
    until("three dials have failed", || {
        let log = entry.log();
        log.matches("Cannot dial a carrier").count() >= 3
    });
    client.write_all(b"after").unwrap();
    client.shutdown(std::net::Shutdown::Write).unwrap();
    let _another = place.rendezvous();
    assert_eq!(read_all(&target), b"before after");
}

#[test]
fn an_exit_that_is_replaced_is_visited_under_the_same_key() {
    let (place, (listener, address)) = (Place::new(), target());
    let _rendezvous = place.rendezvous();
    let exit = place.exit("exit", address).until_ready();
    let [forward, second] = [(); 2].map(|()| loopback(free_port()));
    let _entry = place.entry("entry", forward, address).until_ready();
    let _other = place.entry("entry", second, address).until_ready();
    drop(exit);
    let exit = place.exit("exit", address).until_ready();
    until("the new exit has all carriers", || carriers(&exit) == 6);
    exchange(forward, &listener, 1 << 10);
    exchange(second, &listener, 1 << 10);
}

#[test]
fn exits_with_one_key_are_all_registered_and_each_visitor_keeps_to_one() {
    let (place, (listener, address)) = (Place::new(), target());
    let rendezvous = place.rendezvous();
    let registered = || rendezvous.status()["rendezvous"]["registered"].clone();
    let exits = [(); 2].map(|()| place.exit("exit", address).until_ready());
    until("both exits are registered", || {
        registered() == serde_json::json!(["db", "db"])
    });
    let forward = loopback(free_port());
    let entry = place.entry("entry", forward, address).until_ready();
    until("one exit has all carriers of the entry", || {
        let mut counts = exits.each_ref().map(carriers);
        counts.sort_unstable();
        counts == [0, 3] && carriers(&entry) == 3
    });
    let mut client = connect(forward);
    let target = accept(&listener);
    client.write_all(b"before ").unwrap();
    // An exit that shuts down is no longer registered, while its streams continue.
    let [one, other] = exits;
    let (leaves, stays) = match carriers(&one) {
        0 => (other, one),
        _ => (one, other),
    };
    leaves.signal("TERM");
    until("one exit is registered", || {
        registered() == serde_json::json!(["db"])
    });
    until("the other exit has a carrier", || carriers(&stays) > 0);
    exchange(forward, &listener, 1 << 10);
    client.write_all(b"after").unwrap();
    client.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(read_all(&target), b"before after");
    drop((client, target));
    assert!(leaves.wait().success());
    assert_eq!(stays.get("/readyz").0, 200);
}

#[test]
fn a_member_with_many_visits_leaves_room_for_the_others() {
    let (place, (listener, address)) = (Place::new(), target());
    let rendezvous = place.rendezvous_with(&["--limit-carriers", "3"]);
    let [near, db] = place.lines();
    let member = place.key("member", 0);
    let file = place.exit_file("exit", address);
    let peers = format!("peers: [{}, {member}]", place.key("entry", 0));
    let file = file.replace(&format!("peers: [{}]", place.key("entry", 0)), &peers);
    place.replace_members(&format!("{near}{db}{member} other\n"));
    let _exit = Gate::with_file(&file).until_ready();
    let greedy = place.entry("entry", loopback(free_port()), address);
    let greedy = greedy.until_ready();
    until("one member has all visits", || carriers(&greedy) == 3);
    let forward = loopback(free_port());
    let _honest = place.entry("member", forward, address).until_ready();
    exchange(forward, &listener, 1 << 10);
    rendezvous.line(&[
        "The connections of two leaves ended",
        "name=\"near\"",
        "share",
    ]);
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
    let _exit = place.exit("exit", address).until_ready();
    let forward = loopback(free_port());
    let _entry = place.entry("entry", forward, address).until_ready();
    exchange(forward, &listener, 1 << 10);
    // Each of these connections was closed.
    for tcp in &silent {
        if let Err(error) = end_of(tcp) {
            assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
        }
    }
}

#[test]
fn a_removed_member_loses_its_registration_and_its_connections() {
    let (place, (listener, address)) = (Place::new(), target());
    let rendezvous = place.rendezvous();
    let exit = place.exit("exit", address).until_ready();
    let forward = loopback(free_port());
    let entry = place.entry("entry", forward, address).until_ready();
    until("the entry has three carriers", || carriers(&entry) == 3);
    let mut client = connect(forward);
    let target = accept(&listener);
    client.write_all(b"before ").unwrap();
    let [near, db] = place.lines();
    // An invalid line removes nobody that the other lines list.
    place.replace_members(&format!("{near}{db}word\n"));
    rendezvous.line(&["ERROR", "MT0231", "line 3"]);
    assert_eq!(exit.get("/readyz").0, 200);
    place.replace_members(&near);
    rendezvous.line(&["WARN", "Registration ended", "name=\"db\""]);
    exit.line(&["Cannot register at the rendezvous", "MT0235"]);
    until("the exit is not ready", || exit.get("/readyz").0 == 503);
    until("no connection is joined", || {
        rendezvous.status()["rendezvous"]["meeting"] == 0
    });
    until("the entry has no carriers", || carriers(&entry) == 0);
    place.replace_members(&format!("{near}{db}"));
    let _exit = exit.until_ready();
    // The session continues: its carriers are joined again.
    client.write_all(b"after").unwrap();
    client.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(read_all(&target), b"before after");
    // A removed visitor loses its connections, too.
    place.replace_members(&db);
    until("the entry has no carriers", || carriers(&entry) == 0);
    place.replace_members(&format!("{near}{db}"));
    let another = loopback(free_port());
    let _entry = place.entry("entry", another, address).until_ready();
    exchange(another, &listener, 1 << 10);
    // A time that has come ends a registration and its connections, too.
    until("connections are joined", || {
        rendezvous.status()["rendezvous"]["meeting"] != 0
    });
    place.replace_members(&format!(
        "{near}expirationTime=\"2020-01-01T00:00:00Z\" {db}"
    ));
    until("the expired exit is not registered", || {
        let about = &rendezvous.status()["rendezvous"];
        about["registered"] == serde_json::json!([]) && about["meeting"] == 0
    });
}

#[test]
fn a_rendezvous_says_who_waits_who_meets_and_what_was_refused() {
    let (place, (listener, address)) = (Place::new(), target());
    let rendezvous = place.rendezvous();
    let about = || rendezvous.status()["rendezvous"].clone();
    assert_eq!(about()["registered"], serde_json::json!([]));
    let early = place.entry("entry", loopback(free_port()), address);
    rendezvous.line(&["WARN", "MT0221", "name=\"near\"", "no exit is registered"]);
    drop(early);
    let silent = connect(loopback(place.port));
    until("one connection is unauthenticated", || {
        about()["strangers"] == 1
    });
    let exit = place.exit("exit", address).until_ready();
    let forward = loopback(free_port());
    let entry = place.entry("entry", forward, address).until_ready();
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
    for (state, count) in [("registered", 1), ("meeting", 3)] {
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
    assert!(!exit.get("/metrics").1.contains("muxgate_rendezvous"));
}
