//! An entry with several exits: streams spread over them, and an exit that is lost leaves the others.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test"
)]

mod common;

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};

use common::peer::{Carrier, hello_ack};
use common::*;
use muxtunnel_proto::native::codec::{Frame, HEADER_BYTES};

fn exit(carrier: SocketAddr, target: SocketAddr) -> Gate {
    Gate::with_file(&format!(
        "role: Exit\nprotocol: Native\nsecurity: {{mode: None}}\nlisten: {carrier}\nadmin: ADMIN\n\
         workers: 1\nallow: ['{target}']\ndrain: {{acceptSeconds: 0, deadlineSeconds: 20}}\n"
    ))
}

fn entry(connect: &str, forward: SocketAddr, target: SocketAddr) -> Gate {
    entry_with("", connect, forward, target)
}

/// As [`entry`], with further lines of the file.
fn entry_with(lines: &str, connect: &str, forward: SocketAddr, target: SocketAddr) -> Gate {
    Gate::with_file(&format!(
        "role: Entry\nprotocol: Native\nsecurity: {{mode: None}}\nconnect: '{connect}'\nadmin: ADMIN\n\
         {lines}workers: 1\nforwards:\n\
         - {{name: a, listen: '{forward}', target: {{host: 127.0.0.1, port: {}}}}}\n",
        target.port()
    ))
}

fn local(port: u16) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, port))
}

/// A stream that works, at both ends.
struct Stream {
    client: TcpStream,
    server: TcpStream,
}

impl Stream {
    fn open(forward: SocketAddr, listener: &TcpListener) -> Self {
        let (client, server) = (connect(forward), accept(listener));
        let mut stream = Self { client, server };
        stream.exchange();
        stream
    }

    fn exchange(&mut self) {
        for (from, to) in [(&self.client, &self.server), (&self.server, &self.client)] {
            let (mut from, mut to) = (from, to);
            from.write_all(b"hello").unwrap();
            let mut heard = [0; 5];
            to.read_exact(&mut heard).unwrap();
            assert_eq!(&heard, b"hello");
        }
    }
}

fn open_streams(gate: &Gate) -> u64 {
    gate.status()["streams"]["open"].as_u64().unwrap()
}

fn carriers(gate: &Gate) -> usize {
    gate.status()["carriers"].as_array().unwrap().len()
}

#[test]
fn streams_spread_over_exits_and_those_of_a_lost_one_alone_end() {
    let (listener, target) = target();
    let addresses = [local(free_port()), local(free_port())];
    let [one, other] = addresses.map(|carrier| exit(carrier, target).until_ready());
    let forward = local(free_port());
    let connect = format!("{},{}", addresses[0], addresses[1]);
    let entry = entry(&connect, forward, target).until_ready();
    until("there is a session with each exit", || {
        carriers(&entry) == 2
    });
    let mut streams: Vec<Stream> = (0..10).map(|_| Stream::open(forward, &listener)).collect();
    assert_eq!((open_streams(&one), open_streams(&other)), (5, 5));

    // One goes away in order: its streams go on, new ones go to the other.
    one.signal("TERM");
    until("the entry knows", || {
        entry.log().contains("takes no more streams")
    });
    streams.push(Stream::open(forward, &listener));
    assert_eq!(open_streams(&other), 6);
    streams.iter_mut().for_each(Stream::exchange);
    assert_eq!(entry.get("/readyz").0, 200);

    // It ends: only its streams do.
    one.signal("TERM");
    assert!(one.wait().success());
    until("its streams are gone", || open_streams(&entry) == 6);
    for _ in 0..4 {
        streams.push(Stream::open(forward, &listener));
    }
    assert_eq!(open_streams(&other), 10);
    assert_eq!(entry.status()["streams"]["refused"], serde_json::json!({}));
}

#[test]
fn an_exit_that_comes_later_is_taken_up_and_one_that_is_not_there_costs_nothing() {
    let (listener, target) = target();
    let addresses = [local(free_port()), local(free_port())];
    let forward = local(free_port());
    let connect = format!("{},{}", addresses[0], addresses[1]);
    let one = exit(addresses[0], target).until_ready();
    let entry = entry(&connect, forward, target).until_ready();
    let mut first = Stream::open(forward, &listener);
    assert_eq!(open_streams(&one), 1);
    let other = exit(addresses[1], target).until_ready();
    until("there is a session with each exit", || {
        carriers(&entry) == 2
    });
    let mut second = Stream::open(forward, &listener);
    assert_eq!((open_streams(&one), open_streams(&other)), (1, 1));
    first.exchange();
    second.exchange();
}

#[test]
fn connections_that_come_while_there_is_no_exit_wait_for_one() {
    let (listener, target) = target();
    let carrier = local(free_port());
    let forward = local(free_port());
    let entry = entry(&carrier.to_string(), forward, target);
    until("the entry has no carrier", || {
        entry.log().contains("No carrier")
    });
    let mut waiting: Vec<TcpStream> = (0..5).map(|_| connect(forward)).collect();
    for (number, client) in waiting.iter_mut().enumerate() {
        client.write_all(&[number as u8]).unwrap();
    }
    assert_eq!(entry.get("/readyz").0, 503);
    let _exit = exit(carrier, target);
    let mut heard: Vec<u8> = waiting
        .iter()
        .map(|_| {
            let mut first = [0];
            accept(&listener).read_exact(&mut first).unwrap();
            first[0]
        })
        .collect();
    heard.sort_unstable();
    assert_eq!(heard, [0, 1, 2, 3, 4]);
    assert_eq!(entry.status()["streams"]["refused"], serde_json::json!({}));
}

#[test]
fn an_entry_that_is_shut_down_serves_those_who_wait_in_its_backlog() {
    let (listener, target) = target();
    let (carrier, forward) = (local(free_port()), local(free_port()));
    let drain = "drain: {acceptSeconds: 0, deadlineSeconds: 50}\n";
    let entry = entry_with(drain, &carrier.to_string(), forward, target);
    until("the entry has no carrier", || {
        entry.log().contains("No carrier")
    });
    let mut waiting: Vec<TcpStream> = (0..5).map(|_| connect(forward)).collect();
    for (number, client) in waiting.iter_mut().enumerate() {
        client.write_all(&[number as u8]).unwrap();
    }
    entry.signal("TERM");
    until("it is not ready", || entry.log().contains("Draining"));
    let _exit = exit(carrier, target);
    let mut servers: Vec<(u8, TcpStream)> = waiting
        .iter()
        .map(|_| {
            let (mut server, mut first) = (accept(&listener), [0]);
            server.read_exact(&mut first).unwrap();
            (first[0], server)
        })
        .collect();
    servers.sort_by_key(|(number, _)| *number);
    // Nobody else is let in, and who was is served to the end.
    assert!(TcpStream::connect(forward).is_err());
    for ((number, server), client) in servers.iter_mut().zip(&mut waiting) {
        server.write_all(&[*number + 10]).unwrap();
        let mut answer = [0];
        client.read_exact(&mut answer).unwrap();
        assert_eq!(answer, [*number + 10]);
    }
    drop((servers, waiting));
    assert!(entry.wait().success());
}

#[test]
fn the_fallback_leads_to_an_exit_where_the_names_do_not() {
    let (listener, target) = target();
    let (carrier, forward) = (local(free_port()), local(free_port()));
    let exit = exit(carrier, target).until_ready();
    // The first name has no address (RFC 6761 section 6.4), at the second one nobody listens any more.
    for connect in ["exit.invalid:64000".to_owned(), local(1).to_string()] {
        let fallback = format!("connectFallback: '{carrier}'\n");
        let entry = entry_with(&fallback, &connect, forward, target).until_ready();
        Stream::open(forward, &listener);
        until("the log says so", || {
            entry.log().contains("the fallback is dialled")
        });
        assert_eq!(carriers(&exit), 1);
        drop(entry);
        until("the exit has no carrier", || carriers(&exit) == 0);
    }
}

/// An exit that the test plays, the first of two, and an entry to both.
struct Leaving {
    carrier: Carrier,
    entry: Gate,
    forward: SocketAddr,
    listener: TcpListener,
    /// That the test plays it as long as it has its port.
    _leaving: TcpListener,
    _staying: Gate,
}

impl Leaving {
    fn new() -> Self {
        Self::to(entry)
    }

    /// `lead`: the entry to these exits, with its forward and the target.
    fn to(lead: impl Fn(&str, SocketAddr, SocketAddr) -> Gate) -> Self {
        let (listener, target) = target();
        let (leaving, first) = common::target();
        let second = local(free_port());
        let staying = exit(second, target).until_ready();
        let forward = local(free_port());
        let entry = lead(&format!("{first},{second}"), forward, target);
        let mut carrier = Carrier::new(accept(&leaving));
        assert!(matches!(carrier.next(), Frame::Hello(_)));
        carrier.send(&hello_ack());
        until("there is a session with each exit", || {
            carriers(&entry) == 2
        });
        Self {
            carrier,
            entry,
            forward,
            listener,
            _leaving: leaving,
            _staying: staying,
        }
    }

    /// A client whose open has come with `early` to the exit that leaves.
    fn open(&mut self, early: &[u8]) -> TcpStream {
        let mut client = connect(self.forward);
        client.write_all(early).unwrap();
        let open = self.carrier.next_of_note();
        assert!(matches!(open, Frame::Open { .. }), "{open:?}");
        self.carrier.read_payload(early.len());
        assert_eq!(self.carrier.payload, early);
        client
    }

    /// GOAWAY, and no stream was taken.
    fn go_away(&mut self) {
        let mut frame = [0; HEADER_BYTES];
        frame[0] = 6;
        self.carrier.tcp.write_all(&frame).unwrap();
    }
}

#[test]
fn an_open_that_an_exit_does_not_take_any_more_goes_to_another_with_all_that_was_sent() {
    let mut leaving = Leaving::new();
    let early = pattern(3, 50_000);
    let mut client = leaving.open(&early);
    leaving.go_away();
    let mut server = accept(&leaving.listener);
    client.write_all(b"and more").unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(read_all(&server), [&early[..], b"and more"].concat());
    server.write_all(b"answer").unwrap();
    drop(server);
    assert_eq!(read_all(&client), b"answer");
    assert_eq!(metric(&leaving.entry, "muxgate_opens_retried_total"), 1);
    let refused = &leaving.entry.status()["streams"]["refused"];
    assert_eq!(*refused, serde_json::json!({}));
}

#[test]
fn a_client_that_sends_nothing_and_one_that_has_ended_are_taken_by_another_exit() {
    let mut leaving = Leaving::new();
    let client = leaving.open(b"");
    client.shutdown(Shutdown::Write).unwrap();
    leaving.go_away();
    let mut server = accept(&leaving.listener);
    assert_eq!(read_all(&server), b"");
    server.write_all(b"answer").unwrap();
    drop(server);
    assert_eq!(read_all(&client), b"answer");
}

#[test]
fn a_socks_client_whose_open_goes_to_another_exit_is_answered_once_by_that_one() {
    let mut leaving = Leaving::to(|connect, forward, _| {
        Gate::with_file(&format!(
            "role: Entry\nsecurity: {{mode: None}}\nconnect: '{connect}'\nadmin: ADMIN\n\
             forwards:\n- {{name: a, listen: '{forward}', protocol: Socks5}}\n"
        ))
    });
    let target = leaving.listener.local_addr().unwrap().port().to_be_bytes();
    let mut client = connect(leaving.forward);
    let request = [
        b"\x05\x01\x00\x05\x01\x00\x01\x7f\x00\x00\x01",
        &target[..],
        b"early",
    ];
    client.write_all(&request.concat()).unwrap();
    let open = leaving.carrier.next_of_note();
    assert!(matches!(open, Frame::Open { .. }), "{open:?}");
    leaving.carrier.read_payload(b"early".len());
    leaving.go_away();
    client.shutdown(Shutdown::Write).unwrap();
    let mut server = accept(&leaving.listener);
    assert_eq!(read_all(&server), b"early");
    server.write_all(b"answer").unwrap();
    drop(server);
    let granted = [
        b"\x05\x00\x05\x00\x00\x01\x7f\x00\x00\x01",
        &target[..],
        b"answer",
    ];
    assert_eq!(read_all(&client), granted.concat());
}
