//! muxgate: carries many TCP streams over few carrier connections.
//!
//! The modules are layers, listed from the lowest. A module uses only itself and the modules listed
//! above it; `tests/layers.rs` enforces this.
//!
//! | layer | content |
//! |---|---|
//! | [`base`] | system calls, counters, rates, limits, files, the log |
//! | [`io`] | sockets, transports of carriers, proofs of the peer's identity |
//! | [`net`] | the addresses on which the gateway listens and that it dials |
//! | [`ingress`] | the protocols in which clients specify their target |
//! | [`stream`] | the parts of a single stream: buffers, pipes, its closing log line |
//! | [`session`] | a session over its carriers, and its driver |
//! | [`roles`] | entry, exit, rendezvous |
//! | [`observe`] | metrics, and samples of the carriers' bottlenecks |
//! | [`process`] | threads, signals, reload, the admin port |
//!
//! `docs/architecture.md` describes the path of a byte, which never crosses threads. The workers
//! and the admin thread share telemetry, forwards and watch channels. The workers of an exit pass
//! new carriers to the worker of their session, which the hello specifies.

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
