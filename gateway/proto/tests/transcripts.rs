//! Replays the bytes that each side of a carrier sends.
//!
//! The files in `transcripts/`:
//! - `jetsocat-*`: recorded on a carrier between muxgate and jetsocat 2026.2.4
//! - `rule-*`: one rule of interoperation with JMUX each
//! - `native-*`: one rule of docs/protocol.md each
//!
//! The first line names the protocol and our side: `jmux`, `native dialler` or `native acceptor`.
//! The last two may be followed by `with sources` or `with datagrams`. The other lines are
//! - `established`: the hello is complete (native, after the first line). `resumable`: with RESUME.
//!   `listening`: with LISTEN. `sourced`: with SOURCE. `datagrams`: with RESUME and DATAGRAM.
//!   `assigned`: with ASSIGN as well.
//! - `do ACTION`: an action of our side. For streams: `open URL`, `for name CLIENT SERVER` or
//!   `name-nobody`, `accept`, `refuse N TEXT`, `send TEXT`, `finish`, `reset`, `took N`, `next`
//!   (the next stream). For the session: `go-away`, `shut-down`, `wait SECONDS`, `want N`
//!   (carriers), `datagram HEX`, `assign IP`. For carriers: `probe`, `stir`, `lose`, `retire`, `add`, and
//!   `use N` (the following lines are about carrier N, counted from 0). For listeners:
//!   `listen ADDRESS`, and for the latest listener `unlisten`, `listening ADDRESS`,
//!   `end-listen TEXT`.
//! - `< HEX`: bytes that the peer sends. `> HEX`: all bytes that we then send. `>` alone: no bytes.
//!   `61*9` is nine times the byte 61.
//! - `see EVENT`: the next event for the application (including `payload TEXT`, or its length if it
//!   is long, and `discarded N`). `see over TEXT`: the session has ended with this error.
//! - `end`: no stream remains and no bytes wait to be sent. `#`: a comment.
//!
//! The files in `recorded/VERSION/` are the transcripts of a released version. Nobody edits them. So
//! they show that this version understands the peers of that version, and that such a peer, with its
//! features, gets the bytes that it knows. Only our own hello may differ.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::disallowed_methods,
    reason = "a test"
)]

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use muxtunnel_proto::native::codec::{self, Frame, Hello, HelloAck, Parameters};
use muxtunnel_proto::{
    Assignment, CarrierId, Event, Header, Identity, JmuxConfig, JmuxSession, ListenEvent, ListenId,
    NativeConfig, NativeSession, Priority, Reason, Refusal, ResetCode, Session, SessionError,
    Source, StreamId, Token, Transmit,
};
use muxtunnel_testkit::hex::{self, digits};

/// For longer payload, only the length is shown.
const PAYLOAD_SHOWN_MAX: usize = 64;

struct Replay {
    /// Whether the peer has an earlier version. It reads our hello by its own rules.
    is_recorded: bool,
    session: Box<dyn Session>,
    now: Instant,
    stream: Option<StreamId>,
    /// The source of the next opens.
    source: Option<Source>,
    others: VecDeque<StreamId>,
    listens: Vec<ListenId>,
    /// The batches by token.
    batches: Vec<Vec<u8>>,
    seen: VecDeque<String>,
    payload: Vec<u8>,
    discarded: usize,
    carrier: CarrierId,
    carriers: Vec<CarrierId>,
    unread: Vec<u8>,
}

impl Replay {
    fn new(first_line: &str) -> Self {
        let now = Instant::now();
        let (protocol, with) = first_line.split_once(" with ").unwrap_or((first_line, ""));
        let native = NativeConfig {
            sources: with == "sources",
            datagrams: with == "datagrams",
            streams_max: 4,
            // Three first windows of 16 KiB.
            receive_budget: 48 << 10,
            frame_max: 16 << 10,
            ..NativeConfig::default()
        };
        let identity = Identity {
            session_id: [0x11; 16],
            token: [0x22; 32],
        };
        let mut session: Box<dyn Session> = match protocol {
            "jmux" => Box::new(JmuxSession::new(jmux_config())),
            "native dialler" => Box::new(NativeSession::dial(native, now)),
            "native acceptor" => Box::new(NativeSession::accept(native, identity, now)),
            other => panic!("the first line is {other:?}, not a protocol"),
        };
        if protocol == "jmux" {
            // JMUX has no hello.
            assert_eq!(session.poll_event(), Some(Event::Ready));
        }
        Self {
            is_recorded: false,
            session,
            now,
            stream: None,
            source: None,
            others: VecDeque::new(),
            listens: Vec::new(),
            batches: Vec::new(),
            seen: VecDeque::new(),
            payload: Vec::new(),
            discarded: 0,
            carrier: CarrierId::FIRST,
            carriers: vec![CarrierId::FIRST],
            unread: Vec::new(),
        }
    }

    fn stream(&self) -> StreamId {
        self.stream.expect("no stream yet")
    }

    /// The latest listener.
    fn listen(&self) -> ListenId {
        *self.listens.last().expect("no listener yet")
    }

    /// The peer sends its hello. Does not compare our HELLO or HELLO_ACK and our PING.
    fn establish(&mut self, features: u32) {
        let mut dialled = false;
        self.session.wanting(&mut |_| dialled = true);
        let parameters = Parameters {
            initial_max_data: 0x1_0000,
            initial_max_stream_data: 0x4000,
            initial_max_streams: 4,
            frame_max: 16 << 10,
        };
        let hello = if dialled {
            Frame::HelloAck(HelloAck {
                version: 1,
                features,
                session_id: [0x11; 16],
                token: [0x22; 32],
                parameters,
            })
        } else {
            Frame::Hello(Hello {
                version_min: 1,
                version_max: 1,
                features,
                carrier: 0,
                session_id: [0; 16],
                token: [0; 32],
                parameters,
            })
        };
        self.receive(&codec::encode(&hello));
        assert_eq!(self.seen.pop_front().as_deref(), Some("ready"));
        self.transmitted();
    }

    fn act(&mut self, action: &str) {
        let (verb, rest) = action.split_once(' ').unwrap_or((action, ""));
        match verb {
            "open" => self.open(rest, Priority::Auto),
            "name-nobody" => self.source = Some(Source::Unknown),
            "name" => {
                let (client, server) = rest.split_once(' ').expect("two ends");
                let source = Source::of(client.parse().unwrap(), server.parse().unwrap());
                self.source = Some(source);
            }
            "open-interactive" => self.open(rest, Priority::Interactive),
            "open-bulk" => self.open(rest, Priority::Bulk),
            "accept" => self.session.accept(self.stream(), "192.0.2.1:80"),
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
                let batch = text(rest);
                assert!(
                    batch.len() as u64 <= capacity.bytes,
                    "credit for {} bytes only",
                    capacity.bytes
                );
                let token = Token(self.batches.len() as u64);
                self.session
                    .source_ready(self.stream(), batch.len(), batch.len(), token);
                self.batches.push(batch);
            }
            "finish" => self.session.finish(self.stream()),
            "reset" => self.session.reset(self.stream(), ResetCode::Cancelled),
            "took" => self
                .session
                .sink_took(self.now, self.stream(), rest.parse().unwrap()),
            "go-away" => self.session.go_away(),
            "wait" => {
                self.now += Duration::from_secs(rest.parse().unwrap());
                if let Err(error) = self.session.handle_timeout(self.now) {
                    self.over(&error);
                }
            }
            "shut-down" => self.session.shut_down(),
            "lose" => self.session.handle_carrier_lost(self.now, self.carrier),
            "add" => {
                let added = self.session.add_carrier(self.now);
                self.carriers.push(added.expect("no carrier can be added"));
            }
            "use" => {
                assert!(self.unread.is_empty(), "half a frame is left");
                self.carrier = self.carriers[rest.parse::<usize>().unwrap()];
            }
            "retire" => assert!(
                self.session.retire_carrier(self.carrier),
                "the carrier cannot be retired"
            ),
            "stir" => self.session.stir(self.carrier),
            "probe" => assert!(self.session.probe(self.carrier), "no probe was sent"),
            "datagram" => {
                let header = self
                    .session
                    .transmit_datagram(self.carrier, bytes(rest).len());
                let seen = header.map(|header| format!("leaves behind {}", digits(&header)));
                self.seen
                    .push_back(seen.unwrap_or_else(|| "does not leave".to_owned()));
            }
            "assign" => {
                let assignment = Assignment {
                    addresses: vec![rest.parse().unwrap()],
                    ..Assignment::default()
                };
                if !self.session.assign(&assignment) {
                    self.seen.push_back("not assigned".to_owned());
                }
            }
            "want" => self.session.want_carriers(rest.parse().unwrap()),
            "listen" => match self.session.listen(rest, Priority::Bulk) {
                Ok(listen) => self.listens.push(listen),
                Err(error) => self.seen.push_back(format!("no listener: {error}")),
            },
            "unlisten" => self.session.unlisten(self.listen()),
            "listening" => self.session.listening(self.listen(), rest),
            "end-listen" => {
                let refusal = Refusal::new(Reason::NotAllowed, rest);
                self.session.end_listen(self.listen(), refusal);
            }
            "next" => self.stream = Some(self.others.pop_front().expect("no other stream")),
            _ => panic!("unknown action {action:?}"),
        }
        self.events();
    }

    fn open(&mut self, target: &str, priority: Priority) {
        match self.session.open(self.now, target, priority, self.source) {
            Ok(stream) => self.stream = Some(stream),
            Err(error) => self.seen.push_back(format!("no stream: {error}")),
        }
    }

    fn over(&mut self, error: &SessionError) {
        self.session.close(error);
        self.seen.push_back(format!("over {error}"));
    }

    fn events(&mut self) {
        while let Some(event) = self.session.poll_event() {
            self.note_payload();
            let seen = match event {
                Event::Ready => "ready".to_owned(),
                Event::GoAway => "goaway".to_owned(),
                Event::Incoming {
                    stream,
                    target,
                    source,
                } => {
                    self.incoming(stream);
                    let source = source.map(|source| match source {
                        Source::Unknown => " of nobody".to_owned(),
                        Source::Tcp { client, server } => format!(" of {client} at {server}"),
                    });
                    format!("incoming {target}{}", source.unwrap_or_default())
                }
                Event::Opened { address, .. } => format!("opened {address}").trim_end().to_owned(),
                Event::OpenFailed { refusal, .. } => {
                    format!("failed {} {}", refusal.reason.code(), refusal.description)
                }
                Event::OpenReturned { .. } => "returned".to_owned(),
                Event::Writable { .. } => "writable".to_owned(),
                Event::Finished { .. } => "finished".to_owned(),
                Event::Reset { cause, .. } => format!("reset {cause:?}"),
                Event::CarrierUp { carrier } if carrier == CarrierId::FIRST => continue,
                Event::CarrierUp { carrier } => format!("carrier {} is up", carrier.number()),
                Event::CarrierEnded { carrier, reason } => {
                    format!("carrier {} ended: {reason}", carrier.number())
                }
                Event::CarrierRetired { carrier } => {
                    format!("carrier {} is retired", carrier.number())
                }
                Event::Assigned(assignment) => format!("assigned {:?}", assignment.addresses),
                Event::CarriersWanted { count } => format!("{count} carriers wanted"),
                Event::Listen(ListenEvent::Asked {
                    listen,
                    address,
                    priority,
                }) => {
                    self.listens.push(listen);
                    let number = listen.number();
                    format!("listener {number} requested: {address} {priority:?}")
                }
                Event::Listen(ListenEvent::GivenUp { listen }) => {
                    format!("listener {} given up", listen.number())
                }
                Event::Listen(ListenEvent::Listening { listen, address }) => {
                    format!("listener {} at {address}", listen.number())
                }
                Event::Listen(ListenEvent::Ended { listen, refusal }) => {
                    let (number, code) = (listen.number(), refusal.reason.code());
                    format!("listener {number} ended: {code} {}", refusal.description)
                }
            };
            self.seen.push_back(seen);
        }
    }

    fn incoming(&mut self, stream: StreamId) {
        let old = self.stream.and_then(|old| self.session.credit(old));
        if old.is_some() {
            self.others.push_back(stream);
        } else {
            self.stream = Some(stream);
        }
    }

    /// Receives one byte at a time, because a frame may arrive in any pieces.
    fn receive(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.unread.push(byte);
            if let Err(error) = self.take_unread() {
                self.note_payload();
                return self.over(&error);
            }
        }
        self.note_payload();
    }

    fn take_unread(&mut self) -> Result<(), SessionError> {
        loop {
            if let Some(receive) = self.session.receiving(self.carrier) {
                if self.unread.is_empty() {
                    return Ok(());
                }
                let length = receive.length.min(self.unread.len());
                let bytes: Vec<u8> = self.unread.drain(..length).collect();
                self.session.payload_moved(self.now, self.carrier, length);
                match receive.stream {
                    Some(_) => self.payload.extend(bytes),
                    None => self.discarded += length,
                }
                self.events();
                continue;
            }
            match self
                .session
                .handle_header(self.now, self.carrier, &self.unread)?
            {
                Header::Incomplete { .. } => return Ok(()),
                Header::Control { consumed } | Header::Payload { consumed, .. } => {
                    self.events();
                    self.unread.drain(..consumed);
                }
                Header::Datagram { header, consumed } => {
                    let packet = digits(&self.unread[header..consumed]);
                    self.seen.push_back(format!("datagram {packet}"));
                    self.unread.drain(..consumed);
                }
            }
        }
    }

    /// Turns the payload since the last event into an event.
    fn note_payload(&mut self) {
        let payload = std::mem::take(&mut self.payload);
        if payload.len() > PAYLOAD_SHOWN_MAX {
            self.seen
                .push_back(format!("payload of {} bytes", payload.len()));
        } else if !payload.is_empty() {
            let text = std::str::from_utf8(&payload).unwrap();
            self.seen.push_back(format!("payload {text}"));
        }
        let discarded = std::mem::take(&mut self.discarded);
        if discarded > 0 {
            self.seen.push_back(format!("discarded {discarded}"));
        }
    }

    fn transmitted(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        while let Some(transmit) = self.session.poll_transmit(self.now, self.carrier) {
            match transmit {
                Transmit::Control { bytes: frame, .. } => bytes.extend(frame),
                Transmit::Data {
                    header, payload, ..
                }
                | Transmit::Again {
                    header, payload, ..
                } => {
                    bytes.extend(&*header);
                    let batch = &self.batches[payload.token.0 as usize];
                    bytes.extend(&batch[payload.range]);
                }
            }
        }
        bytes
    }

    fn line(&mut self, line: &str) {
        let (kind, rest) = line.split_once(' ').unwrap_or((line, ""));
        match kind {
            "established" => self.establish(0),
            "resumable" => self.establish(codec::RESUME),
            "listening" => self.establish(codec::RESUME | codec::LISTEN_FEATURE),
            "sourced" => self.establish(codec::SOURCE),
            "datagrams" => self.establish(codec::RESUME | codec::DATAGRAM_FEATURE),
            "assigned" => {
                self.establish(codec::RESUME | codec::DATAGRAM_FEATURE | codec::ASSIGN_FEATURE);
            }
            "do" => self.act(rest),
            "<" => self.receive(&bytes(rest)),
            ">" if self.is_recorded && is_hello(rest) => drop(self.transmitted()),
            ">" => assert_eq!(
                digits(&self.transmitted()),
                digits(&bytes(rest)),
                "sent, expected"
            ),
            "see" => assert_eq!(
                self.seen.pop_front().as_deref(),
                Some(rest),
                "seen, expected"
            ),
            "end" => {
                assert_eq!(self.seen.pop_front(), None, "more was seen");
                assert_eq!(digits(&self.transmitted()), "", "more was sent");
                assert_eq!(self.session.stream_count(), 0, "a stream is left");
                assert_eq!(self.session.receive_budget_used(), 0, "budget is left");
            }
            _ => panic!("unknown line"),
        }
    }
}

/// Whether the bytes begin with HELLO or HELLO_ACK.
fn is_hello(line: &str) -> bool {
    ["01000070", "02000064"]
        .iter()
        .any(|head| line.starts_with(head))
}

fn jmux_config() -> JmuxConfig {
    // With this budget, the initial window is 64 KiB: an eighth of the bytes not set aside.
    JmuxConfig {
        streams_max: 4,
        receive_budget: 8 * (64 << 10) + 3 * (16 << 10),
        ..JmuxConfig::default()
    }
}

/// Expands `61*9` to nine times `61`. Returns any other text unchanged.
fn text(text: &str) -> Vec<u8> {
    match text.split_once('*') {
        Some(_) => bytes(text),
        None => text.as_bytes().to_vec(),
    }
}

fn bytes(text: &str) -> Vec<u8> {
    text.split_whitespace()
        .flat_map(|word| {
            let (bytes, times) = word.split_once('*').unwrap_or((word, "1"));
            hex::bytes(bytes).repeat(times.parse().unwrap())
        })
        .collect()
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
        files.len() >= 60,
        "transcripts are missing: {}",
        files.len()
    );
    let failed = files.iter().filter_map(|file| replay(file, false));
    let failed: Vec<String> = failed.collect();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

#[test]
fn peers_of_earlier_versions_are_understood() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/recorded");
    let mut files = Vec::new();
    for version in std::fs::read_dir(folder).unwrap() {
        let entries = std::fs::read_dir(version.unwrap().path()).unwrap();
        files.extend(entries.map(|entry| entry.unwrap().path()));
    }
    files.sort();
    assert!(
        files.len() >= 25,
        "transcripts are missing: {}",
        files.len()
    );
    let failed = files.iter().filter_map(|file| replay(file, true));
    let failed: Vec<String> = failed.collect();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

/// Replays a transcript; returns where it fails.
fn replay(file: &std::path::Path, is_recorded: bool) -> Option<String> {
    let name = file.file_name().unwrap().to_string_lossy();
    let text = std::fs::read_to_string(file).unwrap();
    let mut lines = text.lines();
    let mut replay = Replay::new(lines.next().expect("an empty transcript"));
    replay.is_recorded = is_recorded;
    for (number, line) in lines.enumerate() {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let step = std::panic::AssertUnwindSafe(|| replay.line(line));
        if std::panic::catch_unwind(step).is_err() {
            return Some(format!("at {name}:{}: {line}", number + 2));
        }
    }
    let ends = text.lines().last() == Some("end");
    (!ends).then(|| format!("{name} has no line `end`"))
}
