//! Two sessions, the carriers between them, their sockets, the model, and a clock that only this
//! module advances.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use muxtunnel_proto::{
    CarrierId, Identity, JmuxConfig, JmuxSession, NativeConfig, NativeSession, Session,
    SessionError, StreamId,
};

use super::choice::Choices;
use super::link::Link;
use super::listens::Listens;
use super::model::Model;
use super::pipe::Portion;
use super::profile::{Profile, Protocol};
use super::seen::{Seen, Sometimes};
use super::socket::Socket;
use super::trace::Trace;
use super::wire::Wire;

/// The side that dials the carrier.
pub const ENTRY: usize = 0;
pub const EXIT: usize = 1;

/// One session with its sockets.
pub struct Side {
    pub session: Box<dyn Session>,
    pub sockets: BTreeMap<StreamId, Socket>,
    pub next_token: u64,
    /// Batches that the session may request again, by token.
    pub retained: BTreeMap<u64, Retained>,
    /// Whether the session has ended with an error and has sent the reason.
    pub closed: bool,
}

/// A batch that was transmitted.
#[derive(Debug)]
pub struct Retained {
    pub portion: Portion,
    /// Memory of the batch in bytes.
    pub held: usize,
}

impl Side {
    /// Whether the session may have a frame for `carrier`.
    pub fn wants_transmit(&self, carrier: CarrierId) -> bool {
        let mut wants = false;
        self.session
            .wanting(&mut |wanting| wants |= wanting == carrier);
        wants
    }

    /// Memory of the retained batches in bytes.
    pub fn retained_bytes(&self) -> u64 {
        self.retained.values().map(|batch| batch.held as u64).sum()
    }
}

pub struct World {
    pub choices: Choices,
    pub profile: Profile,
    pub began: Instant,
    pub now: Instant,
    pub sides: [Side; 2],
    pub links: Vec<Link>,
    pub wire: Wire,
    pub model: Model,
    pub sometimes: Sometimes,
    pub trace: Trace,
    pub listens: Listens,
    /// Number of carriers that the exit requested, according to the requests that have arrived at
    /// the entry.
    pub asked: u32,
    pub heard: u32,
    /// The time at which the first carrier was lost.
    pub lost_at: Option<Instant>,
    /// The time since which there are no more faults.
    pub fair_since: Option<Instant>,
}

impl World {
    pub fn new(profile: Profile, choices: Choices) -> Self {
        let now = Instant::now();
        Self {
            choices,
            began: now,
            now,
            sides: sessions(&profile, now).map(|session| Side {
                session,
                sockets: BTreeMap::new(),
                next_token: 0,
                retained: BTreeMap::new(),
                closed: false,
            }),
            links: vec![Link::new(profile.delays[0], [Some(CarrierId::FIRST); 2])],
            wire: Wire::new(&profile),
            model: Model::new(profile.protocol, profile.ends.map(|end| end.open_timeout)),
            sometimes: Sometimes::default(),
            trace: Trace::default(),
            listens: Listens::default(),
            asked: 0,
            heard: 0,
            lost_at: None,
            fair_since: None,
            profile,
        }
    }

    /// A world whose parameters are also drawn from the choices.
    pub fn drawn(forced: Option<Protocol>, mut choices: Choices) -> Self {
        let profile = Profile::draw(forced, &mut choices);
        Self::new(profile, choices)
    }

    /// Performs one random action. Each action has a weight.
    pub fn step(&mut self) {
        self.pass_time();
        let side = self.choices.below(2);
        match self.choices.below(16) {
            0..=3 => {
                let frames = self.choices.length(32);
                let link = self.choices.below(self.links.len());
                self.transmit_on(side, link, frames);
            }
            4..=7 => {
                let length = self.choices.length(256 << 10);
                let link = self.choices.below(self.links.len());
                self.receive_on(side, link, length);
            }
            8..=10 => self.draw_source(side),
            11..=13 => self.draw_sink(side),
            14 => self.draw_open(side),
            _ => self.draw_fault(side),
        }
        self.drain_events(side);
        self.check();
    }

    fn pass_time(&mut self) {
        let unit = self.profile.delay / 16 + Duration::from_micros(5);
        let pause = self.profile.faults.pauses && self.choices.one_in(64);
        let passed = if pause {
            Duration::from_millis(self.choices.below(12_000) as u64)
        } else {
            unit * self.choices.below(8) as u32
        };
        self.advance_to(self.now + passed);
    }

    /// Advances the clock, and handles every timeout of a session on the way.
    pub fn advance_to(&mut self, until: Instant) {
        loop {
            let due = (0..2)
                .filter(|side| !self.model.lost[*side])
                .filter_map(|side| Some((self.sides[side].session.poll_timeout()?, side)))
                .min();
            match due {
                Some((when, side)) if when <= until => {
                    self.now = self.now.max(when);
                    self.time_out(side, when);
                }
                _ => break,
            }
        }
        self.now = until;
    }

    fn time_out(&mut self, side: usize, due: Instant) {
        let session = &mut self.sides[side].session;
        let result = session.handle_timeout(self.now);
        let next = session.poll_timeout();
        assert!(
            result.is_err() || next.is_none_or(|next| next > self.now),
            "a timer that was due at {due:?} is due again at {next:?}, now is {:?}",
            self.now
        );
        self.trace
            .note(format_args!("{:?} {side} timeout", self.now - self.began));
        self.drain_events(side);
        if let Err(error) = result {
            self.judge_overdue(side, &error);
            self.close(side, &error);
        }
    }

    fn judge_overdue(&mut self, side: usize, error: &SessionError) {
        let ready = self.sides[side].session.is_ready();
        let (seen, late) = match error {
            SessionError::HelloTimeout => (
                Seen::HelloTimedOut,
                !ready && self.now >= self.began + self.profile.ends[side].hello_timeout,
            ),
            SessionError::ResumeTimeout => (
                Seen::ResumeTimedOut,
                self.lost_at
                    .is_some_and(|at| self.now >= at + self.profile.ends[side].resume_timeout),
            ),
            _ => panic!("not an error of a timeout: {error}"),
        };
        assert!(late, "no deadline has passed: {error}");
        self.see(seen);
    }

    pub fn see(&mut self, seen: Seen) {
        self.sometimes.note(self.profile.protocol, seen);
    }
}

fn sessions(profile: &Profile, now: Instant) -> [Box<dyn Session>; 2] {
    match profile.protocol {
        Protocol::Jmux => profile.ends.map(|end| -> Box<dyn Session> {
            let session = JmuxSession::new(JmuxConfig {
                streams_max: end.streams_max,
                receive_budget: end.receive_budget,
                open_timeout: end.open_timeout,
                ..JmuxConfig::default()
            });
            Box::new(match profile.ids_left {
                Some(left) => session.with_last_id(u32::MAX - left),
                None => session,
            })
        }),
        Protocol::Native => {
            let [entry, exit] = profile.ends.map(|end| NativeConfig {
                streams_max: end.streams_max,
                receive_budget: end.receive_budget,
                frame_max: end.frame_max,
                open_timeout: end.open_timeout,
                hello_timeout: end.hello_timeout,
                resume: end.resume,
                retain: end.retain,
                stall_timeout: profile.stall_timeout,
                datagrams: false,
                sources: true,
                resume_timeout: end.resume_timeout,
                listen: true,
            });
            let identity = Identity {
                session_id: [7; 16],
                token: [9; 32],
            };
            let [entry, exit] = [
                NativeSession::dial(entry, now),
                NativeSession::accept(exit, identity, now),
            ]
            .map(|session| match profile.ids_left {
                Some(left) => session.with_stream_ids(left.into()),
                None => session,
            })
            .map(|session| match profile.bytes_left {
                Some(left) => session.with_stream_bytes(left),
                None => session,
            });
            [Box::new(entry), Box::new(exit)]
        }
    }
}
