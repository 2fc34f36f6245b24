//! A peer that writes and reads HTTP/2 frames byte by byte.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread::{JoinHandle, spawn};

use crate::common::connect;

pub const DATA: u8 = 0;
pub const HEADERS: u8 = 1;
pub const RST_STREAM: u8 = 3;
pub const SETTINGS: u8 = 4;
const PING: u8 = 6;
const WINDOW_UPDATE: u8 = 8;
/// The payload of the PINGs of the library h2, which the gateway uses (h2's `Ping::USER`).
const PING_OF_H2: [u8; 8] = [0x3b, 0x7c, 0xdb, 0x7a, 0x0b, 0x87, 0x16, 0xb4];

/// One connection.
pub struct Peer(pub TcpStream);

/// A frame from the other end.
#[derive(Debug)]
pub struct Frame {
    pub kind: u8,
    pub flags: u8,
    pub stream: u32,
    pub payload: Vec<u8>,
}

impl Peer {
    /// Connects to `carrier`.
    pub fn new(carrier: SocketAddr) -> Self {
        let mut peer = Self(connect(carrier));
        peer.0
            .write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
            .unwrap();
        peer.frame(SETTINGS, 0, 0, &[]);
        peer
    }

    /// Connects, and waits for the answer to a PING. After the answer, the other end treats the
    /// connection as a carrier.
    pub fn greeted(carrier: SocketAddr) -> Self {
        let mut peer = Self::new(carrier);
        while peer.answer().is_some_and(|frame| frame.kind != PING) {}
        peer
    }

    /// Accepts a connection with these settings.
    pub fn accepted(tcp: TcpStream, settings: &[u8]) -> Self {
        let mut peer = Self(tcp);
        peer.0.read_exact(&mut [0; 24]).unwrap();
        peer.frame(SETTINGS, 0, 0, settings);
        peer
    }

    /// Sends a frame. Returns false if the other end has closed the connection.
    pub fn frame(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) -> bool {
        self.0
            .write_all(&encoded(kind, flags, stream, payload))
            .is_ok()
    }

    /// Sends the same frame many times, until the other end has closed the connection. Also answers
    /// each PING of the other end, so that the other end does not give the connection up on a slow
    /// machine before the frames reach a limit.
    pub fn flood(&mut self, kind: u8, stream: u32, payload: &[u8]) {
        let mut frames = encoded(kind, 0, stream, payload).repeat(1000);
        frames.extend(encoded(PING, 1, 0, &PING_OF_H2));
        while self.0.write_all(&frames).is_ok() {}
    }

    /// Sends `CONNECT AUTHORITY` in HPACK without a dynamic table.
    pub fn connect(&mut self, stream: u32, authority: SocketAddr) -> bool {
        self.frame(HEADERS, 4, stream, &head(&authority.to_string()))
    }

    /// Sends an extended CONNECT, with a protocol and a path.
    pub fn connect_to(&mut self, stream: u32, protocol: &str, authority: &str, path: &str) -> bool {
        let mut block = head(authority);
        // `:scheme: http`.
        block.push(0x86);
        block.push(0x04);
        block.extend(text(path));
        block.push(0);
        block.extend(text(":protocol"));
        block.extend(text(protocol));
        self.frame(HEADERS, 4, stream, &block)
    }

    /// Returns the next frame other than SETTINGS, PING and WINDOW_UPDATE. Answers SETTINGS and
    /// PING. `None`: the connection has ended.
    pub fn next(&mut self) -> Option<Frame> {
        loop {
            let frame = self.answer()?;
            if !matches!(frame.kind, SETTINGS | PING | WINDOW_UPDATE) {
                return Some(frame);
            }
        }
    }

    /// The next frame. Answers SETTINGS and PING.
    fn answer(&mut self) -> Option<Frame> {
        let mut head = [0; 9];
        self.0.read_exact(&mut head).ok()?;
        let [high, middle, low, kind, flags, stream @ ..] = head;
        let mut payload = vec![0; u32::from_be_bytes([0, high, middle, low]) as usize];
        self.0.read_exact(&mut payload).ok()?;
        match kind {
            SETTINGS if flags == 0 => drop(self.frame(SETTINGS, 1, 0, &[])),
            PING if flags == 0 => drop(self.frame(PING, 1, 0, &payload)),
            _ => {}
        }
        let stream = u32::from_be_bytes(stream);
        Some(Frame {
            kind,
            flags,
            stream,
            payload,
        })
    }

    /// The next frame of `stream`.
    pub fn next_of(&mut self, stream: u32) -> Frame {
        loop {
            let frame = self.next().expect("the connection has ended");
            if frame.stream == stream {
                return frame;
            }
        }
    }

    /// Reads all frames up to the end of the connection in the background. The result is the error
    /// code of the GOAWAY that ends the connection.
    pub fn ends(&self) -> JoinHandle<u32> {
        let peer = Self(self.0.try_clone().unwrap());
        spawn(move || peer.end())
    }

    /// The error code of the GOAWAY that ends the connection.
    pub fn end(mut self) -> u32 {
        let mut code = None;
        let mut all = Vec::new();
        let mut buffer = [0; 4096];
        while let Ok(length @ 1..) = self.0.read(&mut buffer) {
            all.extend_from_slice(&buffer[..length]);
        }
        let mut at = 0;
        while let Some(head) = all.get(at..at + 9) {
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
            if head[3] == 7 {
                let body = &all[at + 9..at + 9 + length];
                code = Some(u32::from_be_bytes(body[4..8].try_into().unwrap()));
            }
            at += 9 + length;
        }
        code.expect("a GOAWAY arrives")
    }
}

fn encoded(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut frame = vec![length[1], length[2], length[3], kind, flags];
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

fn head(authority: &str) -> Vec<u8> {
    let mut block = vec![0x02];
    block.extend(text("CONNECT"));
    block.push(0x01);
    block.extend(text(authority));
    block
}

/// Encodes a text of less than 127 bytes.
fn text(text: &str) -> Vec<u8> {
    let length = u8::try_from(text.len()).unwrap();
    assert!(length < 127);
    [&[length], text.as_bytes()].concat()
}
