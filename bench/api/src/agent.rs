//! The messages between the runner and an agent. All requests except `/healthz` carry
//! `Authorization: Bearer TOKEN`.
//!
//! | request | body | answer |
//! |---|---|---|
//! | `GET /healthz` | none | 200 when the agent serves requests |
//! | `GET /v1/info` | none | [`Info`] |
//! | `POST /v1/server/start` | [`ServerStart`] | 204 when iperf listens |
//! | `POST /v1/server/stop` | [`ServerStop`] | [`ServerReport`] when all streams have ended |
//! | `POST /v1/client` | [`ClientRun`] | [`ClientReport`] when iperf has ended |
//! | `POST /v1/rtt` | [`RttProbe`] | [`RttReport`] |

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Versions and settings of an agent's machine.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Info {
    /// Version of iperf, for example `2.1.8`.
    pub iperf: String,
    /// Release of the kernel.
    pub kernel: String,
    /// Congestion control of new connections.
    pub congestion_control: String,
    /// Effective sysctls that affect throughput, by dotted name.
    pub sysctls: BTreeMap<String, String>,
}

/// The request to start an iperf server. If a server is running, it ends first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServerStart {
    /// Port to listen on, 1024 or higher.
    pub port: u16,
    /// Whether the server receives UDP datagrams instead of TCP streams.
    #[serde(default)]
    pub udp: bool,
}

/// The request to end the iperf server and return its figures.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServerStop {
    /// Number of streams that must end before the server is stopped.
    pub connections: u32,
    /// Maximum time in seconds to wait until these streams have ended; at most 120.
    pub wait_s: u32,
}

/// The figures of an iperf server.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ServerReport {
    /// The interval lines of all streams, summed per second, in ascending order.
    pub seconds: Vec<Second>,
    /// Number of streams that connected.
    pub connected: u32,
    /// Number of streams that ended.
    pub ended: u32,
    /// Bytes of all streams, from the last line of each stream.
    pub bytes: u64,
    /// The datagrams of all streams that ended; absent for TCP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub datagrams: Option<Datagrams>,
    /// The last lines of iperf's output, for error messages.
    pub tail: String,
}

/// The datagrams that an iperf server counted by their numbers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Datagrams {
    /// Datagrams sent, computed from the numbers in the received datagrams.
    pub sent: u64,
    /// Sent datagrams that did not arrive.
    pub lost: u64,
    /// Datagrams that arrived after a datagram with a higher number.
    pub out_of_order: u64,
    /// Duration of the longest stream in seconds, from its first to its last datagram.
    pub seconds: f64,
}

/// One second of all streams: the sum of the interval lines that start in this second.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Second {
    /// Start of the interval in whole seconds after the stream's start.
    pub start_s: u32,
    /// Latest end of the summed intervals, in seconds after the stream's start. The value is
    /// `start_s + 1`, except in the last second, which is incomplete.
    pub end_s: f64,
    /// Payload bytes received.
    pub bytes: u64,
}

/// The request to run an iperf client to its end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClientRun {
    /// Address or name of the server's side.
    pub host: String,
    /// Port on the server's side.
    pub port: u16,
    /// Number of parallel connections.
    pub connections: u32,
    /// Time of sending in seconds.
    pub seconds: u32,
    /// The UDP datagrams to send; if absent, the client sends TCP streams.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub udp: Option<UdpLoad>,
}

/// Datagrams at a fixed rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UdpLoad {
    /// Rate of the payload, bit/s.
    pub bits_per_second: u64,
    /// Payload of one datagram, bytes.
    pub datagram_bytes: u32,
}

/// The result of an iperf client, without figures: the figures of a client count sent bytes, and a
/// rate needs received bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientReport {
    /// Error lines of iperf, which exits with 0 even if no connection succeeded.
    pub complaints: Vec<String>,
    /// The last lines of iperf's output, for error messages.
    pub tail: String,
}

/// The request to measure round trips of 64 bytes to an agent's echo port.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RttProbe {
    /// Address or name of the side that echoes.
    pub host: String,
    /// Echo port on that side.
    pub port: u16,
    /// Number of round trips.
    pub probes: u32,
}

/// The measured round trips.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct RttReport {
    /// Times in milliseconds, in the order of measurement.
    pub rtts_ms: Vec<f64>,
}
