//! Reverse streams: two or more muxgate processes on loopback, tested through their clients and
//! targets.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::Ordering;

use crate::common::ends::{gateway_key, public_keys};
use crate::common::path::Path;
use crate::common::peer::{Carrier, SESSION, TOKEN, hello, parameters, stream_ids};
use crate::common::*;
use muxtunnel_proto::LISTENS_MAX;
use muxtunnel_proto::native::SessionCode;
use muxtunnel_proto::native::codec::{self, Frame, HelloAck, LISTEN_FEATURE, RESUME, VERSION};

fn loopback(port: u16) -> SocketAddr {
    ([127, 0, 0, 1], port).into()
}

fn exit_text(protocol: &str, carrier: u16, allow_listen: &str) -> String {
    format!(
        "role: Exit\nprotocol: {protocol}\nsecurity: {{mode: None}}\nlisten: 127.0.0.1:{carrier}\nadmin: ADMIN\n\
         allowListen: [{allow_listen}]\ndrain: {{acceptSeconds: 0, deadlineSeconds: 50}}\n"
    )
}

fn exit(protocol: &str, carrier: u16, port: u16) -> Gate {
    Gate::with_file(&exit_text(protocol, carrier, &port.to_string())).until_ready()
}

/// An entry that requests the listener `port` on the exit at `carrier`. `more`: YAML of the forward
/// and of the entry.
fn entry_text(
    protocol: &str,
    carrier: SocketAddr,
    port: u16,
    target: SocketAddr,
    more: [&str; 2],
) -> String {
    let [forward, entry] = more;
    format!(
        "role: Entry\nprotocol: {protocol}\nsecurity: {{mode: None}}\nconnect:\n- name: far\n  address: {carrier}\nadmin: ADMIN\n{entry}\
         drain: {{acceptSeconds: 0, deadlineSeconds: 50}}\nreverseForwards:\n\
         - {{name: back, listen: '127.0.0.1:{port}', \
         targets: [{{host: 127.0.0.1, port: {}}}]{forward}}}\n",
        target.port()
    )
}

fn entry(protocol: &str, carrier: u16, port: u16, target: SocketAddr) -> Gate {
    Gate::with_file(&entry_text(
        protocol,
        loopback(carrier),
        port,
        target,
        ["", ""],
    ))
    .until_ready()
}

/// Runs each test with each protocol that supports listeners.
macro_rules! with_each_protocol {
    ($($test:ident),* $(,)?) => {
        mod native {
            $(#[test]
            fn $test() {
                super::$test("Native");
            })*
        }
        mod quic {
            $(#[test]
            fn $test() {
                super::$test("QUIC");
            })*
        }
    };
}

with_each_protocol!(
    an_exit_listens_for_an_entry_and_both_count_and_log_the_streams,
    what_an_exit_does_not_allow_is_refused_and_both_sides_say_so,
    a_port_that_another_process_has_is_refused_with_its_reason,
    an_entry_dials_for_its_exit_nothing_that_is_protected,
    entries_share_a_port_until_the_last_of_them_has_left,
    new_connections_go_to_the_entry_with_the_fewest_streams,
    all_workers_of_both_sides_share_the_port,
    an_entry_that_shuts_down_ends_what_it_has_and_takes_nothing_new,
    an_exit_that_shuts_down_closes_the_port_and_ends_what_it_has,
    forwards_come_go_and_change_while_the_entry_runs,
    limits_of_a_forward_hold_for_streams_that_the_exit_opens,
);

/// Runs a test with SSH, which transmits no reasons for refused listeners.
macro_rules! with_ssh {
    ($($test:ident),* $(,)?) => {
        mod ssh {
            $(#[test]
            fn $test() {
                super::$test("SSH");
            })*
        }
    };
}

with_ssh!(
    an_exit_listens_for_an_entry_and_both_count_and_log_the_streams,
    an_entry_dials_for_its_exit_nothing_that_is_protected,
    entries_share_a_port_until_the_last_of_them_has_left,
    new_connections_go_to_the_entry_with_the_fewest_streams,
    all_workers_of_both_sides_share_the_port,
    an_entry_that_shuts_down_ends_what_it_has_and_takes_nothing_new,
    an_exit_that_shuts_down_closes_the_port_and_ends_what_it_has,
    forwards_come_go_and_change_while_the_entry_runs,
    limits_of_a_forward_hold_for_streams_that_the_exit_opens,
);

/// Whether no process listens on the port. The function makes no connection, because a connection
/// would open a stream.
fn is_closed(port: u16) -> bool {
    TcpListener::bind(loopback(port)).is_ok()
}

fn an_exit_listens_for_an_entry_and_both_count_and_log_the_streams(protocol: &str) {
    let (listener, address) = target();
    let (carrier, port) = (free_port(), free_port());
    let gate = |role: &str, more: &[&str]| {
        let mut flags = vec![role.to_owned(), "--protocol".to_owned()];
        flags.push(protocol.to_lowercase());
        flags.extend(secured::flags(protocol, role));
        let flags = flags.iter().map(String::as_str);
        Gate::with_flags(&flags.chain(more.iter().copied()).collect::<Vec<_>>())
    };
    let exit = gate(
        "exit",
        &[
            "--listen",
            &loopback(carrier).to_string(),
            "--allow-listen",
            &port.to_string(),
        ],
    );
    let entry = gate(
        "entry",
        &[
            "--connect",
            &loopback(carrier).to_string(),
            "--reverse",
            &format!("{port}:{address},bulk"),
        ],
    );
    entry.until_listening();
    let client = connect(loopback(port));
    let sent = pattern(1, 3 << 20);
    let sending = send_in_background(&client, sent.clone(), true);
    let mut target = accept(&listener);
    assert!(read_all(&target) == sent);
    sending.join().unwrap();
    target.write_all(&pattern(2, 3 << 20)).unwrap();
    drop(target);
    assert!(read_all(&client) == pattern(2, 3 << 20));
    let name = format!("reverse 127.0.0.1:{port}");
    let line = entry.line(&["Stream closed", "completed", &format!("dialled={address}")]);
    assert!(line.contains(&name), "{line}");
    exit.line(&[
        "Stream closed",
        "completed",
        &format!("client={}", client.local_addr().unwrap()),
    ]);
    for (gate, name) in [(&entry, name), (&exit, format!("127.0.0.1:{port}"))] {
        let forward = &gate.status()["forwards"][0];
        assert_eq!(forward["name"], name);
        assert_eq!(forward["streams"]["opened"], 1, "{forward}");
        let label = format!("muxgate_forward_streams_opened_total{{forward=\"{name}\"}}");
        assert_eq!(metric(gate, &label), 1);
    }
}

fn what_an_exit_does_not_allow_is_refused_and_both_sides_say_so(protocol: &str) {
    let (listener, address) = target();
    let (carrier, port) = (free_port(), free_port());
    let exit = Gate::with_file(&exit_text(protocol, carrier, "")).until_ready();
    let text = entry_text(protocol, loopback(carrier), port, address, ["", ""]);
    let entry = Gate::with_file(&text).until_ready();
    entry.line(&["WARN", "MT0220", "The exit does not listen"]);
    exit.line(&["WARN", "MT0220", "Listener refused"]);
    let told = entry.listen_problem().unwrap();
    assert!(
        told.contains("MT0220") && told.contains("does not permit"),
        "{told}"
    );
    assert_eq!(exit.status()["streams"]["refused"]["MT0220"], 1);
    assert!(is_closed(port));
    exit.rewrite(&exit_text(
        protocol,
        carrier,
        &format!("'127.0.0.1:{port}'"),
    ));
    exit.line(&["Configuration reloaded"]);
    // A changed forward is requested at once.
    entry.rewrite(&format!("{text}timeouts: {{idleSeconds: 60}}\n"));
    entry.until_listening();
    let mut client = connect(loopback(port));
    client.write_all(b"now").unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(read_all(&accept(&listener)), b"now");
    exit.rewrite(&exit_text(protocol, carrier, ""));
    until("the port is closed", || is_closed(port));
    until("the entry reports a problem of the listener", || {
        entry.listen_problem().is_some()
    });
}

fn a_port_that_another_process_has_is_refused_with_its_reason(protocol: &str) {
    let (_listener, address) = target();
    let (_other, taken) = target();
    let carrier = free_port();
    let _exit = exit(protocol, carrier, taken.port());
    let entry = entry(protocol, carrier, taken.port(), address);
    until("the entry reports that the address is in use", || {
        entry
            .listen_problem()
            .is_some_and(|told| told.contains("MT0103") && told.contains("in use"))
    });
}

#[test]
fn streams_of_the_exit_outlive_their_carriers() {
    const STREAMS: usize = 5;
    // The sockets of a stream whose reader waits hold less.
    const BYTES: usize = 12 << 20;
    let (listener, address) = target();
    let (carrier, port) = (free_port(), free_port());
    let exit = exit("Native", carrier, port);
    let path = Path::to(loopback(carrier));
    let pool = "pool: {min: 3, max: 3}\n";
    let text = entry_text("Native", path.address, port, address, ["", pool]);
    let entry = Gate::with_file(&text).until_ready();
    until("the exit has three carriers", || {
        exit.status()["carriers"].as_array().unwrap().len() == 3
    });
    entry.until_listening();
    let clients: Vec<_> = (0..STREAMS).map(|_| connect(loopback(port))).collect();
    let targets: Vec<_> = (0..STREAMS).map(|_| accept(&listener)).collect();
    // The first byte identifies each client.
    for (number, mut client) in clients.iter().enumerate() {
        client.write_all(&[number as u8]).unwrap();
    }
    let mut sending = Vec::new();
    let mut by_client = std::collections::BTreeMap::new();
    for mut target in targets {
        let mut number = [0];
        target.read_exact(&mut number).unwrap();
        by_client.insert(usize::from(number[0]), target);
    }
    for (number, client) in clients.iter().enumerate() {
        let (up, down) = (number as u64, 100 + number as u64);
        sending.push(send_in_background(client, pattern(up, BYTES), true));
        let target = &by_client[&number];
        sending.push(send_in_background(target, pattern(down, BYTES), true));
    }
    // Nobody reads yet, so the cuts meet streams whose payload is on its way.
    let sent = || path.bytes.load(Ordering::Relaxed);
    until("payload is on its way", || sent() > 1 << 20);
    path.cut_one();
    let before = sent();
    until("more payload is on its way", || sent() > before + (1 << 20));
    path.cut_all();
    let sent = sent();
    assert!(
        sent < (2 * STREAMS * BYTES) as u64,
        "all payload had passed: {sent} bytes"
    );
    for (number, client) in clients.iter().enumerate() {
        let (up, down) = (number as u64, 100 + number as u64);
        assert!(
            read_all(&by_client[&number]) == pattern(up, BYTES),
            "{number}"
        );
        assert!(read_all(client) == pattern(down, BYTES), "{number}");
    }
    sending.into_iter().for_each(|sent| sent.join().unwrap());
    assert!(entry.listen_problem().is_none());
}

/// The target in the entry's configuration is a host name, which may resolve to a protected
/// address.
fn an_entry_dials_for_its_exit_nothing_that_is_protected(protocol: &str) {
    let (listener, address) = target();
    let (carrier, port) = (free_port(), free_port());
    let _exit = exit(protocol, carrier, port);
    let text = entry_text(protocol, loopback(carrier), port, address, ["", ""]);
    let text = text.replace("host: 127.0.0.1", "host: localhost");
    let entry = Gate::with_file(&text).until_ready();
    entry.until_listening();
    names_itself(listener, b"t");
    let is_reached = || matches!(connect(loopback(port)).read(&mut [0]), Ok(1));
    assert!(is_reached());
    entry.rewrite(&format!("{text}protectedCIDRs: ['127.0.0.0/8', '::1']\n"));
    until("the entry refuses to dial", || !is_reached());
    let refused = &entry.status()["streams"]["refused"]["MT0204"];
    assert!(refused.as_u64() > Some(0), "{refused}");
}

/// Sends the target's name on each connection, and then ends the connection.
fn names_itself(listener: TcpListener, name: &'static [u8]) {
    std::thread::spawn(move || {
        for mut tcp in listener.incoming().flatten() {
            tcp.write_all(name).unwrap();
        }
    });
}

fn name_behind(port: u16) -> Vec<u8> {
    let mut name = Vec::new();
    match TcpStream::connect(loopback(port)).and_then(|mut tcp| tcp.read_to_end(&mut name)) {
        Ok(_) => name,
        Err(_) => b"nobody".to_vec(),
    }
}

fn entries_share_a_port_until_the_last_of_them_has_left(protocol: &str) {
    let (carrier, port) = (free_port(), free_port());
    let exit = exit(protocol, carrier, port);
    let ((one, first), (two, second)) = (target(), target());
    names_itself(one, b"one");
    names_itself(two, b"two");
    let one = entry(protocol, carrier, port, first);
    one.until_listening();
    assert_eq!(name_behind(port), b"one");
    let two = entry(protocol, carrier, port, second);
    two.until_listening();
    // One session keeps this stream, so the other session has fewer streams.
    let held = connect(loopback(port));
    until("an entry serves the port", || {
        name_behind(port) == b"two" || name_behind(port) == b"one"
    });
    drop(held);
    one.signal("TERM");
    assert!(one.wait().success());
    until("the second entry serves the port", || {
        name_behind(port) == b"two"
    });
    for _ in 0..5 {
        assert_eq!(name_behind(port), b"two");
    }
    two.signal("TERM");
    assert!(two.wait().success());
    until("the port is closed", || is_closed(port));
    exit.line(&["Listener closed because no entry requests it"]);
    assert!(exit.status()["forwards"].is_null());
}

/// Returns the `security` of an exit that accepts two entries, the `security` of each entry, and
/// the identity of the first entry.
fn two_identities(dir: &std::path::Path) -> (String, [String; 2], String) {
    let key = |name: &str| dir.join(name);
    let [_, exit] = gateway_key(&key("exit"));
    let [one, two] = ["one", "two"].map(|name| {
        let [public, _] = gateway_key(&key(name));
        public
    });
    let entries = ["one", "two"].map(|name| public_keys(&key(name), &[&exit]));
    let exit = public_keys(&key("exit"), &[&one, &two]);
    (exit, entries, one)
}

/// An entry with its own identity that requests the listener `port`, and answers with `name`.
fn named_entry(security: &str, carrier: u16, port: u16, name: &'static [u8]) -> Gate {
    let (listener, address) = target();
    names_itself(listener, name);
    let text = entry_text("Native", loopback(carrier), port, address, ["", ""]);
    Gate::with_file(&text.replace("{mode: None}", security)).until_ready()
}

#[test]
fn a_port_is_the_one_identitys_that_asked_first_until_it_has_left() {
    let dir = tempfile::tempdir().unwrap();
    let (security, [one, two], _) = two_identities(dir.path());
    let (carrier, port) = (free_port(), free_port());
    let text = exit_text("Native", carrier, &port.to_string()).replace("{mode: None}", &security);
    // With several workers, the session of the other entry may be on any worker.
    let exit = Gate::with_file(&format!("{text}workers: 2\n")).until_ready();
    let first = named_entry(&one, carrier, port, b"one");
    first.until_listening();
    let strangers: Vec<_> = (0..3)
        .map(|_| named_entry(&two, carrier, port, b"two"))
        .collect();
    for stranger in &strangers {
        until("the entry with another identity is refused", || {
            stranger
                .listen_problem()
                .is_some_and(|told| told.contains("another identity"))
        });
    }
    exit.line(&["Listener refused", "another identity"]);
    // The first entry has the most streams, so the exit would prefer another session if sessions of
    // another identity shared the port.
    let held: Vec<_> = (0..20).map(|_| connect(loopback(port))).collect();
    for mut client in &held {
        let mut name = [0; 3];
        client.read_exact(&mut name).unwrap();
        assert_eq!(&name, b"one");
    }
    // Sessions of the same identity share the port.
    let again = named_entry(&one, carrier, port, b"one");
    again.until_listening();
    for _ in 0..20 {
        assert_eq!(name_behind(port), b"one");
    }
    // An open stream would keep its entry until the deadline of the drain.
    drop(held);
    for entry in [first, again] {
        entry.signal("TERM");
        assert!(entry.wait().success());
    }
    until("the entry with another identity serves the port", || {
        name_behind(port) == b"two"
    });
}

#[test]
fn a_rule_with_a_peer_lets_that_identity_alone_ask() {
    let dir = tempfile::tempdir().unwrap();
    let (security, [one, two], named) = two_identities(dir.path());
    let (carrier, port) = (free_port(), free_port());
    let rule = format!("'127.0.0.1:{port},peer={named}'");
    let text = exit_text("Native", carrier, &rule).replace("{mode: None}", &security);
    let exit = Gate::with_file(&text).until_ready();
    let stranger = named_entry(&two, carrier, port, b"two");
    until("the entry with another identity is refused", || {
        stranger
            .listen_problem()
            .is_some_and(|told| told.contains("MT0220"))
    });
    assert!(is_closed(port));
    let entry = named_entry(&one, carrier, port, b"one");
    entry.until_listening();
    assert_eq!(name_behind(port), b"one");
    // The rule now names another peer, so the port is closed.
    exit.rewrite(&text.replace(&format!("peer={named}"), "peer=another"));
    until("the port is closed", || is_closed(port));
}

fn new_connections_go_to_the_entry_with_the_fewest_streams(protocol: &str) {
    let (carrier, port) = (free_port(), free_port());
    let _exit = exit(protocol, carrier, port);
    let ((one, first), (two, second)) = (target(), target());
    let entries = [
        entry(protocol, carrier, port, first),
        entry(protocol, carrier, port, second),
    ];
    entries.iter().for_each(Gate::until_listening);
    let _clients: Vec<_> = (0..10).map(|_| connect(loopback(port))).collect();
    let _accepted: Vec<_> = [one, two]
        .iter()
        .flat_map(|listener| (0..5).map(|_| accept(listener)).collect::<Vec<_>>())
        .collect();
}

fn all_workers_of_both_sides_share_the_port(protocol: &str) {
    let (listener, address) = target();
    names_itself(listener, b"here");
    let (carrier, port) = (free_port(), free_port());
    let workers = "workers: 2\n";
    let exit = Gate::with_file(&format!(
        "{}{workers}",
        exit_text(protocol, carrier, &port.to_string())
    ));
    let text = entry_text(protocol, loopback(carrier), port, address, ["", workers]);
    let entry = Gate::with_file(&text).until_ready();
    entry.until_listening();
    until("both workers serve the port", || {
        let served = (0..20)
            .map(|_| name_behind(port))
            .all(|name| name == b"here");
        let carriers = exit.status()["carriers"].as_array().unwrap().len();
        served && carriers == 2
    });
    let forwards = exit.status()["forwards"].clone();
    assert_eq!(forwards.as_array().unwrap().len(), 1, "{forwards}");
    assert!(forwards[0]["error"].is_null(), "{forwards}");
}

/// Asserts that an open stream still transfers data and ends in both directions.
fn assert_goes_on_to_its_end(mut client: TcpStream, mut target: TcpStream) {
    client.write_all(b"question").unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(read_all(&target), b"question");
    target.write_all(b"answer").unwrap();
    drop(target);
    assert_eq!(read_all(&client), b"answer");
}

fn an_entry_that_shuts_down_ends_what_it_has_and_takes_nothing_new(protocol: &str) {
    let (listener, address) = target();
    let (carrier, port) = (free_port(), free_port());
    let _exit = exit(protocol, carrier, port);
    let entry = entry(protocol, carrier, port, address);
    entry.until_listening();
    let client = connect(loopback(port));
    let target = accept(&listener);
    entry.signal("TERM");
    until("the port is closed", || is_closed(port));
    assert_goes_on_to_its_end(client, target);
    assert!(entry.wait().success());
}

fn an_exit_that_shuts_down_closes_the_port_and_ends_what_it_has(protocol: &str) {
    let (listener, address) = target();
    let (carrier, port) = (free_port(), free_port());
    let first = exit(protocol, carrier, port);
    let entry = entry(protocol, carrier, port, address);
    entry.until_listening();
    let client = connect(loopback(port));
    let target = accept(&listener);
    first.signal("TERM");
    until("the port is closed", || is_closed(port));
    assert_goes_on_to_its_end(client, target);
    assert!(first.wait().success());
    until("the entry reports a problem of the listener", || {
        entry.listen_problem().is_some()
    });
    // Another exit receives the request again.
    let _second = exit(protocol, carrier, port);
    entry.until_listening();
    drop(connect(loopback(port)));
    assert_eq!(read_all(&accept(&listener)), b"");
}

fn forwards_come_go_and_change_while_the_entry_runs(protocol: &str) {
    let ((first, one), (second, two)) = (target(), target());
    let (carrier, port) = (free_port(), free_port());
    let _exit = exit(protocol, carrier, port);
    let text = |target| entry_text(protocol, loopback(carrier), port, target, ["", ""]);
    let entry = Gate::with_file(&text(one)).until_ready();
    entry.until_listening();
    drop(connect(loopback(port)));
    assert_eq!(read_all(&accept(&first)), b"");
    entry.rewrite(&text(two));
    names_itself(first, b"first");
    names_itself(second, b"second");
    until("the port forwards to the other target", || {
        name_behind(port) == b"second"
    });
    let (without, _) = text(two)
        .split_once("reverseForwards:")
        .map(|(a, b)| (a.to_owned(), b.len()))
        .unwrap();
    entry.rewrite(&without);
    until("the port is closed", || is_closed(port));
    entry.rewrite(&text(one));
    until("the port listens again", || name_behind(port) == b"first");
}

fn limits_of_a_forward_hold_for_streams_that_the_exit_opens(protocol: &str) {
    let (listener, address) = target();
    let (carrier, port) = (free_port(), free_port());
    let _exit = exit(protocol, carrier, port);
    let limits = ", limits: {streams: 1}";
    let text = entry_text(protocol, loopback(carrier), port, address, [limits, ""]);
    let entry = Gate::with_file(&text).until_ready();
    entry.until_listening();
    let first = connect(loopback(port));
    let target = accept(&listener);
    assert_reset(&connect(loopback(port)));
    let forward = &entry.status()["forwards"][0];
    assert_eq!(forward["streams"]["refused"]["MT0211"], 1, "{forward}");
    drop((first, target));
    until("the forward has no open stream", || {
        entry.status()["forwards"][0]["streams"]["open"] == 0
    });
    let _client = connect(loopback(port));
    let _target = accept(&listener);
}

/// The bytes of a LISTEN frame.
fn listen(number: u32, address: &str) -> Vec<u8> {
    let body = [&[0], address.as_bytes()].concat();
    let mut bytes = vec![0x28, 0, 0, body.len() as u8];
    bytes.extend(number.to_be_bytes());
    bytes.extend([0; 8]);
    bytes.extend(body);
    bytes
}

#[test]
fn a_peer_that_asks_for_100_000_listeners_is_cut_off_and_has_none() {
    let carrier = free_port();
    let ports = 31_000..31_200;
    let rule = format!("'{}-{}'", ports.start, ports.end);
    let exit = Gate::with_file(&exit_text("Native", carrier, &rule)).until_ready();
    let mut peer = Carrier::new(connect(loopback(carrier)));
    let Frame::Hello(mut greeting) = hello(0, [0; 16], [0; 32]) else {
        panic!("expected a HELLO");
    };
    greeting.features = LISTEN_FEATURE;
    peer.send(&Frame::Hello(greeting));
    assert!(matches!(peer.next(), Frame::HelloAck(ack) if ack.features == LISTEN_FEATURE));
    let mut flood = peer.tcp.try_clone().unwrap();
    let flood = std::thread::spawn(move || {
        for number in 1..=100_000 {
            let address = format!("127.0.0.1:{}", 31_000 + number % 200);
            if flood.write_all(&listen(number, &address)).is_err() {
                return;
            }
        }
    });
    let mut listening = 0;
    let code = loop {
        match peer.next_of_note() {
            Frame::Listening { .. } => listening += 1,
            Frame::Unlisten { .. } => {}
            Frame::SessionClose { code, .. } => break code,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(code, SessionCode::ListenLimitError as u64);
    assert!(listening <= LISTENS_MAX, "{listening}");
    flood.join().unwrap();
    until("the exit listens on no port", || {
        exit.status()["forwards"].is_null() && ports.clone().all(is_closed)
    });
}

#[test]
fn an_exit_reaches_nothing_that_the_entry_did_not_declare() {
    let (_listener, declared) = target();
    let (others, other) = target();
    let (exit, exit_address) = target();
    let port = free_port();
    let text = entry_text("Native", exit_address, port, declared, ["", ""]);
    let entry = Gate::with_file(&text);
    let mut peer = Carrier::new(accept(&exit));
    assert!(matches!(peer.next(), Frame::Hello(_)));
    peer.send(&Frame::HelloAck(HelloAck {
        version: VERSION,
        features: RESUME | LISTEN_FEATURE,
        session_id: SESSION,
        token: TOKEN,
        parameters: parameters(),
    }));
    let asked = peer.next_of_note();
    assert!(matches!(asked, Frame::Listen { .. }), "{asked:?}");
    // Odd ids belong to the acceptor.
    for (number, target) in [
        format!("tcp://{other}"),
        format!("tcp://{declared}"),
        "listen://2".to_owned(),
        "listen://01".to_owned(),
        "listen://".to_owned(),
    ]
    .into_iter()
    .enumerate()
    {
        let mut open = codec::encode(&Frame::Open {
            stream: stream_ids(1)[0],
            priority: 0,
            target: target.clone(),
            source: None,
        });
        open[9] = 1 + 2 * number as u8;
        peer.tcp.write_all(&open).unwrap();
        loop {
            match peer.next_of_note() {
                Frame::ResetStream { code, .. } => {
                    assert_eq!(code, 0x102, "{target}");
                    break;
                }
                Frame::Opened { .. } => panic!("{target} was reached"),
                _ => {}
            }
        }
    }
    others.set_nonblocking(true).unwrap();
    assert!(others.accept().is_err());
    assert_eq!(
        metric(&entry, "muxgate_opens_refused_total{code=\"MT0204\"}"),
        5
    );
}
