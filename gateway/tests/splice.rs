//! Two muxgate processes on loopback: payload that the kernel moves, and the fallback to copying.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener};

use crate::common::*;

const MIB: usize = 1 << 20;

/// A pair of gateways with more YAML `fields`. `forward` has more fields of the forward.
fn pair(fields: &str, forward: &str, target: &TcpListener) -> Pair {
    let (carrier, port) = (free_port(), free_port());
    let target = target.local_addr().unwrap();
    let common = format!("protocol: Native\nsecurity: {{mode: None}}\n{fields}\nadmin: ADMIN\n");
    let exit = Gate::with_file(&format!(
        "{common}role: Exit\nlisten: 127.0.0.1:{carrier}\nallow: [{target_rule}]\n",
        target_rule = crate::common::rule(target)
    ));
    let entry = Gate::with_file(&format!(
        "{common}role: Entry\nconnect:\n- name: far\n  address: 127.0.0.1:{carrier}\nforwards:\n\
         - {{name: splice, listen: '127.0.0.1:{port}', targets: [{{host: {}, port: {}}}]{forward}}}\n",
        target.ip(),
        target.port()
    ));
    Pair {
        entry: entry.until_ready(),
        exit,
        forward: SocketAddr::from((Ipv4Addr::LOCALHOST, port)),
    }
}

fn spliced(gate: &Gate, what: &str) -> u64 {
    gate.status()["splice"][what].as_u64().unwrap()
}

#[test]
fn bulk_is_spliced_at_both_ends_and_arrives_exactly() {
    let (listener, _) = target();
    for resume in [false, true] {
        let pair = pair(&format!("resume: {resume}"), "", &listener);
        assert_bulk(&pair.connect(), accept(&listener), 64 * MIB);
        for gate in [&pair.entry, &pair.exit] {
            assert!(spliced(gate, "bytesSent") > MIB as u64);
            assert!(spliced(gate, "bytesReceived") > MIB as u64);
            let metrics = gate.get("/metrics").1;
            assert!(metrics.contains("muxgate_spliced_bytes_total{direction=\"sent\"}"));
        }
    }
}

/// When the target begins to read, the retained data arrives in order, from pipes and from memory.
#[test]
fn what_a_target_does_not_take_is_kept_and_nothing_is_lost() {
    let (listener, _) = target();
    for resume in [false, true] {
        let pair = pair(&format!("resume: {resume}"), "", &listener);
        let client = pair.connect();
        let mut server = accept(&listener);
        let up = pattern(3, 64 * MIB);
        let sender = send_in_background(&client, up.clone(), true);
        let (mut before, mut still) = (0, 0);
        until(
            "the target's sockets and its stream's credit are used up",
            || {
                let sent = pair.entry.status()["streams"]["bytesSent"]
                    .as_u64()
                    .unwrap();
                still = if sent > 0 && sent == before {
                    still + 1
                } else {
                    0
                };
                before = sent;
                still == 20
            },
        );
        let mut arrived = vec![0; up.len() / 2];
        server.read_exact(&mut arrived).unwrap();
        let other = pair.connect();
        let mut served = accept(&listener);
        served.write_all(b"served meanwhile").unwrap();
        drop(served);
        assert_eq!(read_all(&other), b"served meanwhile");
        arrived.extend(read_all(&server));
        assert!(arrived == up);
        sender.join().unwrap();
    }
}

#[test]
fn streams_of_all_sizes_together_arrive_exactly() {
    let (listener, _) = target();
    let pair = pair("resume: false", "", &listener);
    let mut threads = Vec::new();
    // The streams are opened one after another, so that the number identifies the stream on both
    // ends.
    for seed in 0..24_u64 {
        let client = pair.connect();
        let server = accept(&listener);
        let length = [100, 5_000, 70_000, 3 * MIB, 9 * MIB + 1][seed as usize % 5];
        for (from, to, seed) in [(&client, &server, seed), (&server, &client, seed + 100)] {
            let (mut from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
            let bytes = pattern(seed, length);
            let expected = bytes.clone();
            threads.push(std::thread::spawn(move || {
                for piece in bytes.chunks(1 + length / (1 + seed as usize % 7)) {
                    from.write_all(piece).unwrap();
                }
                from.shutdown(Shutdown::Write).unwrap();
            }));
            threads.push(std::thread::spawn(move || {
                assert!(read_all(&to) == expected, "stream {seed}");
            }));
        }
    }
    threads
        .into_iter()
        .for_each(|thread| thread.join().unwrap());
    assert!(spliced(&pair.entry, "bytesSent") > 0);
}

#[test]
fn an_urgent_byte_in_the_middle_of_bulk_stops_nothing() {
    let (listener, _) = target();
    let pair = pair("resume: false", "", &listener);
    let client = pair.connect();
    let server = accept(&listener);
    let halves = [pattern(4, 8 * MIB), pattern(5, 8 * MIB)];
    let sender = {
        let (mut client, halves) = (client.try_clone().unwrap(), halves.clone());
        std::thread::spawn(move || {
            client.write_all(&halves[0]).unwrap();
            socket2::SockRef::from(&client)
                .send_out_of_band(b"!")
                .unwrap();
            client.write_all(&halves[1]).unwrap();
            client.shutdown(Shutdown::Write).unwrap();
        })
    };
    assert!(read_all(&server) == halves.concat());
    sender.join().unwrap();
}

#[test]
fn a_stream_with_a_rate_of_its_own_is_not_spliced_past_it() {
    let (listener, _) = target();
    let limits = ", limits: {bitsPerSecond: 1G}";
    let pair = pair("resume: false", limits, &listener);
    let client = pair.connect();
    let server = accept(&listener);
    let down = pattern(6, 16 * MIB);
    let sender = send_in_background(&server, down.clone(), true);
    assert!(read_all(&client) == down);
    sender.join().unwrap();
    assert_eq!(spliced(&pair.entry, "bytesReceived"), 0);
}

#[test]
fn nothing_is_spliced_where_the_configuration_says_so() {
    let (listener, _) = target();
    let pair = pair("splice: false", "", &listener);
    assert_bulk(&pair.connect(), accept(&listener), 16 * MIB);
    for gate in [&pair.entry, &pair.exit] {
        let splice = &gate.status()["splice"];
        for what in [
            "bytesSent",
            "bytesReceived",
            "bytesFallenBack",
            "pipesLacking",
        ] {
            assert_eq!(splice[what], 0, "{splice}");
        }
    }
}

#[test]
fn a_carrier_that_ends_amid_spliced_bulk_resets_its_streams() {
    let (listener, _) = target();
    let pair = pair("resume: false", "", &listener);
    let mut client = pair.connect();
    let mut server = accept(&listener);
    let flood = std::thread::spawn(move || while server.write_all(&[7; 1 << 16]).is_ok() {});
    let mut buffer = vec![0; MIB];
    client.read_exact(&mut buffer).unwrap();
    until("the entry splices payload", || {
        client.read_exact(&mut buffer).unwrap();
        spliced(&pair.entry, "bytesReceived") > 0
    });
    pair.exit.signal("KILL");
    let end = loop {
        match client.read(&mut buffer) {
            Ok(0) => panic!("a cut stream arrived as an end of file"),
            Ok(_) => {}
            Err(error) => break error.kind(),
        }
    };
    assert_eq!(end, ErrorKind::ConnectionReset);
    flood.join().unwrap();
}
