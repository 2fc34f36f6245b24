//! One session whose peer sends arbitrary input.
//!
//! For every input, no code panics, memory and tables stay within their bounds, the output is
//! finite, and a session that ends releases all of its memory.

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
/// The receive budget. In the native protocol, it is less than the sum of the first windows of all
/// streams, because first windows may overcommit. In JMUX, the smallest window of each stream is
/// set aside.
const fn receive_budget(protocol: Protocol) -> u64 {
    match protocol {
        Protocol::Jmux => 1 << 20,
        Protocol::Native => 40 << 10,
    }
}
/// Maximum number of bytes that a local socket sends at once. A peer may require frames of one
/// byte.
const BATCH_BYTES_MAX: usize = 200;
/// Maximum number of frames in response to one input. More frames indicate a loop. The number
/// allows one frame per byte of a batch of each stream, and some control frames.
const FRAMES_MAX: usize = 4096;

/// Passes arbitrary bytes, and frames with arbitrary fields, to a session with applications.
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
    /// Bytes received in order and not taken.
    held: usize,
    /// Bytes received in order; `early` has the ranges after a gap, from start to end.
    arrived: u64,
    early: BTreeMap<u64, u64>,
    /// Offset up to which payload was announced.
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
    /// Open listeners.
    listens: BTreeSet<ListenId>,
    /// Whether the session requests the listeners, and its peer does not.
    asks: bool,
    /// The carriers, oldest first, each with its unread bytes.
    carriers: Vec<(CarrierId, Vec<u8>)>,
    /// Index of the carrier that the peer uses.
    speaks: usize,
    resume: bool,
    /// Tokens of batches that the session may request again.
    retained: BTreeSet<u64>,
    next_token: u64,
    /// The id of the peer's next stream.
    next_open: u64,
    /// The number of bytes that the peer has sent on each stream.
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
        target.consume(choices).expect("the hello is valid");
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

    /// Adds or loses a carrier, or moves the peer to another carrier.
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
                    "the last carrier was retired"
                );
                self.session.want_carriers(choices.below(4) as u32);
            }
            _ => self.speaks = choices.below(self.carriers.len()),
        }
    }

    /// Performs an action of the application.
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

    /// Requests another listener, or answers one.
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
        let socket = self.sockets.get_mut(&id).expect("the socket exists");
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
        let socket = self.sockets.get_mut(&id).expect("the socket exists");
        let taken = socket.held.min(most);
        if taken > 0 && !socket.dialling {
            socket.held -= taken;
            self.session.sink_took(self.now, id, taken);
        }
    }

    fn answer(&mut self, id: StreamId, refuse: bool) {
        let socket = self.sockets.get_mut(&id).expect("the socket exists");
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

    /// Adds a frame that usually complies with the protocol. Otherwise the session would end after
    /// the first frame.
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
        // OPENED is for streams that the session opened.
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
                // Leaves a gap before the payload.
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
            // The id of a listener is in bytes 4 to 7.
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

    /// Passes frames from the bytes to the session. Generates the announced payload in pieces.
    fn consume(&mut self, choices: &mut Choices) -> Result<(), SessionError> {
        let carrier = self.carriers[self.speaks].0;
        let mut unread = std::mem::take(self.unread());
        let mut position = 0;
        loop {
            if let Some(receive) = self.session.receiving(carrier) {
                let length = 1 + choices.below(receive.length);
                self.session.payload_moved(self.now, carrier, length);
                if let Some(id) = receive.stream {
                    let socket = self.sockets.get_mut(&id);
                    let socket = socket.expect("the stream of the payload is unknown");
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
                    assert!(header < consumed, "the datagram has no packet");
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
                    // The received payload is delivered, and then the driver gives up the stream.
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
                    assert!(self.listens.remove(&listen), "{listen:?} is unknown");
                }
                Event::Listen(ListenEvent::Listening { listen, .. }) => {
                    assert!(self.listens.contains(&listen), "{listen:?} is unknown");
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

    /// Handles the events that the session reports and the frames that it sends.
    fn drain(&mut self) {
        self.drain_events();
        for frames in 0.. {
            assert!(frames < FRAMES_MAX, "frames without an end");
            let carriers = self.carriers.iter().map(|(id, _)| *id);
            let frame = carriers.collect::<Vec<_>>().into_iter();
            let Some(frame) = frame
                .map(|id| self.session.poll_transmit(self.now, id))
                .find_map(|f| f)
            else {
                break;
            };
            if let Transmit::Again { payload, .. } = &frame {
                assert!(
                    self.retained.contains(&payload.token.0),
                    "the token was released"
                );
            }
            if let Transmit::Data { payload, .. } = frame {
                let socket = self.sockets.get_mut(&payload.stream);
                let socket = socket.expect("the stream of the payload is unknown");
                assert_eq!(
                    socket.batch,
                    Some(payload.token),
                    "the payload belongs to no batch"
                );
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
        assert!(
            longest <= Some(65_535),
            "an incomplete frame grows without bound"
        );
    }

    /// Ends the session after an error.
    fn end(mut self, error: &SessionError) {
        let late = self.now - self.began >= native_config().hello_timeout;
        let timeout = matches!(
            error,
            SessionError::HelloTimeout | SessionError::ResumeTimeout
        );
        assert!(late || !timeout, "no deadline had passed");
        self.session.close(error);
        let mut last = 0;
        for (id, _) in &self.carriers {
            last += std::iter::from_fn(|| self.session.poll_transmit(self.now, *id)).count();
        }
        assert!(last <= 1, "a frame follows SESSION_CLOSE");
        for (id, _) in &self.carriers {
            self.session.handle_carrier_lost(self.now, *id);
        }
        self.drain_events();
        assert!(self.session.is_over());
        assert_eq!(self.session.poll_transmit(self.now, CarrierId::FIRST), None);
        assert_eq!(self.session.stream_count(), 0);
        assert_eq!(self.session.receive_budget_used(), 0);
    }
}

/// A number below `bound`, of any order of magnitude.
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
