//! Replays what each side of a JMUX carrier sends, byte for byte.
//!
//! The files in `transcripts/` are of two kinds: `jetsocat-*` were recorded on a carrier between
//! muxgate and jetsocat 2026.2.4; `rule-*` state one rule of interoperation each. A line is
//! - `do ACTION`: what the local side does (`open URL`, `accept`, `refuse N TEXT`, `send TEXT`,
//!   `finish`, `reset`, `took N`, `wait SECONDS`, `next` for the next stream);
//! - `< HEX`: what the peer sends; `> HEX`: all that we send then; `>` alone: nothing;
//! - `see EVENT`: what the application side sees next (`payload TEXT` and `discarded N` included);
//! - `error TEXT`: the peer's bytes end the session with this error;
//! - `end`: no stream is left and nothing is to be sent; `#`: a comment.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::disallowed_methods,
    reason = "a test"
)]

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use muxtunnel_proto::{
    CarrierId, Event, Header, JmuxConfig, JmuxSession, Reason, Refusal, ResetCode, Session,
    StreamId, Token, Transmit,
};

struct Replay {
    session: JmuxSession,
    now: Instant,
    stream: Option<StreamId>,
    others: VecDeque<StreamId>,
    batch: Vec<u8>,
    seen: VecDeque<String>,
    unread: Vec<u8>,
}

impl Replay {
    fn new() -> Self {
        // The initial window is a plain 64 KiB here: an eighth of what is not set aside.
        let config = JmuxConfig {
            streams_max: 1,
            receive_budget: 8 * (64 << 10),
            ..JmuxConfig::default()
        };
        let config = JmuxConfig {
            streams_max: 4,
            receive_budget: config.receive_budget + 3 * (16 << 10),
            ..config
        };
        Self {
            session: JmuxSession::new(config),
            now: Instant::now(),
            stream: None,
            others: VecDeque::new(),
            batch: Vec::new(),
            seen: VecDeque::new(),
            unread: Vec::new(),
        }
    }

    fn stream(&self) -> StreamId {
        self.stream.expect("no stream yet")
    }

    fn act(&mut self, action: &str) {
        let (verb, rest) = action.split_once(' ').unwrap_or((action, ""));
        match verb {
            "open" => self.stream = Some(self.session.open(self.now, rest).unwrap()),
            "accept" => self.session.accept(self.stream(), ""),
            "refuse" => {
                let (code, text) = rest.split_once(' ').unwrap();
                let refusal = Refusal::new(Reason::from_code(code.parse().unwrap()), text);
                self.session.refuse(self.stream(), refusal);
            }
            "send" => {
                let capacity = self
                    .session
                    .send_capacity(self.stream())
                    .expect("the stream takes no more");
                assert!(
                    rest.len() as u64 <= capacity.bytes,
                    "credit for {} bytes only",
                    capacity.bytes
                );
                self.batch = rest.as_bytes().to_vec();
                self.session
                    .source_ready(self.stream(), rest.len(), Token(0));
            }
            "finish" => self.session.finish(self.stream()),
            "reset" => self.session.reset(self.stream(), ResetCode::Cancelled),
            "took" => self
                .session
                .sink_took(self.now, self.stream(), rest.parse().unwrap()),
            "wait" => {
                self.now += Duration::from_secs(rest.parse().unwrap());
                self.session.handle_timeout(self.now).unwrap();
            }
            "next" => self.stream = Some(self.others.pop_front().expect("no other stream")),
            _ => panic!("unknown action {action:?}"),
        }
        self.events();
    }

    fn events(&mut self) {
        while let Some(event) = self.session.poll_event() {
            self.seen.push_back(match event {
                Event::Ready | Event::GoAway => continue,
                Event::Incoming { stream, target } => {
                    if self
                        .stream
                        .is_some_and(|old| self.session.credit(old).is_some())
                    {
                        self.others.push_back(stream);
                    } else {
                        self.stream = Some(stream);
                    }
                    format!("incoming {target}")
                }
                Event::Opened { .. } => "opened".to_owned(),
                Event::OpenFailed { refusal, .. } => {
                    format!("failed {} {}", refusal.reason.code(), refusal.description)
                }
                Event::Writable { .. } => "writable".to_owned(),
                Event::Finished { .. } => "finished".to_owned(),
                Event::Reset { cause, .. } => format!("reset {cause:?}"),
            });
        }
    }

    /// One byte at a time: a frame may arrive in any pieces.
    fn receive(&mut self, bytes: &[u8]) -> Result<(), String> {
        for &byte in bytes {
            self.unread.push(byte);
            self.take_unread()?;
        }
        Ok(())
    }

    fn take_unread(&mut self) -> Result<(), String> {
        loop {
            if let Some(receive) = self.session.receiving(CarrierId::ONLY) {
                if self.unread.is_empty() {
                    return Ok(());
                }
                let length = receive.length.min(self.unread.len());
                let bytes: Vec<u8> = self.unread.drain(..length).collect();
                self.session.payload_moved(CarrierId::ONLY, length);
                self.note_payload(receive.stream.is_some(), &bytes);
                continue;
            }
            match self
                .session
                .handle_header(self.now, CarrierId::ONLY, &self.unread)
            {
                Ok(Header::Incomplete { .. }) => return Ok(()),
                Ok(Header::Control { consumed } | Header::Payload { consumed, .. }) => {
                    self.unread.drain(..consumed);
                }
                Err(error) => return Err(error.to_string()),
            }
            self.events();
        }
    }

    fn note_payload(&mut self, wanted: bool, bytes: &[u8]) {
        match self.seen.back_mut() {
            Some(last) if wanted && last.starts_with("payload ") => {
                last.push_str(std::str::from_utf8(bytes).unwrap());
            }
            Some(last) if !wanted && last.starts_with("discarded ") => {
                let before: usize = last["discarded ".len()..].parse().unwrap();
                *last = format!("discarded {}", before + bytes.len());
            }
            _ if wanted => self
                .seen
                .push_back(format!("payload {}", std::str::from_utf8(bytes).unwrap())),
            _ => self.seen.push_back(format!("discarded {}", bytes.len())),
        }
    }

    fn transmitted(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        while let Some(transmit) = self.session.poll_transmit() {
            match transmit {
                Transmit::Control { bytes: frame, .. } => bytes.extend(frame),
                Transmit::Data {
                    header, payload, ..
                } => {
                    bytes.extend(&*header);
                    bytes.extend(&self.batch[payload.range]);
                }
            }
        }
        bytes
    }

    fn line(&mut self, line: &str) {
        let (kind, rest) = line.split_once(' ').unwrap_or((line, ""));
        match kind {
            "do" => self.act(rest),
            "<" => self.receive(&bytes(rest)).unwrap(),
            ">" => assert_eq!(
                hex(&self.transmitted()),
                hex(&bytes(rest)),
                "sent, expected"
            ),
            "see" => assert_eq!(
                self.seen.pop_front().as_deref(),
                Some(rest),
                "seen, expected"
            ),
            "error" => {
                let (wire, text) = rest.split_once(' ').unwrap();
                let error = self.receive(&bytes(wire)).unwrap_err();
                assert!(error.contains(text), "{error}");
            }
            "end" => {
                assert_eq!(self.seen.pop_front(), None, "more was seen");
                assert_eq!(hex(&self.transmitted()), "", "more was sent");
                assert_eq!(self.session.stream_count(), 0, "a stream is left");
                assert_eq!(self.session.receive_budget_used(), 0, "budget is left");
            }
            _ => panic!("unknown line"),
        }
    }
}

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex.bytes().filter(|b| !b.is_ascii_whitespace()).collect();
    digits
        .chunks(2)
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
        .collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn every_transcript_replays() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/transcripts");
    let mut files: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    assert!(
        files.len() >= 20,
        "transcripts are missing: {}",
        files.len()
    );
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        let mut replay = Replay::new();
        for (number, line) in text.lines().enumerate() {
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let at = format!(
                "{}:{}: {line}",
                file.file_name().unwrap().to_string_lossy(),
                number + 1
            );
            let step = std::panic::AssertUnwindSafe(|| replay.line(line));
            if let Err(cause) = std::panic::catch_unwind(step) {
                eprintln!("at {at}");
                std::panic::resume_unwind(cause);
            }
        }
        assert!(
            text.lines()
                .any(|line| line == "end" || line.starts_with("error ")),
            "{} proves no end",
            file.display()
        );
    }
}
