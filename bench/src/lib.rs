//! muxbench compares the throughput of a tunnel with the throughput of the direct path, with iperf
//! 2.
//!
//! ```text
//! operator --PUT environment--> runner --start, run, stop--> agents --iperf--> agents
//!          <--GET state--------        <--receiver's lines--
//! ```
//! [`runner`] is the Job of a benchmark: it has the whole matrix, drives the agents and writes the
//! log. [`agent`] is a pod at one end of a path, which runs iperf at the runner's request. The pure
//! parts are [`iperf`] (its output), [`statistics`], [`progress`] and [`table`] (the log). [`load`]
//! opens many short connections and some long streams to a [`target`] while a test causes faults,
//! and counts their outcomes. The messages are in `muxtunnel-bench-api`, the log format in
//! `docs/benchmarks.md`. muxbench does not use the Kubernetes API.

pub mod agent;
pub mod cli;
pub mod http_client;
pub mod iperf;
pub mod load;
pub mod pattern;
pub mod progress;
pub mod runner;
pub mod serve;
pub mod statistics;
pub mod table;
pub mod target;
pub mod token;
