//! What one run is about: the protocol, the sizes and the faults that it may meet.
//!
//! Each run has only some of the faults (Groce and others: "Swarm testing", 2012): one that knows no
//! resets fills its windows, one that knows no stalls drains them.

use std::net::SocketAddr;
use std::time::Duration;

use muxtunnel_proto::Source;

use super::choice::Choices;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    Jmux,
    Native,
}

impl Protocol {
    pub const ALL: [Self; 2] = [Self::Jmux, Self::Native];
}

#[derive(Debug, Clone)]
pub struct Profile {
    pub protocol: Protocol,
    /// One way through most carriers.
    pub delay: Duration,
    /// One way through each carrier, by the side that writes; a later one begins again with the first.
    pub delays: [[Duration; 2]; DELAYS],
    /// What the transport says of it: that of most carriers, nothing, or that of a first hop.
    pub transport_rtt: Option<Duration>,
    /// What a carrier holds before its writer waits, bytes.
    pub pipe_bytes: usize,
    /// What each side is told.
    pub ends: [End; 2],
    /// How long a socket may stall while others wait for credit.
    pub stall_timeout: Option<Duration>,
    /// Carriers at once that the entry dials.
    pub carriers_max: usize,
    /// Streams of the whole run.
    pub streams: u32,
    /// Most that a socket sends, bytes.
    pub plan_bytes_max: usize,
    pub faults: Faults,
}

/// Delays of carriers that a run may have at once.
const DELAYS: usize = 4;

/// The configuration of one side.
#[derive(Debug, Clone, Copy)]
pub struct End {
    pub streams_max: u32,
    pub receive_budget: u64,
    /// Largest payload of a native frame that it takes, bytes.
    pub frame_max: u32,
    pub open_timeout: Duration,
    pub hello_timeout: Duration,
    /// Streams outlive their carrier, where the other side agrees.
    pub resume: bool,
    pub retain: u64,
    pub resume_timeout: Duration,
}

/// What may happen besides plain traffic.
#[derive(Debug, Clone, Default)]
pub struct Faults {
    /// Sockets fail, also before an open is answered.
    pub aborts: bool,
    /// Opens are refused.
    pub refusals: bool,
    /// Targets answer late.
    pub slow_accepts: bool,
    /// Sockets stop reading for a while.
    pub stalls: bool,
    /// Carriers stop moving for a while.
    pub carrier_stalls: bool,
    /// Nothing happens for seconds.
    pub pauses: bool,
    /// A side takes no more streams.
    pub go_away: bool,
    /// The carrier ends in the middle.
    pub cuts: bool,
    /// Somebody who does not know the token tries to join.
    pub forgeries: bool,
}

impl Profile {
    /// Whether streams outlive their carrier: both sides agree.
    pub fn resume(&self) -> bool {
        self.ends.iter().all(|end| end.resume)
    }

    /// What the target of a stream is told, where the protocol can say it: some are told nothing.
    pub fn source_of(&self, label: u32) -> Option<Source> {
        let native = self.protocol == Protocol::Native;
        match label % 8 {
            3 if native => Some(Source::Unknown),
            7 if native => {
                let end = |port| SocketAddr::from((label.to_be_bytes(), port));
                Some(Source::of(end(1), end(2)))
            }
            _ => None,
        }
    }

    pub fn draw(forced: Option<Protocol>, choices: &mut Choices) -> Self {
        let drawn = choices.of(&[Protocol::Native, Protocol::Jmux]);
        let protocol = forced.unwrap_or(drawn);
        let first = End::draw(protocol, choices);
        let resume = first.resume;
        let faults = Faults {
            aborts: choices.one_in(2),
            refusals: choices.one_in(2),
            slow_accepts: choices.one_in(2),
            stalls: choices.one_in(2),
            carrier_stalls: choices.one_in(4),
            pauses: choices.one_in(4),
            go_away: choices.one_in(6),
            cuts: choices.one_in(if resume { 2 } else { 6 }),
            forgeries: choices.one_in(6),
        };
        let delay = Duration::from_micros(choices.of(&[10, 100, 2_000, 50_000]));
        let first_hop = Duration::from_micros(10);
        let pipe_bytes = choices.length(256 << 10);
        let streams = 1 + choices.below(40) as u32;
        let plan_bytes_max = choices.of(&[300_000, 1_000, 20_000, 4 << 20]);
        let transport_rtt = choices.of(&[Some(2 * delay), None, Some(first_hop)]);
        // Half of the runs have two sides that differ in everything, and carriers of several delays.
        let second = match choices.one_in(2) {
            true => End {
                resume: resume && !choices.one_in(8),
                ..End::draw(protocol, choices)
            },
            false => first,
        };
        let mut delays = [[delay; 2]; DELAYS];
        if choices.one_in(2) {
            for one_way in delays.iter_mut().flatten() {
                *one_way = choices.of(&[delay, 4 * delay, delay / 4]);
            }
        }
        let ends = [first, second];
        let resume = ends.iter().all(|end| end.resume);
        Self {
            protocol,
            delay,
            delays,
            transport_rtt,
            pipe_bytes,
            ends,
            stall_timeout: faults.stalls.then_some(Duration::from_secs(2)),
            carriers_max: if resume { choices.of(&[1, 2, 4]) } else { 1 },
            streams,
            plan_bytes_max,
            faults,
        }
    }

    /// Plain traffic over a carrier of one millisecond.
    pub fn plain(protocol: Protocol) -> Self {
        Self {
            protocol,
            delay: Duration::from_millis(1),
            delays: [[Duration::from_millis(1); 2]; DELAYS],
            transport_rtt: Some(Duration::from_millis(2)),
            pipe_bytes: 64 << 10,
            ends: [End::plain(protocol); 2],
            stall_timeout: Some(Duration::from_secs(60)),
            carriers_max: 1,
            streams: 64,
            plan_bytes_max: 1 << 20,
            faults: Faults::default(),
        }
    }
}

impl End {
    fn draw(protocol: Protocol, choices: &mut Choices) -> Self {
        let streams_max = 1 + choices.below(40) as u32;
        let receive_budget = match protocol {
            // Every stream that the table takes has a least window set aside.
            Protocol::Jmux => {
                u64::from(streams_max) * (16 << 10) * choices.of(&[8, 1, 2, 64, 1024])
            }
            Protocol::Native => choices.of(&[256 << 10, 20 << 10, 64 << 10, 1 << 20, 64 << 20]),
        };
        Self {
            streams_max,
            receive_budget,
            frame_max: choices.of(&[16 << 10, 64 << 10, 1 << 20]),
            open_timeout: Duration::from_secs(choices.of(&[15, 2])),
            hello_timeout: Duration::from_secs(choices.of(&[10, 2])),
            resume: protocol == Protocol::Native && !choices.one_in(4),
            retain: choices.of(&[64 << 20, 1 << 20, 64 << 10]),
            resume_timeout: Duration::from_secs(choices.of(&[30, 5])),
        }
    }

    /// With room for all that plain traffic is.
    pub fn plain(protocol: Protocol) -> Self {
        Self {
            streams_max: 64,
            receive_budget: 64 << 20,
            frame_max: 64 << 10,
            open_timeout: Duration::from_secs(15),
            hello_timeout: Duration::from_secs(10),
            resume: protocol == Protocol::Native,
            retain: 64 << 20,
            resume_timeout: Duration::from_secs(30),
        }
    }
}
