//! Tests of the operator without private items, in one program with a module per part.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test"
)]

mod benchmark;
mod chart;
mod failure;
mod fixtures;
mod quantity;
mod tunnel;
