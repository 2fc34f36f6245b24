//! One session whose peer says anything at all.
//!
//! Whatever comes, nothing panics, memory and tables keep their bounds, what is said stays finite, and
//! the session that gives up leaves nothing behind.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use muxtunnel_proto::LISTENS_MAX;
use muxtunnel_proto::native::codec::{self, Frame, Hello, HelloAck, Parameters, VERSION};
use muxtunnel_proto::{
    CarrierId, Event, Header, Identity, JmuxConfig, JmuxSession, ListenEvent, ListenId,
    NativeConfig, NativeSession, Priority, Reason, Refusal, ResetCode, Session, SessionError,
    StreamId, Token, Transmit,
};

use super::super::{Choices, Protocol};

const STREAMS_MAX: u32 = 4;
/// Less than the first windows of all streams in the native protocol, which may overcommit; in JMUX
/// each has its least window set aside.
const fn receive_budget(protocol: Protocol) -> u64 {
    match protocol {
        Protocol::Jmux => 1 << 20,
        Protocol::Native => 40 << 10,
    }
}
/// Most bytes that a local socket sends at once; a peer may ask for frames of one byte.
const BATCH_BYTES_MAX: usize = 200;
/// More frames than this at once would be a loop: a batch of each stream in bytes, and some control.
const FRAMES_MAX: usize = 4096;

/// Arbitrary bytes, and frames with arbitrary fields, into a session with applications behind it.
pub fn session_input(input: &[u8]) {
    let mut choices = Choices::of_bytes(input);
    let mut target = Target::new(&mut choices);
    while !choices.exhausted() {
        if let Err(error) = target.step(&mut choices) {
            target.end(&error);
            return;
        }
        target.check();
    }
}

#[derive(Default)]
struct Local {
    /// Received in order, not taken.
    held: usize,
    /// Taken, too; and what came behind a gap, start and end.
    arrived: u64,
    early: BTreeMap<u64, u64>,
    /// Up to which offset payload was announced.
    announced: u64,
    batch: Option<Token>,
    dialling: bool,
}

impl Local {
    fn take(&mut self, offset: u64, length: usize) {
        let before = self.early.insert(offset, offset + length as u64);
        assert!(before.is_none() && offset >= self.arrived, "payload twice");
        while let Some(entry) = self.early.first_entry()
            && *entry.key() == self.arrived
        {
            let end = entry.remove();
            self.held += (end - self.arrived) as usize;
            self.arrived = end;
        }
    }
}

struct Target {
    protocol: Protocol,
    session: Box<dyn Session>,
    began: Instant,
    now: Instant,
    sockets: BTreeMap<StreamId, Local>,
    /// Listeners that are asked for, and that the session asks for them.
    listens: BTreeSet<ListenId>,
    asks: bool,
    /// Of each carrier, oldest first: what has come on it.
    carriers: Vec<(CarrierId, Vec<u8>)>,
    /// The one that the peer speaks on.
    speaks: usize,
    resume: bool,
    /// The session may ask for them again.
    retained: BTreeSet<u64>,
    next_token: u64,
    /// The peer's next stream, and what it has sent on each.
    next_open: u64,
    received: BTreeMap<u64, u64>,
}

impl Target {
    fn new(choices: &mut Choices) -> Self {
        let protocol = choices.of(&Protocol::ALL);
        let now = Instant::now();
        let mut unread = Vec::new();
        let established = !choices.one_in(8);
        let resume = choices.one_in(2);
        let features = codec::LISTEN_FEATURE | if resume { codec::RESUME } else { 0 };
        let dialled = choices.below(2) == 0;
        let session: Box<dyn Session> = match (protocol, dialled) {
            (Protocol::Jmux, _) => Box::new(JmuxSession::new(JmuxConfig {
                streams_max: STREAMS_MAX,
                receive_budget: receive_budget(protocol),
                ..JmuxConfig::default()
            })),
            (Protocol::Native, true) => {
                unread.extend(codec::encode(&hello_ack(features)));
                Box::new(NativeSession::dial(native_config(), now))
            }
            (Protocol::Native, false) => {
                unread.extend(codec::encode(&hello(features, 0, [0; 16])));
                let identity = Identity {
                    session_id: [7; 16],
                    token: [9; 32],
                };
                Box::new(NativeSession::accept(native_config(), identity, now))
            }
        };
        if !established {
            unread.clear();
        }
        let mut target = Self {
            protocol,
            session,
            began: now,
            now,
            sockets: BTreeMap::new(),
            listens: BTreeSet::new(),
            asks: false,
            carriers: vec![(CarrierId::FIRST, unread)],
            speaks: 0,
            resume: resume && established && protocol == Protocol::Native,
            retained: BTreeSet::new(),
            next_token: 0,
            next_open: if dialled { 1 } else { 2 },
            received: BTreeMap::new(),
        };
        target.consume(choices).expect("a hello as it should be");
        target
    }

    fn step(&mut self, choices: &mut Choices) -> Result<(), SessionError> {
        match choices.below(8) {
            0 if self.resume && choices.one_in(4) => self.change_carriers(choices),
            0..=1 => self.act(choices),
            2 if choices.one_in(16) => {
                let length = choices.below(40);
                let bytes = (0..length).map(|_| choices.below(256) as u8);
                self.unread().extend(bytes);
            }
            _ => match self.protocol {
                Protocol::Jmux => self.push_jmux(choices),
                Protocol::Native => self.push_native(choices),
            },
        }
        self.consume(choices)?;
        self.session.handle_timeout(self.now)?;
        self.drain();
        Ok(())
    }

    fn unread(&mut self) -> &mut Vec<u8> {
        &mut self.carriers[self.speaks].1
    }

    /// A carrier is added or lost, or the peer goes on on another one.
    fn change_carriers(&mut self, choices: &mut Choices) {
        match choices.below(4) {
            0 => {
                if let Some(id) = self.session.add_carrier(self.now) {
                    let number = id.number().max(1);
                    let hello = match self.next_open % 2 {
                        0 => hello(codec::RESUME, number, [7; 16]),
                        _ => hello_ack(codec::RESUME),
                    };
                    self.carriers.push((id, codec::encode(&hello)));
                    self.speaks = self.carriers.len() - 1;
                }
            }
            1 if self.carriers.len() > 1 => {
                let (id, _) = self.carriers.remove(self.speaks);
                self.session.handle_carrier_lost(self.now, id);
                self.speaks = choices.below(self.carriers.len());
            }
            2 => {
                let begins = self.session.retire_carrier(self.carriers[self.speaks].0);
                assert!(
                    !begins || self.carriers.len() > 1,
                    "the last one is retired"
                );
                self.session.want_carriers(choices.below(4) as u32);
            }
            _ => self.speaks = choices.below(self.carriers.len()),
        }
    }

    /// The application does something.
    fn act(&mut self, choices: &mut Choices) {
        let ids: Vec<StreamId> = self.sockets.keys().copied().collect();
        let chosen = (!ids.is_empty()).then(|| choices.of(&ids));
        let what = choices.below(9);
        match (what, chosen) {
            (0, _) => {
                let priority = Priority::from_code(choices.below(3) as u8);
                if let Ok(id) = self.session.open(self.now, "tcp://a:1", priority, None) {
                    self.sockets.insert(id, Local::default());
                }
            }
            (1, _) => self.now += Duration::from_millis(choices.below(20_000) as u64),
            (2, _) if choices.one_in(8) => self.session.go_away(),
            (2, _) if choices.one_in(2) => self.listen(choices),
            (3..=4, Some(id)) => self.source(id, 1 + choices.below(BATCH_BYTES_MAX)),
            (5, Some(id)) => self.sink(id, choices.below(1 << 16)),
            (6, Some(id)) => self.session.finish(id),
            (7, Some(id)) => {
                self.sockets.remove(&id);
                self.session
                    .reset(id, ResetCode::from_code(choices.below(8) as u16));
            }
            (8, Some(id)) => self.answer(id, choices.one_in(2)),
            _ => {}
        }
    }

    /// One more listener, or another answer to one.
    fn listen(&mut self, choices: &mut Choices) {
        let known: Vec<ListenId> = self.listens.iter().copied().collect();
        match (choices.below(4), known.is_empty()) {
            (0, _) | (_, true) => {
                let asked = self.session.listen("[::]:80", Priority::Auto);
                self.asks |= asked.is_ok();
                self.listens.extend(asked);
            }
            (1, _) => self.session.listening(choices.of(&known), "[::]:80"),
            (_, _) => {
                let listen = choices.of(&known);
                self.listens.remove(&listen);
                if self.asks {
                    self.session.unlisten(listen);
                } else {
                    let refusal = Refusal::new(Reason::General, "no");
                    self.session.end_listen(listen, refusal);
                }
            }
        }
        assert!(self.listens.len() <= LISTENS_MAX, "{}", self.listens.len());
    }

    fn source(&mut self, id: StreamId, wanted: usize) {
        let capacity = self.session.send_capacity(id);
        let socket = self.sockets.get_mut(&id).expect("it was picked");
        let length = capacity.map_or(0, |capacity| (wanted as u64).min(capacity.bytes));
        if length > 0 && !socket.dialling {
            assert_eq!(socket.batch, None, "capacity while a batch waits");
            self.next_token += 1;
            let token = Token(self.next_token);
            socket.batch = Some(token);
            let held = 2 * length as usize;
            self.session.source_ready(id, length as usize, held, token);
        } else if capacity.is_some_and(|capacity| capacity.bytes == 0) {
            self.session.want_credit(id);
        }
    }

    fn sink(&mut self, id: StreamId, most: usize) {
        let socket = self.sockets.get_mut(&id).expect("it was picked");
        let taken = socket.held.min(most);
        if taken > 0 && !socket.dialling {
            socket.held -= taken;
            self.session.sink_took(self.now, id, taken);
        }
    }

    fn answer(&mut self, id: StreamId, refuse: bool) {
        let socket = self.sockets.get_mut(&id).expect("it was picked");
        if !std::mem::take(&mut socket.dialling) {
            return;
        }
        if refuse {
            self.sockets.remove(&id);
            let refusal = Refusal::new(Reason::ConnectionRefused, "no");
            self.session.refuse(id, refusal);
        } else {
            self.session.accept(id, "192.0.2.1:1");
        }
    }

    /// A frame that keeps most of the rules most of the time, or else the session would end with the
    /// first one.
    fn push_native(&mut self, choices: &mut Choices) {
        const USUAL: [u8; 11] = [
            0x10, 0x10, 0x10, 0x08, 0x18, 0x19, 0x11, 0x09, 0x1b, 0x1c, 0x04,
        ];
        const RARE: [u8; 14] = [
            0x05, 0x06, 0x1a, 0x03, 0x01, 0x02, 0x20, 0x21, 0x22, 0x23, 0x07, 0x28, 0x29, 0x2a,
        ];
        let lawful = !choices.one_in(16);
        let drawn = if choices.one_in(16) {
            choices.of(&RARE)
        } else {
            choices.of(&USUAL)
        };
        // OPENED is for the streams that the session opened.
        let wanted = |id: &u64| drawn != 0x09 || id % 2 != self.next_open % 2;
        let numbers = self.sockets.keys().map(|id| id.number());
        let known: Vec<u64> = numbers.filter(wanted).collect();
        let about_stream = !matches!(drawn, 0x03..=0x06 | 0x19 | 0x1a | 0x20 | 0x28..=0x2a);
        let frame_type = match about_stream && lawful && known.is_empty() {
            true => 0x08,
            false => drawn,
        };
        let mut stream = match frame_type {
            _ if !about_stream => 0,
            0x08 if lawful => self.next_open,
            _ if lawful => choices.of(&known),
            _ => choices.below(12) as u64,
        };
        if frame_type == 0x08 {
            self.next_open = stream + 2;
        }
        let body: &[u8] = match frame_type {
            0x08 => b"\0tcp://b:2",
            0x28 => b"\0[::]:80",
            0x1b => b"\0\x01",
            _ => &[],
        };
        let mut length = body.len() as u64;
        let mut offset = match frame_type {
            0x06 | 0x08 | 0x09 | 0x28 | 0x29 => 0,
            0x1c => choices.below(8) as u64,
            _ => number(choices, 1 << 40),
        };
        if matches!(frame_type, 0x10 | 0x11 | 0x1b) && lawful {
            offset = self.received.get(&stream).copied().unwrap_or_default();
            if self.resume && choices.one_in(4) {
                // With a gap before it.
                offset += number(choices, 1 << 14);
            }
        }
        if matches!(frame_type, 0x10 | 0x11) {
            length = number(choices, if lawful { 1 << 14 } else { 1 << 20 });
            let received = self.received.entry(stream).or_default();
            *received = offset.max(*received) + length;
        }
        if !lawful && choices.one_in(4) {
            stream = choices.below(1 << 16) as u64;
        }
        if matches!(frame_type, 0x28..=0x2a) {
            // The listener: bytes 4 to 7.
            stream = (1 + choices.below(100) as u64) << 16;
            offset &= 3;
        }
        let wide = u128::from(frame_type) << 120
            | u128::from(length) << 96
            | u128::from(stream) << 48
            | u128::from(offset);
        self.unread().extend(wide.to_be_bytes());
        self.unread().extend(body);
    }

    fn push_jmux(&mut self, choices: &mut Choices) {
        let message_type = 100 + choices.below(7) as u8;
        let channel = choices.below(8) as u32;
        let mut body = channel.to_be_bytes().to_vec();
        match message_type {
            100 => {
                body.extend((number(choices, 1 << 32) as u32).to_be_bytes());
                body.extend((number(choices, 1 << 16) as u16).to_be_bytes());
                body.extend(b"tcp://b:2");
            }
            101 => {
                body.extend((choices.below(8) as u32).to_be_bytes());
                body.extend((number(choices, 1 << 32) as u32).to_be_bytes());
                body.extend((number(choices, 1 << 16) as u16).to_be_bytes());
            }
            102 => body.extend([0, 0, 0, 5]),
            103 => body.extend((number(choices, 1 << 32) as u32).to_be_bytes()),
            _ => {}
        }
        let payload = match message_type {
            104 => number(choices, 60_000) as usize,
            _ => 0,
        };
        let size = (4 + body.len() + payload) as u16;
        let extensions = choices.below(2) as u8;
        let unread = self.unread();
        unread.push(message_type);
        unread.extend(size.to_be_bytes());
        unread.push(extensions);
        unread.extend(body);
    }

    /// Frames come from the bytes; payload is made up as it is announced, in pieces.
    fn consume(&mut self, choices: &mut Choices) -> Result<(), SessionError> {
        let carrier = self.carriers[self.speaks].0;
        let mut unread = std::mem::take(self.unread());
        let mut position = 0;
        loop {
            if let Some(receive) = self.session.receiving(carrier) {
                let length = 1 + choices.below(receive.length);
                self.session.payload_moved(carrier, length);
                if let Some(id) = receive.stream {
                    let socket = self.sockets.get_mut(&id);
                    let socket = socket.expect("payload for nobody");
                    socket.take(receive.offset, length);
                }
                self.drain_events();
                continue;
            }
            let bytes = &unread[position..];
            if bytes.is_empty() {
                break;
            }
            match self.session.handle_header(self.now, carrier, bytes)? {
                Header::Incomplete { needed } => {
                    super::check_needed(bytes, needed);
                    break;
                }
                Header::Control { consumed } => {
                    super::check_consumed(bytes, consumed, &"a frame");
                    position += consumed;
                }
                Header::Datagram { header, consumed } => {
                    super::check_consumed(bytes, consumed, &"a datagram");
                    assert!(header < consumed, "it carries a packet");
                    position += consumed;
                }
                Header::Payload { consumed, receive } => {
                    super::check_consumed(bytes, consumed, &"a frame");
                    position += consumed;
                    if let Some(socket) = receive.stream.and_then(|id| self.sockets.get_mut(&id)) {
                        let end = receive.offset + receive.length as u64;
                        socket.announced = socket.announced.max(end);
                    }
                }
            }
            self.drain_events();
        }
        unread.drain(..position);
        *self.unread() = unread;
        Ok(())
    }

    fn drain_events(&mut self) {
        while let Some(event) = self.session.poll_event() {
            match event {
                Event::Incoming { stream, .. } => {
                    let socket = Local {
                        dialling: true,
                        ..Local::default()
                    };
                    let before = self.sockets.insert(stream, socket);
                    assert!(before.is_none(), "{stream:?} is used again");
                }
                Event::OpenFailed { stream, .. } | Event::OpenReturned { stream } => {
                    self.sockets.remove(&stream);
                }
                Event::Reset { stream, .. } => {
                    // What came is delivered, then the driver gives the stream up.
                    if let Some(socket) = self.sockets.remove(&stream) {
                        self.session.sink_took(self.now, stream, socket.held);
                        self.session.reset(stream, ResetCode::Cancelled);
                    }
                }
                Event::Listen(ListenEvent::Asked { listen, .. }) => {
                    assert!(self.listens.insert(listen), "{listen:?} is used again");
                }
                Event::Listen(ListenEvent::GivenUp { listen })
                | Event::Listen(ListenEvent::Ended { listen, .. }) => {
                    assert!(self.listens.remove(&listen), "{listen:?} is not known");
                }
                Event::Listen(ListenEvent::Listening { listen, .. }) => {
                    assert!(self.listens.contains(&listen), "{listen:?} is not known");
                }
                Event::Ready
                | Event::CarrierRetired { .. }
                | Event::CarriersWanted { .. }
                | Event::GoAway
                | Event::Assigned(_)
                | Event::CarrierUp { .. }
                | Event::CarrierEnded { .. }
                | Event::Opened { .. }
                | Event::Writable { .. }
                | Event::Finished { .. } => {}
            }
        }
    }

    /// What the session says, to the application and to the peer.
    fn drain(&mut self) {
        self.drain_events();
        for frames in 0.. {
            assert!(frames < FRAMES_MAX, "frames without an end");
            let carriers = self.carriers.iter().map(|(id, _)| *id);
            let frame = carriers.collect::<Vec<_>>().into_iter();
            let Some(frame) = frame
                .map(|id| self.session.poll_transmit(id))
                .find_map(|f| f)
            else {
                break;
            };
            if let Transmit::Again { payload, .. } = &frame {
                assert!(self.retained.contains(&payload.token.0), "it was released");
            }
            if let Transmit::Data { payload, .. } = frame {
                let socket = self.sockets.get_mut(&payload.stream);
                let socket = socket.expect("payload of nobody");
                assert_eq!(socket.batch, Some(payload.token), "payload of no batch");
                if payload.last {
                    socket.batch = None;
                    if payload.retained {
                        self.retained.insert(payload.token.0);
                    }
                }
            }
        }
        while let Some(token) = self.session.poll_released() {
            assert!(
                self.retained.remove(&token.0),
                "{token:?} is released twice"
            );
        }
        let session = &self.session;
        self.sockets.retain(|id, _| session.credit(*id).is_some());
    }

    fn check(&self) {
        let used = self.session.receive_budget_used();
        assert!(used <= receive_budget(self.protocol), "{used} bytes");
        assert!(self.session.stream_count() <= 2 * STREAMS_MAX as usize);
        for (id, socket) in &self.sockets {
            let buffered = self.session.credit(*id).map(|credit| credit.buffered);
            let taken = socket.arrived - socket.held as u64;
            assert_eq!(
                buffered,
                Some(socket.announced.max(socket.arrived) - taken),
                "{id:?}"
            );
        }
        let longest = self.carriers.iter().map(|(_, unread)| unread.len()).max();
        assert!(longest <= Some(65_535), "what is incomplete grows");
    }

    /// The session was given up.
    fn end(mut self, error: &SessionError) {
        let late = self.now - self.began >= native_config().hello_timeout;
        let timeout = matches!(
            error,
            SessionError::HelloTimeout | SessionError::ResumeTimeout
        );
        assert!(late || !timeout, "nothing was overdue");
        self.session.close(error);
        let mut last = 0;
        for (id, _) in &self.carriers {
            last += std::iter::from_fn(|| self.session.poll_transmit(*id)).count();
        }
        assert!(last <= 1, "SESSION_CLOSE is the last frame");
        for (id, _) in &self.carriers {
            self.session.handle_carrier_lost(self.now, *id);
        }
        self.drain_events();
        assert!(self.session.is_over());
        assert_eq!(self.session.poll_transmit(CarrierId::FIRST), None);
        assert_eq!(self.session.stream_count(), 0);
        assert_eq!(self.session.receive_budget_used(), 0);
    }
}

/// A number of any order of magnitude below `bound`.
fn number(choices: &mut Choices, bound: u64) -> u64 {
    let shift = choices.below(bound.ilog2() as usize + 1);
    (choices.below(1 << 16) as u64 >> 8 << shift | choices.below(256) as u64) % bound
}

fn native_config() -> NativeConfig {
    NativeConfig {
        streams_max: STREAMS_MAX,
        receive_budget: receive_budget(Protocol::Native),
        ..NativeConfig::default()
    }
}

fn parameters() -> Parameters {
    Parameters {
        initial_max_data: 1 << 20,
        initial_max_stream_data: 1 << 14,
        initial_max_streams: 4,
        frame_max: 1 << 14,
    }
}

fn hello(features: u32, carrier: u32, session_id: [u8; 16]) -> Frame {
    Frame::Hello(Hello {
        version_min: VERSION,
        version_max: VERSION,
        features,
        carrier,
        session_id,
        token: [9; 32],
        parameters: parameters(),
    })
}

fn hello_ack(features: u32) -> Frame {
    Frame::HelloAck(HelloAck {
        version: VERSION,
        features,
        session_id: [1; 16],
        token: [2; 32],
        parameters: parameters(),
    })
}
