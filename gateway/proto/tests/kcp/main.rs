//! KCP over a path that loses, delays, reorders and duplicates datagrams, by a clock that is moved: the same run again for
//! the same seed.
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
