//! New sessions of the configured protocol, and the names by which their further carriers find them.

use std::time::{Duration, Instant};

use muxtunnel_gateway_config::{Protocol, SessionConfig};
use muxtunnel_proto::{Identity, JmuxConfig, JmuxSession, NativeConfig, NativeSession, Session};
use rand::RngExt;

use crate::net::egress::COMMAND_TIMEOUT;

/// A session of the configured protocol for the side that connects.
pub(crate) fn dial(config: &SessionConfig) -> Box<dyn Session> {
    match config.protocol {
        Protocol::Jmux => jmux(config),
        Protocol::Native => Box::new(NativeSession::dial(native(config), Instant::now())),
    }
}

/// The same for the side that is connected to.
pub(crate) fn accept(config: &SessionConfig, identity: Identity) -> Box<dyn Session> {
    match config.protocol {
        Protocol::Jmux => jmux(config),
        Protocol::Native => {
            let session = NativeSession::accept(native(config), identity, Instant::now());
            Box::new(session)
        }
    }
}

fn jmux(config: &SessionConfig) -> Box<dyn Session> {
    let default = JmuxConfig::default();
    Box::new(JmuxSession::new(JmuxConfig {
        streams_max: config.streams_max,
        receive_budget: config.memory.receive.0,
        packet_max: config.packet_bytes.unwrap_or(default.packet_max),
        ..default
    }))
}

fn native(config: &SessionConfig) -> NativeConfig {
    let default = NativeConfig::default();
    let hello_timeout = match config.prompts {
        true => COMMAND_TIMEOUT,
        false => default.hello_timeout,
    };
    NativeConfig {
        hello_timeout,
        streams_max: config.streams_max,
        receive_budget: config.memory.receive.0,
        resume: config.resume,
        retain: config.memory.retain.0,
        stall_timeout: match config.memory.stall_seconds {
            0 => None,
            seconds => Some(Duration::from_secs(seconds.into())),
        },
        sources: true,
        ..default
    }
}

/// A name of a session that nobody can guess. The first byte says which worker has it, of at most 64.
pub(crate) fn identity(worker: usize) -> Identity {
    let mut random = rand::rng();
    let mut session_id: [u8; 16] = random.random();
    session_id[0] = worker as u8;
    Identity {
        session_id,
        token: random.random(),
    }
}

/// The worker that has a session.
pub(crate) fn worker_of(session_id: &[u8; 16]) -> usize {
    session_id[0].into()
}
