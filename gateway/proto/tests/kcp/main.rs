//! KCP over a path that loses, delays, reorders and duplicates datagrams. The tests advance the
//! clock, and a seed always produces the same run.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::disallowed_methods,
    reason = "a test"
)]

mod garbage;
mod interop;
mod lossy;
mod world;
