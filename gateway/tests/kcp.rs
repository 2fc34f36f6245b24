//! Two muxgate processes that use KCP over a path. The path loses datagrams, and other senders
//! flood the exit.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::*;
use muxtunnel_proto::kcp::{self, Command, Header};

const MIB: usize = 1 << 20;

/// The behaviour of a path. A test may change it.
#[derive(Default)]
struct Does {
    /// Number of lost datagrams out of 1,000, in each direction.
    loses: AtomicU64,
    is_cut: AtomicBool,
    passed: AtomicU64,
}

/// A path to a UDP port.
struct Path {
    address: SocketAddr,
    does: Arc<Does>,
}

impl Path {
    fn to(exit: SocketAddr, loses: u64) -> Self {
        let near = Arc::new(UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap());
        let address = near.local_addr().unwrap();
        let does = Arc::new(Does::default());
        does.loses.store(loses, Relaxed);
        let this = Arc::clone(&does);
        std::thread::spawn(move || {
            let clients = Mutex::new(BTreeMap::<SocketAddr, Arc<UdpSocket>>::new());
            let mut datagram = vec![0; 1 << 16];
            let mut state = 1;
            loop {
                let Ok((length, client)) = near.recv_from(&mut datagram) else {
                    continue;
                };
                let mut clients = clients.lock().unwrap();
                let far = clients.entry(client).or_insert_with(|| {
                    let far = Arc::new(UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap());
                    far.connect(exit).unwrap();
                    back(&far, &near, client, &this);
                    far
                });
                if this.lets(&mut state) {
                    let _ = far.send(&datagram[..length]);
                }
            }
        });
        Self { address, does }
    }
}

/// Forwards datagrams to `client`.
fn back(far: &Arc<UdpSocket>, near: &Arc<UdpSocket>, client: SocketAddr, does: &Arc<Does>) {
    let (far, near, does) = (Arc::clone(far), Arc::clone(near), Arc::clone(does));
    std::thread::spawn(move || {
        let mut datagram = vec![0; 1 << 16];
        let mut state = 2;
        loop {
            if let Ok(length) = far.recv(&mut datagram)
                && does.lets(&mut state)
            {
                let _ = near.send_to(&datagram[..length], client);
            }
        }
    });
}

impl Does {
    /// Whether the next datagram passes.
    fn lets(&self, state: &mut u64) -> bool {
        *state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let passes = (*state >> 33) % 1000 >= self.loses.load(Relaxed);
        let passes = passes && !self.is_cut.load(Relaxed);
        self.passed.fetch_add(u64::from(passes), Relaxed);
        passes
    }
}

fn exit(carrier: SocketAddr, allow: SocketAddr, more: &str) -> Gate {
    Gate::with_file(&format!(
        "role: Exit\ntransport: KCP\nsecurity: {{mode: None}}\nlisten: {carrier}\nadmin: ADMIN\nallow: [{allow_rule}]\n\
         drain: {{acceptSeconds: 0, deadlineSeconds: 5}}\n{more}", allow_rule = crate::common::rule(allow)
    ))
    .until_ready()
}

fn entry(connect: SocketAddr, to: SocketAddr, more: &str) -> (Gate, SocketAddr) {
    let forward = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()));
    let gate = Gate::with_file(&format!(
        "role: Entry\ntransport: KCP\nsecurity: {{mode: None}}\nconnect:\n- name: far\n  address: {connect}\nadmin: ADMIN\n{more}forwards:\n\
         - {{name: a, listen: '{forward}', targets: [{{host: 127.0.0.1, port: {}}}]}}\n",
        to.port()
    ));
    (gate, forward)
}

fn carrier_address() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, free_port()).into()
}

struct Tunnel {
    exit: Gate,
    entry: Gate,
    path: Path,
    forward: SocketAddr,
    listener: TcpListener,
    carrier: SocketAddr,
}

/// A tunnel over a path that loses `loses` of 1,000 datagrams.
fn tunnel(loses: u64, of_exit: &str, of_entry: &str) -> Tunnel {
    let (listener, address) = target();
    let carrier = carrier_address();
    let exit = exit(carrier, address, of_exit);
    let path = Path::to(carrier, loses);
    let (entry, forward) = entry(path.address, address, of_entry);
    Tunnel {
        exit,
        entry: entry.until_ready(),
        path,
        forward,
        listener,
        carrier,
    }
}

#[test]
fn bytes_arrive_exactly_over_a_path_that_loses_one_five_or_twenty_percent() {
    for (loses, bytes) in [(10, 16 * MIB), (50, 8 * MIB), (200, 2 * MIB)] {
        let tunnel = tunnel(loses, "", "");
        let clients: Vec<_> = (0..3).map(|_| connect(tunnel.forward)).collect();
        let servers: Vec<_> = clients.iter().map(|_| accept(&tunnel.listener)).collect();
        std::thread::scope(|scope| {
            for (client, server) in clients.iter().zip(servers) {
                scope.spawn(move || assert_bulk(client, server, bytes));
            }
        });
        let again = tunnel.entry.status()["carriers"][0]["retransmits"].clone();
        assert!(again.as_u64().unwrap() > 0, "{again}");
    }
}

#[test]
fn workers_at_both_ends_share_what_comes_to_one_port() {
    let more = "workers: 3\n";
    let tunnel = tunnel(5, more, "workers: 3\npool: {min: 3, max: 3}\n");
    until("all carriers are up at both gateways", || {
        [&tunnel.entry, &tunnel.exit]
            .iter()
            .all(|gate| gate.status()["carriers"].as_array().unwrap().len() == 9)
    });
    for _ in 0..6 {
        let client = connect(tunnel.forward);
        assert_bulk(&client, accept(&tunnel.listener), 2 * MIB);
    }
}

#[test]
fn streams_outlive_an_exit_that_cannot_be_reached_for_a_while() {
    let tunnel = tunnel(0, "", "");
    let mut client = connect(tunnel.forward);
    let mut server = accept(&tunnel.listener);
    client.write_all(b"before ").unwrap();
    let mut read = [0; 7];
    server.read_exact(&mut read).unwrap();
    tunnel.path.does.is_cut.store(true, Relaxed);
    // The simulation of KCP bounds the time until an end that vanished is noticed
    // (`an_end_that_has_vanished_is_noticed_busy_or_idle`).
    until("the entry is not ready", || {
        tunnel.entry.get("/readyz").0 == 503
    });
    client.write_all(b"after").unwrap();
    tunnel.path.does.is_cut.store(false, Relaxed);
    until("the entry is ready again", || {
        tunnel.entry.get("/readyz").0 == 200
    });
    drop(client);
    assert_eq!(read_all(&server), b"after");
}

#[test]
fn an_exit_that_was_restarted_says_that_it_knows_nobody() {
    let tunnel = tunnel(0, "", "");
    let client = connect(tunnel.forward);
    let _server = accept(&tunnel.listener);
    let address = tunnel.listener.local_addr().unwrap();
    tunnel.exit.signal("KILL");
    drop(tunnel.exit);
    let _exit = exit(tunnel.carrier, address, "");
    assert_reset(&client);
    let entry = tunnel.entry.until_ready();
    // The exit has told the entry. Without an answer of the exit, the carrier would end by a
    // time-out with another reason.
    entry.line(&["Carrier ended", "the peer has discarded the KCP connection"]);
    assert!(
        !entry.log().contains("no longer answers"),
        "{}",
        entry.log()
    );
    let client = connect(tunnel.forward);
    assert_bulk(&client, accept(&tunnel.listener), MIB);
    drop(entry);
}

/// Sends datagrams from other addresses until stopped.
struct Flood {
    stop: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
    thread: std::thread::JoinHandle<()>,
}

impl Flood {
    fn of(to: SocketAddr, make: impl Fn(u64) -> Vec<u8> + Send + 'static) -> Self {
        let (stop, sent) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicU64::new(0)),
        );
        let (stopped, count) = (Arc::clone(&stop), Arc::clone(&sent));
        let thread = std::thread::spawn(move || {
            let sockets: Vec<_> = (0..50)
                .map(|_| UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap())
                .collect();
            while !stopped.load(Relaxed) {
                for socket in &sockets {
                    let _ = socket.send_to(&make(count.fetch_add(1, Relaxed)), to);
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        Self { stop, sent, thread }
    }

    fn sent(&self) -> u64 {
        self.sent.load(Relaxed)
    }

    fn end(self) {
        self.stop.store(true, Relaxed);
        self.thread.join().unwrap();
    }
}

fn push(conversation: u32, serial: u32, next: u32, payload: &[u8]) -> Vec<u8> {
    let header = Header {
        conversation,
        command: Command::Push,
        window: 128,
        time: 0,
        serial,
        next,
    };
    let mut datagram = Vec::new();
    header.encode(payload.len(), &mut datagram);
    datagram.extend_from_slice(payload);
    datagram
}

#[test]
fn strangers_cost_no_memory_and_no_carrier() {
    let tunnel = tunnel(0, "limits: {carriers: 4}\n", "");
    let before = tunnel.exit.status()["process"]["maxRssBytes"]
        .as_u64()
        .unwrap();
    let floods = [
        Flood::of(tunnel.carrier, |sent| {
            pattern(sent, 1 + (sent as usize * 37) % 1400)
        }),
        Flood::of(tunnel.carrier, |sent| push(sent as u32, 0, 0, &[7; 1000])),
        Flood::of(tunnel.carrier, |sent| {
            push(sent as u32, sent as u32, 1, &[7; 1000])
        }),
    ];
    let client = connect(tunnel.forward);
    assert_bulk(&client, accept(&tunnel.listener), 8 * MIB);
    let sent = || floods.iter().map(Flood::sent).sum::<u64>();
    until("the strangers have sent many datagrams", || sent() > 30_000);
    let sent = sent();
    floods.into_iter().for_each(Flood::end);
    let status = tunnel.exit.status();
    let grown = status["process"]["maxRssBytes"].as_u64().unwrap() - before;
    assert!(
        grown < 64 * MIB as u64,
        "{grown} bytes for {sent} datagrams"
    );
    assert_eq!(status["carriers"].as_array().unwrap().len(), 1);
    assert_eq!(
        tunnel.entry.status()["carriers"].as_array().unwrap().len(),
        1
    );
}

#[test]
fn an_answer_is_no_longer_than_what_it_answers_and_a_wrong_one_gets_nothing() {
    let tunnel = tunnel(0, "", "");
    let stranger = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    stranger.connect(tunnel.carrier).unwrap();
    stranger.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut answer = [0; 2000];
    let begin = push(7, 0, 0, b"");
    stranger.send(&begin).unwrap();
    let length = stranger.recv(&mut answer).unwrap();
    assert!(length <= begin.len());
    let segment = |command, time, serial, next| {
        let header = Header {
            conversation: 7,
            command,
            window: 128,
            time,
            serial,
            next,
        };
        let mut datagram = Vec::new();
        header.encode(0, &mut datagram);
        datagram
    };
    let challenge = u32::from_le_bytes(answer[8..12].try_into().unwrap());
    assert_eq!(answer[..length], kcp::challenge(7, challenge));
    // The peer answers a challenge that was sent to another address, and a challenge that is
    // invalid. Payload without a window request, and answers of an exit, get no answer either.
    let other = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    other.connect(tunnel.carrier).unwrap();
    other.set_read_timeout(Some(PATIENCE)).unwrap();
    for unanswered in [
        segment(Command::Ack, challenge, kcp::CHALLENGE, 0),
        segment(Command::Ack, challenge.wrapping_add(1), kcp::CHALLENGE, 0),
        segment(Command::Ack, 1, kcp::RESET, 3),
        push(7, 5, 3, b"more"),
        kcp::challenge(7, challenge),
        kcp::reset(7, 1),
    ] {
        other.send(&unanswered).unwrap();
    }
    // The exit sends a reset in answer to a window request of an unknown conversation.
    other.send(&segment(Command::Ask, 3, 4, 1)).unwrap();
    let length = other.recv(&mut answer).unwrap();
    assert_eq!(answer[..length], kcp::reset(7, (3 << 32) + 4));
}

/// Sends a UDP datagram with a forged source address. Needs root.
fn forge(from: SocketAddr, to: SocketAddr, payload: &[u8]) {
    let (SocketAddr::V4(source), SocketAddr::V4(target)) = (from, to) else {
        panic!("{from} and {to} are IPv4 addresses");
    };
    // The kernel writes the missing fields of the IP header. UDP needs no checksum over IPv4.
    let mut bytes = vec![0x45, 0, 0, 0, 0, 0, 0, 0, 64, 17, 0, 0];
    bytes.extend_from_slice(&source.ip().octets());
    bytes.extend_from_slice(&target.ip().octets());
    bytes.extend_from_slice(&source.port().to_be_bytes());
    bytes.extend_from_slice(&target.port().to_be_bytes());
    bytes.extend_from_slice(&(8 + payload.len() as u16).to_be_bytes());
    bytes.extend_from_slice(&[0, 0]);
    bytes.extend_from_slice(payload);
    let raw = Some(socket2::Protocol::from(255)); // IPPROTO_RAW
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::RAW, raw).unwrap();
    socket.send_to(&bytes, &to.into()).unwrap();
}

/// The number of UDP datagrams that arrived in the thread's network namespace.
fn arrived() -> u64 {
    let all = std::fs::read_to_string("/proc/thread-self/net/snmp").unwrap();
    let mut udp = all.lines().filter(|line| line.starts_with("Udp: "));
    let (names, values) = (udp.next().unwrap(), udp.next().unwrap());
    let at = names.split(' ').position(|name| name == "InDatagrams");
    values.split(' ').nth(at.unwrap()).unwrap().parse().unwrap()
}

/// A beginning causes a challenge, and a window request causes a reset. A forged source address
/// leads both answers to another exit.
#[test]
fn a_forged_datagram_does_not_make_two_exits_answer_each_other() {
    const EXCHANGES: u32 = 500;
    let test = |transport: &str| {
        let exits = [carrier_address(), carrier_address()];
        let _gates = exits.map(|carrier| {
            let allow = "allow: [{cidr: 127.0.0.1/32, port: 1}]";
            let listen = format!("transport: {transport}\nlisten: {carrier}\nadmin: ADMIN");
            let yaml = format!("role: Exit\nsecurity: {{mode: None}}\n{listen}\n{allow}\n");
            Gate::with_file(&yaml).until_ready()
        });
        let stranger = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        stranger.connect(exits[0]).unwrap();
        stranger.set_read_timeout(Some(PATIENCE)).unwrap();
        let before = arrived();
        let mut ask = push(7, 0, 1, b"");
        ask[4] = 83;
        for forged in [push(7, 0, 0, b""), ask] {
            forge(exits[0], exits[1], &forged);
        }
        // Endless answers would arrive during these exchanges.
        for number in 0..EXCHANGES {
            stranger.send(&push(number, 0, 0, b"")).unwrap();
            stranger.recv(&mut [0; 2000]).unwrap();
        }
        let expected = u64::from(2 * EXCHANGES + 4);
        let passed = arrived() - before;
        assert!(
            passed <= expected,
            "{passed} datagrams passed with {transport}"
        );
    };
    let namespace = muxtunnel_testkit::namespace::Namespace::new().unwrap();
    namespace.enter(|| ["KCP", "Auto"].map(test)).unwrap();
}

/// A long-lived stream continues while clients and targets open and reset other streams.
#[test]
fn resets_of_streams_pass_and_leave_others_alone() {
    let tunnel = tunnel(20, "", "");
    let mut lasting = connect(tunnel.forward);
    let mut at_server = accept(&tunnel.listener);
    let reset = |tcp: TcpStream| {
        let socket = socket2::SockRef::from(&tcp);
        socket.set_linger(Some(Duration::ZERO)).unwrap();
    };
    for _ in 0..10 {
        let client = connect(tunnel.forward);
        let server = accept(&tunnel.listener);
        reset(client);
        assert_reset(&server);
        let client = connect(tunnel.forward);
        let server = accept(&tunnel.listener);
        reset(server);
        assert_reset(&client);
    }
    lasting.write_all(b"still there").unwrap();
    let mut read = [0; 11];
    at_server.read_exact(&mut read).unwrap();
    assert_eq!(&read, b"still there");
}
