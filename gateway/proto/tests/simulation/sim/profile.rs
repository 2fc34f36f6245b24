//! The parameters of one run: the protocol, the sizes and the possible faults.
//!
//! Each run has only some of the faults (Groce and others: "Swarm testing", 2012). A run without
//! resets fills its windows, and a run without stalls drains them.

use std::net::SocketAddr;
use std::time::Duration;

use muxtunnel_proto::Source;
use muxtunnel_proto::native::codec::OFFSET_MAX;

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
    /// One-way delay of most carriers.
    pub delay: Duration,
    /// One-way delays of each carrier, by the side that writes. If a run has more carriers, the
    /// list is used again from its start.
    pub delays: [[Duration; 2]; DELAYS],
    /// The RTT that the transport reports: the RTT of most carriers, no RTT, or the RTT of a first
    /// hop.
    pub transport_rtt: Option<Duration>,
    /// Bytes that a carrier holds before its writer waits.
    pub pipe_bytes: usize,
    /// The configuration of each side.
    pub ends: [End; 2],
    /// The time for which a socket may stall while other sockets wait for credit.
    pub stall_timeout: Option<Duration>,
    /// Maximum number of carriers that the entry dials at once.
    pub carriers_max: usize,
    /// Number of streams in the whole run.
    pub streams: u32,
    /// How many numbers each side has left for its streams, in a part of the runs. JMUX then starts
    /// again at 0, and a native session accepts no more opens.
    pub ids_left: Option<u32>,
    /// How many bytes each direction of a native stream has left, in a part of the runs. Further
    /// bytes cut the stream. The number is greater than a first window, so a stream is open before
    /// it is cut.
    pub bytes_left: Option<u64>,
    /// Maximum number of bytes that a socket sends.
    pub plan_bytes_max: usize,
    pub faults: Faults,
}

/// Number of different carrier delays in a run.
const DELAYS: usize = 4;

/// The configuration of one side.
#[derive(Debug, Clone, Copy)]
pub struct End {
    pub streams_max: u32,
    pub receive_budget: u64,
    /// Largest payload of a native frame that the side accepts, in bytes.
    pub frame_max: u32,
    pub open_timeout: Duration,
    pub hello_timeout: Duration,
    /// Whether streams survive the loss of a carrier, if the other side agrees.
    pub resume: bool,
    pub retain: u64,
    pub resume_timeout: Duration,
}

/// The possible faults of a run.
#[derive(Debug, Clone, Default)]
pub struct Faults {
    /// Sockets fail, possibly before an open is answered.
    pub aborts: bool,
    /// Opens are refused.
    pub refusals: bool,
    /// Targets answer late.
    pub slow_accepts: bool,
    /// Sockets stop reading for a while.
    pub stalls: bool,
    /// Carriers stop transferring bytes for a while.
    pub carrier_stalls: bool,
    /// The clock advances by seconds without any action.
    pub pauses: bool,
    /// A side accepts no more streams.
    pub go_away: bool,
    /// The carrier ends in the middle of a frame or payload.
    pub cuts: bool,
    /// A peer without the token tries to join.
    pub forgeries: bool,
}

impl Profile {
    /// Whether both sides agree that streams survive the loss of a carrier.
    pub fn resume(&self) -> bool {
        self.ends.iter().all(|end| end.resume)
    }

    /// The source of a stream, if the protocol transmits sources. Some streams have no source.
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

    /// The number of bytes of a stream before the offset on the wire.
    pub fn bytes_before(&self, offset: u64) -> u64 {
        offset - self.bytes_left.map_or(0, |left| OFFSET_MAX - left)
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
        // In half of the runs, the sides have different configurations, and the carriers have
        // different delays.
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
            ids_left: (streams % 4 == 3).then_some(streams / 4),
            bytes_left: (protocol == Protocol::Native && streams % 4 == 1)
                .then_some((64 << 10) + plan_bytes_max as u64 / 4),
            plan_bytes_max,
            faults,
        }
    }

    /// Plain traffic over a carrier with one millisecond of delay.
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
            ids_left: None,
            bytes_left: None,
            plan_bytes_max: 1 << 20,
            faults: Faults::default(),
        }
    }
}

impl End {
    fn draw(protocol: Protocol, choices: &mut Choices) -> Self {
        let streams_max = 1 + choices.below(40) as u32;
        let receive_budget = match protocol {
            // The smallest window of every possible stream is set aside.
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

    /// A configuration with room for all plain traffic.
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
