//! Thousands of connections send little data. Their number and memory are bounded, and they do not
//! block a legitimate client.
//!
//! The ignored test measures the delay of a legitimate client during such an attack.
//! docs/performance.md has the results.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

use crate::common::authority::Authority;
use crate::common::ends::*;
use crate::common::herd::Herd;
use crate::common::meeting::Place;
use crate::common::*;

const SILENT: usize = 5_000;
/// Maximum memory of a waiting connection, in KiB. The maximum is three times the measured value:
/// in an unoptimized build, a carrier uses 9.8 to 10.9 KiB, and a client 2.3 KiB. The handshake of a
/// leaf is that of a carrier.
const KIB_A_CARRIER: f64 = 32.0;
const KIB_A_CLIENT: f64 = 7.0;
/// Factor by which the memory of a waiting connection may be larger while all connections arrive at
/// once. Evicted connections that are not closed yet also use memory.
const AT_THE_PEAK: f64 = 2.0;
/// Maximum number of waiting carriers and leaves of a gateway.
const PERMITS_MAX: usize = 256;
/// Maximum number of waiting clients of a worker.
const CLIENTS_MAX: usize = 1_024;
const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const ELSEWHERE: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));

/// A port to which attackers connect, and a function that checks that the gateway still serves a
/// legitimate client.
struct Door {
    name: &'static str,
    /// The gateway whose memory and log are checked.
    gate: Gate,
    address: SocketAddr,
    /// The first bytes that attackers send.
    prefix: &'static [u8],
    permits: usize,
    kib_a_permit: f64,
    /// The code of evicted connections in the log.
    code: &'static str,
    visit: Box<dyn Fn()>,
    /// Other gateways and files, which must live as long as the gateway.
    _rest: Vec<Box<dyn std::any::Any>>,
}

/// All ports under test. They forward to a target that echoes. `dir` is the folder for the
/// gateways' files.
fn doors(dir: &Path) -> Vec<Door> {
    let target = echoing();
    let (_, _, tls) = tls(dir, &Authority::new());
    let plain = || Ends {
        exit: "{mode: None}".to_owned(),
        entry: "{mode: None}".to_owned(),
    };
    let web_socket = |ends: Ends| Ends {
        exit: ends.exit + "\ntransport: WebSocket\nwebSocket: {path: /carrier}",
        entry: ends.entry + "\ntransport: WebSocket\nwebSocket: {path: /carrier}",
    };
    let begun = b"GET /carrier HTTP/1.1\r\nUpgrade: websocket\r\nX: xxxxxxxxxxxxxxx";
    let hello = b"\x16\x03\x01\x40\0\x01\0\x3f\xfc\x03\x03";
    vec![
        carriers("TLS", tls, hello, target),
        carriers("keys", by_keys(dir), hello, target),
        carriers("plain", plain(), b"\x01\0\0\0\0\0\0\xff", target),
        carriers("WebSocket", web_socket(plain()), begun, target),
        clients("SOCKS5", "SOCKS5", b"\x05\x20\0\0\0\0\0", target),
        clients(
            "HTTP",
            "HTTP",
            b"CONNECT web:80 HTTP/1.1\r\nHost: xxxx",
            target,
        ),
        rendezvous(target),
    ]
}

/// A carrier port. The legitimate client is a new entry with a stream.
fn carriers(name: &'static str, ends: Ends, prefix: &'static [u8], target: SocketAddr) -> Door {
    let address = carrier_address();
    let gate = exit(&ends.exit, address, target);
    let visit = move || {
        let (_entry, forward) = entry(&ends.entry, "Native", address, target);
        echo_through(forward, |_| {});
    };
    Door {
        name,
        gate,
        address,
        prefix,
        permits: PERMITS_MAX,
        kib_a_permit: KIB_A_CARRIER,
        code: "MT0230",
        visit: Box::new(visit),
        _rest: Vec::new(),
    }
}

/// A forward's port. The legitimate client completes its request.
fn clients(name: &'static str, protocol: &str, prefix: &'static [u8], target: SocketAddr) -> Door {
    let carrier = free_port();
    let exit = Gate::exit("Native", carrier, &[&target.to_string()]);
    let address = carrier_address();
    let gate = Gate::with_file(&format!(
        "role: Entry\nsecurity: {{mode: None}}\nconnect:\n- name: far\n  address: 127.0.0.1:{carrier}\nadmin: ADMIN\n\
         proxies:\n- {{name: a, listen: '{address}', protocol: {protocol}, limits: {{streams: 8}}}}\n"
    ))
    .until_ready();
    let socks = protocol == "SOCKS5";
    let visit = move || {
        echo_through(address, |tcp| {
            let (said, answer) = match socks {
                true => {
                    let mut said = b"\x05\x01\0\x05\x01\0\x01\x7f\0\0\x01".to_vec();
                    said.extend(target.port().to_be_bytes());
                    (said, 2 + 10)
                }
                false => {
                    let said = format!("CONNECT {target} HTTP/1.1\r\n\r\n").into_bytes();
                    (said, b"HTTP/1.1 200 Connection established\r\n\r\n".len())
                }
            };
            tcp.write_all(&said).unwrap();
            tcp.read_exact(&mut vec![0; answer]).unwrap();
        });
    };
    Door {
        name,
        gate,
        address,
        prefix,
        permits: CLIENTS_MAX,
        kib_a_permit: KIB_A_CLIENT,
        code: "MT0243",
        visit: Box::new(visit),
        _rest: vec![Box::new(exit)],
    }
}

/// The port of a rendezvous. The legitimate client is a new leaf that visits.
fn rendezvous(target: SocketAddr) -> Door {
    let place = Place::new();
    let address = crate::common::meeting::loopback(place.port);
    let gate = place.rendezvous();
    let exit = place.exit("exit", target).until_ready();
    let visit = move || {
        let forward = carrier_address();
        let _entry = place.entry("entry", forward, target).until_ready();
        echo_through(forward, |_| {});
    };
    Door {
        name: "rendezvous",
        gate,
        address,
        prefix: b"\x16\x03\x01\x40\0\x01\0\x3f\xfc\x03\x03",
        permits: PERMITS_MAX,
        kib_a_permit: KIB_A_CARRIER,
        code: "MT0221",
        visit: Box::new(visit),
        _rest: vec![Box::new(exit)],
    }
}

/// Waits until the forward listens, and sends one byte in both directions. `ask` sends the client's
/// request.
fn echo_through(forward: SocketAddr, ask: impl Fn(&mut TcpStream)) {
    let begun = Instant::now();
    let mut tcp = loop {
        match TcpStream::connect(forward) {
            Ok(tcp) => break tcp,
            Err(error) => assert!(begun.elapsed() < PATIENCE, "{error}"),
        }
        std::thread::sleep(Duration::from_millis(1));
    };
    tcp.set_read_timeout(Some(PATIENCE)).unwrap();
    ask(&mut tcp);
    tcp.write_all(b"x").unwrap();
    tcp.read_exact(&mut [0]).unwrap();
}

/// A target that echoes.
fn echoing() -> SocketAddr {
    let (listener, address) = target();
    std::thread::spawn(move || {
        while let Ok((mut tcp, _)) = listener.accept() {
            std::thread::spawn(move || {
                let mut bytes = [0; 64];
                while let Ok(length @ 1..) = tcp.read(&mut bytes) {
                    let _ = tcp.write_all(&bytes[..length]);
                }
            });
        }
    });
    address
}

fn memory_kib(gate: &Gate, what: &str) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{}/status", gate.id())).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(what));
    let value = line.unwrap().trim().trim_end_matches(" kB");
    value.parse().unwrap()
}

/// A gauge from the metrics page.
fn gauge(gate: &Gate, name: &str) -> usize {
    let (_, page) = gate.get("/metrics");
    let value = page.lines().find_map(|line| line.strip_prefix(name));
    value.unwrap().trim().parse::<f64>().unwrap() as usize
}

#[test]
fn five_thousand_connections_that_say_little_are_bounded_and_keep_nobody_out() {
    let dir = tempfile::tempdir().unwrap();
    for door in doors(dir.path()) {
        (door.visit)();
        let before = memory_kib(&door.gate, "VmRSS:");
        let waiting = Herd::new(LOOPBACK, door.address, door.prefix, door.permits);
        until(
            &format!("all connections wait at the port {}", door.name),
            || gauge(&door.gate, "muxgate_handshakes_pending ") == door.permits,
        );
        let kib_a_permit = |of: &str| {
            let more = memory_kib(&door.gate, of).saturating_sub(before);
            more as f64 / door.permits as f64
        };
        let (each, name) = (kib_a_permit("VmRSS:"), door.name);
        println!("{name}: {each:.1} KiB a permit");
        assert!(each < door.kib_a_permit, "{name}: {each:.1} KiB a permit");
        let mut herd = Herd::new(LOOPBACK, door.address, door.prefix, SILENT);
        (door.visit)();
        until(&format!("{name} has evicted enough connections"), || {
            herd.say_more();
            herd.left() <= door.permits
        });
        assert!(metric(&door.gate, "muxgate_handshakes_evicted_total ") > 0);
        assert!(door.gate.log().contains(door.code), "{name}");
        (door.visit)();
        let peak = kib_a_permit("VmHWM:");
        println!("{name}: {peak:.1} KiB a permit at the peak");
        assert!(
            peak < AT_THE_PEAK * door.kib_a_permit,
            "{name}: {peak:.1} KiB a permit at the peak"
        );
        drop(waiting);
    }
}

#[test]
fn whoever_is_there_does_not_lose_its_seat_to_another_address() {
    let dir = tempfile::tempdir().unwrap();
    for door in doors(dir.path()) {
        let mut first = Herd::new(LOOPBACK, door.address, door.prefix, 1);
        let mut others = Herd::new(ELSEWHERE, door.address, door.prefix, 2 * door.permits);
        until(
            &format!("{} has evicted enough connections", door.name),
            || others.left() < door.permits,
        );
        first.say_more();
        assert_eq!(first.left(), 1, "{}", door.name);
    }
}

#[test]
fn who_says_what_is_not_understood_has_a_penalty_and_a_probe_has_none() {
    let dir = tempfile::tempdir().unwrap();
    for door in doors(dir.path()) {
        let failed = || metric(&door.gate, "muxgate_handshakes_failed_total ");
        let penalised = || gauge(&door.gate, "muxgate_penalised_sources ");
        drop(connect(door.address));
        (door.visit)();
        assert_eq!((failed(), penalised()), (0, 0), "{}", door.name);
        let tcp = connect(door.address);
        (&tcp).write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        until(&format!("{} counts the failure", door.name), || {
            failed() == 1
        });
        assert_eq!(penalised(), 1, "{}", door.name);
        // An attack has no effect while permits are free.
        (door.visit)();
        assert_eq!(failed(), 1, "{}", door.name);
    }
}

/// The gateway refuses endless input as soon as the input is longer than its bound: 64 KiB for the
/// head of a proxy's request, and at most 16 KiB for other input. It does not wait for a time limit.
#[test]
fn no_more_than_its_bound_is_taken_of_what_never_ends() {
    // A handshake message with a claimed length of almost 64 KiB, in records of 4 KiB.
    let mut record = vec![0x16, 3, 1, 0x10, 0, 1, 0, 0xff, 0];
    record.resize(5 + 0x1000, 0);
    let mut records = record.clone();
    record[5..9].fill(0);
    (0..3).for_each(|_| records.extend(&record));
    let endless = |head: &str| [head.as_bytes(), &[b'x'; (16 << 10) + 1]].concat();
    let long_head = |head: &str| [head.as_bytes(), &[b'x'; (64 << 10) + 1]].concat();
    let refused = [
        ("TLS", records.clone(), "the TLS handshake is longer than"),
        ("keys", records, "the TLS handshake is longer than"),
        (
            "WebSocket",
            endless("GET /carrier HTTP/1.1\r\nX: "),
            "WebSocket upgrade is too long",
        ),
        (
            "HTTP",
            long_head("CONNECT web:80 HTTP/1.1\r\nX: "),
            "more than 64 KiB",
        ),
    ];
    let dir = tempfile::tempdir().unwrap();
    let doors = doors(dir.path());
    for (name, bytes, reason) in refused {
        let door = doors.iter().find(|door| door.name == name).unwrap();
        let tcp = connect(door.address);
        // The connection may be reset before all bytes are sent.
        let _ = (&tcp).write_all(&bytes);
        let _ = end_of(&tcp);
        door.gate.line(&[reason]);
    }
}

/// Number of visits of a legitimate client.
const VISITS: usize = 20;

#[test]
#[ignore = "a measurement: cargo test -p muxtunnel-gateway --test slowloris -- --ignored --nocapture"]
fn how_long_somebody_real_needs_among_five_thousand() {
    println!("| door | strangers | from | median ms | most ms | KiB a stranger |");
    let dir = tempfile::tempdir().unwrap();
    for door in doors(dir.path()) {
        (door.visit)();
        let row = |strangers: &str, from: &str, kib: f64| {
            let mut times: Vec<f64> = (0..VISITS)
                .map(|_| {
                    let begun = Instant::now();
                    (door.visit)();
                    begun.elapsed().as_secs_f64() * 1e3
                })
                .collect();
            times.sort_by(f64::total_cmp);
            let (median, most) = (times[VISITS / 2], times[VISITS - 1]);
            let name = door.name;
            println!("| {name} | {strangers} | {from} | {median:.0} | {most:.0} | {kib:.2} |");
        };
        row("none", "", 0.0);
        let before = memory_kib(&door.gate, "VmRSS:");
        for (from, name) in [(ELSEWHERE, "elsewhere"), (LOOPBACK, "the same address")] {
            let herd = Herd::new(from, door.address, door.prefix, SILENT).that_comes_again();
            let most = memory_kib(&door.gate, "VmHWM:");
            let strangers = format!("{SILENT}, {:.0} new a second", herd.rate());
            row(
                &strangers,
                name,
                most.saturating_sub(before) as f64 / SILENT as f64,
            );
        }
    }
}
