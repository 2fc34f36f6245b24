//! The status document: the response to `GET /status` on the admin port, as JSON.
//!
//! The operator reads the document for conditions and printer columns. Benchmarks read the CPU time
//! and the carriers. People read the document for diagnosis.

mod peers;

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use serde_with_macros::{apply, skip_serializing_none};

use crate::text::named;
use crate::{Protocol, Role};
pub use peers::{Peer, UnknownKeys};

/// The state of one gateway.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// Version of muxgate.
    pub version: String,
    /// The role of the gateway.
    pub role: Role,
    /// The mux protocol of the gateway's carriers.
    pub protocol: Protocol,
    /// [`crate::config_hash`] of the configuration in force.
    pub config_hash: String,
    /// Why the newest file was rejected, or applied only in part, with an `MT` code. The last valid
    /// configuration remains in force.
    pub config_error: Option<String>,
    /// Whether `/readyz` reports ready: every worker listens, every worker of an entry has a
    /// carrier, and the gateway is not draining.
    pub ready: bool,
    /// Whether SIGTERM has been received.
    pub draining: bool,
    /// With mutual TLS, the certificate for new carriers.
    pub certificate: Option<Certificate>,
    /// With security mode PublicKeys, the public keys of this gateway.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub public_keys: Vec<String>,
    /// With security modes PublicKeys and Certificates, the accepted peers. At an entry, the exits.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub peers: Vec<Peer>,
    /// Exit and rendezvous, with public keys: the refused connections with unknown keys. Absent: none.
    pub unknown_keys: Option<UnknownKeys>,
    /// The files that the gateway follows. Absent: the gateway has an older version, so the state of
    /// its files is unknown.
    pub files: Option<Vec<File>>,
    /// Entry: the exits in use.
    pub connect: Option<Connect>,
    /// Entry: why the last dial of a carrier failed, while a worker has no carrier.
    pub carrier_error: Option<String>,
    /// Carriers that are up.
    pub carriers: Vec<Carrier>,
    /// The bottleneck of the carrier that moved the most bytes in the last second.
    pub limit: Option<Limit>,
    /// How to remove the bottleneck in `limit`.
    pub limit_advice: Option<String>,
    /// Streams of all sessions.
    pub streams: Streams,
    /// Waits of streams for credit.
    #[serde(default)]
    pub credit: Credit,
    /// Payload that was moved without copying.
    #[serde(default)]
    pub splice: Splice,
    /// Memory and events of streams that survive the loss of carriers.
    #[serde(default)]
    pub resume: Resume,
    /// IP packets, if the configuration has `network`.
    pub packets: Option<Packets>,
    /// Entry: the forwards in force. Exit: the listeners that entries have requested.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub forwards: Vec<Forward>,
    /// The state of a rendezvous.
    pub rendezvous: Option<Rendezvous>,
    /// Resource usage of the process.
    pub process: Process,
    /// Effective values of the sysctls that affect carriers. The keys are dotted names. A value is
    /// the kernel's text, in which one space replaces each sequence of white space.
    pub sysctls: BTreeMap<String, String>,
}

/// The exits of an entry.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Connect {
    /// The names of the exits in `connect` that get new streams.
    #[serde(default)]
    pub active: Vec<String>,
}

/// The state of a rendezvous. [`Status::streams`] has the refusals by code.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Rendezvous {
    /// The member of each registration that waits for visitors.
    pub registered: Vec<String>,
    /// Connections that have not authenticated yet.
    pub strangers: u64,
    /// Visitors that wait for a connection from their exit.
    pub waiting: u64,
    /// Pairs of connections that are joined now.
    pub meeting: u64,
    /// Pairs joined since the start.
    pub met: u64,
    /// Bytes forwarded since the start, in both directions.
    pub bytes: u64,
}

/// IP packets since the start. A packet counts once, even if the kernel segments it later (GSO).
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Packets {
    /// Packets handed to carriers.
    pub sent: u64,
    /// Bytes of the packets in `sent`.
    pub bytes_sent: u64,
    /// Packets handed to the interface.
    pub received: u64,
    /// Bytes of the packets in `received`.
    pub bytes_received: u64,
    /// Packets that were dropped, by reason.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub drops: BTreeMap<String, u64>,
    /// Packets that were marked instead of being dropped (ECN, RFC 3168).
    pub marks: u64,
    /// Packets that one worker read and the session of another worker carries, because the first
    /// worker has no session, or because the peer of its session does not answer.
    #[serde(default)]
    pub handed: u64,
    /// Sessions that carry packets now.
    #[serde(default)]
    pub sessions: u32,
    /// Entry: the addresses and DNS settings that the exit has assigned and the entry has accepted.
    pub assigned: Option<Assigned>,
}

/// The addresses and DNS settings that an exit assigns to an entry.
#[apply(crate = "serde_with_macros", Vec => #[serde(default, skip_serializing_if = "Vec::is_empty")])]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Assigned {
    /// Addresses of the entry.
    pub addresses: Vec<IpAddr>,
    /// DNS servers of the exit's side.
    pub dns_servers: Vec<IpAddr>,
    /// Search domains of the exit's side.
    pub dns_domains: Vec<String>,
}

/// A gateway's own certificate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Certificate {
    /// SHA-256 of the certificate (DER), in lower-case hexadecimal digits.
    pub fingerprint: String,
    /// Start of the certificate's validity (RFC 3339).
    pub not_before: String,
    /// End of the certificate's validity (RFC 3339).
    pub not_after: String,
}

/// A file that the gateway follows.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct File {
    /// Path of the file.
    pub path: String,
    /// Use of the file.
    #[serde(rename = "use")]
    pub purpose: FileUse,
    /// Why the newest content is not in force. The last usable content stays in force. Absent: the
    /// newest content is in force.
    pub error: Option<String>,
}

named! {
    /// The use of a file that the gateway follows.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
    pub enum FileUse {
        /// The configuration.
        Configuration = "Configuration",
        /// Certificates, keys and lists of peers for carriers.
        Credentials = "Credentials",
        /// Keys and lists of users for the SSH listener of an exit.
        Ssh = "SSH",
        /// Users of a forward.
        Users = "Users",
        /// The system's resolver.
        Resolver = "Resolver",
        /// A value that this version does not support.
        #[serde(other)]
        Other = "Other",
    }
}

named! {
    /// The transport of a carrier.
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
    pub enum CarrierTransport {
        /// A TCP connection.
        #[default]
        Tcp = "TCP",
        /// A WebSocket connection (RFC 6455).
        WebSocket = "WebSocket",
        /// KCP over UDP.
        Kcp = "KCP",
        /// A QUIC connection (RFC 9000).
        Quic = "QUIC",
        /// A Unix socket.
        Unix = "Unix",
        /// The pipes of a command, or standard input and output.
        Pipes = "Pipes",
        /// A value that this version does not support.
        #[serde(other)]
        Other = "Other",
    }
}

impl fmt::Display for CarrierTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One carrier, from the kernel's TCP_INFO and from counters of the gateway.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Carrier {
    /// The other end: `addr:port`, `host:port` behind a proxy, `unix:/path`, `command:PROGRAM` or `stdio`.
    pub peer: String,
    /// The carrier's transport.
    #[serde(default)]
    pub transport: CarrierTransport,
    /// Seconds since the carrier was established.
    pub uptime_seconds: f64,
    /// Smoothed round-trip time.
    pub rtt_milliseconds: f64,
    /// Minimum round-trip time. For TCP, this is the minimum of the last five minutes, unless the
    /// sysctl `net.ipv4.tcp_min_rtt_wlen` has another value.
    pub rtt_min_milliseconds: f64,
    /// Name of the congestion control: `cubic`, `bbr`, ...
    pub congestion_control: String,
    /// Bytes written to the carrier.
    pub bytes_sent: u64,
    /// Bytes read from the carrier.
    pub bytes_received: u64,
    /// Segments retransmitted since the carrier was established.
    pub retransmits: u64,
    /// Congestion window, segments.
    pub congestion_window: u32,
    /// Protocols Native and Jmux: streams of the carrier's session. If a session has several
    /// carriers, the oldest carrier reports all streams of the session, and each other carrier
    /// reports 0. Other protocols: streams of the carrier.
    pub streams: u64,
    /// Bytes that the session has received and that local sockets have not accepted. With protocol
    /// Jmux, plus the credit that the peer has not used.
    pub receive_budget_used: u64,
    /// Bytes that the peer acknowledged in the last second.
    #[serde(default)]
    pub sent_bytes_per_second: u64,
    /// Bytes read from the carrier in the last second.
    #[serde(default)]
    pub received_bytes_per_second: u64,
    /// The bottleneck of the last second. Absent in the first second of a carrier.
    pub limit: Option<Limit>,
    /// How to remove the bottleneck.
    pub limit_advice: Option<String>,
    /// For each bottleneck, the number of seconds in which it has limited the carrier since the
    /// carrier was established.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub limited_seconds: BTreeMap<Limit, f64>,
}

named! {
    /// The bottleneck of a carrier in the sending direction. [`Self::Memory`] and [`Self::Cpu`] also
    /// cover the receiving direction. If several variants apply, the status reports the first of them
    /// in this list.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
    pub enum Limit {
        /// No data to send.
        Idle = "Idle",
        /// The gateway's busiest worker uses all of its CPU time.
        Cpu = "CPU",
        /// `memory.receive` is exhausted.
        Memory = "Memory",
        /// The peer's receive window is full.
        ReceiveWindow = "ReceiveWindow",
        /// The local kernel's send buffer is smaller than the path's bandwidth-delay product.
        SendBuffer = "SendBuffer",
        /// The congestion window is full.
        CongestionWindow = "CongestionWindow",
        /// The carrier could send more, but clients and targets do not send or accept more data, or
        /// streams have no credit.
        Application = "Application",
        /// A value that this version does not support.
        #[serde(other)]
        Other = "Other",
    }
}

impl Limit {
    /// Every value that this version supports.
    pub const ALL: [Self; 7] = [
        Self::Idle,
        Self::Cpu,
        Self::Memory,
        Self::ReceiveWindow,
        Self::SendBuffer,
        Self::CongestionWindow,
        Self::Application,
    ];
}

/// Streams of all sessions or of one forward: those that are open now, and counts since the start.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Streams {
    /// Streams that are open now.
    pub open: u64,
    /// Streams opened since the start.
    pub opened: u64,
    /// Ended streams, by reason. `completed` is a clean end.
    pub closed: BTreeMap<String, u64>,
    /// Opens that were refused or failed, by `MT` code.
    pub refused: BTreeMap<String, u64>,
    /// Payload bytes read from local sockets and sent on carriers.
    pub bytes_sent: u64,
    /// Payload bytes received on carriers and written to local sockets.
    pub bytes_received: u64,
}

/// Waits of streams that have data to send, since the gateway started. A stream waits for credit of
/// the other gateway, or for acknowledgements that free the retransmit buffer.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Credit {
    /// Number of waits.
    pub waits: u64,
    /// Total seconds of finished waits.
    pub waited_seconds: f64,
}

/// Payload since the start that the kernel moved from socket to socket (splice(2)). The gateway
/// copied all other payload.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Splice {
    /// Bytes from local sockets into carriers.
    pub bytes_sent: u64,
    /// Bytes from carriers to local sockets.
    pub bytes_received: u64,
    /// Bytes from carriers to local sockets that the gateway copied although the amount was enough
    /// for a splice. The reason is one of these: no pipe was free, the local socket is slow or has
    /// a rate limit, or earlier payload was missing.
    pub bytes_fallen_back: u64,
    /// Number of times that the gateway copied payload because no pipe was available to the stream.
    pub pipes_lacking: u64,
}

/// Retransmit buffers and lost carriers, in all sessions.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Resume {
    /// Bytes retained now for retransmission. In each session, `memory.retain` bounds these bytes.
    pub bytes_retained: u64,
    /// Number of carriers that were lost since the start and whose session continued.
    pub carriers_survived: u64,
    /// Payload bytes sent again since the start because a lost carrier had not delivered them.
    pub bytes_sent_again: u64,
}

/// One forward in force.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Forward {
    /// The forward's name.
    pub name: String,
    /// The forward's listen address.
    pub listen: String,
    /// The forward's target, `host:port` or `unix:/path`. If clients name the target, the protocol
    /// of the clients. At an exit: `as entries configure`.
    pub target: String,
    /// The forward's streams. Streams of an earlier forward with the same name are included while
    /// at least one of them is open.
    pub streams: Streams,
    /// The recent dials of the forward's target. Absent: clients name the target, or the gateway has
    /// an older version.
    pub dials: Option<Dials>,
    /// Why the forward does not listen, with an `MT` code.
    pub error: Option<String>,
}

/// The dials of a fixed target in the last [`DIALS_SECONDS`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Dials {
    /// Dials that connected to the target.
    pub connected: u64,
    /// Dials that the target refused (MT0205), that timed out (MT0206), or that a rule denied
    /// (MT0204).
    pub failed: u64,
}

/// The time that [`Dials`] describes, in seconds. The oldest tenth of the time may be missing.
pub const DIALS_SECONDS: u64 = 120;

/// The process, from getrusage(2).
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Process {
    /// User and system CPU time.
    pub cpu_seconds: f64,
    /// Peak resident set, bytes.
    pub max_rss_bytes: u64,
    /// Seconds since the process started.
    pub uptime_seconds: f64,
    /// The open files of the process.
    #[serde(default)]
    pub open_files: OpenFiles,
}

/// The open files of a process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OpenFiles {
    /// Number of open files.
    pub open: u64,
    /// The limit (RLIMIT_NOFILE). 0: a gateway of an older version.
    pub limit: u64,
    /// The part of the limit that streams can use. At this number of open files, the gateway
    /// refuses further streams.
    pub for_streams: u64,
}

impl OpenFiles {
    /// Whether the gateway refuses further streams.
    #[must_use]
    pub const fn are_exhausted(&self) -> bool {
        self.limit > 0 && self.open >= self.for_streams
    }
}
