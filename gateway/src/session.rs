//! Runs each session over its carriers (by the driver or the links), and assigns each carrier to
//! the worker of its session.

pub(crate) mod backlog;
pub(crate) mod bridge;
pub(crate) mod carrier_autoscaler;
mod connect;
pub(crate) mod context;
pub(crate) mod driver;
pub(crate) mod end;
pub(crate) mod handover;
pub(crate) mod hello;
pub(crate) mod http2;
pub(crate) mod http3;
mod message;
pub(crate) mod mux;
pub(crate) mod new_session;
mod packets;
pub(crate) mod quic;
mod quic_streams;
pub(crate) mod sessions;
mod shell;
#[cfg(test)]
mod simulation;
pub(crate) mod ssh;
