//! muxbench measures what a tunnel gives against the direct path, with iperf 2.
//!
//! ```text
//! operator --PUT environment--> runner --start, run, stop--> agents --iperf--> agents
//!          <--GET state--------        <--receiver's lines--
//! ```
//! [`runner`] is the one Job of a benchmark: it knows the whole matrix, drives the agents and writes
//! the log. [`agent`] is a pod at one end of a path: it runs iperf when told to. Between them stand
//! pure parts that open nothing: [`iperf`] (its output), [`statistics`], [`progress`] and [`table`]
//! (what people read). [`load`] accounts for many short connections and some long streams to a [`target`] while a
//! test makes faults. The messages are in `muxtunnel-bench-api`, the log format in `docs/benchmarks.md`. It never
//! talks to Kubernetes.

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
