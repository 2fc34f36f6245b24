//! Reverse streams over HTTP/2: two muxgate processes on loopback, and peers that write frames byte
//! by byte.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use crate::common::authority::Authority;
use crate::common::frames::{DATA, HEADERS, Peer, RST_STREAM};
use crate::common::path::Path;
use crate::common::*;

const MIB: usize = 1 << 20;
const NONE: &str = "{mode: None}";
const EXIT: &str = "exit.example.com";
const ENTRY: &str = "entry.example.com";
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
/// `:status` 200 in HPACK's static table.
const OK: u8 = 0x88;
const NOT_FOUND: u8 = 0x8d;

fn loopback(port: u16) -> SocketAddr {
    ([127, 0, 0, 1], port).into()
}

/// An exit that may listen on `allow_listen`.
fn exit_text(carrier: u16, security: &str, allow_listen: &str) -> String {
    format!(
        "role: Exit\nprotocol: HTTP2\nsecurity: {security}\nlisten: 127.0.0.1:{carrier}\nadmin: ADMIN\n\
         allowListen: [{allow_listen}]\ndrain: {{acceptSeconds: 0, deadlineSeconds: 50}}\n"
    )
}

/// An entry that requests the listener `port` on the exit at `carrier`. `more`: YAML of the entry.
fn entry_text(
    carrier: SocketAddr,
    security: &str,
    port: u16,
    target: SocketAddr,
    more: &str,
) -> String {
    format!(
        "role: Entry\nprotocol: HTTP2\nsecurity: {security}\nconnect:\n- name: far\n  address: {carrier}\nadmin: ADMIN\n{more}\
         drain: {{acceptSeconds: 0, deadlineSeconds: 50}}\nreverseForwards:\n\
         - {{name: back, listen: '127.0.0.1:{port}', \
         targets: [{{host: 127.0.0.1, port: {}}}]}}\n",
        target.port()
    )
}

/// Whether no process listens on the port. The function makes no connection, because a connection
/// would open a stream.
fn is_closed(port: u16) -> bool {
    TcpListener::bind(loopback(port)).is_ok()
}

/// Both gateways, and a target at the entry.
struct Tunnel {
    exit: Gate,
    entry: Gate,
    listener: TcpListener,
    port: u16,
}

impl Tunnel {
    fn new() -> Self {
        Self::secured(NONE, NONE)
    }

    fn secured(exit: &str, entry: &str) -> Self {
        let (listener, address) = target();
        let (carrier, port) = (free_port(), free_port());
        let exit = Gate::with_file(&exit_text(carrier, exit, &format!("'{port}'"))).until_ready();
        let text = entry_text(loopback(carrier), entry, port, address, "");
        let entry = Gate::with_file(&text).until_ready();
        entry.until_listening();
        Self {
            exit,
            entry,
            listener,
            port,
        }
    }

    fn stream(&self) -> (TcpStream, TcpStream) {
        let client = connect(loopback(self.port));
        (client, accept(&self.listener))
    }
}

#[test]
fn streams_of_the_exit_carry_bytes_exactly_and_end_by_halves_and_resets() {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::new();
    let files = |name| authority.issue(dir.path(), name, 2100);
    let tls = (files(EXIT).security(ENTRY), files(ENTRY).security(EXIT));
    for (exit, entry) in [(NONE, NONE), (&tls.0, &tls.1)] {
        let tunnel = Tunnel::secured(exit, entry);
        let (client, server) = tunnel.stream();
        assert_bulk(&client, server, 8 * MIB);
        // The halves of the stream end one after the other.
        let (mut client, mut server) = tunnel.stream();
        client.write_all(b"question").unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        assert_eq!(read_all(&server), b"question");
        server.write_all(b"answer").unwrap();
        server.shutdown(Shutdown::Write).unwrap();
        assert_eq!(read_all(&client), b"answer");
        // The target sends first.
        let (mut client, mut server) = tunnel.stream();
        server.write_all(b"220 ready").unwrap();
        server.shutdown(Shutdown::Write).unwrap();
        assert_eq!(read_all(&client), b"220 ready");
        client.write_all(b"late").unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        assert_eq!(read_all(&server), b"late");
        for name in ["entry", "exit"] {
            let gate = if name == "entry" {
                &tunnel.entry
            } else {
                &tunnel.exit
            };
            until(name, || {
                gate.status()["streams"]["closed"]["completed"] == 3
            });
            assert_eq!(gate.status()["forwards"][0]["streams"]["opened"], 3);
        }
        let (mut client, mut server) = tunnel.stream();
        client.write_all(b"1").unwrap();
        server.read_exact(&mut [0]).unwrap();
        reset(client);
        assert_reset(&server);
        let (mut client, mut server) = tunnel.stream();
        server.write_all(&pattern(3, MIB)).unwrap();
        client.read_exact(&mut vec![0; MIB]).unwrap();
        reset(server);
        assert_reset(&client);
    }
}

#[test]
fn many_connections_at_once_each_reach_their_target() {
    let tunnel = Tunnel::new();
    let clients: Vec<_> = (0..200).map(|_| connect(loopback(tunnel.port))).collect();
    for (number, mut client) in clients.iter().enumerate() {
        client.write_all(&[number as u8]).unwrap();
        client.shutdown(Shutdown::Write).unwrap();
    }
    let mut said: Vec<_> = (0..200)
        .map(|_| read_all(&accept(&tunnel.listener)))
        .collect();
    said.sort();
    assert!(said.into_iter().eq((0..200).map(|number| vec![number])));
}

#[test]
fn a_target_that_refuses_has_the_client_reset_at_once() {
    let Tunnel {
        exit,
        entry,
        listener,
        port,
    } = Tunnel::new();
    drop(listener);
    let start = Instant::now();
    assert_reset(&connect(loopback(port)));
    assert!(start.elapsed() < Duration::from_secs(10));
    assert_eq!(exit.status()["streams"]["open"], 0);
    drop(entry);
}

#[test]
fn what_an_exit_does_not_allow_is_refused_and_taken_back_and_both_sides_say_so() {
    let (listener, address) = target();
    let (carrier, port) = (free_port(), free_port());
    let exit = Gate::with_file(&exit_text(carrier, NONE, "")).until_ready();
    let text = entry_text(loopback(carrier), NONE, port, address, "");
    let entry = Gate::with_file(&text).until_ready();
    entry.line(&["WARN", "MT0220", "The exit does not listen"]);
    exit.line(&["WARN", "MT0220", "Listener refused"]);
    let told = entry.listen_problem().unwrap();
    assert!(told.contains("does not permit"), "{told}");
    assert!(is_closed(port));
    exit.rewrite(&exit_text(carrier, NONE, &format!("'{port}'")));
    exit.line(&["Configuration reloaded"]);
    // A changed forward is requested at once.
    entry.rewrite(&format!("{text}timeouts: {{idleSeconds: 60}}\n"));
    entry.until_listening();
    let mut client = connect(loopback(port));
    let mut server = accept(&listener);
    exit.rewrite(&exit_text(carrier, NONE, ""));
    until("the port is closed", || is_closed(port));
    until(
        "the entry reports that the exit does not permit the listener",
        || {
            entry
                .listen_problem()
                .is_some_and(|told| told.contains("does not permit"))
        },
    );
    // Open streams continue.
    client.write_all(b"still").unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(read_all(&server), b"still");
    server.write_all(b"here").unwrap();
    drop(server);
    assert_eq!(read_all(&client), b"here");
}

#[test]
fn a_listener_ends_with_its_carrier_and_is_asked_for_again() {
    let (carrier, port) = (free_port(), free_port());
    let _exit = Gate::with_file(&exit_text(carrier, NONE, &format!("'{port}'"))).until_ready();
    for pool in ["", "pool: {min: 2, max: 2}\n"] {
        // Each round has a target of its own, so it gets no late connection of the previous round.
        let (listener, address) = target();
        let path = Path::to(loopback(carrier));
        let text = entry_text(path.address, NONE, port, address, pool);
        let entry = Gate::with_file(&text).until_ready();
        let carriers = if pool.is_empty() { 1 } else { 2 };
        until("the carriers of the entry are up", || {
            entry.status()["carriers"].as_array().unwrap().len() == carriers
        });
        entry.until_listening();
        let client = connect(loopback(port));
        let server = accept(&listener);
        let start = Instant::now();
        path.cut_one();
        assert_reset(&client);
        assert_reset(&server);
        let mut server = None;
        until("another carrier has the listener", || {
            let mut client = TcpStream::connect(loopback(port)).ok();
            let said = client
                .as_mut()
                .is_some_and(|tcp| tcp.write_all(b"again").is_ok());
            std::thread::sleep(Duration::from_millis(100));
            listener.set_nonblocking(true).unwrap();
            let accepted = listener.accept();
            listener.set_nonblocking(false).unwrap();
            server = accepted.ok().map(|(tcp, _)| tcp);
            if let Some(tcp) = &server {
                tcp.set_nonblocking(false).unwrap();
            }
            said && server.is_some()
        });
        assert!(
            start.elapsed() < Duration::from_secs(14),
            "the port was not requested again at once"
        );
        drop(entry);
        until("the port is closed", || is_closed(port));
    }
}

#[test]
fn gateways_that_shut_down_close_the_port_and_end_what_they_have() {
    for who in ["entry", "exit"] {
        let tunnel = Tunnel::new();
        let (mut client, mut server) = tunnel.stream();
        let (gate, _other) = match who {
            "entry" => (tunnel.entry, tunnel.exit),
            _ => (tunnel.exit, tunnel.entry),
        };
        gate.signal("TERM");
        until("the port is closed", || is_closed(tunnel.port));
        client.write_all(b"question").unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        assert_eq!(read_all(&server), b"question");
        server.write_all(b"answer").unwrap();
        drop(server);
        assert_eq!(read_all(&client), b"answer");
        assert!(gate.wait().success(), "{who}");
    }
}

/// Reads `count` messages of type 1 from a listener's stream.
fn arrived(peer: &mut Peer, count: usize) -> Vec<Vec<u8>> {
    let mut bytes = Vec::new();
    while bytes.len() < 19 * count {
        let frame = peer.next_of(1);
        assert_eq!((frame.kind, frame.flags), (DATA, 0), "{frame:?}");
        bytes.extend(frame.payload);
    }
    let messages = bytes.chunks(19).map(|message| {
        assert_eq!(message[..3], [1, 0, 16]);
        message[3..].to_vec()
    });
    messages.collect()
}

fn path_of(token: &[u8]) -> String {
    let digits: String = token.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("/{digits}")
}

#[test]
fn an_entry_that_does_not_accept_or_accepts_what_is_not_there_gets_nothing() {
    let (carrier, port) = (free_port(), free_port());
    let exit = Gate::with_file(&exit_text(carrier, NONE, &format!("'{port}'"))).until_ready();
    let address = loopback(port).to_string();
    let mut peer = Peer::greeted(loopback(carrier));
    peer.connect_to(1, "muxtunnel-listen", &address, "/");
    let answer = peer.next_of(1);
    assert_eq!(
        (answer.kind, answer.flags, answer.payload[0]),
        (HEADERS, END_HEADERS, OK)
    );
    until("the session is ready", || {
        exit.status()["carriers"].as_array().unwrap().len() == 1
    });
    let (mut one, two) = (connect(loopback(port)), connect(loopback(port)));
    // The time-out of the last client begins after this moment.
    let start = Instant::now();
    let three = connect(loopback(port));
    let tokens = arrived(&mut peer, 3);
    // An unknown token, and an invalid token.
    for (stream, path) in (3..).step_by(2).zip([path_of(&[7; 16]), "/".to_owned()]) {
        peer.connect_to(stream, "muxtunnel-accept", &address, &path);
        let answer = peer.next_of(stream);
        assert_eq!((answer.kind, answer.payload[0]), (HEADERS, NOT_FOUND));
    }
    // The same token twice.
    for (stream, status) in [(7, OK), (9, NOT_FOUND)] {
        peer.connect_to(stream, "muxtunnel-accept", &address, &path_of(&tokens[0]));
        let answer = peer.next_of(stream);
        assert_eq!(
            (answer.kind, answer.payload[0]),
            (HEADERS, status),
            "{stream}"
        );
    }
    peer.frame(DATA, END_STREAM, 7, b"hello");
    assert_eq!(read_all(&one), b"hello");
    one.write_all(b"there").unwrap();
    one.shutdown(Shutdown::Write).unwrap();
    let mut said = Vec::new();
    loop {
        let frame = peer.next_of(7);
        said.extend(frame.payload);
        if frame.flags & END_STREAM != 0 {
            break;
        }
    }
    assert_eq!(said, b"there");
    // A refusal with class 5.
    let mut refusal = vec![2, 0, 20];
    refusal.extend(&tokens[1]);
    refusal.extend([0, 5, 0, 0]);
    peer.frame(DATA, 0, 1, &refusal);
    assert_reset(&two);
    // The last client gets no answer, so it is reset after a timeout.
    let answers = std::thread::spawn(move || {
        while peer.next().is_some() {}
        peer
    });
    assert_reset(&three);
    assert!(start.elapsed() > Duration::from_secs(10));
    drop(exit);
    answers.join().unwrap();
}

#[test]
fn an_entry_that_accepts_nothing_has_1024_connections_wait_and_no_more() {
    let (carrier, port) = (free_port(), free_port());
    let exit = Gate::with_file(&exit_text(carrier, NONE, &format!("'{port}'"))).until_ready();
    let mut peer = Peer::greeted(loopback(carrier));
    let address = loopback(port).to_string();
    peer.connect_to(1, "muxtunnel-listen", &address, "/");
    assert_eq!(peer.next_of(1).payload[0], OK);
    until("the session is ready", || {
        exit.status()["carriers"].as_array().unwrap().len() == 1
    });
    let clients: Vec<_> = (0..1024).map(|_| connect(loopback(port))).collect();
    arrived(&mut peer, 1024);
    assert_reset(&connect(loopback(port)));
    // The exit refused this connection at once. The older connections still wait, so the reset was
    // not their time-out.
    exit.line(&["1024 connections already wait for the entry to accept them"]);
    // The end of the stream ends the listener and the waiting connections.
    peer.frame(DATA, END_STREAM, 1, &[]);
    clients.iter().for_each(assert_reset);
    until("the port is closed", || is_closed(port));
    assert_small(&exit);
}

#[test]
fn a_peer_that_asks_for_many_listeners_or_writes_nonsense_is_refused() {
    let carrier = free_port();
    let ports = 31_300..31_370_u16;
    let rule = format!("'{}-{}'", ports.start, ports.end);
    let exit = Gate::with_file(&exit_text(carrier, NONE, &rule)).until_ready();
    let mut peer = Peer::greeted(loopback(carrier));
    let streams = (1..).step_by(2);
    let mut listening = 0;
    for (stream, port) in streams.zip(ports.clone()) {
        let address = loopback(port).to_string();
        peer.connect_to(stream, "muxtunnel-listen", &address, "/");
        listening += usize::from(peer.next_of(stream).payload[0] == OK);
    }
    assert_eq!(listening, 64);
    // A message that is too long ends only its listener.
    peer.frame(DATA, 0, 1, &[1, 0xff, 0xff]);
    let ends = peer.next_of(1);
    assert!(
        ends.kind == RST_STREAM || ends.flags == END_STREAM,
        "{ends:?}"
    );
    until("the port is closed", || is_closed(ports.start));
    assert!(!is_closed(ports.start + 1));
    drop(peer);
    until("the exit listens on no port", || {
        exit.status()["forwards"].is_null() && ports.clone().all(is_closed)
    });
}

/// SETTINGS_ENABLE_CONNECT_PROTOCOL.
const EXTENDED: [u8; 6] = [0, 8, 0, 0, 0, 1];

#[test]
fn an_exit_that_names_connections_without_end_costs_no_memory_and_reaches_the_declared_target_alone()
 {
    let (listener, declared) = target();
    let (exit, exit_address) = target();
    let text = entry_text(
        exit_address,
        NONE,
        free_port(),
        declared,
        "limits: {streams: 64}\n",
    );
    let entry = Gate::with_file(&text);
    let mut peer = Peer::accepted(accept(&exit), &EXTENDED);
    let asked = peer.next_of(1);
    assert_eq!(asked.kind, HEADERS);
    peer.frame(HEADERS, END_HEADERS, 1, &[OK]);
    entry.until_listening();
    let mut flood = Peer(peer.0.try_clone().unwrap());
    let flood = std::thread::spawn(move || {
        // These messages exceed the window of the stream. The peer ignores the window.
        for number in 0..50_000_u32 {
            let mut message = vec![1, 0, 16];
            message.extend([0; 12]);
            message.extend(number.to_be_bytes());
            if !flood.frame(DATA, 0, 1, &message) {
                return;
            }
        }
    });
    let mut accepts = 0;
    while let Some(frame) = peer.next() {
        if frame.kind == HEADERS && frame.stream > 1 {
            accepts += 1;
            // Each of these clients has disconnected.
            peer.frame(
                HEADERS,
                END_HEADERS | END_STREAM,
                frame.stream,
                &[NOT_FOUND],
            );
        }
        if accepts == 100 {
            break;
        }
    }
    assert_eq!(accepts, 100);
    assert_reset(&accept(&listener));
    assert!(entry.status()["streams"]["open"].as_u64() <= Some(64));
    assert_small(&entry);
    drop(peer);
    drop(entry);
    flood.join().unwrap();
}

#[test]
fn a_peer_that_knows_no_listeners_is_told_by_the_forward() {
    let (_listener, declared) = target();
    let (exit, exit_address) = target();
    let text = entry_text(exit_address, NONE, free_port(), declared, "");
    let entry = Gate::with_file(&text);
    let mut peer = Peer::accepted(accept(&exit), &[]);
    std::thread::spawn(move || while peer.next().is_some() {});
    until(
        "the entry reports that the peer does not support listeners",
        || {
            entry
                .listen_problem()
                .is_some_and(|told| told.contains("does not support listeners"))
        },
    );
}
