//! Peers that violate the native protocol, against a real exit. The exit disconnects each peer with
//! the code of its violation before the peer has used much of the exit's memory.

use std::io::{Read, Write};
use std::net::TcpStream;

use crate::common::peer::stream_ids;
use crate::common::{
    Gate, accept, assert_bulk, assert_reset, connect, end_of, free_port, metric, target, until,
};
use muxtunnel_proto::StreamId;
use muxtunnel_proto::native::codec::{self, Decoded, Frame, HEADER_BYTES, Hello, Parameters};
use muxtunnel_proto::native::{SessionCode, codec::stream_header};

const RECEIVE: usize = 16 << 20;

/// An exit that may dial `allow`, with a receive budget of [`RECEIVE`] bytes per session.
fn exit(carrier: u16, allow: &str) -> Gate {
    Gate::with_file(&format!(
        "role: Exit\nprotocol: Native\nsecurity: {{mode: None}}\nlisten: 127.0.0.1:{carrier}\n\
         admin: ADMIN\nworkers: 1\nallow: [{allow_rule}]\nmemory: {{receive: 16Mi}}\n\
         limits: {{streams: 64}}\n",
        allow_rule = crate::common::rule(allow)
    ))
    .until_ready()
}

/// A peer that writes frames byte by byte.
struct Peer {
    tcp: TcpStream,
    unread: Vec<u8>,
}

impl Peer {
    fn connect(carrier: u16) -> Self {
        let tcp = connect(([127, 0, 0, 1], carrier).into());
        Self {
            tcp,
            unread: Vec::new(),
        }
    }

    fn established(carrier: u16) -> (Self, Parameters) {
        let mut peer = Self::connect(carrier);
        peer.send(&Frame::Hello(hello(1)));
        let Frame::HelloAck(ack) = peer.next() else {
            panic!("expected the answer to the hello");
        };
        (peer, ack.parameters)
    }

    fn send(&mut self, frame: &Frame) {
        self.tcp.write_all(&codec::encode(frame)).unwrap();
    }

    /// The next frame. Payload is skipped.
    fn next(&mut self) -> Frame {
        loop {
            let needed = match codec::decode(&self.unread).unwrap() {
                Decoded::Frame { frame, consumed } => {
                    self.unread.drain(..consumed);
                    return frame;
                }
                Decoded::Stream { length, .. } => {
                    let all = HEADER_BYTES + length as usize;
                    if self.unread.len() >= all {
                        self.unread.drain(..all);
                        continue;
                    }
                    all
                }
                Decoded::Datagram { .. } => panic!("datagrams were not negotiated"),
                Decoded::Incomplete { needed } => needed,
            };
            let mut more = vec![0; needed - self.unread.len()];
            self.tcp.read_exact(&mut more).unwrap();
            self.unread.extend(more);
        }
    }

    /// Asserts that the session ends with this code, and that the connection then ends.
    fn assert_closed(&mut self, expected: SessionCode) -> String {
        loop {
            if let Frame::SessionClose { code, reason } = self.next() {
                assert_eq!(code, expected as u64, "{reason}");
                // If the exit has not read all data, the end of the connection may be a reset.
                let _ = end_of(&self.tcp);
                return reason;
            }
        }
    }
}

fn hello(version: u16) -> Hello {
    Hello {
        version_min: version,
        version_max: version,
        features: 0,
        carrier: 0,
        session_id: [0; 16],
        token: [0; 32],
        parameters: Parameters {
            initial_max_data: 1 << 20,
            initial_max_stream_data: 1 << 20,
            initial_max_streams: 10,
            frame_max: codec::FRAME_BYTES_MAX,
        },
    }
}

fn open(stream: StreamId, target: impl std::fmt::Display) -> Frame {
    Frame::Open {
        stream,
        priority: 0,
        source: None,
        target: format!("tcp://{target}"),
    }
}

fn peak_rss_bytes(exit: &Gate) -> usize {
    let status = exit.status();
    let bytes = status["process"]["maxRssBytes"].as_u64();
    usize::try_from(bytes.unwrap_or_else(|| panic!("no peak memory in {status}"))).unwrap()
}

#[test]
fn a_peer_that_ignores_a_streams_credit_is_cut_off_before_it_costs_memory() {
    let (listener, address) = target();
    let carrier = free_port();
    let exit = exit(carrier, &address.to_string());
    let (mut peer, parameters) = Peer::established(carrier);
    let stream = stream_ids(1)[0];
    peer.send(&open(stream, address));
    let _stalled = accept(&listener);
    // Subtracts the memory at the start, most of which is the program itself. A build without
    // optimization uses more.
    let before = peak_rss_bytes(&exit);
    let mut flood = peer.tcp.try_clone().unwrap();
    let flood = std::thread::spawn(move || {
        let payload = vec![0; 64 << 10];
        let mut offset = 0;
        // These bytes are far more than the granted credit, and more than the socket buffers can
        // hold.
        while offset < 20 * RECEIVE as u64 {
            let header = stream_header(stream, offset, payload.len() as u32, false);
            if flood.write_all(&[&header, &payload[..]].concat()).is_err() {
                return;
            }
            offset += payload.len() as u64;
        }
    });
    let reason = peer.assert_closed(SessionCode::FlowControlError);
    assert!(reason.contains("were granted"), "{reason}");
    flood.join().unwrap();
    exit.line(&["FlowControlError"]);
    assert!(parameters.initial_max_stream_data < 1 << 20);
    let peak = peak_rss_bytes(&exit);
    assert!(peak <= before + RECEIVE, "{before} {peak}");
}

#[test]
fn a_peer_that_opens_more_streams_than_it_may_is_cut_off_and_all_are_forgotten() {
    let (listener, address) = target();
    let carrier = free_port();
    let _exit = exit(carrier, &address.to_string());
    let (mut peer, parameters) = Peer::established(carrier);
    let streams = stream_ids(parameters.initial_max_streams as usize + 1);
    let (last, granted) = streams.split_last().unwrap();
    let mut stalled = Vec::new();
    for stream in granted {
        peer.send(&open(*stream, address));
        stalled.push(accept(&listener));
    }
    peer.send(&open(*last, address));
    peer.assert_closed(SessionCode::StreamLimitError);
    for target in &stalled {
        assert_reset(target);
    }
}

#[test]
fn what_is_not_the_protocol_is_told_from_a_version_that_nobody_has() {
    let carrier = free_port();
    let exit = exit(carrier, "127.0.0.1:1");
    let mut other = Peer::connect(carrier);
    other.tcp.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    assert!(matches!(end_of(&other.tcp), Ok(0) | Err(_)));
    exit.line(&["do both ends speak the native protocol?", "--protocol JMUX"]);
    let mut newer = Peer::connect(carrier);
    newer.send(&Frame::Hello(hello(7)));
    newer.assert_closed(SessionCode::VersionUnsupported);
}

#[test]
fn a_peer_that_says_nothing_is_cut_off() {
    let carrier = free_port();
    let exit = exit(carrier, "127.0.0.1:1");
    let mut silent = Peer::connect(carrier);
    silent.assert_closed(SessionCode::HelloTimeout);
    exit.line(&["sent no hello in time"]);
}

#[test]
fn a_frame_that_nobody_agreed_on_ends_the_session() {
    let carrier = free_port();
    let _exit = exit(carrier, "127.0.0.1:1");
    let (mut peer, _) = Peer::established(carrier);
    peer.send(&Frame::Ack { received: 1 });
    peer.assert_closed(SessionCode::ProtocolViolation);
}

#[test]
fn a_carrier_that_asks_for_a_session_that_is_not_there_is_told_so() {
    let carrier = free_port();
    let exit = exit(carrier, "127.0.0.1:1");
    // The first byte of a session id is the number of a worker. Worker 0 exists, worker 200 does
    // not.
    for worker in [0, 200] {
        let mut peer = Peer::connect(carrier);
        let mut session_id = [7; 16];
        session_id[0] = worker;
        peer.send(&Frame::Hello(Hello {
            carrier: 1,
            session_id,
            ..hello(1)
        }));
        peer.assert_closed(SessionCode::UnknownSession);
    }
    assert_eq!(exit.status()["carriers"], serde_json::json!([]));
}

#[test]
fn a_hello_that_comes_in_pieces_is_a_hello() {
    let carrier = free_port();
    let _exit = exit(carrier, "127.0.0.1:1");
    let mut peer = Peer::connect(carrier);
    let hello = codec::encode(&Frame::Hello(hello(1)));
    for piece in hello.chunks(hello.len() / 5) {
        peer.tcp.write_all(piece).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    assert!(matches!(peer.next(), Frame::HelloAck(_)));
}

#[test]
fn who_has_not_said_hello_takes_no_carriers_place() {
    let carrier = free_port();
    let exit = Gate::with_file(&format!(
        "role: Exit\nprotocol: Native\nsecurity: {{mode: None}}\nlisten: 127.0.0.1:{carrier}\n\
         admin: ADMIN\nworkers: 2\nlimits: {{carriers: 1}}\n"
    ))
    .until_ready();
    drop(connect(([127, 0, 0, 1], carrier).into()));
    exit.line(&["Carrier ended", "the peer closed the carrier"]);
    let _silent = connect(([127, 0, 0, 1], carrier).into());
    let (_peer, _) = Peer::established(carrier);
    let mut refused = Peer::connect(carrier);
    refused.send(&Frame::Hello(hello(1)));
    assert!(matches!(refused.tcp.read(&mut [0]), Ok(0) | Err(_)));
    exit.line(&["Carrier refused", "MT0209"]);
}

#[test]
fn silent_connections_to_a_jmux_exit_go_once_places_run_out_and_never_before() {
    const CARRIERS_MAX: usize = 4;
    let (listener, target) = target();
    let carrier = free_port();
    let exit = Gate::with_file(&format!(
        "role: Exit\nprotocol: JMUX\nsecurity: {{mode: None}}\nlisten: 127.0.0.1:{carrier}\nadmin: ADMIN\n\
         workers: 2\nallow: [{target_rule}]\nlimits: {{carriers: {CARRIERS_MAX}}}\n", target_rule = crate::common::rule(target)
    ))
    .until_ready();
    let address = ([127, 0, 0, 1], carrier).into();
    let carriers = || exit.status()["carriers"].as_array().unwrap().len();
    let evicted = || {
        let code = "muxgate_opens_refused_total{code=\"MT0209\"}";
        let page = exit.get("/metrics").1;
        match page.contains(code) {
            true => metric(&exit, code),
            false => 0,
        }
    };
    let silent: Vec<_> = (0..CARRIERS_MAX).map(|_| connect(address)).collect();
    until("all permits are in use", || carriers() == CARRIERS_MAX);
    // A silent connection may be an idle jetsocat, so it may stay open while permits are free.
    assert_eq!(evicted(), 0);
    let forward = free_port();
    let _entry = Gate::entry("JMUX", carrier, &[(forward, target)]).until_ready();
    until("one silent connection has been evicted", || evicted() == 1);
    let client = connect(([127, 0, 0, 1], forward).into());
    let accepted = accept(&listener);
    exit.line(&["MT0209", "evicted because another carrier needed the place"]);
    let is_closed = |tcp: &&TcpStream| {
        tcp.set_nonblocking(true).unwrap();
        tcp.peek(&mut [0]).is_ok()
    };
    until("the evicted connection has been informed", || {
        silent.iter().filter(is_closed).count() == 1
    });
    // More connections than permits arrive. They take all permits except the permit of the carrier
    // with an open stream.
    let more: Vec<_> = (0..2 * CARRIERS_MAX).map(|_| connect(address)).collect();
    until("one connection has been evicted for each new one", || {
        evicted() == 1 + 2 * CARRIERS_MAX as u64
    });
    until("the other connections are carriers", || {
        let closed = more.iter().filter(is_closed).count();
        closed == CARRIERS_MAX + 1 && carriers() == CARRIERS_MAX
    });
    assert_bulk(&client, accepted, 1 << 20);
}
