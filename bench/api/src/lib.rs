//! The types that the operator, the benchmark runner and its agents share:
//! - the [`Matrix`]
//! - the messages over HTTP from the operator to the runner ([`runner`])
//! - the messages over HTTP from the runner to the agents ([`agent`])
//! - the results ([`result`])
//!
//! The results are also the lines after `MUXBENCH ` in the runner's log. [`load`] has the report of
//! a load, which the tests of faults read.
//!
//! The crate has only types with their bounds and checks. The crate uses no socket, process or
//! clock. The servers and clients are in `bench/src` and `operator/src/benchmark_controller.rs`.
//! Fields are `snake_case` with the unit last, as in `docs/benchmarks.md`.

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
/// Port on which agents echo bytes, for round-trip probes. TCP.
pub const ECHO_PORT: u16 = muxtunnel_contract::ports::ECHO;
/// Maximum number of values on one axis of a matrix.
pub const AXIS_MAX: usize = 8;
/// Maximum number of cells of a matrix. With about 1 KiB per cell the results fit into a ConfigMap
/// (1 MiB).
pub const CELLS_MAX: usize = 512;
/// Maximum number of iperf connections in one run.
pub const CONNECTIONS_MAX: u32 = 128;
/// Greatest duration of a run in seconds, warm-up included.
pub const DURATION_SECONDS_MAX: u32 = 3600;
/// Maximum number of rounds.
pub const ROUNDS_MAX: u32 = 9;
/// Greatest one-way delay in milliseconds.
pub const ONE_WAY_DELAY_MS_MAX: u32 = 10_000;
/// Number of round trips that are measured on each idle path of an environment. The least is the RTT
/// of the path.
pub const PROBES: u32 = 20;
/// Maximum number of round trips of one request.
pub const PROBES_MAX: u32 = 1000;
/// Default rate of the datagrams, bit/s of payload.
pub const UDP_BITS_PER_SECOND: u64 = 100_000_000;
/// Least rate of the datagrams, bit/s.
pub const UDP_BITS_PER_SECOND_MIN: u64 = 100_000;
/// Greatest rate of the datagrams, bit/s.
pub const UDP_BITS_PER_SECOND_MAX: u64 = 10_000_000_000;
/// Payload of a datagram, bytes. A datagram with UDP and IPv6 headers fits a path with an MTU of
/// 1,450.
pub const DATAGRAM_BYTES: u32 = 1400;
/// Payload of a datagram in bytes if QUIC carries the packets: the interface's MTU of 1,400 bytes,
/// minus the headers of UDP (8) and IPv4 (20).
pub const QUIC_DATAGRAM_BYTES: u32 = 1400 - 8 - 20;
/// Least number of ping-pongs of 64 bytes. With 100 round trips, the p99 is the second largest.
pub const PING_PONGS_MIN: u32 = 100;
/// Maximum number of bytes of a tool's output in an error message.
pub const TAIL_BYTES_MAX: usize = 4096;
/// Maximum number of bytes of an HTTP body: [`CELLS_MAX`] cells of 4 KiB, with the longest reasons.
pub const BODY_BYTES_MAX: usize = CELLS_MAX * 4096;

/// The body of every error answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorBody {
    /// The failure and, if known, the remedy.
    pub error: String,
}
