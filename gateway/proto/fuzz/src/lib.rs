//! What the fuzz targets run: the simulation that `cargo test` runs too.
#![allow(
    dead_code,
    unused_imports,
    reason = "the tests of muxtunnel-proto use the rest"
)]

#[path = "../../tests/simulation/sim/mod.rs"]
pub mod sim;
