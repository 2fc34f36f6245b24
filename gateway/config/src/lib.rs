//! The two documents by which muxgate and its operator know each other: the configuration file
//! ([`Config`], YAML in) and the status document ([`status::Status`], JSON out of the admin port).
//!
//! Only types, parsing and checks: no socket, no file, no clock. The operator renders [`Config`], the
//! gateway parses it, from this one type. See `gateway/src/main.rs` for who reads it.

mod allow;
mod hash;
mod size;
pub mod status;

pub use allow::{Allow, AllowError, AllowHost};
pub use hash::config_hash;
pub use size::ByteSize;

use serde::{Deserialize, Serialize};

/// Port on which exit gateways listen for carriers. TCP. No forward may use it.
pub const CARRIER_PORT: u16 = 64000;
/// Port of the admin endpoint of every gateway. TCP, HTTP. No forward may use it.
pub const ADMIN_PORT: u16 = 64001;
/// Most forwards in one configuration.
pub const FORWARDS_MAX: usize = 64;
/// Most entries in `allow`.
pub const ALLOW_MAX: usize = 256;
/// Most streams of one session unless configured otherwise.
pub const STREAMS_DEFAULT: u32 = 4096;
/// Most carriers an exit takes unless configured otherwise.
pub const CARRIERS_DEFAULT: u32 = 64;
/// Receive budget of one session unless configured otherwise: 256 MiB.
pub const RECEIVE_DEFAULT: ByteSize = ByteSize(256 << 20);
/// Least receive budget of a session: 1 MiB.
pub const RECEIVE_MIN: ByteSize = ByteSize(1 << 20);
/// Least receive window of a stream: `limits.streams` times this must fit into `memory.receive`.
pub const STREAM_RECEIVE_MIN: ByteSize = ByteSize(16 << 10);
/// Seconds a gateway goes on accepting after SIGTERM, so that load balancers can take note.
pub const DRAIN_ACCEPT_SECONDS_DEFAULT: u32 = 5;
/// Seconds after SIGTERM at which streams still open are reset.
pub const DRAIN_DEADLINE_SECONDS_DEFAULT: u32 = 25;

/// The whole configuration of one gateway.
///
/// `forwards` and `allow` are taken over while running; a change of anything else needs a restart.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Config {
    /// Which end of the tunnel this gateway is.
    pub role: Role,
    /// The mux protocol on the carriers; both ends must have the same.
    pub protocol: Protocol,
    /// How carriers are secured.
    pub security: Security,
    /// Entry: `host:port` of the exit's carrier listener. Absent on an exit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connect: Option<String>,
    /// Exit: `addr:port` on which carriers are accepted. Absent on an entry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub listen: Option<String>,
    /// `addr:port` of the admin endpoint; absent: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub admin: Option<String>,
    /// Entry: what is listened on and where it leads, at most [`FORWARDS_MAX`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub forwards: Vec<Forward>,
    /// Exit: which targets may be dialled, at most [`ALLOW_MAX`]. Empty: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allow: Vec<Allow>,
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
}

/// The mux protocol on a carrier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Protocol {
    /// Devolutions' JMUX, as jetsocat speaks it.
    Jmux,
}

/// How carriers are secured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Security {
    /// The mode; there is no default, so that the insecure form is written out.
    pub mode: SecurityMode,
}

/// The carrier security modes that work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum SecurityMode {
    /// Plain TCP: anyone on the path reads and changes the traffic.
    None,
}

/// One listener of an entry and the target its streams lead to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Forward {
    /// Unique name, for logs and metrics.
    pub name: String,
    /// `addr:port` to listen on.
    pub listen: String,
    /// Where the exit dials.
    pub target: Target,
}

/// A TCP target, resolved by the exit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Target {
    /// Name or address literal (IPv6 without brackets), at most 253 characters.
    pub host: String,
    /// 1..=65535.
    pub port: u16,
}

/// Memory of one session. The process holds at most this times its sessions, plus fixed buffers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Memory {
    /// The sum of credit granted to the peer never exceeds this. At least 1 MiB.
    pub receive: ByteSize,
}

impl Default for Memory {
    fn default() -> Self {
        Self {
            receive: RECEIVE_DEFAULT,
        }
    }
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

/// Why a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// Not YAML of this shape; the source names line and column.
    #[error("{0}")]
    Syntax(#[from] serde_yaml::Error),
    /// Well-formed, but a field cannot be used. `field` is its path, such as `forwards[2].listen`.
    #[error("{field}: {problem}")]
    Field {
        /// Path of the field.
        field: String,
        /// What is wrong and what is expected.
        problem: String,
    },
}

impl ConfigError {
    fn field(field: impl Into<String>, problem: impl Into<String>) -> Self {
        Self::Field {
            field: field.into(),
            problem: problem.into(),
        }
    }
}

impl Config {
    /// Parses and checks a YAML document.
    ///
    /// # Errors
    /// [`ConfigError::Syntax`] with line and column, or [`ConfigError::Field`] with the field's path.
    pub fn from_yaml(text: &str) -> Result<Self, ConfigError> {
        let config: Self = serde_yaml::from_str(text)?;
        config.check()?;
        Ok(config)
    }

    /// Renders the YAML document that [`Self::from_yaml`] reads.
    ///
    /// # Errors
    /// Only if the serializer fails, which no value of this type makes it do.
    pub fn to_yaml(&self) -> Result<String, ConfigError> {
        Ok(serde_yaml::to_string(self)?)
    }

    /// Checks what the types cannot say: which fields a role needs, ports, bounds, unique names.
    ///
    /// # Errors
    /// [`ConfigError::Field`] for the first field that cannot be used.
    pub fn check(&self) -> Result<(), ConfigError> {
        self.check_role()?;
        self.check_forwards()?;
        if self.allow.len() > ALLOW_MAX {
            return Err(ConfigError::field(
                "allow",
                format!("{} entries, at most {ALLOW_MAX}", self.allow.len()),
            ));
        }
        if self.memory.receive < RECEIVE_MIN {
            return Err(ConfigError::field(
                "memory.receive",
                format!(
                    "{} is below the least of {RECEIVE_MIN}",
                    self.memory.receive
                ),
            ));
        }
        if !(1..=1_000_000).contains(&self.limits.streams) {
            return Err(ConfigError::field("limits.streams", "must be 1..=1000000"));
        }
        let least = ByteSize(u64::from(self.limits.streams) * STREAM_RECEIVE_MIN.0);
        if self.memory.receive < least {
            return Err(ConfigError::field(
                "limits.streams",
                format!(
                    "{} streams need a memory.receive of at least {least}, it is {}",
                    self.limits.streams, self.memory.receive
                ),
            ));
        }
        if !(1..=1024).contains(&self.limits.carriers) {
            return Err(ConfigError::field("limits.carriers", "must be 1..=1024"));
        }
        if self.drain.accept_seconds > self.drain.deadline_seconds {
            return Err(ConfigError::field(
                "drain.acceptSeconds",
                "is later than drain.deadlineSeconds",
            ));
        }
        if let Some(admin) = &self.admin {
            check_addr_port("admin", admin)?;
        }
        Ok(())
    }

    /// Whether `self` can be taken over by a gateway that runs `running`: they differ in `forwards`
    /// and `allow` only.
    #[must_use]
    pub fn reloadable_from(&self, running: &Self) -> bool {
        let mut merged = running.clone();
        merged.forwards.clone_from(&self.forwards);
        merged.allow.clone_from(&self.allow);
        merged == *self
    }

    fn check_role(&self) -> Result<(), ConfigError> {
        match self.role {
            Role::Entry => {
                let connect = self.connect.as_deref().ok_or_else(|| {
                    ConfigError::field("connect", "an entry needs the exit's host:port")
                })?;
                check_host_port("connect", connect)?;
                if self.listen.is_some() {
                    return Err(ConfigError::field(
                        "listen",
                        "only an exit listens for carriers",
                    ));
                }
                if !self.allow.is_empty() {
                    return Err(ConfigError::field("allow", "only an exit dials targets"));
                }
            }
            Role::Exit => {
                let listen = self.listen.as_deref().ok_or_else(|| {
                    ConfigError::field("listen", "an exit needs an addr:port for carriers")
                })?;
                check_addr_port("listen", listen)?;
                if self.connect.is_some() {
                    return Err(ConfigError::field(
                        "connect",
                        "only an entry dials a carrier",
                    ));
                }
                if !self.forwards.is_empty() {
                    return Err(ConfigError::field(
                        "forwards",
                        "only an entry listens for streams",
                    ));
                }
            }
        }
        Ok(())
    }

    fn check_forwards(&self) -> Result<(), ConfigError> {
        if self.forwards.len() > FORWARDS_MAX {
            return Err(ConfigError::field(
                "forwards",
                format!("{} entries, at most {FORWARDS_MAX}", self.forwards.len()),
            ));
        }
        for (index, forward) in self.forwards.iter().enumerate() {
            let earlier = &self.forwards[..index];
            if forward.name.is_empty() || forward.name.len() > 63 {
                return Err(ConfigError::field(
                    format!("forwards[{index}].name"),
                    "must have 1 to 63 characters",
                ));
            }
            if earlier.iter().any(|other| other.name == forward.name) {
                return Err(ConfigError::field(
                    format!("forwards[{index}].name"),
                    format!("{:?} is used by more than one forward", forward.name),
                ));
            }
            check_addr_port(&format!("forwards[{index}].listen"), &forward.listen)?;
            if earlier.iter().any(|other| other.listen == forward.listen) {
                return Err(ConfigError::field(
                    format!("forwards[{index}].listen"),
                    format!("{} is used by more than one forward", forward.listen),
                ));
            }
            let target = &forward.target;
            if target.host.is_empty()
                || target.host.len() > 253
                || target.host.contains(char::is_whitespace)
            {
                return Err(ConfigError::field(
                    format!("forwards[{index}].target.host"),
                    "must be a name or an address of 1 to 253 characters",
                ));
            }
            if target.port == 0 {
                return Err(ConfigError::field(
                    format!("forwards[{index}].target.port"),
                    "must be 1..=65535",
                ));
            }
        }
        Ok(())
    }
}

fn check_addr_port(field: &str, text: &str) -> Result<(), ConfigError> {
    match text.parse::<std::net::SocketAddr>() {
        Ok(_) => Ok(()),
        Err(_) => Err(ConfigError::field(
            field,
            format!("{text:?} is not ADDRESS:PORT, such as 0.0.0.0:8080 or [::]:8080"),
        )),
    }
}

fn check_host_port(field: &str, text: &str) -> Result<(), ConfigError> {
    let problem = || {
        ConfigError::field(
            field,
            format!("{text:?} is not HOST:PORT, such as exit.example.com:64000"),
        )
    };
    let (host, port) = text.rsplit_once(':').ok_or_else(problem)?;
    let port: u16 = port.parse().map_err(|_| problem())?;
    if host.is_empty() || port == 0 || (host.contains(':') && !host.starts_with('[')) {
        return Err(problem());
    }
    Ok(())
}

#[cfg(test)]
mod tests;
