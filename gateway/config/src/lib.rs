//! The two documents by which muxgate and its operator know each other: the configuration file
//! ([`Config`], YAML in) and the status document ([`status::Status`], JSON out of the admin port).
//!
//! Only types, parsing and checks: no socket, no file, no clock. The operator renders [`Config`], the
//! gateway parses it, from this one type. See `gateway/src/process.rs` for who reads it.

mod carrier;
mod check;
mod forward;
mod gateway;
mod hash;
mod listen;
mod locate;
mod network;
mod offer;
mod policy;
mod pool;
mod problem;
mod protocol;
mod proxy;
mod rate;
mod rendezvous;
mod reverse;
mod security;
mod server_tls;
mod size;
mod ssh;
pub mod status;
mod target;
mod transport;
mod trusted_proxies;
mod web_socket;

pub use carrier::{COMMAND_WORDS_MAX, LISTEN_STDIO};
pub use forward::{
    FORWARD_LIMIT_MAX, FORWARDS_MAX, Forward, ForwardLimits, Priority, RATE_MAX, RATE_MIN,
};
pub use gateway::{Arrivals, Entry, Exit, Exits, Gateway, Reloadable, Rendezvous, SessionConfig};
pub use hash::config_hash;
pub use listen::{Auth, ListenProtocol, ProxyProtocol};
pub use locate::Position;
pub use network::{
    DEVICE_BYTES_MAX, DEVICE_DEFAULT, DEVICE_NODE_DEFAULT, MTU_DEFAULT, MTU_MIN, NETWORK_CIDRS_MAX,
    NETWORK_DNS_DOMAINS_MAX, NETWORK_DNS_SERVERS_MAX, NETWORK_PEERS_MAX, Network, NetworkDns,
    NetworkPeer,
};
pub use offer::{OFFER_BYTES_MAX, OFFER_TARGET};
pub use policy::{
    Cidr, CidrError, HostPattern, NAT64_PREFIXES_MAX, PEER_BYTES_MAX, PROTECTED_MAX, Policy, Ports,
    RULES_MAX, Rule, RuleError, ends_in_number,
};
pub use pool::{POOL_MAX, Pool};
pub use problem::ConfigError;
pub use protocol::{Capabilities, Protocol};
pub use proxy::{Proxy, ProxyError, ProxyScheme, ProxyServer};
pub use rate::{BitRate, BitRateError};
pub use rendezvous::Leaf;
pub use reverse::{Direction, LISTEN_RULES_MAX, ListenRule, ListenRuleError};
pub use security::{
    KeyError, MutualTls, Noise, PEERS_MAX, PublicKey, Security, decode_key, encode_key,
};
pub use server_tls::ServerTls;
pub use size::ByteSize;
pub use ssh::{HOST_KEYS_MAX, Ssh, SshListener};
pub use target::{Target, UNIX_PATH_MAX, UNIX_PREFIX};
pub use transport::Transport;
pub use trusted_proxies::{TRUSTED_PROXIES_MAX, check_trusted_proxies};
pub use web_socket::{ORIGINS_MAX, WebSocket};

use serde::{Deserialize, Serialize};
use serde_yaml::{Mapping, Value};

/// Port on which exit gateways listen for carriers. TCP. No forward may use it.
pub const CARRIER_PORT: u16 = muxtunnel_contract::ports::CARRIER;
/// Port of the admin endpoint of every gateway. TCP, HTTP. No forward may use it.
pub const ADMIN_PORT: u16 = muxtunnel_contract::ports::ADMIN;
/// Most entries of `connect`.
pub const CONNECT_MAX: usize = 16;
/// Most streams of one session unless configured otherwise.
pub const STREAMS_DEFAULT: u32 = 4096;
/// Most carriers an exit takes unless configured otherwise.
pub const CARRIERS_DEFAULT: u32 = 64;
/// Receive budget of one session unless configured otherwise: 256 MiB.
pub const RECEIVE_DEFAULT: ByteSize = ByteSize(256 << 20);
/// Least receive budget of a session: 1 MiB.
pub const RECEIVE_MIN: ByteSize = ByteSize(1 << 20);
/// What a session keeps of what it sent unless configured otherwise: 64 MiB.
pub const RETAIN_DEFAULT: ByteSize = ByteSize(64 << 20);
/// Least of it: 1 MiB.
pub const RETAIN_MIN: ByteSize = ByteSize(1 << 20);
/// Least receive window of a stream of protocol Jmux, which has no credit of the whole session:
/// `limits.streams` times this must fit into `memory.receive`.
pub const STREAM_RECEIVE_MIN: ByteSize = ByteSize(16 << 10);
/// Most workers of a gateway.
pub const WORKERS_MAX: u16 = 64;
/// Seconds after which a stream with one half closed and no byte is reset.
pub const HALF_OPEN_SECONDS_DEFAULT: u32 = 3600;
/// Seconds after which a stream that takes no data is reset, while others wait for receive memory.
pub const STALL_SECONDS_DEFAULT: u32 = 60;
/// Least packet of JMUX that can be asked for, bytes.
pub const PACKET_BYTES_MIN: u16 = 1024;
/// Longest time-out of a stream: 30 days.
pub const TIMEOUT_SECONDS_MAX: u32 = 30 * 24 * 3600;
/// Seconds a gateway goes on accepting after SIGTERM, so that load balancers can take note.
pub const DRAIN_ACCEPT_SECONDS_DEFAULT: u32 = 5;
/// Seconds after SIGTERM at which streams still open are reset.
pub const DRAIN_DEADLINE_SECONDS_DEFAULT: u32 = muxtunnel_contract::defaults::DRAIN_SECONDS;

/// The whole configuration of one gateway.
///
/// `forwards`, `allow`, `policy`, `allowListen`, `trustedProxies`, `offer`, `timeouts` and `security.peers` are taken over
/// while running; a change of anything else needs a restart.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Config {
    /// Which end of the tunnel this gateway is.
    pub role: Role,
    /// The mux protocol on the carriers; both ends must have the same.
    #[serde(default)]
    pub protocol: Protocol,
    /// Entry with protocol Jmux: largest packet that is offered, header included,
    /// [`PACKET_BYTES_MIN`]..=65,535; absent: 4,096, which every peer takes. muxgate and jetsocat
    /// 2024.3.2 and later take all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub packet_bytes: Option<u16>,
    /// What carriers run on; both ends must have the same.
    #[serde(default, skip_serializing_if = "Transport::is_default")]
    pub transport: Transport,
    /// How carriers are secured.
    pub security: Security,
    /// Carriers are WebSocket connections; absent: TCP ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub web_socket: Option<WebSocket>,
    /// How the kernel paces carriers.
    #[serde(default)]
    pub congestion_control: CongestionControl,
    /// Entry: `host:port` of the exit's carrier listener, or `unix:/path`, or those of several exits with commas
    /// between them; at most [`CONNECT_MAX`]. With `rendezvous`, of an exit as well: where both meet. Else absent
    /// there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connect: Option<String>,
    /// Entry, but with protocol Jmux: `host:port` of any exit. The entry dials it where none of `connect` answers, as when
    /// a name server still has the addresses of exits that are gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connect_fallback: Option<String>,
    /// Entry, instead of `connect`: a program and its arguments, at most [`COMMAND_WORDS_MAX`], started for each carrier.
    /// Its standard input and output are the connection to the exit. No shell reads them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub connect_command: Vec<String>,
    /// What `connect` is dialled through; absent: for WebSocket carriers what the environment says, else nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proxy: Option<Proxy>,
    /// Exit: `addr:port` on which carriers are accepted, or `unix:/path`, or [`LISTEN_STDIO`]: its standard input and
    /// output are the one carrier, with which it ends. Rendezvous: on which leaves are accepted. Absent on an
    /// entry and on an exit with `rendezvous`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub listen: Option<String>,
    /// Exit and rendezvous whose `listen` is `addr:port`: networks of load balancers, at most
    /// [`TRUSTED_PROXIES_MAX`]. A connection from there has to begin with a header of the PROXY protocol, version 1
    /// or 2, which names its client. No header is read from any other address.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub trusted_proxies: Vec<Cidr>,
    /// Entry or exit: `connect` is a rendezvous, where they meet under this name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rendezvous: Option<Leaf>,
    /// Rendezvous: the file with the secrets of all names, a line `NAME EXIT-SECRET ENTRY-SECRET` each.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secrets_file: Option<String>,
    /// Exit with another protocol than SSH: takes SSH carriers besides, with the same policy and limits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ssh: Option<SshListener>,
    /// Entry or exit: IP packets between the networks of both sides; absent: streams alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<Network>,
    /// `addr:port` of the admin endpoint; absent: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub admin: Option<String>,
    /// Entry: what is listened on and where it leads, at most [`FORWARDS_MAX`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub forwards: Vec<Forward>,
    /// Exit: which targets may be dialled, at most [`RULES_MAX`]: the short form of `policy.allow`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allow: Vec<Rule>,
    /// Exit: which targets may be dialled, and which may not.
    #[serde(default, skip_serializing_if = "Policy::is_empty")]
    pub policy: Policy,
    /// Exit with a protocol that has listeners: where entries may have it listen, at most [`LISTEN_RULES_MAX`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allow_listen: Vec<ListenRule>,
    /// Exit with security mode MutualTls: a text, 1..=[`OFFER_BYTES_MAX`] bytes, which it gives to each entry that
    /// asks for [`OFFER_TARGET`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offer: Option<String>,
    /// Single-threaded event loops that share the streams, 1..=[`WORKERS_MAX`]; absent: one a core,
    /// and one for a JMUX entry, since each has a carrier of its own and a jetsocat takes a single one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workers: Option<u16>,
    /// Entry with a protocol that has several: carriers of each session; absent: see [`Self::pool`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<Pool>,
    /// Protocol Native: whether streams outlive their carrier, where the other end agrees. Then a
    /// session keeps what it sent until it is acknowledged, at most `memory.retain`.
    #[serde(default = "yes", skip_serializing_if = "is_yes")]
    pub resume: bool,
    /// Whether the kernel moves payload from socket to socket (splice(2)), where carriers are plain TCP;
    /// otherwise it is copied, as it is for carriers that encrypt.
    #[serde(default = "yes", skip_serializing_if = "is_yes")]
    pub splice: bool,
    /// Streams that nothing happens on.
    #[serde(default)]
    pub timeouts: Timeouts,
    /// Memory of one session.
    #[serde(default)]
    pub memory: Memory,
    /// Bounds of tables.
    #[serde(default)]
    pub limits: Limits,
    /// Shutdown after SIGTERM.
    #[serde(default)]
    pub drain: Drain,
}

/// Which end of the tunnel a gateway is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Role {
    /// Streams enter here; it dials the exit.
    Entry,
    /// Targets are dialled here; it accepts carriers.
    Exit,
    /// Neither: entries and exits that cannot reach each other dial it, and it joins their connections.
    Rendezvous,
}

/// How the kernel paces carriers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum CongestionControl {
    /// The gateway chooses by what it measures of the path.
    #[default]
    Auto,
    /// Loss-based, the usual default of Linux.
    Cubic,
    /// By measured bandwidth and round-trip time; the node's kernel must have it.
    Bbr,
}

/// When a stream that nothing happens on is reset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Timeouts {
    /// Without a byte in either direction for this long, 0..=[`TIMEOUT_SECONDS_MAX`]; 0: never.
    pub idle_seconds: u32,
    /// With one half closed and without a byte for this long, 0..=[`TIMEOUT_SECONDS_MAX`]; 0: never.
    pub half_open_seconds: u32,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            idle_seconds: 0,
            half_open_seconds: HALF_OPEN_SECONDS_DEFAULT,
        }
    }
}

/// Memory of one session. The process holds at most this times its sessions, plus fixed buffers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Memory {
    /// The sum of credit granted to the peer never exceeds this. At least 1 MiB.
    pub receive: ByteSize,
    /// Protocol Native with `resume`: bytes sent and not acknowledged, and those to be sent next. At
    /// least 1 MiB.
    #[serde(skip_serializing_if = "is_retain_default")]
    pub retain: ByteSize,
    /// Protocol Native: while `receive` is used up, a stream whose local socket takes no data for this long is reset,
    /// 0..=[`TIMEOUT_SECONDS_MAX`]; 0: never.
    #[serde(skip_serializing_if = "is_stall_default")]
    pub stall_seconds: u32,
}

impl Default for Memory {
    fn default() -> Self {
        Self {
            receive: RECEIVE_DEFAULT,
            retain: RETAIN_DEFAULT,
            stall_seconds: STALL_SECONDS_DEFAULT,
        }
    }
}

fn is_retain_default(retain: &ByteSize) -> bool {
    *retain == RETAIN_DEFAULT
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
const fn is_stall_default(seconds: &u32) -> bool {
    *seconds == STALL_SECONDS_DEFAULT
}

const fn yes() -> bool {
    true
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
const fn is_yes(value: &bool) -> bool {
    *value
}

/// Bounds of tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Limits {
    /// Streams of one session, 1..=1,000,000.
    pub streams: u32,
    /// Carriers an exit holds at once, 1..=1,024.
    pub carriers: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            streams: STREAMS_DEFAULT,
            carriers: CARRIERS_DEFAULT,
        }
    }
}

/// Shutdown after SIGTERM: go on accepting for `accept_seconds`, then wait for open streams until
/// `deadline_seconds`, then reset what is left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Drain {
    /// 0..=`deadline_seconds`.
    pub accept_seconds: u32,
    /// Counted from SIGTERM; keep it 5 s below the pod's grace period.
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
    /// Only if the serializer fails, which no value of this type makes it do.
    pub fn to_yaml(&self) -> Result<String, ConfigError> {
        serde_yaml::to_string(self).map_err(|error| ConfigError::field("", error.to_string()))
    }

    /// What a running gateway takes over of `new`, and what it goes on with until it is restarted.
    #[must_use]
    pub fn reloaded(&self, new: &Self) -> Self {
        Self {
            forwards: new.forwards.clone(),
            allow: new.allow.clone(),
            policy: new.policy.clone(),
            allow_listen: new.allow_listen.clone(),
            trusted_proxies: new.trusted_proxies.clone(),
            offer: new.offer.clone(),
            timeouts: new.timeouts,
            security: self.security.with_peers_of(&new.security),
            ..self.clone()
        }
    }

    /// The fields of `new` that a gateway which runs `self` cannot take over, by their names in the file.
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

    /// What a running gateway cannot take over: all but `forwards`, `allow`, `policy`, `allowListen`,
    /// `trustedProxies`, `offer`, `timeouts` and `security.peers`, which are empty or have their defaults.
    #[must_use]
    pub fn static_part(&self) -> Self {
        Self {
            forwards: Vec::new(),
            allow: Vec::new(),
            policy: Policy::default(),
            allow_listen: Vec::new(),
            trusted_proxies: Vec::new(),
            offer: None,
            timeouts: Timeouts::default(),
            security: self.security.without_peers(),
            ..self.clone()
        }
    }

    /// Carriers of each session: as configured, or else [`Pool::GROWING`] for an entry that may have several, unless that
    /// is a command or KCP, or its streams could outlive them and are not to, and [`Pool::ONE`].
    #[must_use]
    pub fn pool(&self) -> Pool {
        let can = self.protocol.can();
        let grows = self.role == Role::Entry
            && can.several_carriers
            && self.transport == Transport::Tcp
            && (self.resume || !can.resume)
            && self.connect_command.is_empty();
        self.pool
            .unwrap_or(if grows { Pool::GROWING } else { Pool::ONE })
    }

    /// Whether streams outlive their carrier, as far as this end has a say: not where the process ends with it.
    #[must_use]
    pub fn resumes(&self) -> bool {
        self.resume && self.protocol.can().resume && !self.is_stdio()
    }

    /// Whether its standard input and output are its carrier.
    #[must_use]
    pub fn is_stdio(&self) -> bool {
        self.listen.as_deref() == Some(LISTEN_STDIO)
    }

    /// The rules by which an exit may dial, in whichever form they are written.
    pub fn allowed(&self) -> impl Iterator<Item = &Rule> + Clone {
        self.allow.iter().chain(&self.policy.allow)
    }
}

#[cfg(test)]
mod tests;
