//! Correctness under any schedule, for both protocols: byte-exact delivery, conservation of credit,
//! no silent truncation, no leak, and termination.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    reason = "a test"
)]

mod corpora;
mod credit;
mod regressions;
mod resume;
mod scenarios;
mod sim;
mod small;
mod sweep;
