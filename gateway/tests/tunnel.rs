//! Two muxgate processes on loopback with real sockets, tested through their clients and targets.

mod gateways;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};

use crate::common::*;
use gateways::*;

const MIB: usize = 1 << 20;

/// Runs each test with each protocol, and with the native protocol over KCP.
macro_rules! with_each_protocol {
    ($($test:ident),* $(,)?) => {
        mod jmux {
            $(#[test]
            fn $test() {
                super::$test("JMUX");
            })*
        }
        mod native {
            $(#[test]
            fn $test() {
                super::$test("Native");
            })*
        }
        mod http2 {
            $(#[test]
            fn $test() {
                super::$test("HTTP2");
            })*
        }
        mod kcp {
            $(#[test]
            fn $test() {
                super::$test(crate::common::OVER_KCP);
            })*
        }
        mod quic {
            $(#[test]
            fn $test() {
                super::$test("QUIC");
            })*
        }
        mod ssh {
            $(#[test]
            fn $test() {
                super::$test("SSH");
            })*
        }
        mod http3 {
            $(#[test]
            fn $test() {
                super::$test("HTTP3");
            })*
        }
    };
}

with_each_protocol!(
    bytes_arrive_exactly_in_both_directions_at_once,
    each_direction_ends_on_its_own,
    the_server_may_end_first,
    what_follows_an_urgent_byte_arrives_too,
    a_stalled_target_stops_only_its_own_stream,
    a_target_that_resets_resets_the_client,
    a_client_that_resets_resets_the_target,
    clients_that_reset_at_once_look_like_nothing_else_to_the_target,
    a_cut_answer_is_a_reset_even_after_the_request_ended,
    a_killed_gateway_resets_those_whom_it_served,
    a_killed_exit_resets_its_streams_and_the_entry_comes_back,
    the_entry_dials_again_when_the_exit_is_back,
    a_target_that_is_not_allowed_is_refused_and_counted,
    many_streams_share_one_carrier,
    two_workers_carry_many_streams_and_drain_together,
    targets_that_do_not_read_cost_no_more_than_the_budget,
    a_changed_forward_takes_effect_and_open_streams_stay,
    sigterm_takes_no_new_streams_and_waits_for_the_open_ones,
    a_draining_exit_lets_streams_end_and_resets_what_is_left_at_its_deadline,
);

/// Two gateways, and both ends of a stream through them.
fn stream(protocol: &str) -> (Pair, TcpStream, TcpStream) {
    let (listener, address) = target();
    let pair = Pair::to(protocol, address);
    let client = pair.connect();
    (pair, client, accept(&listener))
}

fn bytes_arrive_exactly_in_both_directions_at_once(protocol: &str) {
    let (pair, client, server) = stream(protocol);
    assert_bulk(&client, server, 64 * MIB);
    until("both gateways count the stream as completed", || {
        [&pair.entry, &pair.exit]
            .iter()
            .all(|gate| gate.status()["streams"]["closed"]["completed"] == 1)
    });
    assert_eq!(pair.entry.status()["streams"]["bytesSent"], 64 * MIB);
}

fn each_direction_ends_on_its_own(protocol: &str) {
    let (_pair, mut client, mut server) = stream(protocol);
    client.write_all(b"request").unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(read_all(&server), b"request");
    server
        .write_all(b"the answer comes after the request has ended")
        .unwrap();
    drop(server);
    assert_eq!(
        read_all(&client),
        b"the answer comes after the request has ended"
    );
}

fn the_server_may_end_first(protocol: &str) {
    let (_pair, mut client, server) = stream(protocol);
    server.shutdown(Shutdown::Write).unwrap();
    assert_eq!(read_all(&client), b"");
    client.write_all(b"late").unwrap();
    drop(client);
    assert_eq!(read_all(&server), b"late");
}

/// A read stops before an urgent byte (TCP urgent data), and epoll reports no event for the data
/// after that byte.
fn what_follows_an_urgent_byte_arrives_too(protocol: &str) {
    let (listener, waiting) = full_target();
    let pair = Pair::to(protocol, listener.local_addr().unwrap());
    let mut client = pair.connect();
    client.write_all(b"before ").unwrap();
    socket2::SockRef::from(&client)
        .send_out_of_band(b"!")
        .unwrap();
    client.write_all(b"after").unwrap();
    drop(waiting);
    listener.set_nonblocking(false).unwrap();
    let mut arrived = [0; 12];
    while accept(&listener).read_exact(&mut arrived).is_err() {}
    assert_eq!(&arrived, b"before after");
}

fn a_stalled_target_stops_only_its_own_stream(protocol: &str) {
    let (listener, address) = target();
    let pair = Pair::to(protocol, address);
    let stalled_client = pair.connect();
    let stalled = accept(&listener);
    let flood = pattern(3, 96 * MIB);
    let sender = send_in_background(&stalled_client, flood.clone(), true);
    until(
        "the exit holds payload that the stalled target does not read",
        || {
            let used = pair.exit.status()["carriers"][0]["receiveBudgetUsed"]
                .as_u64()
                .unwrap();
            used > 0
                && pair.entry.status()["streams"]["bytesSent"]
                    .as_u64()
                    .unwrap()
                    > MIB as u64
        },
    );
    let client = pair.connect();
    let server = accept(&listener);
    let bytes = pattern(4, 32 * MIB);
    let other = send_in_background(&client, bytes.clone(), true);
    assert!(read_all(&server) == bytes);
    other.join().unwrap();
    assert!(
        read_all(&stalled) == flood,
        "the stalled stream lost payload"
    );
    sender.join().unwrap();
    let credit = &pair.entry.status()["credit"];
    assert!(credit["waits"].as_u64().unwrap() > 0, "{credit}");
    assert!(credit["waitedSeconds"].as_f64().unwrap() > 0.0, "{credit}");
    let idle = &pair.exit.status()["credit"];
    assert_eq!(idle["waits"], 0, "the idle stream waits for credit");
}

fn a_target_that_resets_resets_the_client(protocol: &str) {
    let (_pair, client, server) = stream(protocol);
    reset(server);
    assert_reset(&client);
}

fn a_client_that_resets_resets_the_target(protocol: &str) {
    let (_pair, client, server) = stream(protocol);
    reset(client);
    assert_reset(&server);
}

/// Half of the clients reset while the exit still dials their target. For the other half, the test
/// first waits until the exit has reached the target.
fn clients_that_reset_at_once_look_like_nothing_else_to_the_target(protocol: &str) {
    let (listener, address) = target();
    let pair = Pair::to(protocol, address);
    let mut targets = Vec::new();
    for number in 0..60 {
        let client = pair.connect();
        if number % 2 == 0 {
            targets.push(accept(&listener));
        }
        reset(client);
    }
    until("neither gateway has a stream", || {
        [&pair.entry, &pair.exit]
            .iter()
            .all(|gate| gate.status()["carriers"][0]["streams"] == 0)
    });
    listener.set_nonblocking(true).unwrap();
    while let Ok((target, _)) = listener.accept() {
        target.set_nonblocking(false).unwrap();
        target.set_read_timeout(Some(PATIENCE)).unwrap();
        targets.push(target);
    }
    assert!(targets.len() >= 30);
    targets.iter().for_each(assert_reset);
}

/// The server resets its connection within its answer, after the client has ended its half. Plain
/// JMUX cannot report such a cut.
fn a_cut_answer_is_a_reset_even_after_the_request_ended(protocol: &str) {
    let (_pair, mut client, mut server) = stream(protocol);
    client.write_all(b"request").unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(read_all(&server), b"request");
    server.write_all(b"half of the ans").unwrap();
    let mut half = [0; 15];
    client.read_exact(&mut half).unwrap();
    reset(server);
    assert_reset(&client);
}

fn a_target_that_is_not_allowed_is_refused_and_counted(protocol: &str) {
    let (listener, allowed) = target();
    let (_other, forbidden) = target();
    let carrier = free_port();
    let exit = Gate::exit(protocol, carrier, &[&allowed.to_string(), "0.0.0.0/0"]);
    let (good, bad) = (free_port(), free_port());
    let entry = Gate::entry(protocol, carrier, &[(good, allowed), (bad, forbidden)]).until_ready();
    assert_reset(&connect(([127, 0, 0, 1], bad).into()));
    assert_eq!(exit.status()["streams"]["refused"]["MT0204"], 1);
    until("the entry counts the refusal", || {
        entry.status()["streams"]["refused"]["MT0204"] == 1
    });
    drop(connect(([127, 0, 0, 1], good).into()));
    assert_eq!(read_all(&accept(&listener)), b"");
}

fn many_streams_share_one_carrier(protocol: &str) {
    let (listener, address) = target();
    let pair = Pair::to(protocol, address);
    let echo = std::thread::spawn(move || {
        let streams: Vec<_> = (0..300).map(|_| accept(&listener)).collect();
        let workers: Vec<_> = streams
            .into_iter()
            .map(|mut tcp| std::thread::spawn(move || tcp.write_all(&read_all(&tcp)).unwrap()))
            .collect();
        workers
            .into_iter()
            .for_each(|worker| worker.join().unwrap());
    });
    let clients: Vec<_> = (0..300).map(|_| pair.connect()).collect();
    for (seed, mut client) in clients.iter().enumerate() {
        client.write_all(&pattern(seed as u64, 20_000)).unwrap();
        client.shutdown(Shutdown::Write).unwrap();
    }
    for (seed, client) in clients.iter().enumerate() {
        assert!(
            read_all(client) == pattern(seed as u64, 20_000),
            "stream {seed}"
        );
    }
    echo.join().unwrap();
    assert_eq!(pair.exit.status()["carriers"].as_array().unwrap().len(), 1);
    until("the exit has no streams and no used budget", || {
        pair.exit.status()["streams"]["open"] == 0
            && pair.exit.status()["carriers"][0]["receiveBudgetUsed"] == 0
    });
}

fn targets_that_do_not_read_cost_no_more_than_the_budget(protocol: &str) {
    let (listener, address) = target();
    let (carrier, forward) = (free_port(), free_port());
    let exit = Gate::with_file(&format!(
        "role: Exit\nprotocol: {protocol}\nsecurity: {{mode: None}}\nlisten: 127.0.0.1:{carrier}\nadmin: ADMIN\n\
         allow: [{address_rule}]\nmemory: {{receive: 16Mi}}\nlimits: {{streams: 64}}\n",
        address_rule = crate::common::rule(address)
    ));
    let entry = Gate::entry(protocol, carrier, &[(forward, address)]).until_ready();
    let before = exit.status()["process"]["maxRssBytes"].as_u64().unwrap();
    let clients: Vec<_> = (0..40)
        .map(|_| connect(([127, 0, 0, 1], forward).into()))
        .collect();
    let stalled: Vec<_> = (0..40).map(|_| accept(&listener)).collect();
    for client in &clients {
        client.set_nonblocking(true).unwrap();
    }
    // All clients send until every window and every socket buffer is full.
    let chunk = pattern(6, MIB);
    let mut sent = 0;
    let mut quiet = 0;
    until("the targets are flooded", || {
        let pushed: usize = clients
            .iter()
            .filter_map(|mut client| client.write(&chunk).ok())
            .sum();
        sent += pushed;
        quiet = if pushed == 0 { quiet + 1 } else { 0 };
        sent > 64 * MIB && quiet >= 25
    });
    let status = exit.status();
    let grown = status["process"]["maxRssBytes"].as_u64().unwrap() - before;
    assert!(status["carriers"][0]["receiveBudgetUsed"].as_u64().unwrap() <= 16 << 20);
    // QUIC packets that arrive late or twice take up to 2.5 times the memory of their payload, and
    // local ends may hold 8 MiB in addition (docs/limits.md).
    let most = match protocol {
        "QUIC" | "HTTP3" => 40 + 8 + 8,
        _ => 16 + 8,
    };
    assert!(
        grown <= most * MIB as u64,
        "the exit grew by {grown} bytes on a budget of 16 MiB"
    );
    assert!(entry.status()["streams"]["open"] == 40 && stalled.len() == 40);
}

#[test]
fn jmux_packets_of_65535_bytes_carry_bytes_exactly() {
    let (listener, address) = target();
    let (carrier, forward) = (free_port(), free_port());
    let _exit = Gate::exit("JMUX", carrier, &[&address.to_string()]);
    let forward_flag = format!("{forward}:{address}");
    let connect_flag = format!("127.0.0.1:{carrier}");
    let mut flags = vec!["entry", "--protocol", "jmux", "--security", "none"];
    flags.extend(["--packet-bytes", "65535", "--connect", &connect_flag]);
    flags.extend(["--forward", &forward_flag]);
    let _entry = Gate::with_flags(&flags).until_ready();
    let client = connect(([127, 0, 0, 1], forward).into());
    let server = accept(&listener);
    send_in_background(&client, pattern(1, 20 * MIB), true);
    send_in_background(&server, pattern(2, 20 * MIB), true);
    assert!(read_all(&server) == pattern(1, 20 * MIB));
    assert!(read_all(&client) == pattern(2, 20 * MIB));
}

/// When the client of an idle stream sends again, other streams may have used all credit of the
/// session.
#[test]
fn streams_that_were_idle_keep_to_what_is_left_of_the_sessions_credit() {
    let (listener, address) = target();
    // The receive buffer is small, so that the kernel holds little of the data that the targets do
    // not read.
    let small = socket2::SockRef::from(&listener);
    small.set_recv_buffer_size(4 << 10).unwrap();
    let (carrier, forward) = (free_port(), free_port());
    let exit = Gate::with_file(&format!(
        "role: Exit\nprotocol: Native\nsecurity: {{mode: None}}\nlisten: 127.0.0.1:{carrier}\nadmin: ADMIN\n\
         allow: [{address_rule}]\nmemory: {{receive: 1Mi}}\n",
        address_rule = crate::common::rule(address)
    ));
    let entry = Gate::entry("Native", carrier, &[(forward, address)]).until_ready();
    let stream = |_| {
        let client = connect(([127, 0, 0, 1], forward).into());
        (client, accept(&listener))
    };
    let streams: Vec<_> = (0..270).map(stream).collect();
    let (floods, idle) = streams.split_at(70);
    let bytes = |seed: u64| vec![seed as u8; if seed < 70 { 4 * MIB } else { 32 << 10 }];
    for (seed, (client, _)) in (0..).zip(floods) {
        send_in_background(client, bytes(seed), true);
    }
    let sent = || entry.status()["streams"]["bytesSent"].as_u64().unwrap();
    let mut before = 0;
    until("the floods have used up the session's credit", || {
        std::thread::sleep(std::time::Duration::from_millis(300));
        std::mem::replace(&mut before, sent()) == before
    });
    for (seed, (client, _)) in (70..).zip(idle) {
        send_in_background(client, bytes(seed), true);
    }
    let read = |(client, server): (std::net::TcpStream, std::net::TcpStream)| {
        let large = socket2::SockRef::from(&server);
        large.set_recv_buffer_size(1 << 20).unwrap();
        std::thread::spawn(move || (client, read_all(&server)))
    };
    let readers: Vec<_> = streams.into_iter().map(read).collect();
    for (seed, reader) in (0..).zip(readers) {
        assert!(reader.join().unwrap().1 == bytes(seed), "stream {seed}");
    }
    assert_eq!(exit.status()["streams"]["closed"]["carrier-lost"], 0);
}

#[test]
fn a_configuration_that_cannot_be_used_is_exit_status_2_with_the_field() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("c.yaml");
    std::fs::write(
        &file,
        "role: Exit\nprotocol: JMUX\nsecurity: {mode: None}\nlisten: nowhere\n",
    )
    .unwrap();
    let out = std::process::Command::new(env!("CARGO_BIN_EXE_muxgate"))
        .args(["run", "--config", file.to_str().unwrap()])
        .output()
        .unwrap();
    assert_eq!(out.status.code(), Some(2));
    let text = String::from_utf8(out.stderr).unwrap();
    assert!(
        text.contains("MT0101") && text.contains("c.yaml") && text.contains("listen: \"nowhere\""),
        "{text}"
    );
}

#[test]
fn a_port_in_use_is_named() {
    let (_listener, address) = target();
    let out = std::process::Command::new(env!("CARGO_BIN_EXE_muxgate"))
        .args([
            "exit",
            "--protocol",
            "jmux",
            "--security",
            "none",
            "--listen",
            &address.to_string(),
        ])
        .output()
        .unwrap();
    assert_eq!(out.status.code(), Some(1));
    let text = String::from_utf8(out.stderr).unwrap();
    assert!(
        text.contains(&format!("MT0103: cannot listen on {address}")),
        "{text}"
    );
}
