//! What tests of several crates share, a file a noun. What needs more than the standard library is behind a
//! feature, so that no test compiles what it does not ask for.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "shared by tests"
)]

#[cfg(feature = "api-server")]
pub mod api_server;
pub mod generated;
#[cfg(feature = "handshake")]
pub mod handshake;
pub mod hex;
pub mod layers;
#[cfg(feature = "namespaces")]
pub mod namespace;
#[cfg(feature = "pod-security")]
pub mod pod_security;
pub mod port;
#[cfg(feature = "sockets")]
pub mod socket;
pub mod wait;
