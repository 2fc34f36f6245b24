//! A peer that writes frames of the native protocol byte by byte.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Instant;

use muxtunnel_proto::native::codec::{
    self, Decoded, Frame, HEADER_BYTES, Hello, HelloAck, Parameters, RESUME, VERSION,
};
use muxtunnel_proto::{
    CarrierId, NativeConfig, NativeSession, Priority, Session, StreamId, Transmit,
};

pub const SESSION: [u8; 16] = [7; 16];
pub const TOKEN: [u8; 32] = [9; 32];

/// One carrier, from the peer's side.
pub struct Carrier {
    pub tcp: TcpStream,
    unread: Vec<u8>,
    /// Number of bytes of the complete frames after the hello.
    pub received: u64,
    /// Payload of all streams.
    pub payload: Vec<u8>,
}

impl Carrier {
    pub fn new(tcp: TcpStream) -> Self {
        Self {
            tcp,
            unread: Vec::new(),
            received: 0,
            payload: Vec::new(),
        }
    }

    pub fn send(&mut self, frame: &Frame) {
        self.tcp.write_all(&codec::encode(frame)).unwrap();
    }

    pub fn next(&mut self) -> Frame {
        loop {
            if let Some(frame) = self.take() {
                return frame;
            }
        }
    }

    /// Reads until `length` bytes of payload have arrived.
    pub fn read_payload(&mut self, length: usize) {
        while self.payload.len() < length {
            let _ = self.take();
        }
    }

    /// Decodes the next frame, or takes payload.
    fn take(&mut self) -> Option<Frame> {
        loop {
            let needed = match codec::decode(&self.unread).unwrap() {
                Decoded::Frame { frame, consumed } => {
                    self.unread.drain(..consumed);
                    let hello = matches!(frame, Frame::Hello(_) | Frame::HelloAck(_));
                    self.received += if hello { 0 } else { consumed as u64 };
                    return Some(frame);
                }
                Decoded::Stream { length, .. } => {
                    let all = HEADER_BYTES + length as usize;
                    if self.unread.len() >= all {
                        self.payload.extend(&self.unread[HEADER_BYTES..all]);
                        self.unread.drain(..all);
                        self.received += all as u64;
                        return None;
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

    /// The next frame. Skips measurements and acknowledgements.
    pub fn next_of_note(&mut self) -> Frame {
        loop {
            match self.next() {
                Frame::Ping(value) => self.send(&Frame::Pong(value)),
                Frame::Pong(_) | Frame::Ack { .. } => {}
                frame => return frame,
            }
        }
    }
}

pub fn parameters() -> Parameters {
    Parameters {
        initial_max_data: 1 << 20,
        initial_max_stream_data: 1 << 16,
        initial_max_streams: 10,
        frame_max: codec::FRAME_BYTES_MAX,
    }
}

pub fn hello(carrier: u32, session_id: [u8; 16], token: [u8; 32]) -> Frame {
    Frame::Hello(Hello {
        version_min: VERSION,
        version_max: VERSION,
        features: RESUME,
        carrier,
        session_id,
        token,
        parameters: parameters(),
    })
}

/// The answer to a hello.
pub fn hello_ack() -> Frame {
    Frame::HelloAck(HelloAck {
        version: VERSION,
        features: RESUME,
        session_id: SESSION,
        token: TOKEN,
        parameters: parameters(),
    })
}

/// The first `count` stream ids of the dialler, in ascending order.
pub fn stream_ids(count: usize) -> Vec<StreamId> {
    #[allow(clippy::disallowed_methods, reason = "the time has no effect")]
    let now = Instant::now();
    let mut session = NativeSession::dial(NativeConfig::default(), now);
    let answer = Frame::HelloAck(HelloAck {
        version: VERSION,
        features: 0,
        session_id: SESSION,
        token: TOKEN,
        parameters: Parameters {
            initial_max_streams: count as u64,
            ..parameters()
        },
    });
    let carrier = CarrierId::FIRST;
    session
        .handle_header(now, carrier, &codec::encode(&answer))
        .unwrap();
    assert!(matches!(
        session.poll_transmit(now, carrier),
        Some(Transmit::Control { .. })
    ));
    (0..count)
        .map(|_| {
            session
                .open(now, "tcp://x:1", Priority::Auto, None)
                .unwrap()
        })
        .collect()
}
