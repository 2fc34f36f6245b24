//! Two sessions, one carrier pipe a direction, local sockets at random speeds, and a reference model.
//!
//! The world moves real bytes: byte `i` of a stream's direction is a function of the stream, the
//! direction and `i`, so every delivered byte is checked as it arrives. Everything is drawn from one
//! seed; a failure names it, and `MUX_SIM_SEED=N cargo test -p muxtunnel-proto --test simulation`
//! replays it alone.

#![allow(
    unreachable_pub,
    clippy::disallowed_methods,
    reason = "a test module that starts its own virtual clock"
)]

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use muxtunnel_proto::{
    CarrierId, Event, Header, JmuxConfig, JmuxSession, Reason, Refusal, ResetCode, Session,
    StreamId, Token, Transmit,
};

/// SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014).
pub struct Rng(pub u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }
}

fn payload_byte(label: u32, from_entry: bool, index: u64) -> u8 {
    let mixed = u64::from(label) * 0x9e37_79b1 + index * 31 + u64::from(from_entry) * 7;
    (mixed ^ (mixed >> 8)) as u8
}

/// How a local socket's own data ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Ending {
    Finish,
    Fail,
}

/// One local socket.
struct Socket {
    label: u32,
    /// What its application will send, bytes, and how that ends.
    plan: u64,
    ending: Ending,
    sent: u64,
    ended: bool,
    batch: Option<(Token, u64, usize)>,
    /// Received, not taken yet.
    inbox: VecDeque<u8>,
    delivered: u64,
    finish_seen: bool,
    reset_seen: bool,
    /// Does not read while true.
    stalled: bool,
}

impl Socket {
    fn new(label: u32, rng: &mut Rng) -> Self {
        let plan = match rng.below(4) {
            0 => 0,
            1 => rng.below(100) as u64,
            2 => rng.below(20_000) as u64,
            _ => rng.below(300_000) as u64,
        };
        Self {
            label,
            plan,
            ending: if rng.one_in(6) {
                Ending::Fail
            } else {
                Ending::Finish
            },
            sent: 0,
            ended: false,
            batch: None,
            inbox: VecDeque::new(),
            delivered: 0,
            finish_seen: false,
            reset_seen: false,
            stalled: false,
        }
    }
}

impl Socket {
    /// Its application has read a clean end of file.
    fn sees_end(&self) -> bool {
        self.inbox.is_empty() && self.finish_seen && !self.reset_seen
    }
}

/// What a stream's two sockets saw, judged when the world is at rest.
#[derive(Default, Clone, Copy)]
struct Direction {
    /// Bytes sent before a clean end of file; `None`: there was none.
    finished_at: Option<u64>,
    delivered: u64,
    clean_end_seen: bool,
}

pub struct Side {
    pub session: Box<dyn Session>,
    entry: bool,
    /// What it has written and the other side has not read.
    pipe: VecDeque<u8>,
    unread: Vec<u8>,
    sockets: BTreeMap<StreamId, Socket>,
    next_token: u64,
}

impl Side {
    fn new(entry: bool, config: JmuxConfig) -> Self {
        Self {
            session: Box::new(JmuxSession::new(config)),
            entry,
            pipe: VecDeque::new(),
            unread: Vec::new(),
            sockets: BTreeMap::new(),
            next_token: 0,
        }
    }
}

/// What a run went through; a sweep in which one of these stays zero proves little.
#[derive(Default, Debug)]
pub struct Sometimes {
    pub credit_exhausted: u64,
    pub header_cut: u64,
    pub refused: u64,
    pub resets: u64,
    pub clean_ends: u64,
    pub late_answers: u64,
    pub discarded: u64,
    pub windows_grown: u64,
}

pub struct World {
    rng: Rng,
    pub now: Instant,
    pub sides: [Side; 2],
    pub budget: u64,
    labels: u32,
    ends: BTreeMap<u32, [Direction; 2]>,
    /// Labels of streams that a socket cut, or that were never opened.
    cut: BTreeSet<u32>,
    largest_credit: u64,
    pub sometimes: Sometimes,
}

/// What the carrier holds before the writer waits, bytes: small, so that back-pressure is common.
const PIPE_BYTES: usize = 48 << 10;

impl World {
    pub fn new(seed: u64) -> Self {
        let mut rng = Rng(seed);
        let packet_max = [9, 64, 4096, 65_535][rng.below(4)];
        let streams_max = 4 + rng.below(12) as u32;
        let budget = u64::from(streams_max) * (16 << 10) * (1 + rng.below(8) as u64);
        let config = JmuxConfig {
            streams_max,
            receive_budget: budget,
            packet_max,
            open_timeout: Duration::from_secs(15),
        };
        Self {
            now: Instant::now(),
            sides: [Side::new(true, config), Side::new(false, config)],
            rng,
            budget,
            labels: 0,
            ends: BTreeMap::new(),
            cut: BTreeSet::new(),
            largest_credit: 0,
            sometimes: Sometimes::default(),
        }
    }

    pub fn step(&mut self) {
        let side = self.rng.below(2);
        match self.rng.below(16) {
            0 => self.open(side),
            1..=3 => self.source(side),
            4..=7 => {
                let frames = 1 + self.rng.below(20);
                self.transmit(side, frames);
            }
            8..=11 => self.receive(side),
            12..=14 => self.sink(side),
            _ => self.mischief(side),
        }
        self.check();
    }

    fn open(&mut self, side: usize) {
        let label = self.labels;
        if label < 40
            && self.sides[side]
                .session
                .open(self.now, &format!("tcp://{label}:1"))
                .is_ok()
        {
            self.labels += 1;
            self.ends.insert(label, Default::default());
            // The socket is made when the answer comes; until then the label waits here.
            let id = self.newest(side, label);
            self.sides[side]
                .sockets
                .insert(id, Socket::new(label, &mut self.rng));
        }
    }

    fn newest(&self, side: usize, _label: u32) -> StreamId {
        let known = &self.sides[side].sockets;
        let session = &self.sides[side].session;
        session
            .streams()
            .into_iter()
            .filter(|id| !known.contains_key(id))
            .last()
            .unwrap()
    }

    fn pick(&mut self, side: usize) -> Option<StreamId> {
        let sockets = &self.sides[side].sockets;
        let nth = if sockets.is_empty() {
            return None;
        } else {
            self.rng.below(sockets.len())
        };
        sockets.keys().nth(nth).copied()
    }

    /// A local application sends, ends or fails.
    fn source(&mut self, side: usize) {
        let Some(id) = self.pick(side) else { return };
        let wanted = 1 + self.rng.below(40_000) as u64;
        let Side {
            session,
            sockets,
            next_token,
            entry,
            ..
        } = &mut self.sides[side];
        let socket = sockets.get_mut(&id).unwrap();
        let Some(capacity) = session.send_capacity(id) else {
            return;
        };
        if capacity.payload_max == 0 || socket.ended {
            return;
        }
        // An end of file may come while the last batch still waits for the carrier.
        if socket.sent == socket.plan {
            socket.ended = true;
            match socket.ending {
                Ending::Finish => {
                    session.finish(id);
                    self.ends.get_mut(&socket.label).unwrap()[usize::from(*entry)].finished_at =
                        Some(socket.sent);
                }
                Ending::Fail => {
                    session.reset(id, ResetCode::Cancelled);
                    self.cut.insert(socket.label);
                    sockets.remove(&id);
                    self.sometimes.resets += 1;
                }
            }
            return;
        }
        if socket.batch.is_some() {
            return;
        }
        let length = wanted.min(socket.plan - socket.sent).min(capacity.bytes);
        if length == 0 {
            self.sometimes.credit_exhausted += 1;
            return;
        }
        *next_token += 1;
        let token = Token(*next_token);
        socket.batch = Some((token, socket.sent, length as usize));
        socket.sent += length;
        session.source_ready(id, length as usize, token);
    }

    /// The carrier takes frames.
    fn transmit(&mut self, side: usize, frames: usize) {
        for _ in 0..frames {
            let Side {
                session,
                pipe,
                sockets,
                entry,
                ..
            } = &mut self.sides[side];
            if pipe.len() >= PIPE_BYTES {
                return;
            }
            match session.poll_transmit() {
                None => return,
                Some(Transmit::Control { bytes, .. }) => pipe.extend(bytes),
                Some(Transmit::Data {
                    header, payload, ..
                }) => {
                    pipe.extend(&*header);
                    let socket = sockets
                        .get_mut(&payload.stream)
                        .expect("a frame for a dropped socket");
                    let (token, start, length) = socket.batch.expect("a frame without a batch");
                    assert_eq!(token, payload.token);
                    assert!(payload.range.end <= length && !payload.range.is_empty());
                    let range =
                        start + payload.range.start as u64..start + payload.range.end as u64;
                    pipe.extend(range.map(|index| payload_byte(socket.label, *entry, index)));
                    if payload.last {
                        socket.batch = None;
                    }
                }
            }
        }
    }

    /// The other side reads some of what `side` wrote.
    fn receive(&mut self, side: usize) {
        let length = match self.rng.below(3) {
            0 => 1 + self.rng.below(8),
            1 => 1 + self.rng.below(5000),
            _ => 1 + self.rng.below(60_000),
        };
        self.carry(side, length);
    }

    fn carry(&mut self, side: usize, length: usize) {
        let pipe = &mut self.sides[side].pipe;
        let length = length.min(pipe.len());
        let bytes: Vec<u8> = pipe.drain(..length).collect();
        let reader = &mut self.sides[1 - side];
        reader.unread.extend(bytes);
        let mut position = 0;
        loop {
            if let Some(receive) = reader.session.receiving(CarrierId::ONLY) {
                let taken = receive.length.min(reader.unread.len() - position);
                if taken == 0 {
                    break;
                }
                let bytes = &reader.unread[position..position + taken];
                match receive.stream {
                    Some(stream) => reader
                        .sockets
                        .get_mut(&stream)
                        .expect("payload for a dropped socket")
                        .inbox
                        .extend(bytes),
                    None => self.sometimes.discarded += 1,
                }
                reader.session.payload_moved(CarrierId::ONLY, taken);
                position += taken;
                continue;
            }
            match reader
                .session
                .handle_header(self.now, CarrierId::ONLY, &reader.unread[position..])
                .unwrap()
            {
                Header::Incomplete { needed } => {
                    self.sometimes.header_cut += u64::from(reader.unread.len() > position);
                    assert!(needed > reader.unread.len() - position && needed <= 65_535);
                    break;
                }
                Header::Control { consumed } | Header::Payload { consumed, .. } => {
                    position += consumed;
                }
            }
            Self::events(reader, &mut self.rng, &mut self.sometimes, &mut self.cut);
        }
        reader.unread.drain(..position);
        Self::events(reader, &mut self.rng, &mut self.sometimes, &mut self.cut);
    }

    fn events(side: &mut Side, rng: &mut Rng, sometimes: &mut Sometimes, cut: &mut BTreeSet<u32>) {
        while let Some(event) = side.session.poll_event() {
            match event {
                Event::Incoming { stream, target } => {
                    if rng.one_in(8) {
                        side.session
                            .refuse(stream, Refusal::new(Reason::NotAllowed, "by the model"));
                        continue;
                    }
                    let label = target["tcp://".len()..target.len() - 2].parse().unwrap();
                    side.sockets.insert(stream, Socket::new(label, rng));
                    side.session.accept(stream, "");
                }
                Event::Ready | Event::GoAway | Event::Opened { .. } | Event::Writable { .. } => {}
                Event::OpenFailed { stream, .. } => {
                    sometimes.refused += 1;
                    cut.extend(side.sockets.remove(&stream).map(|socket| socket.label));
                }
                Event::Finished { stream } => {
                    if let Some(socket) = side.sockets.get_mut(&stream) {
                        assert!(!socket.finish_seen && !socket.reset_seen, "finished twice");
                        socket.finish_seen = true;
                    }
                }
                Event::Reset { stream, .. } => {
                    if let Some(socket) = side.sockets.get_mut(&stream) {
                        assert!(!socket.reset_seen, "reset twice");
                        socket.reset_seen = true;
                        socket.ended = true;
                        socket.batch = None;
                    }
                }
            }
        }
    }

    /// A local application reads.
    fn sink(&mut self, side: usize) {
        let Some(id) = self.pick(side) else { return };
        let length = 1 + self.rng.below(50_000);
        if !self.sides[side].sockets[&id].stalled {
            self.deliver(side, id, length);
        }
    }

    fn deliver(&mut self, side: usize, id: StreamId, length: usize) {
        let Side {
            session,
            sockets,
            entry,
            ..
        } = &mut self.sides[side];
        let socket = sockets.get_mut(&id).unwrap();
        let taken = length.min(socket.inbox.len());
        for byte in socket.inbox.drain(..taken) {
            assert_eq!(
                byte,
                payload_byte(socket.label, !*entry, socket.delivered),
                "corrupted"
            );
            socket.delivered += 1;
        }
        if taken > 0 {
            session.sink_took(self.now, id, taken);
        }
        let direction = &mut self.ends.get_mut(&socket.label).unwrap()[usize::from(!*entry)];
        direction.delivered = socket.delivered;
        if socket.sees_end() && !direction.clean_end_seen {
            direction.clean_end_seen = true;
            self.sometimes.clean_ends += 1;
        }
    }

    fn mischief(&mut self, side: usize) {
        match self.rng.below(4) {
            0 => {
                if let Some(id) = self.pick(side) {
                    let socket = self.sides[side].sockets.get_mut(&id).unwrap();
                    socket.stalled = !socket.stalled;
                }
            }
            1 => {
                self.now += Duration::from_secs(self.rng.below(8) as u64);
                let reader = &mut self.sides[side];
                let before = reader.session.stream_count();
                reader.session.handle_timeout(self.now).unwrap();
                self.sometimes.late_answers += (before - reader.session.stream_count()) as u64;
                Self::events(reader, &mut self.rng, &mut self.sometimes, &mut self.cut);
            }
            _ => {}
        }
    }

    /// Invariants of every moment.
    fn check(&mut self) {
        for side in &self.sides {
            assert!(
                side.session.receive_budget_used() <= self.budget,
                "the budget is exceeded"
            );
            let mut reserved = 0;
            for id in side.session.streams() {
                let credit = side.session.credit(id).unwrap();
                reserved += credit.recv + credit.buffered + credit.owed;
                if let Some(socket) = side.sockets.get(&id) {
                    assert!(
                        socket.inbox.len() as u64 <= credit.buffered,
                        "more is held than accounted"
                    );
                }
                if credit.recv > 2 * self.largest_credit {
                    self.sometimes.windows_grown += u64::from(self.largest_credit > 0);
                    self.largest_credit = credit.recv;
                }
            }
            assert!(
                reserved <= side.session.receive_budget_used(),
                "credit was made from nothing"
            );
        }
    }

    /// Empties the pipes, so that nothing is in flight, and compares both ends' books.
    pub fn settle_and_check_conservation(&mut self) {
        while self
            .sides
            .iter()
            .any(|side| side.session.wants_transmit() || !side.pipe.is_empty())
        {
            for side in 0..2 {
                self.transmit(side, usize::MAX);
                self.carry(side, usize::MAX);
            }
        }
        let sending: Vec<BTreeSet<StreamId>> = self
            .sides
            .iter_mut()
            .map(|side| {
                let mut streams = side.session.streams();
                streams.retain(|id| side.session.send_capacity(*id).is_some());
                streams.into_iter().collect()
            })
            .collect();
        let [a, b] = &self.sides;
        for (one, other, sending) in [(a, b, &sending[0]), (b, a, &sending[1])] {
            for id in one.session.streams() {
                let Some(socket) = one.sockets.get(&id) else {
                    continue;
                };
                let here = one.session.credit(id).unwrap();
                let there = other.session.streams().into_iter().find(|peer| {
                    other
                        .sockets
                        .get(peer)
                        .is_some_and(|s| s.label == socket.label)
                        && other.session.credit(*peer).unwrap().peer == id.number()
                });
                let Some(there) = there.and_then(|peer| other.session.credit(peer)) else {
                    continue;
                };
                let open = sending.contains(&id) && here.peer != 0;
                if open && there.peer == id.number() {
                    assert_eq!(
                        here.send, there.recv,
                        "credit was lost or made on the way (stream {})",
                        socket.label
                    );
                }
            }
        }
    }

    /// Faults off, readers open: everything must come to its end.
    pub fn finish_fairly(&mut self) {
        for round in 0.. {
            assert!(round < 20_000, "no end: {:?}", self.stuck());
            for side in 0..2 {
                for id in self.sides[side].sockets.keys().copied().collect::<Vec<_>>() {
                    if !self.sides[side].sockets.contains_key(&id) {
                        continue;
                    }
                    self.sides[side].sockets.get_mut(&id).unwrap().stalled = false;
                    self.deliver(side, id, usize::MAX);
                }
                for _ in 0..4 {
                    self.source(side);
                }
                self.transmit(side, usize::MAX);
                self.carry(side, usize::MAX);
                self.check();
                self.drop_finished_sockets(side);
            }
            if self.sides.iter().all(|side| {
                side.sockets.is_empty() && side.pipe.is_empty() && !side.session.wants_transmit()
            }) {
                break;
            }
        }
        for side in &self.sides {
            assert_eq!(side.session.stream_count(), 0, "streams are left");
            assert_eq!(side.session.receive_budget_used(), 0, "budget is left");
        }
        for (label, directions) in &self.ends {
            for direction in directions {
                if direction.clean_end_seen {
                    assert_eq!(
                        direction.finished_at,
                        Some(direction.delivered),
                        "stream {label} was silently truncated"
                    );
                }
                assert!(
                    direction.finished_at.is_none()
                        || direction.clean_end_seen
                        || self.cut.contains(label),
                    "stream {label} ended and its peer was never told"
                );
            }
        }
    }

    fn drop_finished_sockets(&mut self, side: usize) {
        let Side {
            session,
            sockets,
            entry,
            ..
        } = &mut self.sides[side];
        sockets.retain(|id, socket| {
            let direction = &mut self.ends.get_mut(&socket.label).unwrap()[usize::from(!*entry)];
            direction.clean_end_seen |= socket.sees_end();
            let sent_all = socket.ended && socket.batch.is_none();
            let received_all = socket.inbox.is_empty() && (socket.finish_seen || socket.reset_seen);
            !(sent_all && received_all)
                && (session.credit(*id).is_some() || !socket.inbox.is_empty())
        });
    }

    fn stuck(&self) -> Vec<String> {
        let lines = self.sides.iter().flat_map(|side| {
            side.sockets.iter().map(|(id, s)| {
                format!(
                    "{} {id:?}: sent {}/{} ended {} inbox {} finish {} reset {} {:?}",
                    side.entry,
                    s.sent,
                    s.plan,
                    s.ended,
                    s.inbox.len(),
                    s.finish_seen,
                    s.reset_seen,
                    side.session.credit(*id)
                )
            })
        });
        lines.take(8).collect()
    }
}
