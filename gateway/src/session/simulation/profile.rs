//! The parameters of one run: the protocol, the sizes, and the possible faults.

use std::time::Duration;

use muxtunnel_gateway_config::Config;
use muxtunnel_proto::{Identity, JmuxConfig, JmuxSession, NativeConfig, NativeSession, Session};

use super::choice::Choices;
use crate::session::shell::now;

/// Which sessions a sweep runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Family {
    /// The native protocol and JMUX.
    Frames,
    Http2,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::session) enum Kind {
    Native,
    Jmux,
    Http2,
}

/// The kind of local sockets of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Locals {
    Unix,
    Tcp,
    Both,
}

#[derive(Debug, Clone)]
pub(super) struct Profile {
    pub(super) seed: u64,
    pub(super) kind: Kind,
    /// Whether carriers are TCP sockets.
    pub(super) kernel: bool,
    pub(super) locals: Locals,
    /// Buffer size of a local Unix socket in bytes; `None`: the system's default.
    pub(super) local_bytes: Option<usize>,
    /// One-way delay of carriers in memory. Each direction has this delay, or three times this
    /// delay.
    pub(super) delay: Duration,
    /// Number of bytes that a carrier holds before its writer waits.
    pub(super) carrier_bytes: usize,
    /// Whether carriers transfer pieces of random size.
    pub(super) pieces: bool,
    /// Whether carriers return `WouldBlock` after they were ready.
    pub(super) agains: bool,
    /// Whether streams outlive their carrier.
    pub(super) resume: bool,
    /// Number of carriers that the entry keeps up.
    pub(super) carriers: usize,
    pub(super) streams: usize,
    /// Maximum number of bytes that an application sends.
    pub(super) plan_bytes_max: usize,
    /// Time from the start of the run after which the world injects no faults and no pauses.
    pub(super) fair_after: Duration,
    pub(super) budgets: [u64; 2],
    pub(super) frame_max: [u32; 2],
    pub(super) retain: [u64; 2],
    /// Number of faults that cut one carrier or all carriers.
    pub(super) cuts: usize,
    /// Whether applications reset their connections.
    pub(super) aborts: bool,
    /// Whether applications pause.
    pub(super) pauses: bool,
    pub(super) refusals: bool,
    pub(super) slow_dials: bool,
    pub(super) retires: bool,
    /// Whether the exit stops taking streams.
    pub(super) go_away: bool,
    /// The side that ends the session: 0 is the entry, 1 the exit.
    pub(super) shut_down: Option<usize>,
    /// Whether the entry gives the session up.
    pub(super) give_up: bool,
}

const YAML: [&str; 2] = [
    "role: Entry\nsecurity: {mode: None}\nconnect:\n- name: far\n  address: far:1\n",
    "role: Exit\nsecurity: {mode: None}\nlisten: 127.0.0.1:1\n",
];

impl Profile {
    pub(super) fn draw(family: Family, seed: u64) -> Self {
        let choices = &mut Choices::Seed(seed);
        let native = choices.below(5) < 3 && family == Family::Frames;
        // Frames of JMUX are too short to be spliced.
        let kernel = choices.one_in(if native { 3 } else { 8 });
        let resume = native && !choices.one_in(4);
        let locals = choices.of(&[Locals::Both, Locals::Unix, Locals::Tcp]);
        let delay = Duration::from_millis(choices.of(&[0, 0, 1, 20]));
        let least = if delay.is_zero() { 512 } else { 64 << 10 };
        let least_frame = if kernel { 256 << 10 } else { 16 << 10 };
        let many = choices.of(&[false, false, true]);
        Self {
            seed,
            kind: match (family, native) {
                (Family::Http2, _) => Kind::Http2,
                (Family::Frames, true) => Kind::Native,
                (Family::Frames, false) => Kind::Jmux,
            },
            kernel,
            locals,
            local_bytes: choices.of(match kernel {
                true => &[None][..],
                false => &[None, Some(1), Some(16 << 10)],
            }),
            delay,
            carrier_bytes: choices.of(&[least, 4 << 10, 64 << 10, 1 << 20]).max(least),
            pieces: !choices.one_in(3),
            agains: choices.one_in(2),
            resume,
            carriers: if resume { choices.of(&[1, 2, 4]) } else { 1 },
            streams: 1 + choices.below(if many && !kernel { 24 } else { 6 }),
            plan_bytes_max: match kernel {
                // Enough payload to splice.
                true => choices.of(&[4 << 20, 1 << 20]),
                false => choices.of(&[300_000, 1_000, 20_000, 1 << 20]),
            },
            fair_after: Duration::from_millis(choices.of(&[300, 100, 1000])),
            budgets: [0; 2].map(|_: u64| choices.of(&[16 << 20, 1 << 20, 4 << 20])),
            frame_max: [0; 2].map(|_: u32| choices.of(&[1 << 20, 64 << 10, least_frame])),
            retain: [0; 2].map(|_: u64| choices.of(&[64 << 20, 1 << 20, 64 << 10])),
            cuts: choices.of(&if resume { [0, 1, 3, 6] } else { [0, 1, 1, 1] }),
            aborts: choices.one_in(2),
            pauses: choices.one_in(2),
            refusals: choices.one_in(3),
            slow_dials: choices.one_in(2),
            // The session has no other carrier, so it would end with its last stream.
            retires: choices.one_in(3) && family == Family::Frames,
            go_away: choices.one_in(6),
            shut_down: choices.one_in(10).then(|| choices.below(2)),
            give_up: choices.one_in(10),
        }
    }

    /// Whether no part of the run uses kernel timers, so that the run replays exactly.
    pub(super) fn is_exact(&self) -> bool {
        !self.kernel && self.locals == Locals::Unix
    }

    pub(super) fn config(&self, side: usize) -> Config {
        let protocol = match self.kind {
            Kind::Native => format!("Native\nresume: {}", self.resume),
            Kind::Jmux => format!("JMUX\nresume: {}", self.resume),
            Kind::Http2 => "HTTP2".to_owned(),
        };
        let yaml = format!("{}protocol: {protocol}\n", YAML[side]);
        Config::from_yaml(&yaml).unwrap()
    }

    pub(super) fn session(&self, side: usize) -> Box<dyn Session> {
        if self.kind == Kind::Jmux {
            return Box::new(JmuxSession::new(JmuxConfig {
                streams_max: 64,
                receive_budget: self.budgets[side],
                ..JmuxConfig::default()
            }));
        }
        let config = NativeConfig {
            streams_max: 64,
            receive_budget: self.budgets[side],
            frame_max: self.frame_max[side],
            resume: self.resume,
            retain: self.retain[side],
            sources: true,
            ..NativeConfig::default()
        };
        let identity = Identity {
            session_id: SESSION_ID,
            token: [2; 32],
        };
        match side {
            super::world::ENTRY => Box::new(NativeSession::dial(config, now())),
            _ => Box::new(NativeSession::accept(config, identity, now())),
        }
    }
}

/// The id of the session.
pub(super) const SESSION_ID: [u8; 16] = [1; 16];
