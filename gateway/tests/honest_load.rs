//! Honest load over a slow and stalling path, with each protocol. Many clients and targets do what
//! is their right: they abort, reset and give up. A stream that is not involved shares their
//! carrier, and keeps exact bytes.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::{JoinHandle, sleep, spawn};
use std::time::Duration;

use crate::common::frames::{DATA, HEADERS, Peer, RST_STREAM};
use crate::common::slow_path::SlowPath;
use crate::common::*;

/// The delay of each direction: a round trip takes 300 ms.
const DELAY: Duration = Duration::from_millis(150);
/// Longer than any library remembers a stream that it has reset.
const STALL: Duration = Duration::from_secs(7);
/// The payload of the stream that is not involved.
const PIECE: usize = 1000;

/// An entry and an exit with one carrier, and a stream that is not involved in the load.
struct Load {
    entry: Gate,
    exit: Gate,
    path: SlowPath,
    listener: TcpListener,
    forward: SocketAddr,
    /// A forward whose target the exit denies.
    refused: SocketAddr,
    uninvolved: Uninvolved,
    /// Whether the carrier survives [`STALL`]. KCP gives up a carrier after less time, and the
    /// session continues on the next carrier.
    keeps_carrier: bool,
}

impl Load {
    fn new(protocol: &str) -> Self {
        let (listener, target) = target();
        let (carrier, forward) = (free_port(), free_port());
        let both = format!("protocol: {protocol}\nsecurity: {{mode: None}}\nadmin: ADMIN\n");
        let exit = Gate::with_file(&format!(
            "role: Exit\n{both}listen: 127.0.0.1:{carrier}\nallow: [{target_rule}]\n",
            target_rule = crate::common::rule(target)
        ));
        let at = SocketAddr::from((Ipv4Addr::LOCALHOST, carrier));
        let path = match protocol {
            OVER_KCP | "QUIC" | "HTTP3" => SlowPath::udp(at, DELAY),
            _ => SlowPath::tcp(at, DELAY),
        };
        let refused = free_port();
        let forwards = [(forward, target.port()), (refused, free_port())];
        let forwards = ["a", "b"]
            .iter()
            .zip(forwards)
            .map(|(name, (listen, port))| {
                format!(
                    "- {{name: {name}, listen: '127.0.0.1:{listen}', \
                 targets: [{{host: 127.0.0.1, port: {port}}}]}}\n"
                )
            });
        let entry = Gate::with_file(&format!(
            "role: Entry\n{both}connect:\n- name: far\n  address: {}\npool: {{min: 1, max: 1}}\nforwards:\n{}",
            path.address,
            forwards.collect::<String>()
        ));
        let entry = entry.until_ready();
        let [forward, refused] =
            [forward, refused].map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
        let uninvolved = Uninvolved::new(connect(forward), accept(&listener));
        Self {
            entry,
            exit,
            path,
            listener,
            forward,
            refused,
            uninvolved,
            keeps_carrier: protocol != OVER_KCP,
        }
    }

    /// `count` clients, and their targets in any order.
    fn streams(&self, count: usize) -> Vec<(TcpStream, TcpStream)> {
        let clients: Vec<_> = (0..count).map(|_| connect(self.forward)).collect();
        let targets = clients.iter().map(|_| accept(&self.listener));
        let targets: Vec<_> = targets.collect();
        clients.into_iter().zip(targets).collect()
    }

    /// Asserts that all streams of the load have ended at both gateways, and that the stream that
    /// is not involved has lost nothing.
    fn end(self) {
        for (gate, name) in [(&self.entry, "entry"), (&self.exit, "exit")] {
            until(&format!("the {name} has one open stream"), || {
                gate.status()["streams"]["open"] == 1
            });
        }
        let before = self.uninvolved.echoed();
        until("the stream that is not involved moves on", || {
            self.uninvolved.echoed() >= before + 4 * PIECE as u64
        });
        if self.keeps_carrier {
            assert_eq!(self.path.carriers(), 1, "{}", self.entry.log());
        }
        self.uninvolved.end();
    }
}

/// A stream that sends all the time, to a target that echoes.
struct Uninvolved {
    stop: Arc<AtomicBool>,
    echoed: Arc<AtomicU64>,
    sender: JoinHandle<usize>,
    receiver: JoinHandle<Vec<u8>>,
}

fn stream_of(length: usize) -> Vec<u8> {
    pattern(7, length)
}

impl Uninvolved {
    fn new(client: TcpStream, server: TcpStream) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let echoed = Arc::new(AtomicU64::new(0));
        spawn(move || {
            let (mut from, mut to) = (&server, &server);
            let _ = std::io::copy(&mut from, &mut to);
            let _ = server.shutdown(Shutdown::Write);
        });
        let (mut reader, counted) = (client.try_clone().unwrap(), Arc::clone(&echoed));
        let receiver = spawn(move || {
            let (mut all, mut buffer) = (Vec::new(), vec![0; 65_536]);
            while let Ok(length @ 1..) = reader.read(&mut buffer) {
                all.extend_from_slice(&buffer[..length]);
                counted.store(all.len() as u64, Relaxed);
            }
            all
        });
        let (mut writer, ends) = (client, Arc::clone(&stop));
        let sender = spawn(move || {
            let bytes = stream_of(16 << 20);
            let mut sent = 0;
            for piece in bytes.chunks(PIECE) {
                if ends.load(Relaxed) || writer.write_all(piece).is_err() {
                    break;
                }
                sent += piece.len();
                sleep(Duration::from_millis(5));
            }
            let _ = writer.shutdown(Shutdown::Write);
            sent
        });
        let this = Self {
            stop,
            echoed,
            sender,
            receiver,
        };
        until("the stream that is not involved runs", || {
            this.echoed() > PIECE as u64
        });
        this
    }

    fn echoed(&self) -> u64 {
        self.echoed.load(Relaxed)
    }

    fn end(self) {
        self.stop.store(true, Relaxed);
        let sent = self.sender.join().unwrap();
        assert!(self.receiver.join().unwrap() == stream_of(sent));
    }
}

/// Writes to all `sockets` in turn until all of them have failed. Returns the number of bytes that
/// the sockets took after `counts` was set.
fn feed(sockets: Vec<TcpStream>, counts: Arc<AtomicBool>) -> JoinHandle<u64> {
    spawn(move || {
        let mut sockets = sockets;
        let mut taken = 0;
        for socket in &sockets {
            socket.set_nonblocking(true).unwrap();
        }
        while !sockets.is_empty() {
            sockets.retain_mut(|socket| match socket.write(&[7; 512]) {
                Ok(length) => {
                    if counts.load(Relaxed) {
                        taken += length as u64;
                    }
                    true
                }
                Err(error) => error.kind() == ErrorKind::WouldBlock,
            });
            sleep(Duration::from_millis(20));
        }
        taken
    })
}

/// Clients abort their downloads, so payload arrives for streams that their gateway has reset.
fn clients_abort_downloads(protocol: &str, count: usize) {
    let load = Load::new(protocol);
    let (clients, targets): (Vec<_>, Vec<_>) = load.streams(count).into_iter().unzip();
    let aborted = Arc::new(AtomicBool::new(false));
    let feeds = feed(targets, Arc::clone(&aborted));
    for mut client in &clients {
        client.read_exact(&mut [0; 1]).unwrap();
    }
    aborted.store(true, Relaxed);
    clients.into_iter().for_each(reset);
    // Payload was sent after the abort, until the abort arrived.
    assert!(feeds.join().unwrap() > count as u64 * 512);
    load.end();
}

/// Targets reset while the path stalls, so payload arrives for streams that were reset long ago.
fn targets_reset_during_a_stall(protocol: &str) {
    let load = Load::new(protocol);
    let (clients, targets): (Vec<_>, Vec<_>) = load.streams(80).into_iter().unzip();
    let stalled = Arc::new(AtomicBool::new(false));
    let feeds = feed(clients, Arc::clone(&stalled));
    for mut target in &targets {
        target.read_exact(&mut [0; 1]).unwrap();
    }
    load.path.stall(true);
    targets.into_iter().for_each(reset);
    until("the exit has reset the streams", || {
        load.exit.status()["streams"]["open"] == 1
    });
    stalled.store(true, Relaxed);
    sleep(STALL);
    load.path.stall(false);
    // Payload was sent while the path stalled.
    assert!(feeds.join().unwrap() > 80 * 512);
    load.end();
}

/// Clients give up while the path stalls, so their opens and their ends arrive together.
fn clients_give_up_during_a_stall(protocol: &str) {
    let load = Load::new(protocol);
    load.path.stall(true);
    let before = load.uninvolved.echoed();
    for _ in 0..6 {
        let clients: Vec<_> = (0..100).map(|_| connect(load.forward)).collect();
        // The gateway reads the clients within this time.
        sleep(Duration::from_millis(300));
        clients.into_iter().for_each(reset);
    }
    load.path.stall(false);
    until("the stall is over", || load.uninvolved.echoed() > before);
    load.end();
}

/// The exit refuses many opens while its answers stall.
fn opens_are_refused_during_a_stall(protocol: &str) {
    let load = Load::new(protocol);
    // The opens are on their way when the path stalls.
    let clients: Vec<_> = (0..600).map(|_| connect(load.refused)).collect();
    load.path.stall(true);
    sleep(Duration::from_secs(1));
    load.path.stall(false);
    for client in &clients {
        assert_reset_or_end(client);
    }
    load.end();
}

/// Interactive clients send small pieces to targets that take nothing for a while.
fn small_pieces_reach_stalled_targets(protocol: &str) {
    const PIECES: usize = 4000;
    let load = Load::new(protocol);
    let (clients, targets): (Vec<_>, Vec<_>) = load.streams(4).into_iter().unzip();
    let senders: Vec<_> = clients
        .iter()
        .zip(1_u8..)
        .map(|(client, seed)| {
            client.set_nodelay(true).unwrap();
            let (mut client, number) = (client.try_clone().unwrap(), [seed]);
            spawn(move || {
                client.write_all(&number).unwrap();
                for piece in pattern(seed.into(), PIECES * 64).chunks(64) {
                    client.write_all(piece).unwrap();
                }
                client.shutdown(Shutdown::Write).unwrap();
            })
        })
        .collect();
    let before = load.uninvolved.echoed();
    until("the stream that is not involved moves on", || {
        load.uninvolved.echoed() >= before + 100 * PIECE as u64
    });
    for mut target in targets {
        let mut seed = [0];
        target.read_exact(&mut seed).unwrap();
        assert!(read_all(&target) == pattern(seed[0].into(), PIECES * 64));
    }
    for sender in senders {
        sender.join().unwrap();
    }
    load.end();
}

macro_rules! with_each_protocol {
    ($($name:ident: $protocol:expr, $downloads:literal;)*) => {$(
        mod $name {
            #[allow(unused_imports, reason = "not all protocols have a constant")]
            use super::*;

            #[test]
            fn clients_that_abort_downloads_cost_no_other_stream() {
                clients_abort_downloads($protocol, $downloads);
            }

            #[test]
            fn targets_that_reset_during_a_stall_cost_no_other_stream() {
                targets_reset_during_a_stall($protocol);
            }

            #[test]
            fn opens_that_are_refused_during_a_stall_cost_no_other_stream() {
                opens_are_refused_during_a_stall($protocol);
            }

            #[test]
            fn small_pieces_to_stalled_targets_cost_no_other_stream() {
                small_pieces_reach_stalled_targets($protocol);
            }

            #[test]
            fn clients_that_give_up_during_a_stall_cost_no_other_stream() {
                clients_give_up_during_a_stall($protocol);
            }
        }
    )*};
}

with_each_protocol! {
    native: "Native", 600;
    jmux: "JMUX", 600;
    kcp: OVER_KCP, 300;
    http2: "HTTP2", 2000;
    quic: "QUIC", 300;
    http3: "HTTP3", 300;
    ssh: "SSH", 600;
}

/// An exit for HTTP/2 that the test itself speaks to.
fn http2_exit(more: &str) -> (Gate, SocketAddr) {
    let carrier = free_port();
    let exit = Gate::with_file(&format!(
        "role: Exit\nprotocol: HTTP2\nsecurity: {{mode: None}}\nlisten: 127.0.0.1:{carrier}\n\
         admin: ADMIN\n{more}\n"
    ));
    (exit.until_ready(), ([127, 0, 0, 1], carrier).into())
}

/// Sends `bytes` on an open stream to `server`, and expects them back.
fn assert_echo(peer: &mut Peer, stream: u32, server: &TcpStream, bytes: &[u8]) {
    assert!(peer.frame(DATA, 0, stream, bytes));
    let (mut from, mut to) = (server, server);
    let mut came = vec![0; bytes.len()];
    from.read_exact(&mut came).unwrap();
    assert!(came == bytes);
    to.write_all(bytes).unwrap();
    let mut back = Vec::new();
    while back.len() < bytes.len() {
        let frame = peer.next_of(stream);
        assert_eq!(frame.kind, DATA);
        back.extend(frame.payload);
    }
    assert!(back == bytes);
}

/// A peer cannot know the exit's limit before the exit's SETTINGS.
#[test]
fn opens_before_the_limit_is_known_cost_no_accepted_stream() {
    const LIMIT: u32 = 8;
    let (listener, target) = target();
    for opens in [100, 1000] {
        let limits = format!(
            "limits: {{streams: {LIMIT}}}\nallow: [{target_rule}]",
            target_rule = crate::common::rule(target)
        );
        let (_exit, carrier) = http2_exit(&limits);
        let mut peer = Peer::new(carrier);
        let streams: Vec<_> = (0..opens).map(|index| 2 * index + 1).collect();
        for stream in &streams {
            assert!(peer.connect(*stream, target));
        }
        let (mut accepted, mut refused) = (Vec::new(), 0);
        while accepted.len() + refused < streams.len() {
            let frame = peer.next().expect("the connection lives");
            match frame.kind {
                HEADERS => accepted.push(frame.stream),
                RST_STREAM => refused += 1,
                _ => panic!("{frame:?}"),
            }
        }
        assert_eq!(accepted.len(), LIMIT as usize);
        // The streams reach the target in any order.
        let servers: Vec<_> = accepted.iter().map(|_| accept(&listener)).collect();
        for stream in accepted {
            assert!(peer.frame(DATA, 0, stream, &stream.to_be_bytes()));
        }
        let mut came: Vec<_> = servers.iter().map(number_from).collect();
        came.sort_unstable();
        assert!(came.iter().eq(streams.iter().take(LIMIT as usize)));
    }
}

fn number_from(mut server: &TcpStream) -> u32 {
    let mut number = [0; 4];
    server.read_exact(&mut number).unwrap();
    u32::from_be_bytes(number)
}

/// An open stream to a new target.
fn open(peer: &mut Peer, stream: u32, listener: &TcpListener) -> TcpStream {
    assert!(peer.connect(stream, listener.local_addr().unwrap()));
    assert_eq!(peer.next_of(stream).kind, HEADERS);
    accept(listener)
}

/// Interactive clients send small frames until the window is full, while their targets are dialled
/// or take nothing.
#[test]
fn small_frames_to_stalled_targets_cost_no_other_stream() {
    /// One frame less than the window.
    const FRAMES: usize = (1 << 20) / 64 - 1;
    let (listener, target) = target();
    let (full, _waiting) = full_target();
    let limits = format!(
        "memory: {{receive: 32Mi}}\nlimits: {{streams: 64}}\nallow: [{}, {}]",
        crate::common::rule(target),
        crate::common::rule(full.local_addr().unwrap())
    );
    let (exit, carrier) = http2_exit(&limits);
    let mut peer = Peer::greeted(carrier);
    let uninvolved = open(&mut peer, 1, &listener);
    let stalled = open(&mut peer, 3, &listener);
    let dialled: Vec<u32> = (2..10).map(|index| 2 * index + 1).collect();
    for stream in &dialled {
        assert!(peer.connect(*stream, full.local_addr().unwrap()));
    }
    let bytes = pattern(3, FRAMES * 64);
    for piece in bytes.chunks(64) {
        for stream in [3].iter().chain(&dialled) {
            assert!(peer.frame(DATA, 0, *stream, piece));
        }
    }
    assert_echo(&mut peer, 1, &uninvolved, &pattern(4, 10_000));
    assert_small(&exit);
    let mut came = vec![0; bytes.len()];
    (&stalled).read_exact(&mut came).unwrap();
    assert!(came == bytes);
    assert_echo(&mut peer, 1, &uninvolved, &pattern(5, 10_000));
}

/// Some programs send an empty frame with each flush.
#[test]
fn empty_frames_over_a_long_life_cost_no_stream() {
    let (listener, target) = target();
    let (_exit, carrier) = http2_exit(&format!(
        "allow: [{target_rule}]",
        target_rule = crate::common::rule(target)
    ));
    let mut peer = Peer::greeted(carrier);
    let server = open(&mut peer, 1, &listener);
    for round in 0..40 {
        for _ in 0..50 {
            assert!(peer.frame(DATA, 0, 1, &[]));
        }
        assert_echo(&mut peer, 1, &server, &pattern(round, 1000));
    }
}
