//! An entry with several exits. The entry spreads streams over the exits, and the loss of an exit
//! does not affect the streams of the other exits.

mod orders;

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};

use crate::common::namespace::Namespace;
use crate::common::peer::{Carrier, hello_ack};
use crate::common::*;
use muxtunnel_proto::native::codec::{Frame, HEADER_BYTES};

fn exit(carrier: SocketAddr, target: SocketAddr) -> Gate {
    exit_with("", carrier, target)
}

/// Starts an exit like [`exit`], with more YAML lines.
fn exit_with(lines: &str, carrier: SocketAddr, target: SocketAddr) -> Gate {
    Gate::with_file(&format!(
        "role: Exit\nprotocol: Native\nsecurity: {{mode: None}}\nlisten: {carrier}\nadmin: ADMIN\n\
         {lines}workers: 1\nallow: [{target_rule}]\ndrain: {{acceptSeconds: 0, deadlineSeconds: 20}}\n",
        target_rule = crate::common::rule(target)
    ))
}

fn entry(connect: &str, forward: SocketAddr, target: SocketAddr) -> Gate {
    entry_with("", connect, forward, target)
}

/// Starts an entry like [`entry`], with more YAML lines.
fn entry_with(lines: &str, connect: &str, forward: SocketAddr, target: SocketAddr) -> Gate {
    Gate::with_file(&format!(
        "role: Entry\nprotocol: Native\nsecurity: {{mode: None}}\n{connect}admin: ADMIN\n\
         {lines}workers: 1\nforwards:\n\
         - {{name: a, listen: '{forward}', targets: [{{host: 127.0.0.1, port: {}}}]}}\n",
        target.port()
    ))
}

/// The exits `a`, `b`, ... of an entry, each with its order.
fn exits(exits: &[(&dyn std::fmt::Display, u8)]) -> String {
    let names = ('a'..).map(String::from);
    let exit = |(name, (address, order)): (String, &(&dyn std::fmt::Display, u8))| {
        format!("- {{name: {name}, order: {order}, address: '{address}'}}\n")
    };
    let exits: String = names.zip(exits).map(exit).collect();
    format!("connect:\n{exits}")
}

fn local(port: u16) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, port))
}

/// An established stream, with both ends.
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
    let connect = exits(&[(&addresses[0], 0), (&addresses[1], 0)]);
    let entry = entry(&connect, forward, target).until_ready();
    until("there is a session with each exit", || {
        carriers(&entry) == 2
    });
    let mut streams: Vec<Stream> = (0..10).map(|_| Stream::open(forward, &listener)).collect();
    assert_eq!((open_streams(&one), open_streams(&other)), (5, 5));

    // One exit shuts down in order. Its streams continue, and new streams go to the other exit.
    one.signal("TERM");
    until(
        "the entry logs that the session accepts no more streams",
        || entry.log().contains("accepts no more streams"),
    );
    streams.push(Stream::open(forward, &listener));
    assert_eq!(open_streams(&other), 6);
    streams.iter_mut().for_each(Stream::exchange);
    assert_eq!(entry.get("/readyz").0, 200);

    // The exit ends, and only its streams end.
    one.signal("TERM");
    assert!(one.wait().success());
    until("the streams of the ended exit are closed", || {
        open_streams(&entry) == 6
    });
    for _ in 0..4 {
        streams.push(Stream::open(forward, &listener));
    }
    assert_eq!(open_streams(&other), 10);
    assert_eq!(entry.status()["streams"]["refused"], serde_json::json!({}));
}

#[test]
fn streams_that_a_full_exit_does_not_take_go_to_another_one() {
    let (listener, target) = target();
    let addresses = [local(free_port()), local(free_port())];
    let full = exit_with("limits: {streams: 1}\n", addresses[0], target).until_ready();
    let other = exit(addresses[1], target).until_ready();
    let forward = local(free_port());
    let connect = exits(&[(&addresses[0], 0), (&addresses[1], 0)]);
    let entry = entry(&connect, forward, target).until_ready();
    until("there is a session with each exit", || {
        carriers(&entry) == 2
    });
    let _streams: Vec<Stream> = (0..6).map(|_| Stream::open(forward, &listener)).collect();
    assert_eq!((open_streams(&full), open_streams(&other)), (1, 5));
    assert_eq!(entry.status()["streams"]["refused"], serde_json::json!({}));
}

#[test]
fn an_exit_that_comes_later_is_taken_up_and_one_that_is_not_there_costs_nothing() {
    let (listener, target) = target();
    let addresses = [local(free_port()), local(free_port())];
    let forward = local(free_port());
    let connect = exits(&[(&addresses[0], 0), (&addresses[1], 0)]);
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
    let entry = entry(&exits(&[(&carrier, 0)]), forward, target);
    until("the entry logs that it has no carrier", || {
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
    let entry = entry_with(drain, &exits(&[(&carrier, 0)]), forward, target);
    until("the entry logs that it has no carrier", || {
        entry.log().contains("No carrier")
    });
    let mut waiting: Vec<TcpStream> = (0..5).map(|_| connect(forward)).collect();
    for (number, client) in waiting.iter_mut().enumerate() {
        client.write_all(&[number as u8]).unwrap();
    }
    entry.signal("TERM");
    until("the entry drains", || entry.log().contains("Draining"));
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
    // The entry accepts no further client, but serves the accepted clients until their end.
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

/// An entry with two exits. The test itself acts as the first exit.
struct Leaving {
    carrier: Carrier,
    entry: Gate,
    forward: SocketAddr,
    listener: TcpListener,
    /// Keeps the port of the first exit.
    _leaving: TcpListener,
    _staying: Gate,
}

impl Leaving {
    fn new() -> Self {
        Self::to(entry)
    }

    /// `lead` starts the entry. The arguments of `lead` are the exits, the forward and the target.
    fn to(lead: impl Fn(&str, SocketAddr, SocketAddr) -> Gate) -> Self {
        let (listener, target) = target();
        let (leaving, first) = crate::common::target();
        let second = local(free_port());
        let staying = exit(second, target).until_ready();
        let forward = local(free_port());
        let entry = lead(&exits(&[(&first, 0), (&second, 0)]), forward, target);
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

    /// A client whose open has arrived at the first exit with `early`.
    fn open(&mut self, early: &[u8]) -> TcpStream {
        let mut client = connect(self.forward);
        client.write_all(early).unwrap();
        let open = self.carrier.next_of_note();
        assert!(matches!(open, Frame::Open { .. }), "{open:?}");
        self.carrier.read_payload(early.len());
        assert_eq!(self.carrier.payload, early);
        client
    }

    /// Sends a GOAWAY which reports that the exit has accepted no stream.
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
            "role: Entry\nsecurity: {{mode: None}}\n{connect}admin: ADMIN\n\
             proxies:\n- {{name: a, listen: '{forward}', protocol: SOCKS5}}\n"
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

/// A name that resolves to two exits, an entry in its own namespace, and two streams over each
/// exit.
struct Vanishing {
    namespace: Namespace,
    addresses: [String; 2],
    entry: Gate,
    /// The streams of each exit.
    streams: [Vec<Stream>; 2],
    /// One unanswered open over each exit. The target does not answer.
    _unanswered: [TcpStream; 2],
    exits: [Gate; 2],
    _listener: TcpListener,
    _silent: (TcpListener, Vec<socket2::Socket>),
}

impl Vanishing {
    /// `network` has the first three octets of the addresses. `inside` is the entry's address.
    fn new(network: &str, inside: &'static str) -> Self {
        let addresses = [2, 3].map(|last| format!("{network}.{last}"));
        let outside = [&format!("{network}.1"), &addresses[0], &addresses[1]];
        let outside = outside.map(|address| format!("{address}/29"));
        let mut namespace = Namespace::new(
            &outside.each_ref().map(String::as_str),
            &[&format!("{inside}/29")],
        );
        let (listener, target) = target();
        let silent = full_target();
        let unanswering = silent.0.local_addr().unwrap();
        let carrier = free_port();
        let exits = addresses.each_ref().map(|address| {
            Gate::with_file(&format!(
                "role: Exit\nsecurity: {{mode: None}}\nlisten: {address}:{carrier}\nadmin: ADMIN\n\
                 allow: [{target_rule}, {unanswering_rule}]\n\
                 drain: {{acceptSeconds: 0, deadlineSeconds: 50}}\n",
                target_rule = crate::common::rule(target),
                unanswering_rule = crate::common::rule(unanswering)
            ))
        });
        namespace.set_hosts(&names(&addresses));
        let ports = [free_port(), free_port()];
        let [forward, hopeless] = ports.map(|port| format!("{inside}:{port}"));
        let args = [
            "entry",
            "--security",
            "none",
            "--connect",
            &format!("exits.test:{carrier}"),
            "--forward",
            &format!("{forward}:{target}"),
            "--forward",
            &format!("{hopeless}:{unanswering}"),
        ];
        let entry = Gate::within(&namespace, inside, &args).until_ready();
        until("there is a session with each exit", || {
            carriers(&entry) == 2
        });
        let mut streams = [Vec::new(), Vec::new()];
        for _ in 0..4 {
            let before = open_streams(&exits[0]);
            let stream = Stream::open(forward.parse().unwrap(), &listener);
            let over = if open_streams(&exits[0]) > before {
                0
            } else {
                1
            };
            streams[over].push(stream);
        }
        assert!(streams.iter().all(|streams| streams.len() == 2));
        let unanswered = [(); 2].map(|()| connect(hopeless.parse().unwrap()));
        until("the carrier of each exit has an unanswered open", || {
            let carriers = entry.status()["carriers"].clone();
            let mut carriers = carriers.as_array().unwrap().iter();
            carriers.all(|carrier| carrier["streams"] == 3)
        });
        Self {
            namespace,
            addresses,
            entry,
            streams,
            _unanswered: unanswered,
            exits,
            _listener: listener,
            _silent: silent,
        }
    }

    /// With `cut`, blocks all traffic between the entry and the first exit. Otherwise ends this
    /// block.
    fn cut(&self, cut: bool) {
        let rule = if cut { "-A" } else { "-D" };
        for (chain, side) in [("INPUT", "-s"), ("OUTPUT", "-d")] {
            let address = self.addresses[0].as_str();
            let words = ["iptables", "-w", rule, chain, side, address, "-j", "DROP"];
            self.namespace.run(&words);
        }
    }

    fn until_dialled_in_vain(&self, times: usize) {
        until("the entry has failed to dial the first exit", || {
            let text = "Cannot dial a carrier for an established session";
            self.entry.log().matches(text).count() >= times
        });
    }
}

fn names(addresses: &[String]) -> String {
    let line = |address: &String| format!("{address} exits.test\n");
    addresses.iter().map(line).collect()
}

#[test]
fn streams_of_an_exit_that_vanished_are_reset_once_its_name_leads_to_others_alone() {
    let mut tunnel = Vanishing::new("10.249.62", "10.249.62.4");
    tunnel.cut(true);
    tunnel.namespace.set_hosts(&names(&tunnel.addresses[1..]));
    // The session ends because the entry detects that the exit is gone. The timeout for a session
    // without a carrier would take longer.
    let ended = tunnel
        .entry
        .line(&["Carrier ended code", "the exit is gone"]);
    assert!(ended.contains(&tunnel.addresses[0]), "{ended}");
    for stream in &tunnel.streams[0] {
        assert_reset(&stream.client);
    }
    // Opens without an answer also end, because the exit may have accepted them.
    let refused = &["Connection refused", "the carrier was lost"];
    tunnel.entry.line(refused);
    // The streams of the other exit continue.
    tunnel.streams[1].iter_mut().for_each(Stream::exchange);
    let closed = &tunnel.entry.status()["streams"]["closed"];
    assert_eq!(closed["carrier-lost"], 2, "{closed}");
}

#[test]
fn streams_of_an_exit_that_its_name_still_leads_to_wait_for_its_path() {
    let mut tunnel = Vanishing::new("10.249.63", "10.249.63.4");
    tunnel.cut(true);
    // The entry has looked up the name again after the first failed dial.
    tunnel.until_dialled_in_vain(2);
    tunnel.cut(false);
    until("there is a carrier to each exit", || {
        carriers(&tunnel.entry) == 2
    });
    tunnel
        .streams
        .iter_mut()
        .flatten()
        .for_each(Stream::exchange);
    assert!(!tunnel.entry.log().contains("the exit is gone"));
    let survived = metric(&tunnel.entry, "muxgate_carriers_survived_total");
    assert_eq!(survived, 1);
}

#[test]
fn streams_of_an_exit_that_leaves_its_name_in_order_wait_for_its_path() {
    let mut tunnel = Vanishing::new("10.249.64", "10.249.64.4");
    tunnel.exits[0].signal("TERM");
    tunnel.namespace.set_hosts(&names(&tunnel.addresses[1..]));
    let leaving = tunnel.entry.line(&["The session accepts no more streams"]);
    assert!(leaving.contains(&tunnel.addresses[0]), "{leaving}");
    tunnel.cut(true);
    tunnel.until_dialled_in_vain(2);
    tunnel.cut(false);
    tunnel.streams[0].iter_mut().for_each(Stream::exchange);
    assert!(!tunnel.entry.log().contains("the exit is gone"));
}
