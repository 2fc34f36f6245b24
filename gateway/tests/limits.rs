//! Two muxgate processes on loopback: limits of forwards, timeouts of idle streams, and their logs
//! and metrics.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};

use crate::common::*;

const MIB: usize = 1 << 20;
const WELCOME: &[u8] = b"welcome";

/// An entry with a forward named `a`, an exit, and a target.
struct Tunnel {
    entry: Gate,
    exit: Gate,
    listener: TcpListener,
    forward: SocketAddr,
    /// The entry's configuration without its forwards.
    head: String,
}

/// `head` has YAML lines for the configurations of both gateways. `limits` are the limits of the
/// forward.
fn tunnel(protocol: &str, head: &str, limits: &str) -> Tunnel {
    tunnel_to(target().0, protocol, head, limits)
}

fn tunnel_to(listener: TcpListener, protocol: &str, head: &str, limits: &str) -> Tunnel {
    let address = listener.local_addr().unwrap();
    let (carrier, forward) = (free_port(), free_port());
    let both = format!("protocol: {protocol}\nsecurity: {{mode: None}}\nadmin: ADMIN\n{head}");
    let exit = Gate::with_file(&format!(
        "role: Exit\n{both}listen: 127.0.0.1:{carrier}\nallow: [{address_rule}]\n",
        address_rule = crate::common::rule(address)
    ));
    let head =
        format!("role: Entry\n{both}connect:\n- name: far\n  address: 127.0.0.1:{carrier}\n");
    let forward = SocketAddr::from((Ipv4Addr::LOCALHOST, forward));
    let entry = Gate::with_file(&format!(
        "{head}{}",
        forwards(&[(forward, address, limits)])
    ));
    Tunnel {
        entry: entry.until_ready(),
        exit,
        listener,
        forward,
        head,
    }
}

/// The YAML of forwards `a`, `b`, ... with the address, the target and the limits of each forward.
fn forwards(forwards: &[(SocketAddr, SocketAddr, &str)]) -> String {
    let lines = ["a", "b"].iter().zip(forwards).map(|(name, forward)| {
        let (listen, target, limits) = forward;
        let (host, port) = (target.ip(), target.port());
        format!("- {{name: {name}, listen: '{listen}', targets: [{{host: {host}, port: {port}}}], limits: {{{limits}}}}}\n")
    });
    "forwards:\n".to_owned() + &lines.collect::<String>()
}

impl Tunnel {
    /// A client and its target. Returns once both gateways count the stream.
    fn stream(&self) -> (TcpStream, TcpStream) {
        let (mut client, mut target) = (connect(self.forward), accept(&self.listener));
        target.write_all(WELCOME).unwrap();
        client.read_exact(&mut [0; WELCOME.len()]).unwrap();
        (client, target)
    }

    /// Greets every client that reaches the target, and closes the connection after the client has
    /// closed it.
    fn welcome(&self) {
        let listener = self.listener.try_clone().unwrap();
        std::thread::spawn(move || {
            for tcp in listener.incoming() {
                let mut tcp = tcp.unwrap();
                std::thread::spawn(move || {
                    tcp.write_all(WELCOME).unwrap();
                    read_all(&tcp)
                });
            }
        });
    }

    fn closed(&self, reason: &str) -> [u64; 2] {
        [&self.entry, &self.exit]
            .map(|gate| gate.status()["streams"]["closed"][reason].as_u64().unwrap())
    }
}

/// Whether the target's greeting arrives, without a reset.
fn is_welcome(mut client: &TcpStream) -> bool {
    let mut greeting = [0; WELCOME.len()];
    match client.read_exact(&mut greeting) {
        Ok(()) => greeting == WELCOME,
        Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => false,
        Err(error) => panic!("{error}"),
    }
}

fn metric(gate: &Gate, sample: &str) -> f64 {
    let page = gate.get("/metrics").1;
    let line = page.lines().find_map(|line| line.strip_prefix(sample));
    let value = line.unwrap_or_else(|| panic!("no {sample} in\n{page}"));
    value.trim().parse().unwrap()
}

#[test]
fn a_connection_too_many_is_reset_and_counted_and_a_place_given_up_is_free() {
    let tunnel = tunnel("JMUX", "", "streams: 2");
    tunnel.welcome();
    let first = connect(tunnel.forward);
    let second = connect(tunnel.forward);
    assert!(is_welcome(&first) && is_welcome(&second));
    assert_reset(&connect(tunnel.forward));
    let status = tunnel.entry.status();
    assert_eq!(status["streams"]["refused"]["MT0211"], 1);
    assert_eq!(status["forwards"][0]["streams"]["refused"]["MT0211"], 1);
    assert_eq!(status["forwards"][0]["streams"]["open"], 2);
    let refused = "muxgate_forward_opens_refused_total{forward=\"a\",code=\"MT0211\"}";
    assert_eq!(metric(&tunnel.entry, refused), 1.0);
    let line = tunnel.entry.line(&["Connection refused", "MT0211"]);
    assert!(line.contains("forward=\"a\" client=127.0.0.1:"), "{line}");
    drop(first);
    until("the forward accepts a client again", || {
        is_welcome(&connect(tunnel.forward))
    });
}

#[test]
fn workers_share_the_limits_of_a_forward() {
    let tunnel = tunnel("JMUX", "workers: 2\n", "streams: 3");
    let clients: Vec<_> = (0..20).map(|_| connect(tunnel.forward)).collect();
    until("17 of 20 clients are refused", || {
        tunnel.entry.status()["streams"]["refused"]["MT0211"] == 17
    });
    let forward = &tunnel.entry.status()["forwards"][0];
    assert_eq!(forward["streams"]["refused"]["MT0211"], 17);
    until("three streams are open", || {
        tunnel.entry.status()["streams"]["open"] == 3
    });
    drop(clients);
}

#[test]
fn connections_that_come_too_fast_are_reset_and_counted() {
    let tunnel = tunnel("JMUX", "", "opensPerSecond: 1");
    tunnel.welcome();
    let clients: Vec<_> = (0..20).map(|_| connect(tunnel.forward)).collect();
    let refused = clients.iter().filter(|client| !is_welcome(client)).count();
    assert!((1..20).contains(&refused), "{refused} of 20");
    assert_eq!(
        tunnel.entry.status()["streams"]["refused"]["MT0212"],
        refused
    );
}

#[test]
fn bytes_arrive_exactly_under_a_rate() {
    let tunnel = tunnel("JMUX", "", "bitsPerSecond: 100M");
    let streams: Vec<_> = (0..3).map(|_| tunnel.stream()).collect();
    for (seed, (client, server)) in (0..).zip(&streams) {
        send_in_background(client, pattern(seed, MIB), true);
        send_in_background(server, pattern(seed + 100, MIB), true);
    }
    for (seed, (client, server)) in (0..).zip(&streams) {
        assert!(
            read_all(server) == pattern(seed, MIB),
            "payload to target {seed} differs"
        );
        assert!(
            read_all(client) == pattern(seed + 100, MIB),
            "payload to client {seed} differs"
        );
    }
    until("all streams are counted as completed", || {
        tunnel.closed("completed") == [3, 3]
    });
    let payload = |direction| {
        let sample = format!(
            "muxgate_forward_payload_bytes_total{{forward=\"a\",direction=\"{direction}\"}}"
        );
        metric(&tunnel.entry, &sample)
    };
    assert_eq!(payload("sent"), 3.0 * MIB as f64);
    let received = 3 * (MIB + WELCOME.len());
    assert_eq!(payload("received"), received as f64);
}

/// At the minimum rate, the transfer of a megabyte takes 80 s.
#[test]
fn a_rate_holds_back_its_own_forward_in_both_directions_and_no_other() {
    let tunnel = tunnel("JMUX", "", "bitsPerSecond: 100k");
    let address = tunnel.listener.local_addr().unwrap();
    let free = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()));
    let two = forwards(&[
        (tunnel.forward, address, "bitsPerSecond: 100k"),
        (free, address, ""),
    ]);
    tunnel.entry.rewrite(&format!("{}{two}", tunnel.head));
    until("the forward without a rate listens", || {
        TcpStream::connect(free).is_ok()
    });
    drop(accept(&tunnel.listener));
    let (slow_client, slow_server) = tunnel.stream();
    send_in_background(&slow_client, pattern(1, MIB), false);
    send_in_background(&slow_server, pattern(2, MIB), false);
    until("the slow forward has sent and received payload", || {
        let slow = &tunnel.entry.status()["forwards"][0]["streams"];
        slow["bytesSent"] != 0 && slow["bytesReceived"] != 0
    });
    let (client, server) = (connect(free), accept(&tunnel.listener));
    send_in_background(&client, pattern(3, 8 * MIB), true);
    assert!(read_all(&server) == pattern(3, 8 * MIB));
    let slow = &tunnel.entry.status()["forwards"][0]["streams"];
    for direction in ["bytesSent", "bytesReceived"] {
        assert!(slow[direction].as_u64().unwrap() < MIB as u64, "{slow}");
    }
}

#[test]
fn changed_limits_are_taken_over_by_the_running_gateway() {
    let tunnel = tunnel("JMUX", "", "");
    let address = tunnel.listener.local_addr().unwrap();
    let (mut client, mut server) = tunnel.stream();
    let hash = tunnel.entry.status()["configHash"].clone();
    let limited = forwards(&[(tunnel.forward, address, "streams: 1, bitsPerSecond: 10M")]);
    tunnel.entry.rewrite(&format!("{}{limited}", tunnel.head));
    until("the new configuration is in force", || {
        tunnel.entry.status()["configHash"] != hash
    });
    until("a second stream is refused", || {
        drop(connect(tunnel.forward));
        tunnel.entry.status()["streams"]["refused"]["MT0211"] != serde_json::Value::Null
    });
    client.write_all(b"still").unwrap();
    let mut still = [0; 5];
    server.read_exact(&mut still).unwrap();
    assert_eq!(&still, b"still");
}

#[test]
fn a_stream_without_a_byte_is_reset_and_one_that_talks_stays() {
    for (protocol, exit_reason) in [("JMUX", "peer-reset"), ("Native", "idle-timeout")] {
        let entry_alone = "timeouts: {idleSeconds: 3}\n";
        let tunnel = idle_entry(protocol, entry_alone);
        let (client, server) = tunnel.stream();
        let (mut talking, _other) = tunnel.stream();
        let talks = std::thread::spawn(move || {
            while tunnel.closed("idle-timeout")[0] == 0 {
                talking.write_all(b"still here").unwrap();
                std::thread::sleep(std::time::Duration::from_millis(100));
            }
            tunnel
        });
        assert_reset(&client);
        assert_reset(&server);
        let tunnel = talks.join().unwrap();
        until("both gateways have closed the idle stream", || {
            let exit = tunnel.exit.status();
            tunnel.closed("idle-timeout")[0] == 1 && exit["streams"]["closed"][exit_reason] == 1
        });
        assert_eq!(tunnel.entry.status()["streams"]["open"], 1);
        let line = tunnel.entry.line(&["Stream closed", "idle-timeout"]);
        assert!(line.contains("code=MT0213"), "{line}");
        tunnel
            .exit
            .line(&["Stream closed", exit_reason, "code=MT02"]);
    }
}

/// A tunnel whose entry has timeouts and whose exit has no timeouts.
fn idle_entry(protocol: &str, timeouts: &str) -> Tunnel {
    let tunnel = tunnel(protocol, "timeouts: {halfOpenSeconds: 0}\n", "");
    let address = tunnel.listener.local_addr().unwrap();
    let hash = tunnel.entry.status()["configHash"].clone();
    let head = tunnel
        .head
        .replace("timeouts: {halfOpenSeconds: 0}\n", timeouts);
    let lines = forwards(&[(tunnel.forward, address, "")]);
    tunnel.entry.rewrite(&format!("{head}{lines}"));
    until("the timeouts are in force", || {
        tunnel.entry.status()["configHash"] != hash
    });
    tunnel
}

#[test]
fn a_stream_that_is_half_closed_and_quiet_is_reset_and_one_that_is_open_stays() {
    let tunnel = tunnel("JMUX", "timeouts: {halfOpenSeconds: 2}\n", "");
    let (mut open, mut other) = tunnel.stream();
    let (client, server) = tunnel.stream();
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(read_all(&server), b"");
    assert_reset(&client);
    until("both gateways have closed the half-open stream", || {
        let [entry, exit] = [&tunnel.entry, &tunnel.exit].map(Gate::status);
        [entry, exit]
            .iter()
            .all(|status| status["streams"]["open"] == 1)
    });
    let [entry, exit] = tunnel.closed("half-open-timeout");
    assert!(
        entry + exit >= 1,
        "neither gateway counted the half-open timeout"
    );
    let sample = "muxgate_streams_closed_total{reason=\"half-open-timeout\"}";
    assert_eq!(metric(&tunnel.entry, sample), entry as f64);
    open.write_all(b"quiet for long").unwrap();
    let mut bytes = [0; 14];
    other.read_exact(&mut bytes).unwrap();
    assert_eq!(&bytes, b"quiet for long");
}

#[test]
fn a_closed_stream_has_a_line_on_both_sides() {
    let tunnel = tunnel("JMUX", "", "");
    let (mut client, mut server) = tunnel.stream();
    client.write_all(b"request").unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(read_all(&server), b"request");
    server.write_all(b"the answer").unwrap();
    let address = client.local_addr().unwrap();
    drop(server);
    assert_eq!(read_all(&client), b"the answer");
    let target = tunnel.listener.local_addr().unwrap();
    let line = tunnel.entry.line(&["Stream closed"]);
    for part in [
        "INFO muxgate::streams: ",
        "forward=\"a\"",
        &format!("client={address}"),
        &format!("target=\"tcp://{target}\""),
        "carrier=\"127.0.0.1:",
        "sent=7 received=17 milliseconds=",
        "reason=\"completed\"",
    ] {
        assert!(line.contains(part), "{part} is missing in {line}");
    }
    assert!(!line.contains("code="), "{line}");
    let line = tunnel.exit.line(&["Stream closed"]);
    for part in [
        &format!("target=\"tcp://{target}\""),
        &format!("dialled={target}"),
        "carrier=\"127.0.0.1:",
        "sent=17 received=7 milliseconds=",
        "reason=\"completed\"",
    ] {
        assert!(line.contains(part), "{part} is missing in {line}");
    }
}

#[test]
fn whoever_reset_a_stream_is_named() {
    let tunnel = tunnel("JMUX", "", "");
    let (client, server) = tunnel.stream();
    reset(client);
    assert_reset(&server);
    let line = tunnel
        .entry
        .line(&["reason=\"client-reset\"", "code=MT0215"]);
    assert!(line.contains("error=\"connection reset"), "{line}");
    tunnel.exit.line(&["reason=\"peer-reset\"", "code=MT0216"]);
    let (client, server) = tunnel.stream();
    reset(server);
    assert_reset(&client);
    tunnel
        .exit
        .line(&["reason=\"target-reset\"", "code=MT0215"]);
    let (client, _server) = tunnel.stream();
    tunnel.exit.signal("KILL");
    assert_reset(&client);
    tunnel
        .entry
        .line(&["reason=\"carrier-lost\"", "code=MT0202"]);
}

#[test]
fn a_stream_that_outlasts_the_shutdown_is_told_as_such() {
    let tunnel = tunnel(
        "JMUX",
        "drain: {acceptSeconds: 0, deadlineSeconds: 1}\n",
        "",
    );
    let (client, _server) = tunnel.stream();
    tunnel.entry.signal("TERM");
    assert_reset(&client);
    let (status, log) = tunnel.entry.wait_for_log();
    assert!(status.success());
    assert!(
        log.contains("reason=\"drained\" code=MT0217"),
        "the last log lines are missing: {log}"
    );
}

#[test]
fn a_target_that_does_not_listen_resets_the_client_at_once() {
    let tunnel = tunnel("JMUX", "", "");
    drop(tunnel.listener);
    assert_reset(&connect(tunnel.forward));
    until("both gateways count the refusal", || {
        [&tunnel.entry, &tunnel.exit]
            .iter()
            .all(|gate| gate.status()["streams"]["refused"]["MT0205"] == 1)
    });
    let line = tunnel.entry.line(&["Connection refused", "MT0205"]);
    assert!(line.contains("Connection refused (os error"), "{line}");
}

/// The client resets its connection while the exit still dials the target.
#[test]
fn a_client_that_gives_up_before_its_target_is_reached_is_counted() {
    let (full, _waiting) = full_target();
    let tunnel = tunnel_to(full, "Native", "", "");
    let client = connect(tunnel.forward);
    until("the carrier has the stream", || {
        tunnel.entry.status()["carriers"][0]["streams"] == 1
    });
    reset(client);
    until("the reset client is counted", || {
        tunnel.entry.status()["streams"]["refused"]["MT0218"] == 1
    });
    let line = tunnel.entry.line(&["Connection refused", "MT0218"]);
    assert!(line.contains("client=127.0.0.1:"), "{line}");
}

/// Sends as long as the other end reads.
fn flood(client: &TcpStream) {
    let mut client = client.try_clone().unwrap();
    std::thread::spawn(move || while client.write_all(&[0; 1 << 16]).is_ok() {});
}

#[test]
fn targets_that_take_nothing_are_the_applications_until_they_fill_the_memory() {
    let (listener, _) = target();
    // The receive buffer is small, so that the kernel holds little of the data that the targets do
    // not read.
    let small = socket2::SockRef::from(&listener);
    small.set_recv_buffer_size(4 << 10).unwrap();
    let tunnel = tunnel_to(listener, "Native", "memory: {receive: 1Mi}\n", "");
    let one = tunnel.stream();
    flood(&one.0);
    let carrier = || tunnel.exit.status()["carriers"][0].clone();
    until("the status reports a stalled application", || {
        let carrier = carrier();
        carrier["limit"] == "Application"
            && carrier["receivedBytesPerSecond"] == 0
            && carrier["receiveBudgetUsed"].as_u64().unwrap() > 0
    });
    let more: Vec<_> = (0..80).map(|_| tunnel.stream()).collect();
    more.iter().for_each(|(client, _)| flood(client));
    let mut status = serde_json::Value::Null;
    until("the status reports that memory is the limit", || {
        status = tunnel.exit.status();
        status["limit"] == "Memory"
    });
    for advice in [
        &status["limitAdvice"],
        &status["carriers"][0]["limitAdvice"],
    ] {
        assert!(
            advice.as_str().unwrap().contains("memory.receive"),
            "{status}"
        );
    }
    let sample =
        |limit| format!("muxgate_carrier_limited_seconds_total{{peer=\"\",limit=\"{limit}\"}}");
    for limit in ["Application", "Memory"] {
        assert!(metric(&tunnel.exit, &sample(limit)) > 0.9, "{limit}");
    }
    assert_eq!(metric(&tunnel.exit, &sample("SendBuffer")), 0.0);
}

#[test]
fn a_carrier_without_streams_is_idle_and_one_with_a_rate_limit_is_the_applications() {
    let tunnel = tunnel("JMUX", "", "bitsPerSecond: 1M");
    until("the carrier is idle", || {
        tunnel.entry.status()["limit"] == "Idle"
    });
    let (client, server) = tunnel.stream();
    flood(&client);
    std::thread::spawn(move || std::io::copy(&mut &server, &mut std::io::sink()));
    until("the carrier transfers at the permitted rate", || {
        let status = tunnel.entry.status();
        let sent = status["carriers"][0]["sentBytesPerSecond"].as_u64();
        status["limit"] == "Application" && sent.unwrap() > 60_000
    });
    let status = tunnel.entry.status();
    let seconds = status["carriers"][0]["limitedSeconds"].clone();
    assert!(seconds["Idle"].as_f64().unwrap() > 0.9, "{seconds}");
}
