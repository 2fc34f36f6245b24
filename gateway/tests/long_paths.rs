//! Paths with a long round trip, and devices on the path that cut silent connections or hide that
//! an exit has vanished.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::{Duration, Instant};

use crate::common::middlebox::{Manners, Middlebox};
use crate::common::namespace::Namespace;
use crate::common::slow_link::SlowLink;
use crate::common::*;
use muxtunnel_testkit::port::free_network;

/// The delay of one direction. The round trip is twice as long.
const ONE_WAY: Duration = Duration::from_secs(3);
/// Maximum time for a tunnel over a slow path. A login by SSH alone takes seven round trips.
const SLOWLY: Duration = Duration::from_secs(240);
/// Time for which a stream is quiet before it is used again: longer than the limits of a fast path.
const QUIET: Duration = Duration::from_secs(16);

/// How the gateways carry streams.
#[derive(Debug, Clone, Copy)]
struct Kind {
    protocol: &'static str,
    /// `tcp` or `kcp`.
    transport: &'static str,
    /// Whether certificates secure the carriers of a protocol that does not need certificates.
    tls: bool,
    web_socket: bool,
}

const PLAIN: Kind = Kind {
    protocol: "native",
    transport: "tcp",
    tls: false,
    web_socket: false,
};
const JMUX: Kind = Kind {
    protocol: "jmux",
    ..PLAIN
};
const HTTP2: Kind = Kind {
    protocol: "http2",
    tls: true,
    ..PLAIN
};
const SSH: Kind = Kind {
    protocol: "ssh",
    ..PLAIN
};
/// The kinds over TCP.
const OVER_TCP: [Kind; 7] = [
    PLAIN,
    Kind { tls: true, ..PLAIN },
    Kind {
        tls: true,
        web_socket: true,
        ..PLAIN
    },
    JMUX,
    Kind {
        web_socket: true,
        ..JMUX
    },
    HTTP2,
    SSH,
];
/// The kinds over UDP.
const OVER_UDP: [Kind; 3] = [
    Kind {
        transport: "kcp",
        ..PLAIN
    },
    Kind {
        protocol: "quic",
        ..PLAIN
    },
    Kind {
        protocol: "http3",
        ..PLAIN
    },
];

impl Kind {
    /// The flags of a gateway. `address` is the exit's address for carriers.
    fn flags(self, role: &str, address: SocketAddr, more: &[&str]) -> Vec<String> {
        let secured = if self.tls { "QUIC" } else { self.protocol };
        let protocol = match self.protocol {
            "quic" => "QUIC",
            "http3" => "HTTP3",
            "ssh" => "SSH",
            protocol => protocol,
        };
        let secured = if secured == self.protocol {
            protocol
        } else {
            secured
        };
        let address = match (self.web_socket, self.tls) {
            (true, true) => format!("wss://{address}/carrier"),
            (true, false) => format!("ws://{address}/carrier"),
            _ => address.to_string(),
        };
        let at = if role == "exit" {
            "--listen"
        } else {
            "--connect"
        };
        let mut flags: Vec<String> = [role, "--protocol", self.protocol, at, &address]
            .map(str::to_owned)
            .into();
        let transport = match self.web_socket {
            true => "WebSocket",
            false => self.transport,
        };
        flags.extend(["--transport", transport].map(str::to_owned));
        flags.extend(secured::flags(secured, role));
        flags.extend(more.iter().map(|flag| (*flag).to_owned()));
        flags
    }
}

fn strs(flags: &[String]) -> Vec<&str> {
    flags.iter().map(String::as_str).collect()
}

/// A target that echoes, on loopback of the calling thread's namespace.
fn echoing() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        while let Ok((mut tcp, _)) = listener.accept() {
            thread::spawn(move || {
                let mut bytes = [0; 64];
                while let Ok(length @ 1..) = tcp.read(&mut bytes) {
                    let _ = tcp.write_all(&bytes[..length]);
                }
            });
        }
    });
    address
}

fn echo(tcp: &mut TcpStream) -> std::io::Result<()> {
    tcp.set_read_timeout(Some(SLOWLY))?;
    tcp.write_all(b"x")?;
    let mut byte = [0];
    tcp.read_exact(&mut byte)?;
    assert_eq!(&byte, b"x");
    Ok(())
}

/// Connects until a stream has reached the target.
fn first_stream(what: &str, connect: impl Fn() -> std::io::Result<TcpStream>) -> TcpStream {
    let begun = Instant::now();
    loop {
        let tried = connect().and_then(|mut tcp| echo(&mut tcp).map(|()| tcp));
        match tried {
            Ok(tcp) => return tcp,
            Err(error) => assert!(begun.elapsed() < SLOWLY, "{what}: {error}"),
        }
        thread::sleep(Duration::from_millis(100));
    }
}

/// Uses a stream, waits, and uses the stream again. The entry must not have lost a carrier since
/// its first carrier was up.
fn assert_stays(what: &str, mut tcp: TcpStream, entry: &Gate) {
    thread::sleep(QUIET);
    echo(&mut tcp).unwrap_or_else(|error| panic!("{what}: {error}"));
    let log = entry.log();
    let mut lines = log
        .lines()
        .skip_while(|line| !line.contains("Carrier is up"));
    let lost = lines.find(|line| line.contains("MT0202"));
    assert_eq!(lost, None, "{what}");
}

/// Runs `test` for each kind at the same time.
fn for_each(kinds: &[Kind], test: impl Fn(Kind) + Sync) {
    thread::scope(|scope| {
        let tests: Vec<_> = kinds
            .iter()
            .map(|kind| {
                scope.spawn({
                    let test = &test;
                    move || test(*kind)
                })
            })
            .collect();
        for (test, kind) in tests.into_iter().zip(kinds) {
            assert!(test.join().is_ok(), "{kind:?}");
        }
    });
}

/// A host of a slow link.
struct Host {
    namespace: Namespace,
    admin: &'static str,
}

impl Host {
    fn new() -> Self {
        let network = free_network();
        let admin = format!("{network}.2").leak();
        let outside = format!("{network}.1/24");
        Self {
            namespace: Namespace::new(&[&outside], &[&format!("{admin}/24")]),
            admin,
        }
    }
}

#[test]
fn each_protocol_connects_over_a_round_trip_of_six_seconds_and_stays_connected() {
    let kinds = [&OVER_TCP[..], &OVER_UDP].concat();
    for_each(&kinds, |kind| {
        let what = format!("{kind:?}");
        let [entry_host, exit_host] = [Host::new(), Host::new()];
        let _link = SlowLink::new(
            [
                (&entry_host.namespace, "10.79.0.1/24"),
                (&exit_host.namespace, "10.79.0.2/24"),
            ],
            ONE_WAY,
        );
        let target = exit_host.namespace.enter(echoing);
        let address = SocketAddr::from(([10, 79, 0, 2], 7000));
        let allow = target.to_string();
        let flags = kind.flags("exit", address, &["--allow", &allow]);
        let exit = Gate::within(&exit_host.namespace, exit_host.admin, &strs(&flags));
        let forward = format!("8080:{target}");
        let flags = kind.flags("entry", address, &["--forward", &forward]);
        let entry = Gate::within(&entry_host.namespace, entry_host.admin, &strs(&flags));
        let connect = || {
            entry_host
                .namespace
                .enter(|| TcpStream::connect("127.0.0.1:8080"))
        };
        let tcp = first_stream(&what, connect);
        assert_stays(&what, tcp, &entry);
        drop(exit);
    });
}

/// An entry and an exit with a device between them.
struct Between {
    entry: Gate,
    exit: Gate,
    middlebox: Middlebox,
    forward: SocketAddr,
}

impl Between {
    fn new(kind: Kind, manners: Manners, more: &[&str]) -> Self {
        let target = echoing();
        let carrier = SocketAddr::from(([127, 0, 0, 1], free_port()));
        let allow = target.to_string();
        let flags = kind.flags("exit", carrier, &[&["--allow", &allow], more].concat());
        let exit = Gate::with_flags(&strs(&flags));
        let middlebox = Middlebox::to(carrier, manners);
        let port = free_port();
        let forward = format!("{port}:{target}");
        let flags = [&["--forward", &forward], more].concat();
        let flags = kind.flags("entry", middlebox.address, &flags);
        let entry = Gate::with_flags(&strs(&flags));
        Self {
            entry,
            exit,
            middlebox,
            forward: SocketAddr::from(([127, 0, 0, 1], port)),
        }
    }

    fn first_stream(&self, what: &str) -> TcpStream {
        first_stream(what, || TcpStream::connect(self.forward))
    }
}

#[test]
fn each_protocol_connects_through_a_device_that_hides_the_round_trip() {
    for_each(&OVER_TCP, |kind| {
        let manners = Manners {
            delay: ONE_WAY,
            ..Manners::default()
        };
        let between = Between::new(kind, manners, &[]);
        let what = format!("{kind:?}");
        let tcp = between.first_stream(&what);
        assert_stays(&what, tcp, &between.entry);
    });
}

/// The flags of gateways that probe silent carriers as early as permitted.
const SOON: [&str; 2] = ["--liveness-seconds", "5"];
/// The flags of gateways that probe silent carriers as late as permitted.
const LATE: [&str; 2] = ["--liveness-seconds", "300"];

#[test]
fn a_silent_carrier_stays_where_a_device_cuts_silent_connections() {
    for_each(&OVER_TCP, |kind| {
        let manners = Manners {
            cuts_silent_after: Some(Duration::from_secs(9)),
            ..Manners::default()
        };
        let between = Between::new(kind, manners, &SOON);
        let what = format!("{kind:?}");
        // Before the first stream, a gateway does not know whether the other end of JMUX is a
        // gateway.
        until("the carrier is up", || {
            between.middlebox.count.load(Relaxed) > 0
        });
        thread::sleep(Duration::from_secs(20));
        let mut tcp = between.first_stream(&what);
        thread::sleep(Duration::from_secs(20));
        echo(&mut tcp).unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_eq!(between.middlebox.cut.load(Relaxed), 0, "{what}");
    });
}

/// Waits until the entry has given up its carrier and has dialled again.
fn until_noticed(between: &Between, what: &str) {
    let before = between.middlebox.count.load(Relaxed);
    between.middlebox.lose_exit();
    let entry = &between.entry;
    until(
        &format!("the entry notices that the exit is gone: {what}"),
        || between.middlebox.count.load(Relaxed) > before && entry.log().contains("MT0202"),
    );
}

#[test]
fn an_exit_that_vanished_behind_a_proxy_is_noticed_in_silence() {
    for_each(&OVER_TCP, |kind| {
        let between = Between::new(kind, Manners::default(), &SOON);
        let what = format!("{kind:?}");
        let mut tcp = between.first_stream(&what);
        until_noticed(&between, &what);
        between.exit.line(&["MT0202"]);
        // Protocol Native waits for the exit, since the session could resume.
        if kind.protocol != "native" {
            assert!(echo(&mut tcp).is_err(), "{what}");
        }
    });
}

#[test]
fn an_open_without_an_answer_is_a_reason_to_probe() {
    for_each(&OVER_TCP, |kind| {
        let between = Between::new(kind, Manners::default(), &LATE);
        let what = format!("{kind:?}");
        let first = between.first_stream(&what);
        drop(first);
        let before = between.middlebox.count.load(Relaxed);
        between.middlebox.lose_exit();
        // The stream gets no answer.
        let _unanswered = TcpStream::connect(between.forward).unwrap();
        until(
            &format!("the entry notices that the exit is gone: {what}"),
            || between.middlebox.count.load(Relaxed) > before,
        );
    });
}
