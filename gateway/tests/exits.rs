//! An entry with several exits: streams spread over them, and an exit that is lost leaves the others.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test"
)]

mod common;

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};

use common::*;

fn exit(carrier: SocketAddr, target: SocketAddr) -> Gate {
    Gate::with_file(&format!(
        "role: Exit\nprotocol: Native\nsecurity: {{mode: None}}\nlisten: {carrier}\nadmin: ADMIN\n\
         workers: 1\nallow: ['{target}']\ndrain: {{acceptSeconds: 0, deadlineSeconds: 20}}\n"
    ))
}

fn entry(connect: &str, forward: SocketAddr, target: SocketAddr) -> Gate {
    Gate::with_file(&format!(
        "role: Entry\nprotocol: Native\nsecurity: {{mode: None}}\nconnect: '{connect}'\nadmin: ADMIN\n\
         workers: 1\nforwards:\n\
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
