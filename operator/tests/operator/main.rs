//! Tests of the operator that need none of its private items, a module for each of its parts, in one program.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test"
)]

mod benchmark;
mod certificates;
mod chart;
mod failure;
mod fixtures;
mod quantity;
mod settings;
mod tunnel;
