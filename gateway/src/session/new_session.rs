//! Creates sessions of the configured protocol, and the ids by which further carriers find their
//! session. Only this module depends on the [`Mux`] of each protocol.

use std::rc::Rc;
use std::time::{Duration, Instant};

use muxtunnel_gateway_config::{Protocol, SessionConfig};
use muxtunnel_proto::{Identity, JmuxConfig, JmuxSession, NativeConfig, NativeSession, Session};
use rand::RngExt;

use super::bridge::Bridge;
use super::bridge::link::{Below, Link};
use super::context::Context;
use super::driver::Driver;
use super::http2::Http2;
use super::http3::Http3;
use super::mux::{Dialler, Mux};
use super::quic::Quic;
use super::ssh::Ssh;
use crate::io::transport::Side;
use crate::net::egress::COMMAND_TIMEOUT;

/// Maximum time for the exit's answer to a hello, on ordinary paths. A device on the path may hide
/// one round trip.
const HELLO_ANSWER_MAX: Duration = Duration::from_secs(15);

/// Creates a session without a carrier, for the side that connects. `dialler` dials the targets of
/// the peer's streams.
pub(crate) fn dial(context: Context, dialler: Dialler) -> Rc<dyn Mux> {
    match context.config.protocol {
        Protocol::Jmux => driven(jmux, context, dialler),
        Protocol::Native => {
            let session = |config: &SessionConfig| -> Box<dyn Session> {
                let hello_timeout = match config.prompts {
                    true => COMMAND_TIMEOUT,
                    false => HELLO_ANSWER_MAX,
                };
                let config = NativeConfig {
                    hello_timeout,
                    ..native(config)
                };
                Box::new(NativeSession::dial(config, Instant::now()))
            };
            driven(session, context, dialler)
        }
        Protocol::Http2 | Protocol::Hbone => bridged(Http2::new, Side::Dials, context, dialler),
        Protocol::Quic => bridged(Quic::new, Side::Dials, context, dialler),
        Protocol::Http3 => bridged(Http3::new, Side::Dials, context, dialler),
        Protocol::Ssh => bridged(Ssh::new, Side::Dials, context, dialler),
    }
}

/// Creates a session without a carrier, for the side that accepts.
pub(crate) fn accept(context: Context, identity: Identity, dialler: Dialler) -> Rc<dyn Mux> {
    match context.config.protocol {
        Protocol::Jmux => driven(jmux, context, dialler),
        Protocol::Native => {
            let session = |config: &SessionConfig| -> Box<dyn Session> {
                let config = native(config);
                Box::new(NativeSession::accept(config, identity, Instant::now()))
            };
            driven(session, context, dialler)
        }
        Protocol::Http2 | Protocol::Hbone => bridged(Http2::new, Side::Accepts, context, dialler),
        Protocol::Quic => bridged(Quic::new, Side::Accepts, context, dialler),
        Protocol::Http3 => bridged(Http3::new, Side::Accepts, context, dialler),
        Protocol::Ssh => bridged(Ssh::new, Side::Accepts, context, dialler),
    }
}

/// Creates a session of the native protocol or of JMUX, whose frames the driver carries.
fn driven(
    session: impl FnOnce(&SessionConfig) -> Box<dyn Session>,
    context: Context,
    dialler: Dialler,
) -> Rc<dyn Mux> {
    let (context, memory) = context.granted();
    let session = session(&context.config);
    Rc::new(Driver::new(session, (context, memory), dialler))
}

/// Creates a session of a protocol that has its own streams. Each of its connections has a part of
/// the memory.
fn bridged<L: Link>(
    make: fn(Side, Below, &SessionConfig) -> std::io::Result<L>,
    side: Side,
    context: Context,
    dialler: Dialler,
) -> Rc<dyn Mux> {
    let make = Box::new(move |below, config: &_| make(side, below, config));
    Rc::new(Bridge::new(make, context, dialler))
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
    NativeConfig {
        streams_max: config.streams_max,
        receive_budget: config.memory.receive.0,
        resume: config.resume,
        retain: config.memory.retain.0,
        stall_timeout: match config.memory.stall_seconds {
            0 => None,
            seconds => Some(Duration::from_secs(seconds.into())),
        },
        sources: true,
        datagrams: config.packets,
        ..default
    }
}

/// Returns a session id that cannot be guessed. The first byte is the number of the worker that
/// runs the session; there are at most 64 workers.
pub(crate) fn identity(worker: usize) -> Identity {
    let mut random = rand::rng();
    let mut session_id: [u8; 16] = random.random();
    session_id[0] = worker as u8;
    Identity {
        session_id,
        token: random.random(),
    }
}

/// The number of the worker that runs a session.
pub(crate) fn worker_of(session_id: &[u8; 16]) -> usize {
    session_id[0].into()
}
