//! Forwards: their listen addresses, their targets, and the limits of their streams.

use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::check::check_addr_port;
use crate::listen::{self, Auth, ListenProtocol, ProxyProtocol};
use crate::target::{self, Target, UNIX_PREFIX};
use crate::{BitRate, ConfigError, Direction};

/// Maximum number of forwards in a configuration.
pub const FORWARDS_MAX: usize = 64;
/// Maximum of `limits.streams` and `limits.opensPerSecond` of a forward.
pub const FORWARD_LIMIT_MAX: u32 = 1_000_000;
/// Minimum rate limit of a forward: 100 kbit/s.
pub const RATE_MIN: BitRate = BitRate(100_000);
/// Maximum rate limit of a forward: 1,000 Gbit/s.
pub const RATE_MAX: BitRate = BitRate(1_000_000_000_000);

/// One listener and the target of its streams.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Forward {
    /// Unique name, used in logs and metrics.
    pub name: String,
    /// The listen address: `addr:port`, or `unix:/path` for a socket of mode 0600 that this gateway
    /// creates.
    pub listen: String,
    /// The protocol of the forward's clients.
    #[serde(default, skip_serializing_if = "ListenProtocol::is_tcp")]
    pub protocol: ListenProtocol,
    /// The target of streams whose clients do not name a target.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<Target>,
    /// The users that may connect, if the protocol authenticates users. Default: every client.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auth: Option<Auth>,
    /// PROXY protocol headers on the forward's connections. Default: none.
    #[serde(default, skip_serializing_if = "ProxyProtocol::is_off")]
    pub proxy_protocol: ProxyProtocol,
    /// Which side listens.
    #[serde(default, skip_serializing_if = "Direction::is_default")]
    pub direction: Direction,
    /// The priority of the forward's new streams, relative to the streams of other forwards.
    #[serde(default, skip_serializing_if = "Priority::is_auto")]
    pub priority: Priority,
    /// Limits of the forward's streams. Default: no limit.
    #[serde(default, skip_serializing_if = "ForwardLimits::is_empty")]
    pub limits: ForwardLimits,
}

impl Forward {
    /// Whether the target of every connection is the forward's target. Otherwise clients may name
    /// their targets.
    #[must_use]
    pub const fn has_fixed_target(&self) -> bool {
        matches!(self.protocol, ListenProtocol::Tcp) && self.target.is_some()
    }
}

/// The order in which streams that share carriers send.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Priority {
    /// New streams and streams that have sent little data take precedence over streams that send
    /// much data.
    #[default]
    Auto,
    /// Streams of this forward take precedence over streams that send much data, even if they send
    /// much data themselves.
    Interactive,
    /// All other streams take precedence over streams of this forward.
    Bulk,
}

impl Priority {
    #[allow(clippy::trivially_copy_pass_by_ref, reason = "serde needs a reference")]
    fn is_auto(&self) -> bool {
        *self == Self::Auto
    }
}

/// Parses a priority as the command line spells it, in lower case.
impl FromStr for Priority {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "interactive" => Ok(Self::Interactive),
            "bulk" => Ok(Self::Bulk),
            _ => Err(format!(
                "{text:?} is not a priority; priorities are auto, interactive and bulk"
            )),
        }
    }
}

/// Limits of all streams of one forward together, in one gateway. Default: no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ForwardLimits {
    /// Maximum number of concurrent streams, 1..=[`FORWARD_LIMIT_MAX`]. Further connections are
    /// reset. A SOCKS or HTTP client gets a refusal instead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub streams: Option<u32>,
    /// Maximum number of new connections per second, 1..=[`FORWARD_LIMIT_MAX`]. Further connections
    /// are reset or refused, as with `streams`. After one second without connections, this number
    /// of connections may arrive at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub opens_per_second: Option<u32>,
    /// Maximum payload rate in each direction, [`RATE_MIN`]..=[`RATE_MAX`]. The gateway delays
    /// payload above the rate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<BitRate>,
}

impl ForwardLimits {
    /// Whether no limit is set.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Returns the field of the first limit that is out of range, and the problem.
    fn problem(&self) -> Option<(&'static str, String)> {
        for (field, limit) in [
            ("streams", self.streams),
            ("opensPerSecond", self.opens_per_second),
        ] {
            if limit.is_some_and(|limit| !(1..=FORWARD_LIMIT_MAX).contains(&limit)) {
                return Some((field, format!("must be from 1 to {FORWARD_LIMIT_MAX}")));
            }
        }
        self.rate
            .filter(|rate| !(RATE_MIN..=RATE_MAX).contains(rate))
            .map(|rate| {
                (
                    "rate",
                    format!("{rate} is out of range: expected {RATE_MIN} to {RATE_MAX}"),
                )
            })
    }
}

/// Checks that names and listen addresses are unique, targets are valid and limits are in range.
pub(crate) fn check(forwards: &[Forward]) -> Result<(), ConfigError> {
    if forwards.len() > FORWARDS_MAX {
        return Err(ConfigError::field(
            "forwards",
            format!(
                "has {} entries, at most {FORWARDS_MAX} are allowed",
                forwards.len()
            ),
        ));
    }
    for (index, forward) in forwards.iter().enumerate() {
        let wrong = |field: &str, problem: String| {
            Err(ConfigError::field(
                format!("forwards[{index}].{field}"),
                problem,
            ))
        };
        let earlier = &forwards[..index];
        if forward.name.is_empty() || forward.name.len() > 63 {
            return wrong("name", "must have 1 to 63 characters".to_owned());
        }
        if earlier.iter().any(|other| other.name == forward.name) {
            let problem = format!("{:?} is used by more than one forward", forward.name);
            return wrong("name", problem);
        }
        match forward.listen.strip_prefix(UNIX_PREFIX) {
            None => check_addr_port(&format!("forwards[{index}].listen"), &forward.listen)?,
            Some(path) => {
                if let Some(problem) = target::unix_path_problem(path) {
                    return wrong("listen", problem);
                }
            }
        }
        let on_same_side = |other: &&Forward| other.direction == forward.direction;
        let mut earlier = earlier.iter().filter(on_same_side);
        if earlier.any(|other| other.listen == forward.listen) {
            let problem = format!("{} is used by more than one forward", forward.listen);
            return wrong("listen", problem);
        }
        let target = forward.target.as_ref();
        if let Some((field, problem)) = target.and_then(Target::problem) {
            return wrong(&format!("target.{field}"), problem);
        }
        if let Some((field, problem)) = listen::problem(forward) {
            return wrong(field, problem);
        }
        if let Some((field, problem)) = forward.limits.problem() {
            return wrong(&format!("limits.{field}"), problem);
        }
    }
    Ok(())
}
