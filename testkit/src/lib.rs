//! What tests of several crates share, a file a noun. Each is behind a feature, so that no test compiles what it does not
//! ask for.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "shared by tests"
)]

#[cfg(feature = "api-server")]
pub mod api_server;
#[cfg(feature = "namespaces")]
pub mod namespace;
#[cfg(feature = "pod-security")]
pub mod pod_security;
