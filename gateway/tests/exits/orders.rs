//! Exits of several orders: the entry uses the lowest order that answers, and returns to it.

use std::time::{Duration, Instant};

use super::*;
use crate::common::ends::{gateway_key, public_keys};

/// Within this time, new streams use another order.
const FAIL_OVER_MAX: Duration = Duration::from_secs(5);

fn active(entry: &Gate) -> serde_json::Value {
    entry.status()["connect"]["active"].clone()
}

/// Waits until these exits get new streams.
fn until_active(entry: &Gate, names: &[&str]) {
    until("the exits get new streams", || {
        active(entry) == serde_json::json!(names)
    });
}

#[test]
fn streams_go_to_the_next_order_within_seconds_and_return_without_a_loss() {
    let (listener, target) = target();
    let [first, second, forward] = [(); 3].map(|()| local(free_port()));
    let [at_first, at_second] = [first, second].map(|at| exit(at, target).until_ready());
    let connect = exits(&[(&first, 0), (&second, 7)]);
    let entry = entry(&connect, forward, target).until_ready();
    Stream::open(forward, &listener);
    until_active(&entry, &["a"]);
    assert_eq!(carriers(&at_second), 0, "the higher order is not dialled");

    at_first.signal("KILL");
    drop(at_first);
    until("the carrier is lost", || carriers(&entry) == 0);
    let since = Instant::now();
    let mut before = Stream::open(forward, &listener);
    assert!(since.elapsed() < FAIL_OVER_MAX, "{:?}", since.elapsed());
    until_active(&entry, &["b"]);
    assert_eq!(open_streams(&at_second), 1);
    entry.line(&["No exit of a lower order answers", "order=7"]);
    assert_eq!(entry.get("/readyz").0, 200);

    let at_first = exit(first, target).until_ready();
    until_active(&entry, &["a"]);
    before.exchange();
    let mut after = Stream::open(forward, &listener);
    assert_eq!((open_streams(&at_first), open_streams(&at_second)), (1, 1));
    // The session of the higher order takes no more streams, and ends with its last one.
    entry.line(&["Exits of a lower order answer"]);
    before.exchange();
    after.exchange();
    drop(before);
    until("the exit of the higher order has no carriers", || {
        carriers(&at_second) == 0
    });
    assert_eq!(entry.status()["streams"]["refused"], serde_json::json!({}));
    after.exchange();
}

#[test]
fn streams_that_resume_at_the_lowest_order_are_not_lost_while_others_use_the_next_one() {
    let (listener, target) = target();
    let [first, second, forward] = [(); 3].map(|()| local(free_port()));
    let [_at_first, at_second] = [first, second].map(|at| exit(at, target).until_ready());
    let path = crate::common::path::Path::to(first);
    let connect = exits(&[(&path.address, 0), (&second, 1)]);
    let entry = entry(&connect, forward, target).until_ready();
    let mut early = Stream::open(forward, &listener);
    path.lets(false);
    path.cut_all();
    until("the carrier is lost", || carriers(&entry) == 0);
    let since = Instant::now();
    let mut late = Stream::open(forward, &listener);
    assert!(since.elapsed() < FAIL_OVER_MAX, "{:?}", since.elapsed());
    assert_eq!(open_streams(&at_second), 1);
    path.lets(true);
    until_active(&entry, &["a"]);
    early.exchange();
    late.exchange();
}

#[test]
fn exits_of_one_order_share_the_streams_where_a_lower_order_has_no_address() {
    let (listener, target) = target();
    let [first, second, forward] = [(); 3].map(|()| local(free_port()));
    let gates = [first, second].map(|at| exit(at, target).until_ready());
    // The name has no address (RFC 6761 section 6.4). No process listens at the second address.
    let connect = exits(&[
        (&"exit.invalid:64000", 0),
        (&local(1), 1),
        (&first, 2),
        (&second, 2),
    ]);
    let entry = entry(&connect, forward, target).until_ready();
    until_active(&entry, &["c", "d"]);
    let _streams: Vec<Stream> = (0..4).map(|_| Stream::open(forward, &listener)).collect();
    assert_eq!(gates.each_ref().map(open_streams), [2, 2]);
}

#[test]
fn the_keys_of_one_exit_are_not_accepted_for_another() {
    let (listener, target) = target();
    let dir = tempfile::tempdir().unwrap();
    let key_of = |name: &str| {
        let file = dir.path().join(name);
        let public = gateway_key(&file);
        (file, public)
    };
    let (entry_file, [entry_key, _]) = key_of("entry");
    let [first, second, forward] = [(); 3].map(|()| local(free_port()));
    let gate = |name: &str, carrier: SocketAddr| {
        let (file, [_, public]) = key_of(name);
        let security = public_keys(&file, &[&entry_key]);
        let gate = crate::common::ends::exit(&security, carrier, target);
        (gate, public)
    };
    let (at_first, first_key) = gate("first", first);
    let (at_second, second_key) = gate("second", second);
    let entry_file = entry_file.display();
    // The first exit has the key of the second one in the file.
    let entry = Gate::with_file(&format!(
        "role: Entry\nsecurity: {{mode: PublicKeys, privateKeyFiles: ['{entry_file}']}}\nadmin: ADMIN\nworkers: 1\n\
         connect:\n\
         - {{name: one, address: '{first}', publicKeys: [{second_key}]}}\n\
         - {{name: other, address: '{second}', order: 1, publicKeys: [{second_key}]}}\n\
         forwards:\n- {{name: a, listen: '{forward}', targets: [{{host: 127.0.0.1, port: {}}}]}}\n",
        target.port()
    ))
    .until_ready();
    let line = entry.line(&[
        "No carrier",
        "MT0233",
        "publicKeys of the exit one in connect",
    ]);
    assert!(line.contains(&first_key), "{line}");
    until_active(&entry, &["other"]);
    Stream::open(forward, &listener);
    assert_eq!((carriers(&at_first), carriers(&at_second)), (0, 1));
    let peers = entry.status()["peers"].clone();
    let peers: Vec<_> = peers.as_array().unwrap().iter().collect();
    let shown = peers.iter().map(|peer| (&peer["name"], &peer["carriers"]));
    let shown: Vec<_> = shown
        .map(|(name, count)| (name.as_str(), count.as_u64()))
        .collect();
    assert_eq!(shown, [(Some("one"), Some(0)), (Some("other"), Some(1))]);
}
