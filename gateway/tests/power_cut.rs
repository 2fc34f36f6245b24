//! An entry in a network namespace whose host loses power: nothing tells the exit that the entry's
//! sessions have ended. The exit has several workers.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use crate::common::ends::{gateway_key, public_keys};
use crate::common::namespace::Namespace;
use crate::common::*;

/// Number of connections after the loss of the first entry.
const CONNECTIONS: usize = 60;
/// Number of connections that may go to the first entry, which no longer answers.
const LOST_MAX: usize = 5;
/// Patience for one connection. A session without an answer is given up much later.
const ANSWER: Duration = Duration::from_secs(5);

/// Hang bound until the exit has given up the sessions of a lost entry, and another entry has
/// requested the port again.
const LOST_WITHIN: Duration = Duration::from_mins(5);

/// An entry's host, at `10.<number>.0.2`. The exit is at `10.<number>.0.1`.
fn host(number: u8) -> Namespace {
    let end = |last: u8| format!("10.{number}.0.{last}/24");
    let namespace = Namespace::new(&[&end(1)], &[&end(2)]);
    namespace.run(&["ip", "link", "set", "lo", "up"]);
    namespace
}

/// Starts an entry in `host` that requests the port `port`. Its target sends `name` to each client.
fn entry(host: &Namespace, head: &str, exit: &str, port: u16, name: &'static [u8]) -> Gate {
    host.enter(|| {
        let (listener, target) = target();
        std::thread::spawn(move || {
            for mut tcp in listener.incoming().flatten() {
                let _ = tcp.write_all(name);
            }
        });
        Gate::with_file(&format!(
            "role: Entry\n{head}workers: 2\nconnect:\n- name: far\n  address: {exit}\nreverseForwards:\n\
             - {{name: back, listen: '127.0.0.1:{port}', \
             targets: [{{host: 127.0.0.1, port: {}}}]}}\n",
            target.port()
        ))
    })
}

/// Waits until every worker of the entry has a listener at the exit.
fn until_listening(host: &Namespace, entry: &Gate) {
    until("the exit listens for the entry", || {
        host.enter(|| entry.status()["ready"] == true && entry.listen_problem().is_none())
    });
}

/// Whether the second entry's target has answered the client.
fn is_answered(mut client: &TcpStream) -> bool {
    client.set_read_timeout(Some(ANSWER)).unwrap();
    let mut name = [0; 6];
    client.read_exact(&mut name).is_ok() && name == *b"second"
}

/// `pause`: the time between two connections.
fn a_new_entry_gets_the_connections(protocol: &str, numbers: [u8; 2], pause: Duration) {
    let (carrier, port) = (free_port(), free_port());
    let head = format!("protocol: {protocol}\nsecurity: {{mode: None}}\nadmin: ADMIN\n");
    let _exit = Gate::with_file(&format!(
        "role: Exit\n{head}workers: 4\nlisten: 0.0.0.0:{carrier}\nallowListen: [{port}]\n"
    ))
    .until_ready();
    let [first, second] = numbers.map(host);
    let to = |number: u8| format!("10.{number}.0.1:{carrier}");
    let lost = entry(&first, &head, &to(numbers[0]), port, b"first.");
    until_listening(&first, &lost);
    first.run(&["ip", "link", "set", "eth0", "down"]);
    let new = entry(&second, &head, &to(numbers[1]), port, b"second");
    until_listening(&second, &new);
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let clients: Vec<_> = (0..CONNECTIONS)
        .map(|_| {
            std::thread::sleep(pause);
            connect(address)
        })
        .collect();
    let answered = clients.iter().filter(|client| is_answered(client)).count();
    let lost = CONNECTIONS - answered;
    assert!(lost <= LOST_MAX, "{protocol}: {lost} connections are lost");
}

#[test]
fn a_native_entry_that_returns_after_a_power_cut_gets_its_connections() {
    a_new_entry_gets_the_connections("Native", [94, 95], Duration::from_millis(20));
}

#[test]
fn an_http2_entry_that_returns_after_a_power_cut_gets_its_connections() {
    a_new_entry_gets_the_connections("HTTP2", [96, 97], Duration::from_millis(20));
}

#[test]
fn a_quic_entry_that_returns_after_a_power_cut_gets_its_connections() {
    // QUIC has no request for an answer: the first connections show that the entry does not answer.
    a_new_entry_gets_the_connections("QUIC", [98, 99], Duration::from_millis(250));
}

/// A port belongs to the identity that requested it first, until the last session of this identity
/// has ended. Nothing tells the exit that the sessions of a host without power have ended.
#[test]
fn an_entry_of_another_identity_gets_the_port_of_a_lost_entry() {
    let keys = tempfile::tempdir().unwrap();
    let key = |name: &str| keys.path().join(name);
    let [[_, exit_key], [one, _], [two, _]] =
        ["exit", "one", "two"].map(|name| gateway_key(&key(name)));
    let head = |name: &str, peers: &[&str]| {
        let security = public_keys(&key(name), peers);
        format!(
            "protocol: Native\nsecurity: {security}\nadmin: ADMIN\nlivenessSeconds: 5\nresume: false\n"
        )
    };
    let (carrier, port) = (free_port(), free_port());
    let exit_head = head("exit", &[&one, &two]);
    let _exit = Gate::with_file(&format!(
        "role: Exit\n{exit_head}workers: 4\nlisten: 0.0.0.0:{carrier}\nallowListen: [{port}]\n"
    ))
    .until_ready();
    let [first, second] = [92, 93].map(host);
    let to = |number: u8| format!("10.{number}.0.1:{carrier}");
    let entry_head = |name| head(name, &[&exit_key]);
    let lost = entry(&first, &entry_head("one"), &to(92), port, b"first.");
    until_listening(&first, &lost);
    first.run(&["ip", "link", "set", "eth0", "down"]);
    let new = entry(&second, &entry_head("two"), &to(93), port, b"second");
    until("the other identity is refused", || {
        second
            .enter(|| new.listen_problem())
            .is_some_and(|told| told.contains("another identity"))
    });
    // The exit gives up the lost sessions, and the new entry requests the port again.
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let begin = Instant::now();
    while let Some(told) = second.enter(|| new.listen_problem()) {
        assert!(begin.elapsed() < LOST_WITHIN, "{told}");
        std::thread::sleep(Duration::from_millis(200));
    }
    let answered = (0..CONNECTIONS).filter(|_| is_answered(&connect(address)));
    assert_eq!(answered.count(), CONNECTIONS);
}
