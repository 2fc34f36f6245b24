//! Gateways that are killed, that take up a changed configuration, or that drain.

use std::time::{Duration, Instant};

use super::*;

/// Both ends read all data first, because the kernel resets a connection with unread data anyway.
pub(super) fn a_killed_gateway_resets_those_whom_it_served(protocol: &str) {
    let (listener, address) = target();
    for entry_dies in [true, false] {
        let pair = Pair::to(protocol, address);
        let mut client = pair.connect();
        client.write_all(b"a question").unwrap();
        let mut server = accept(&listener);
        server.read_exact(&mut [0; 10]).unwrap();
        server.write_all(b"half of an answer").unwrap();
        client.read_exact(&mut [0; 17]).unwrap();
        if entry_dies {
            pair.entry.signal("KILL");
            assert_reset(&client);
        } else {
            pair.exit.signal("KILL");
            assert_reset(&server);
        }
    }
}

pub(super) fn a_killed_exit_resets_its_streams_and_the_entry_comes_back(protocol: &str) {
    let (listener, address) = target();
    let mut pair = Pair::to(protocol, address);
    let client = pair.connect();
    let mut server = accept(&listener);
    server.write_all(&pattern(5, MIB)).unwrap();
    let mut one = [0];
    (&client).read_exact(&mut one).unwrap();
    pair.exit.signal("KILL");
    assert_reset(&client);
    until("the entry is not ready", || {
        pair.entry.get("/readyz").0 == 503
    });
    assert!(pair.entry.running());
    assert_reset(&pair.connect());
    assert_eq!(pair.entry.status()["streams"]["refused"]["MT0201"], 1);
}

pub(super) fn the_entry_dials_again_when_the_exit_is_back(protocol: &str) {
    let (listener, address) = target();
    let (carrier, forward) = (free_port(), free_port());
    let exit = Gate::exit(protocol, carrier, &[&address.to_string()]);
    let entry = Gate::entry(protocol, carrier, &[(forward, address)]).until_ready();
    drop(exit);
    until("the entry is not ready", || entry.get("/readyz").0 == 503);
    let _exit = Gate::exit(protocol, carrier, &[&address.to_string()]);
    let _entry = entry.until_ready();
    let mut client = connect(([127, 0, 0, 1], forward).into());
    client.write_all(b"again").unwrap();
    drop(client);
    assert_eq!(read_all(&accept(&listener)), b"again");
}

/// The workers of both gateways share the connections. Each worker of the entry has its own
/// carrier, and the exit passes the carriers to different workers.
pub(super) fn two_workers_carry_many_streams_and_drain_together(protocol: &str) {
    let (listener, address) = target();
    let (carrier, forward) = (free_port(), free_port());
    let exit = Gate::with_file(&format!(
        "role: Exit\nprotocol: {protocol}\nsecurity: {{mode: None}}\nlisten: 127.0.0.1:{carrier}\nadmin: ADMIN\n\
         workers: 2\nallow: [{address_rule}]\n",
        address_rule = crate::common::rule(address)
    ));
    let entry = Gate::with_file(&format!(
        "role: Entry\nprotocol: {protocol}\nsecurity: {{mode: None}}\nconnect:\n- name: far\n  address: 127.0.0.1:{carrier}\nadmin: ADMIN\n\
         workers: 2\ndrain: {{acceptSeconds: 0, deadlineSeconds: 50}}\nforwards:\n\
         - {{name: a, listen: '127.0.0.1:{forward}', targets: [{{host: 127.0.0.1, port: {}}}]}}\n",
        address.port()
    ))
    .until_ready();
    let forward = ([127, 0, 0, 1], forward).into();
    let pairs: Vec<_> = (0..64)
        .map(|_| (connect(forward), accept(&listener)))
        .collect();
    let carriers = exit.status()["carriers"].clone();
    let streams: Vec<_> = carriers.as_array().unwrap().iter().collect();
    assert_eq!(streams.len(), 2);
    assert!(
        streams.iter().all(|carrier| carrier["streams"] != 0),
        "64 connections fell on one worker: {carriers}"
    );
    for (seed, (client, server)) in (0..).zip(&pairs) {
        send_in_background(client, pattern(seed, MIB), true);
        send_in_background(server, pattern(seed + 1000, MIB), true);
    }
    std::thread::spawn(move || listener.incoming().for_each(drop));
    entry.signal("TERM");
    until("the port is closed", || {
        std::net::TcpStream::connect(forward).is_err()
    });
    for (seed, (client, server)) in (0..).zip(&pairs) {
        assert!(read_all(server) == pattern(seed, MIB), "stream {seed}");
        assert!(
            read_all(client) == pattern(seed + 1000, MIB),
            "stream {seed}"
        );
    }
    drop(pairs);
    assert!(entry.wait().success());
}

pub(super) fn a_changed_forward_takes_effect_and_open_streams_stay(protocol: &str) {
    let ((one, one_address), (two, two_address)) = (target(), target());
    let carrier = free_port();
    let _exit = Gate::exit(
        protocol,
        carrier,
        &[&one_address.to_string(), &two_address.to_string()],
    );
    let (kept, added) = (free_port(), free_port());
    let yaml = |forwards: &[(u16, std::net::SocketAddr)]| {
        let head = format!(
            "role: Entry\nprotocol: {protocol}\nsecurity: {{mode: None}}\nconnect:\n- name: far\n  address: 127.0.0.1:{carrier}\nadmin: ADMIN\nforwards:\n"
        );
        forwards.iter().fold(head, |text, (port, target)| {
            text + &format!(
                "- {{name: p{port}, listen: '127.0.0.1:{port}', targets: [{{host: {}, port: {}}}]}}\n",
                target.ip(),
                target.port()
            )
        })
    };
    let entry = Gate::with_file(&yaml(&[(kept, one_address)])).until_ready();
    let hash = entry.status()["configHash"].clone();
    let mut client = connect(([127, 0, 0, 1], kept).into());
    let mut server = accept(&one);
    client.write_all(b"before ").unwrap();

    entry.rewrite(&yaml(&[(kept, two_address), (added, one_address)]));
    until("the new configuration is in force", || {
        entry.status()["configHash"] != hash
    });
    until("the new port listens", || {
        std::net::TcpStream::connect(("127.0.0.1", added)).is_ok()
    });

    client.write_all(b"after").unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(read_all(&server), b"before after");
    server.write_all(b"answer").unwrap();
    drop(server);
    assert_eq!(read_all(&client), b"answer");
    drop(connect(([127, 0, 0, 1], kept).into()));
    assert_eq!(
        read_all(&accept(&two)),
        b"",
        "the kept port forwards to its new target"
    );

    entry.rewrite("role: Entry\nno such field: 1\n");
    until("the invalid file is reported", || {
        entry.status()["configError"]
            .as_str()
            .is_some_and(|e| e.contains("MT0101"))
    });
    assert_eq!(
        entry.get("/readyz").0,
        200,
        "the last valid configuration remains in force"
    );
    entry.rewrite(&yaml(&[(kept, two_address)]).replace(&carrier.to_string(), "1"));
    until("a change that needs a restart is reported", || {
        entry.status()["configError"]
            .as_str()
            .is_some_and(|e| e.contains("MT0102"))
    });
    entry.rewrite(&yaml(&[(kept, two_address)]));
    until("a removed port is closed", || {
        std::net::TcpStream::connect(("127.0.0.1", added)).is_err()
    });
}

pub(super) fn sigterm_takes_no_new_streams_and_waits_for_the_open_ones(protocol: &str) {
    let (listener, address) = target();
    let (carrier, forward) = (free_port(), free_port());
    let _exit = Gate::exit(protocol, carrier, &[&address.to_string()]);
    let entry = Gate::with_file(&format!(
        "role: Entry\nprotocol: {protocol}\nsecurity: {{mode: None}}\nconnect:\n- name: far\n  address: 127.0.0.1:{carrier}\nadmin: ADMIN\n\
         drain: {{acceptSeconds: 0, deadlineSeconds: 50}}\nforwards:\n\
         - {{name: a, listen: '127.0.0.1:{forward}', targets: [{{host: 127.0.0.1, port: {}}}]}}\n",
        address.port()
    ))
    .until_ready();
    let mut client = connect(([127, 0, 0, 1], forward).into());
    let mut server = accept(&listener);
    // This thread accepts and ends the probes that connect before the port closes.
    std::thread::spawn(move || listener.incoming().for_each(drop));
    entry.signal("TERM");
    until("the port is closed", || {
        std::net::TcpStream::connect(("127.0.0.1", forward)).is_err()
    });
    assert_eq!(entry.get("/readyz").0, 503);
    client.write_all(b"still here").unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(read_all(&server), b"still here");
    server.write_all(b"done").unwrap();
    drop(server);
    assert_eq!(read_all(&client), b"done");
    assert!(entry.wait().success());
}

pub(super) fn a_draining_exit_lets_streams_end_and_resets_what_is_left_at_its_deadline(
    protocol: &str,
) {
    let (listener, address) = target();
    let (carrier, forward) = (free_port(), free_port());
    let exit = Gate::with_file(&format!(
        "role: Exit\nprotocol: {protocol}\nsecurity: {{mode: None}}\nlisten: 127.0.0.1:{carrier}\nadmin: ADMIN\n\
         allow: [{address_rule}]\ndrain: {{acceptSeconds: 0, deadlineSeconds: 5}}\n",
        address_rule = crate::common::rule(address)
    ));
    let entry = Gate::entry(protocol, carrier, &[(forward, address)]).until_ready();
    let open = || {
        let client = connect(([127, 0, 0, 1], forward).into());
        (client, accept(&listener))
    };
    let (client, server) = open();
    let (mut ends, mut ending) = open();
    let before = Instant::now();
    exit.signal("TERM");
    until("the exit drains", || exit.get("/readyz").0 == 503);
    // One stream ends in order, after the last data.
    ends.write_all(b"still here").unwrap();
    ends.shutdown(Shutdown::Write).unwrap();
    assert_eq!(read_all(&ending), b"still here");
    ending.write_all(b"done").unwrap();
    drop(ending);
    assert_eq!(read_all(&ends), b"done");
    assert!(exit.wait().success());
    assert!(
        before.elapsed() >= Duration::from_secs(5),
        "before its deadline"
    );
    assert_reset(&client);
    assert_reset(&server);
    let closed = &entry.status()["streams"]["closed"];
    assert_eq!(closed["completed"], 1, "{closed}");
}
