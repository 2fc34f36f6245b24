//! What the runner asks of an agent, and what the agent answers. All requests but `/healthz` carry
//! `Authorization: Bearer TOKEN`.
//!
//! | request | body | answer |
//! |---|---|---|
//! | `GET /healthz` | none | 200 when it serves |
//! | `GET /v1/info` | none | [`Info`] |
//! | `POST /v1/server/start` | [`ServerStart`] | 204 when iperf listens |
//! | `POST /v1/server/stop` | [`ServerStop`] | [`ServerReport`] when all streams have ended |
//! | `POST /v1/client` | [`ClientRun`] | [`ClientReport`] when iperf has ended |
//! | `POST /v1/rtt` | [`RttProbe`] | [`RttReport`] |

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// What an agent's machine is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Info {
    /// Version of iperf, for example `2.1.8`.
    pub iperf: String,
    /// Release of the kernel.
    pub kernel: String,
    /// Congestion control of new connections.
    pub congestion_control: String,
    /// Effective sysctls that bear on throughput, by dotted name.
    pub sysctls: BTreeMap<String, String>,
}

/// Start an iperf server. One that still runs is ended first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServerStart {
    /// Port to listen on, 1024 or higher.
    pub port: u16,
}

/// End the iperf server and give back what it received.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServerStop {
    /// Streams that must have ended before the server is stopped.
    pub connections: u32,
    /// Seconds to wait for them at most, up to 120.
    pub wait_s: u32,
}

/// What an iperf server received.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ServerReport {
    /// The streams' interval lines added up by second, in ascending order.
    pub seconds: Vec<Second>,
    /// Streams that connected.
    pub connected: u32,
    /// Streams that ended.
    pub ended: u32,
    /// Bytes of all streams, from their last lines.
    pub bytes: u64,
    /// The last output, for people.
    pub tail: String,
}

/// The interval lines of all streams that start in one second.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Second {
    /// Start, whole seconds after the stream's start.
    pub start_s: u32,
    /// Latest end of such a line, seconds; `start_s + 1` but in the last, cut second.
    pub end_s: f64,
    /// Payload bytes received.
    pub bytes: u64,
}

/// Run an iperf client to its end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClientRun {
    /// Address or name of the server's side.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// Parallel connections.
    pub connections: u32,
    /// Seconds to send.
    pub seconds: u32,
}

/// How an iperf client ended. Its own figures are not used: it counts what it sent, not what arrived.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientReport {
    /// What it complained of; iperf exits with 0 even when nothing could be connected.
    pub complaints: Vec<String>,
    /// The last output, for people.
    pub tail: String,
}

/// Measure round trips of 64 bytes to an agent's echo port.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RttProbe {
    /// Address or name of the echoing side.
    pub host: String,
    /// Its echo port.
    pub port: u16,
    /// Round trips.
    pub probes: u32,
}

/// The round trips measured.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct RttReport {
    /// Milliseconds, in the order measured.
    pub rtts_ms: Vec<f64>,
}
