//! Shared code of tests of several crates. Modules that need more than the standard library have a
//! feature, so that tests compile only the modules that they use.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "shared by tests"
)]

#[cfg(feature = "api-server")]
pub mod api_server;
#[cfg(feature = "bad-objects")]
pub mod bad_objects;
pub mod clock;
pub mod exit_statuses;
pub mod generated;
#[cfg(feature = "handshake")]
pub mod handshake;
pub mod hex;
pub mod layers;
pub mod name_server;
#[cfg(feature = "namespaces")]
pub mod namespace;
#[cfg(feature = "pod-security")]
pub mod openshift;
pub mod pattern;
#[cfg(feature = "pod-security")]
pub mod pod_security;
pub mod port;
#[cfg(feature = "sockets")]
pub mod socket;
pub mod wait;
