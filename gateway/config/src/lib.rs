//! The two documents that muxgate shares with its operator: the configuration file ([`Config`],
//! YAML) and the status document ([`status::Status`], JSON from the admin port).
//!
//! The crate contains types, parsing and checks only: it opens no socket and no file, and reads no
//! clock. The operator renders [`Config`] and the gateway parses it, both from this type.
//! `gateway/src/process.rs` reads the file.

mod admin_hosts;
mod carrier;
mod check;
mod congestion_control;
mod connect;
mod forward;
mod gateway;
mod gateway_key;
mod hash;
mod limits;
mod listener;
mod locate;
mod network;
mod peers;
mod policy;
mod pool;
mod problem;
mod protocol;
mod proxies;
mod proxy;
mod proxy_protocol;
mod public_keys;
mod rate;
mod rendezvous;
mod reverse;
#[cfg(feature = "schemars")]
mod schema;
mod security;
mod server_tls;
mod size;
mod ssh;
pub mod status;
mod target;
mod text;
mod timeouts;
mod transport;
mod trusted_proxies;
mod web_socket;

pub use admin_hosts::*;
pub use carrier::*;
pub use congestion_control::*;
pub use connect::*;
pub use forward::*;
pub use gateway::*;
pub use gateway_key::*;
pub use hash::*;
pub use limits::*;
pub use listener::*;
pub use locate::*;
pub use network::*;
pub use peers::*;
pub use policy::*;
pub use pool::*;
pub use problem::*;
pub use protocol::*;
pub use proxies::*;
pub use proxy::*;
pub use proxy_protocol::*;
pub use public_keys::*;
pub use rate::*;
pub use rendezvous::*;
pub use reverse::*;
pub use security::*;
pub use server_tls::*;
pub use size::*;
pub use ssh::*;
pub use target::*;
pub use timeouts::*;
pub use transport::*;
pub use trusted_proxies::*;
pub use web_socket::*;

use serde::{Deserialize, Serialize};
use serde_with_macros::{apply, skip_serializing_none};
use serde_yaml::{Mapping, Value};
use text::{is_default, is_number};

/// TCP port on which exit gateways listen for carriers. No forward may use this port.
pub const CARRIER_PORT: u16 = muxtunnel_contract::ports::CARRIER;
/// TCP port of the admin endpoint (HTTP) of every gateway. No forward may use this port.
pub const ADMIN_PORT: u16 = muxtunnel_contract::ports::ADMIN;
/// Default maximum number of streams per session.
pub const STREAMS_DEFAULT: u32 = 4096;
/// Default maximum number of carriers of an exit.
pub const CARRIERS_DEFAULT: u32 = 256;
/// Default receive budget of a session: 256 MiB.
pub const RECEIVE_DEFAULT: ByteSize = ByteSize(256 << 20);
/// Default of [`Memory::sessions`].
pub const SESSIONS_DEFAULT: u32 = 4;
/// Maximum of [`Memory::sessions`].
pub const SESSIONS_MAX: u32 = 65536;
/// Minimum receive budget of a session: 1 MiB.
pub const RECEIVE_MIN: ByteSize = ByteSize(1 << 20);
/// Default size of a session's retransmit buffer: 128 MiB. As [`RECEIVE_DEFAULT`] it permits
/// 10 Gbit/s over a round trip of 100 ms, because a receive window is twice the bytes of one round
/// trip.
pub const RETAIN_DEFAULT: ByteSize = ByteSize(128 << 20);
/// Minimum size of a session's retransmit buffer: 1 MiB.
pub const RETAIN_MIN: ByteSize = ByteSize(1 << 20);
/// Minimum receive window of a stream of protocol JMUX. JMUX has no credit for the whole session,
/// so `limits.streams` times this minimum must fit into `memory.receive`.
pub const STREAM_RECEIVE_MIN: ByteSize = ByteSize(16 << 10);
/// Maximum number of workers of a gateway.
pub const WORKERS_MAX: u16 = 64;
/// Default for [`Memory::stall_seconds`].
pub const STALL_SECONDS_DEFAULT: u32 = 60;
/// Default for [`Config::liveness_seconds`]. Common proxies cut connections that are silent for 60 s.
pub const LIVENESS_SECONDS_DEFAULT: u32 = 15;
/// Minimum of [`Config::liveness_seconds`].
pub const LIVENESS_SECONDS_MIN: u32 = 5;
/// Maximum of [`Config::liveness_seconds`].
pub const LIVENESS_SECONDS_MAX: u32 = 300;
/// Minimum of [`Config::packet_bytes`].
pub const PACKET_BYTES_MIN: u16 = 1024;
/// Default number of seconds after SIGTERM during which a gateway still accepts connections, so
/// that load balancers can react.
pub const DRAIN_ACCEPT_SECONDS_DEFAULT: u32 = 5;
/// Default time, in seconds after SIGTERM, at which the gateway resets streams that are still open.
pub const DRAIN_DEADLINE_SECONDS_DEFAULT: u32 = muxtunnel_contract::defaults::DRAIN_SECONDS;

/// The whole configuration of one gateway.
///
/// A running gateway applies changes of `forwards`, `reverseForwards`, `proxies`, `allow`, `deny`,
/// `protectedCIDRs`, `nat64Prefixes`, `allowListen`, `trustedProxies`, `timeouts`,
/// `memory.sessions`, `security.peers`, `members`, and of the keys and names in `connect` and
/// `rendezvous`. A change of any other field needs a restart.
#[apply(crate = "serde_with_macros", Vec => #[serde(default, skip_serializing_if = "Vec::is_empty")])]
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Config {
    /// The role of this gateway.
    pub role: Role,
    /// The mux protocol on the carriers. Both ends must have the same protocol.
    #[serde(default)]
    pub protocol: Protocol,
    /// Entry with protocol JMUX: the size in bytes of the largest packet, header included, that the
    /// entry offers to accept: [`PACKET_BYTES_MIN`]..=65,535. Default: 4,096, which every peer
    /// accepts. muxgate and jetsocat 2024.3.2 and later accept 65,535.
    pub packet_bytes: Option<u16>,
    /// The transport of carriers. Both ends must have the same transport.
    #[serde(default, skip_serializing_if = "is_default")]
    pub transport: Transport,
    /// How carriers are secured.
    pub security: Security,
    /// If set, carriers are WebSocket connections.
    pub web_socket: Option<WebSocket>,
    /// The congestion control of carriers.
    #[serde(default)]
    pub congestion_control: CongestionControl,
    /// Seconds without a byte of the peer after which a carrier is probed,
    /// [`LIVENESS_SECONDS_MIN`]..=[`LIVENESS_SECONDS_MAX`]. The probe keeps the carrier in use for
    /// devices on the path, and detects a peer that has vanished behind such a device.
    #[serde(
        default = "liveness_seconds",
        skip_serializing_if = "is_number::<_, LIVENESS_SECONDS_DEFAULT>"
    )]
    pub liveness_seconds: u32,
    /// Entry: its exits, 1..=[`CONNECT_MAX`].
    pub connect: Vec<Connect>,
    /// The proxy for connections to `connect`. By default, WebSocket carriers use the proxy of the
    /// environment variables, and other carriers use no proxy.
    pub proxy: Option<Proxy>,
    /// Exit: the address on which it accepts carriers: `addr:port`, `unix:/path` or
    /// [`LISTEN_STDIO`]. With [`LISTEN_STDIO`], the process's standard input and output are its
    /// only carrier, and the process exits when that carrier ends. Rendezvous: `addr:port` on which
    /// it accepts leaves. An entry and an exit with `rendezvous` do not set this field.
    pub listen: Option<String>,
    /// Exit and rendezvous whose `listen` is `addr:port`: the networks of load balancers, at most
    /// [`TRUSTED_PROXIES_MAX`]. A connection from these networks must begin with a PROXY protocol
    /// header, version 1 or 2, which names the client of the connection. The gateway reads no
    /// header from other addresses.
    pub trusted_proxies: Vec<Cidr>,
    /// Exit: instead of `listen`, the rendezvous where the exit waits for entries, at most
    /// [`RENDEZVOUS_MAX`]. Only mode PublicKeys.
    pub rendezvous: Vec<MeetingPlace>,
    /// Rendezvous: the accepted leaves, 0..=[`PEERS_MAX`] together with those of
    /// `security.peersFile`.
    pub members: Vec<Member>,
    /// Exit with a protocol other than SSH: a second listener for SSH carriers, with the same
    /// policy and limits.
    pub ssh: Option<SshListener>,
    /// Entry or exit: the gateway carries IP packets between the networks of both sides. Default:
    /// streams only.
    pub network: Option<Network>,
    /// `addr:port` of the admin endpoint. Default: no admin endpoint.
    pub admin: Option<String>,
    /// The names under which clients reach the admin endpoint, at most [`ADMIN_HOSTS_MAX`]. The
    /// endpoint also serves requests whose `Host` is an IP address or `localhost`, and refuses all
    /// other requests, which a web page may have caused (DNS rebinding).
    pub admin_hosts: Vec<String>,
    /// Entry: the ports whose streams the exit connects to their targets, at most [`FORWARDS_MAX`].
    pub forwards: Vec<Forward>,
    /// Entry: the ports that exits open, and whose streams the entry connects to their targets, at
    /// most [`FORWARDS_MAX`].
    pub reverse_forwards: Vec<Forward>,
    /// Entry: the ports whose clients name their targets, at most [`PROXIES_MAX`].
    pub proxies: Vec<ProxyListener>,
    /// Exit: the targets that it may dial, at most [`RULES_MAX`] rules. Empty: no target.
    pub allow: Vec<Rule>,
    /// Exit: the targets that it may not dial, at most [`RULES_MAX`] rules. These rules take
    /// precedence over `allow`.
    pub deny: Vec<Rule>,
    /// Entry and exit: protected networks, such as the API server's, at most [`PROTECTED_MAX`]. A
    /// rule allows such an address only if the rule's own network lies within the protected network.
    #[serde(rename = "protectedCIDRs")]
    pub protected_cidrs: Vec<Cidr>,
    /// Entry and exit: NAT64 prefixes of the network (RFC 6052), of 32, 40, 48, 56, 64 or 96 bits, at
    /// most [`NAT64_PREFIXES_MAX`]. An address in such a prefix is protected like the IPv4 address
    /// that it contains. 64:ff9b::/96 is always included.
    pub nat64_prefixes: Vec<Cidr>,
    /// Exit whose protocol supports listeners: the addresses on which entries may request
    /// listeners, at most [`LISTEN_RULES_MAX`] rules.
    pub allow_listen: Vec<ListenRule>,
    /// Number of single-threaded event loops that share the streams, 1..=[`WORKERS_MAX`]. Default:
    /// with `network`, one worker per queue. For a JMUX entry, a command or `listen: stdio`, one
    /// worker. Otherwise one worker per core. A JMUX entry has one worker, because jetsocat accepts
    /// a single carrier.
    pub workers: Option<u16>,
    /// Entry whose protocol supports several carriers: the number of carriers of each session.
    /// Default: see [`Self::pool`].
    pub pool: Option<Pool>,
    /// Protocol Native: whether streams survive the loss of their carrier, if the other end agrees.
    /// A session then retains the payload that it sent, at most `memory.retain`, until the peer
    /// acknowledges it.
    #[serde(default = "yes", skip_serializing_if = "is_yes")]
    pub resume: bool,
    /// Whether the kernel moves payload from socket to socket (splice(2)) if carriers are plain
    /// TCP. If false, the gateway copies payload, as it always does for encrypted carriers.
    #[serde(default = "yes", skip_serializing_if = "is_yes")]
    pub splice: bool,
    /// Timeouts of streams without activity.
    #[serde(default, skip_serializing_if = "is_default")]
    pub timeouts: Timeouts,
    /// Bounds of the memory of one session.
    #[serde(default)]
    pub memory: Memory,
    /// Bounds of the number of streams and carriers.
    #[serde(default)]
    pub limits: GatewayLimits,
    /// Shutdown after SIGTERM.
    #[serde(default)]
    pub drain: Drain,
}

/// The role of a gateway, and of its keys. A role comes after those that it dials.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Role {
    /// Joins connections of entries and exits that cannot reach each other. Entries and exits dial
    /// the rendezvous.
    Rendezvous,
    /// Accepts carriers and dials targets.
    Exit,
    /// Accepts clients and dials the exit.
    Entry,
}

impl Role {
    /// Every role.
    pub const ALL: [Self; 3] = [Self::Rendezvous, Self::Exit, Self::Entry];

    /// The role in names and labels of Kubernetes.
    #[must_use]
    pub const fn component(self) -> &'static str {
        match self {
            Self::Entry => "entry",
            Self::Exit => "exit",
            Self::Rendezvous => "rendezvous",
        }
    }
}

/// Memory bounds of one session. If the process has a memory limit, its sessions also share a part
/// of the limit: half of it for `receive` and an eighth for `retain`.
#[skip_serializing_none]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Memory {
    /// Maximum sum of the credit that the session grants to the peer. At least 1 MiB.
    pub receive: ByteSize,
    /// Protocol Native with `resume`: maximum number of bytes that were sent and not acknowledged,
    /// plus bytes that wait to be sent. Protocols QUIC and HTTP3: maximum number of bytes of a
    /// connection that were sent and not acknowledged. At least 1 MiB.
    #[serde(skip_serializing_if = "is_retain_default")]
    pub retain: ByteSize,
    /// Protocol Native: while `receive` is exhausted, a stream is reset if data waits for its local
    /// socket and the socket accepts less than 4 KiB in this many seconds,
    /// 0..=[`TIMEOUT_SECONDS_MAX`]. 0: never.
    #[serde(skip_serializing_if = "is_number::<_, STALL_SECONDS_DEFAULT>")]
    pub stall_seconds: u32,
    /// Exit: the number of sessions that the exit expects, 1..=[`SESSIONS_MAX`]. With protocols other
    /// than Native and JMUX, the number of connections. They share a part of the process's memory limit
    /// equally. A running gateway applies a change to new sessions.
    /// Default: 4. An entry knows the number of its sessions.
    pub sessions: Option<u32>,
}

impl Default for Memory {
    fn default() -> Self {
        Self {
            receive: RECEIVE_DEFAULT,
            retain: RETAIN_DEFAULT,
            stall_seconds: STALL_SECONDS_DEFAULT,
            sessions: None,
        }
    }
}

fn is_retain_default(retain: &ByteSize) -> bool {
    *retain == RETAIN_DEFAULT
}

const fn liveness_seconds() -> u32 {
    LIVENESS_SECONDS_DEFAULT
}

const fn yes() -> bool {
    true
}

const fn is_yes(value: &bool) -> bool {
    *value
}

/// Bounds of the number of streams and carriers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct GatewayLimits {
    /// Streams per session, 1..=1,000,000.
    pub streams: u32,
    /// Concurrent carriers of an exit, 1..=1,024.
    pub carriers: u32,
}

impl Default for GatewayLimits {
    fn default() -> Self {
        Self {
            streams: STREAMS_DEFAULT,
            carriers: CARRIERS_DEFAULT,
        }
    }
}

/// Shutdown after SIGTERM. The gateway accepts connections for `accept_seconds`. An entry accepts
/// clients until none has arrived for `accept_seconds`, but for at most 30 s and half of
/// `deadline_seconds` if that is more. The gateway waits for open streams until `deadline_seconds`,
/// and then resets the remaining streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Drain {
    /// Seconds, 0..=`deadline_seconds`.
    pub accept_seconds: u32,
    /// Seconds since SIGTERM. Keep this value at least 5 s below the pod's grace period.
    pub deadline_seconds: u32,
}

impl Default for Drain {
    fn default() -> Self {
        Self {
            accept_seconds: DRAIN_ACCEPT_SECONDS_DEFAULT,
            deadline_seconds: DRAIN_DEADLINE_SECONDS_DEFAULT,
        }
    }
}

impl Config {
    /// Parses and checks a YAML document.
    ///
    /// # Errors
    /// [`ConfigError`] with line and column.
    pub fn from_yaml(text: &str) -> Result<Self, ConfigError> {
        let config: Self = problem::read(text)?;
        config.check().map_err(|error| error.within(text))?;
        Ok(config)
    }

    /// Renders the YAML document that [`Self::from_yaml`] reads.
    ///
    /// # Errors
    /// The serializer failed. This does not happen for a value of this type.
    pub fn to_yaml(&self) -> Result<String, ConfigError> {
        serde_yaml::to_string(self).map_err(|error| ConfigError::field("", error.to_string()))
    }

    /// The configuration in force after a reload of `new`: the reloadable fields of `new`, and the
    /// static fields of `self`.
    #[must_use]
    pub fn reloaded(&self, new: &Self) -> Self {
        self.with_fields_of(Some(new))
    }

    /// The names, as in the file, of the fields of `new` that differ from `self` and need a
    /// restart.
    #[must_use]
    pub fn needing_restart(&self, new: &Self) -> Vec<String> {
        let fields = |config: &Self| match serde_yaml::to_value(config.static_part()) {
            Ok(Value::Mapping(fields)) => fields,
            _ => Mapping::new(),
        };
        let (running, new) = (fields(self), fields(new));
        let gone = running.keys().filter(|name| !new.contains_key(*name));
        let names = new.keys().chain(gone);
        let differ = names.filter(|name| running.get(*name) != new.get(*name));
        differ
            .filter_map(Value::as_str)
            .map(str::to_owned)
            .collect()
    }

    /// The configuration without its reloadable fields: these are empty or have their defaults.
    #[must_use]
    pub fn static_part(&self) -> Self {
        self.with_fields_of(None)
    }

    /// The configuration with the reloadable fields of `new`, or with their defaults.
    fn with_fields_of(&self, new: Option<&Self>) -> Self {
        fn of<'a, T: Clone + Default>(
            new: Option<&'a Config>,
            field: fn(&'a Config) -> &'a T,
        ) -> T {
            new.map(field).cloned().unwrap_or_default()
        }
        Self {
            forwards: of(new, |new| &new.forwards),
            reverse_forwards: of(new, |new| &new.reverse_forwards),
            proxies: of(new, |new| &new.proxies),
            allow: of(new, |new| &new.allow),
            deny: of(new, |new| &new.deny),
            protected_cidrs: of(new, |new| &new.protected_cidrs),
            nat64_prefixes: of(new, |new| &new.nat64_prefixes),
            allow_listen: of(new, |new| &new.allow_listen),
            trusted_proxies: of(new, |new| &new.trusted_proxies),
            timeouts: of(new, |new| &new.timeouts),
            memory: Memory {
                sessions: of(new, |new| &new.memory.sessions),
                ..self.memory
            },
            members: of(new, |new| &new.members),
            security: self.security.with_peers_of(new.map(|new| &new.security)),
            connect: connect::with_identities_of(&self.connect, new.map(|new| &*new.connect)),
            rendezvous: rendezvous::with_keys(&self.rendezvous, new.map(|new| &*new.rendezvous)),
            network: network::with_peers_of(self.network.as_ref(), new),
            ..self.clone()
        }
    }

    /// The number of carriers of each session. The default is [`Pool::default_of`] for an entry without a
    /// command in `connect`, and otherwise [`Pool::ONE`].
    #[must_use]
    pub fn pool(&self) -> Pool {
        let default = match self.role == Role::Entry && self.command().is_none() {
            true => Pool::default_of(self.protocol, self.transport, self.resume),
            false => Pool::ONE,
        };
        self.pool.unwrap_or(default)
    }

    /// Whether streams survive the loss of their carrier on this end. With `listen: stdio`, streams
    /// do not survive, because the process ends when its carrier ends.
    #[must_use]
    pub fn resumes(&self) -> bool {
        self.resume && self.protocol.can().resume && !self.is_stdio()
    }

    /// Whether the process's standard input and output are its only carrier.
    #[must_use]
    pub fn is_stdio(&self) -> bool {
        self.listen.as_deref() == Some(LISTEN_STDIO)
    }
}

#[cfg(test)]
mod tests;
