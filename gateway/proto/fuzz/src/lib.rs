//! The simulation that the fuzz targets run. `cargo test` also runs it.
#![allow(
    dead_code,
    unused_imports,
    reason = "only the tests of muxtunnel-proto use the other items"
)]

#[path = "../../tests/simulation/sim/mod.rs"]
pub mod sim;
