//! The words that the operator, the benchmark runner and its agents share: the [`Matrix`], the
//! messages over HTTP (operator to runner in [`runner`], runner to agents in [`agent`]) and the
//! results ([`result`]), which are also the lines that the runner's log has after `MUXBENCH `. Beside them, what
//! a load saw ([`load`]), which the tests of faults read.
//!
//! Types, their bounds and checks only: no socket, no process, no clock. Who serves and who calls is
//! in `bench/src` and `operator/src/benchmark_controller.rs`. Fields are `snake_case` with the unit
//! last, as the log format in `docs/benchmarks.md` has them.

pub mod agent;
pub mod load;
mod matrix;
pub mod result;
pub mod runner;

pub use matrix::{
    CellKey, EnvironmentKey, Matrix, MatrixError, PACKET_PROTOCOLS, Path, Route, UNTUNED,
};

use serde::{Deserialize, Serialize};

/// Port of the HTTP servers of runner and agents. TCP.
pub const HTTP_PORT: u16 = muxtunnel_contract::ports::BENCH_HTTP;
/// Port on which iperf servers listen. TCP.
pub const IPERF_PORT: u16 = muxtunnel_contract::ports::IPERF;
/// Port on which agents echo what they are sent, for round-trip probes. TCP.
pub const ECHO_PORT: u16 = muxtunnel_contract::ports::ECHO;
/// Most values on one axis of a matrix.
pub const AXIS_MAX: usize = 8;
/// Most cells of a matrix: at about 1 KiB a cell the results fit a ConfigMap (1 MiB).
pub const CELLS_MAX: usize = 512;
/// Most iperf connections in one run.
pub const CONNECTIONS_MAX: u32 = 128;
/// Longest run, warm-up included, seconds.
pub const DURATION_SECONDS_MAX: u32 = 3600;
/// Most rounds.
pub const ROUNDS_MAX: u32 = 9;
/// Largest one-way delay, milliseconds.
pub const ONE_WAY_DELAY_MS_MAX: u32 = 10_000;
/// Round trips probed on each idle path of an environment; their median is its RTT.
pub const PROBES: u32 = 20;
/// Most round trips that one request may ask for.
pub const PROBES_MAX: u32 = 1000;
/// Most bytes of a tool's output that a message carries as evidence.
pub const TAIL_BYTES_MAX: usize = 4096;
/// Most bytes of one HTTP body: [`CELLS_MAX`] cells of 4 KiB each, reasons at their longest.
pub const BODY_BYTES_MAX: usize = CELLS_MAX * 4096;

/// The body of every answer that is not a success.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorBody {
    /// What went wrong and, where it can be known, what to do.
    pub error: String,
}
