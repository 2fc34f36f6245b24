//! The status document: what `GET /status` on the admin port answers, as JSON.
//!
//! Read by the operator (conditions, printer columns), by benchmarks (CPU, carriers) and by people.

mod rendezvous;

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::{Protocol, Role};
pub use rendezvous::Rendezvous;

/// What one gateway knows of itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// Version of muxgate.
    pub version: String,
    /// Which end it is.
    pub role: Role,
    /// The mux protocol of its carriers.
    pub protocol: Protocol,
    /// [`crate::config_hash`] of the configuration in force.
    pub config_hash: String,
    /// Why the newest file was not taken over, with its `MT` code; the last good one stays in force.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_error: Option<String>,
    /// As `/readyz`: the exit listens; the entry listens and has a carrier.
    pub ready: bool,
    /// SIGTERM has been received.
    pub draining: bool,
    /// What new carriers show, where they are secured by mutual TLS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate: Option<Certificate>,
    /// Carriers that are up.
    pub carriers: Vec<Carrier>,
    /// What limits the carrier that moved most in the last second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<Limit>,
    /// What to change about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit_advice: Option<String>,
    /// Streams of all sessions.
    pub streams: Streams,
    /// How they waited for credit.
    #[serde(default)]
    pub credit: Credit,
    /// What of their payload was not copied.
    #[serde(default)]
    pub splice: Splice,
    /// What it takes that they outlive their carriers.
    #[serde(default)]
    pub resume: Resume,
    /// IP packets, where there is a network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub packets: Option<Packets>,
    /// The forwards in force (entry).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub forwards: Vec<Forward>,
    /// Who meets here (rendezvous).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rendezvous: Option<Rendezvous>,
    /// The process.
    pub process: Process,
    /// Effective values of the sysctls that matter here, by dotted name; values as the kernel
    /// prints them, white space folded to single spaces.
    pub sysctls: BTreeMap<String, String>,
}

/// IP packets since the start. One that is to be cut into several (GSO) counts as one.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Packets {
    /// Packets handed to carriers.
    pub sent: u64,
    /// Their bytes.
    pub bytes_sent: u64,
    /// Packets handed to the interface.
    pub received: u64,
    /// Their bytes.
    pub bytes_received: u64,
    /// Packets that were dropped, by reason.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub drops: BTreeMap<String, u64>,
    /// Packets that were marked instead of being dropped (ECN, RFC 3168).
    pub marks: u64,
    /// Sessions that carry packets now.
    #[serde(default)]
    pub sessions: u32,
    /// What the exit has assigned (entry).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub assigned: Option<Assigned>,
}

/// What an exit assigns to an entry.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Assigned {
    /// Addresses of the entry.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<IpAddr>,
    /// Resolvers of the exit's side.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dns_servers: Vec<IpAddr>,
    /// Domains in which names are looked up there.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dns_domains: Vec<String>,
}

/// A gateway's own certificate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Certificate {
    /// SHA-256 of it (DER), in lower-case hexadecimal digits.
    pub fingerprint: String,
    /// Since when it is good (RFC 3339).
    pub not_before: String,
    /// When it expires (RFC 3339).
    pub not_after: String,
}

/// What a carrier runs on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum CarrierTransport {
    /// A TCP connection.
    #[default]
    #[serde(rename = "TCP")]
    Tcp,
    /// A WebSocket connection (RFC 6455).
    WebSocket,
    /// KCP over UDP.
    #[serde(rename = "KCP")]
    Kcp,
    /// A QUIC connection (RFC 9000).
    #[serde(rename = "QUIC")]
    Quic,
    /// A Unix socket.
    Unix,
    /// The pipes of a command, or standard input and output.
    Pipes,
}

impl fmt::Display for CarrierTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "TCP",
            Self::WebSocket => "WebSocket",
            Self::Kcp => "KCP",
            Self::Quic => "QUIC",
            Self::Unix => "Unix",
            Self::Pipes => "Pipes",
        })
    }
}

/// One carrier, from the kernel's TCP_INFO and from own counters.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Carrier {
    /// The other end: `addr:port`, `host:port` behind a proxy, `unix:/path`, `command:PROGRAM` or `stdio`.
    pub peer: String,
    /// What it runs on.
    #[serde(default)]
    pub transport: CarrierTransport,
    /// Seconds since it came up.
    pub uptime_seconds: f64,
    /// Smoothed round-trip time.
    pub rtt_milliseconds: f64,
    /// The least round-trip time of late (five minutes, `net.ipv4.tcp_min_rtt_wlen`).
    pub rtt_min_milliseconds: f64,
    /// `cubic`, `bbr`, ...
    pub congestion_control: String,
    /// Bytes written to the carrier.
    pub bytes_sent: u64,
    /// Bytes read from the carrier.
    pub bytes_received: u64,
    /// Segments retransmitted since it came up.
    pub retransmits: u64,
    /// Congestion window, segments.
    pub congestion_window: u32,
    /// Streams of its session. Of several carriers the oldest has the session's numbers, others have 0.
    pub streams: u64,
    /// Credit granted to the session's peer and not yet consumed, plus what is buffered, in bytes.
    pub receive_budget_used: u64,
    /// Acknowledged by the peer in the last second.
    #[serde(default)]
    pub sent_bytes_per_second: u64,
    /// Read from the carrier in the last second.
    #[serde(default)]
    pub received_bytes_per_second: u64,
    /// What limited it in the last second; not there before it was up that long.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<Limit>,
    /// What to change about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit_advice: Option<String>,
    /// Seconds since it came up, by what limited it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub limited_seconds: BTreeMap<Limit, f64>,
}

/// What limits a carrier: what its gateway sends, and for [`Self::Memory`] and [`Self::Cpu`] also what
/// it receives. The first that applies, in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Limit {
    /// Nothing is to be moved.
    Idle,
    /// The gateway's busiest worker has no CPU time left.
    Cpu,
    /// `memory.receive` has no room for more.
    Memory,
    /// The peer's kernel has no room for more.
    ReceiveWindow,
    /// The own kernel's send buffer is smaller than the path.
    SendBuffer,
    /// The path takes no more at once, as far as congestion control knows.
    CongestionWindow,
    /// None of these, the carrier would take more: clients and targets send or take no more, or streams
    /// have no credit.
    Application,
    /// One that another version knows.
    #[serde(other)]
    Other,
}

impl Limit {
    /// All that this version knows.
    pub const ALL: [Self; 7] = [
        Self::Idle,
        Self::Cpu,
        Self::Memory,
        Self::ReceiveWindow,
        Self::SendBuffer,
        Self::CongestionWindow,
        Self::Application,
    ];

    /// Its name in documents and labels.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Idle => "Idle",
            Self::Cpu => "Cpu",
            Self::Memory => "Memory",
            Self::ReceiveWindow => "ReceiveWindow",
            Self::SendBuffer => "SendBuffer",
            Self::CongestionWindow => "CongestionWindow",
            Self::Application => "Application",
            Self::Other => "Other",
        }
    }
}

/// Streams since the start, of all sessions or of one forward.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Streams {
    /// Open now.
    pub open: u64,
    /// Opened since the start.
    pub opened: u64,
    /// Ended, by reason; `completed` is the clean end.
    pub closed: BTreeMap<String, u64>,
    /// Opens refused or failed, by `MT` code.
    pub refused: BTreeMap<String, u64>,
    /// Payload bytes from local sockets into carriers.
    pub bytes_sent: u64,
    /// Payload bytes from carriers taken by local sockets.
    pub bytes_received: u64,
}

/// Streams that could send and waited, since the start: for credit of the other gateway, or until what is kept for lost
/// carriers was acknowledged.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Credit {
    /// How often one began to wait.
    pub waits: u64,
    /// How long they waited, added up; of a wait that goes on nothing yet.
    pub waited_seconds: f64,
}

/// Payload that the kernel moved from socket to socket (splice(2)) since the start; the rest was copied.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Splice {
    /// From local sockets into carriers.
    pub bytes_sent: u64,
    /// From carriers to local sockets.
    pub bytes_received: u64,
    /// From carriers to local sockets by copying, though there was enough at once to splice: no pipe was left,
    /// the local socket is behind or has a rate limit, or payload before it was missing.
    pub bytes_fallen_back: u64,
    /// Times that no pipe was left.
    pub pipes_lacking: u64,
}

/// Streams that outlive their carriers, in all sessions.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Resume {
    /// Kept now, since the other end may ask for it again; each session's `memory.retain` bounds it.
    pub bytes_retained: u64,
    /// Carriers that were lost since the start while their session went on.
    pub carriers_survived: u64,
    /// Payload that went again since the start, for a lost carrier had not delivered it.
    pub bytes_sent_again: u64,
}

/// One forward in force.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Forward {
    /// Its name.
    pub name: String,
    /// Where it listens.
    pub listen: String,
    /// Its target, `host:port` or `unix:/path`. If clients name the target, the protocol in which they do so.
    pub target: String,
    /// Its streams. Those of an earlier forward of the same name count as long as one is open.
    pub streams: Streams,
    /// Why it does not listen, with its `MT` code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// The process, from getrusage(2).
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Process {
    /// User and system CPU time.
    pub cpu_seconds: f64,
    /// Peak resident set, bytes.
    pub max_rss_bytes: u64,
    /// Since the start.
    pub uptime_seconds: f64,
}
