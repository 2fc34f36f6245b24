//! What the fuzz targets run: the simulation that `cargo test` runs too.

#[path = "../../tests/simulation/sim/mod.rs"]
pub mod sim;
