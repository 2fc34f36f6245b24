//! muxgate: many TCP streams over few carrier connections.
//!
//! The modules are layers, from the ground up; each one uses itself and those above it in this list, which
//! `tests/layers.rs` enforces:
//!
//! | layer | what it knows |
//! |---|---|
//! | [`base`] | system calls, counters, rates, limits, files, the log |
//! | [`io`] | sockets, what a carrier runs on, who is at its other end |
//! | [`net`] | which addresses are listened on and dialled |
//! | [`ingress`] | how clients say where they want to go |
//! | [`stream`] | what a stream has of its own: buffers, pipes, its last line in the log |
//! | [`session`] | a session over its carriers, and its driver |
//! | [`roles`] | entry, exit, rendezvous |
//! | [`observe`] | metrics, and samples of what limits carriers |
//! | [`process`] | threads, signals, reload, the admin port |
//!
//! The path of a byte is in `docs/architecture.md`. Nothing on it crosses threads: the workers and the admin thread share
//! telemetry, forwards and watch channels; an exit's workers share the handover of new carriers, once their hello said
//! which session they join; an entry's are asked by the admin thread what an exit offers.

pub mod base;
pub mod cli;
mod ingress;
pub mod io;
mod net;
mod observe;
#[cfg(any(test, feature = "oracles"))]
#[doc(hidden)]
pub mod oracles;
pub mod process;
mod roles;
mod session;
mod stream;
