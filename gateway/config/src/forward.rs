//! What an entry listens on, where it leads, and how much of it is let in.

use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::check::check_addr_port;
use crate::listen::{self, Auth, ListenProtocol, ProxyProtocol};
use crate::target::{self, Target, UNIX_PREFIX};
use crate::{BitRate, ConfigError, Direction};

/// Most forwards in one configuration.
pub const FORWARDS_MAX: usize = 64;
/// Most that `limits.streams` and `limits.opensPerSecond` of a forward can be.
pub const FORWARD_LIMIT_MAX: u32 = 1_000_000;
/// Least rate of a forward: 100 kbit/s.
pub const RATE_MIN: BitRate = BitRate(100_000);
/// Most rate of a forward: 1,000 Gbit/s.
pub const RATE_MAX: BitRate = BitRate(1_000_000_000_000);

/// One listener and the target of its streams.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Forward {
    /// Unique name, for logs and metrics.
    pub name: String,
    /// `addr:port` to listen on, of the side that listens, or `unix:/path`: a socket that this gateway makes, of
    /// mode 0600.
    pub listen: String,
    /// What clients speak there.
    #[serde(default, skip_serializing_if = "ListenProtocol::is_tcp")]
    pub protocol: ListenProtocol,
    /// Where the other side leads those that do not say it themselves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<Target>,
    /// Protocols that say a user: who is served. Default: everybody.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auth: Option<Auth>,
    /// Who says where a client is. Default: its connection.
    #[serde(default, skip_serializing_if = "ProxyProtocol::is_off")]
    pub proxy_protocol: ProxyProtocol,
    /// Which side listens.
    #[serde(default, skip_serializing_if = "Direction::is_default")]
    pub direction: Direction,
    /// Who of its streams and those of other forwards goes first; of streams that are opened from now on.
    #[serde(default, skip_serializing_if = "Priority::is_auto")]
    pub priority: Priority,
    /// What its streams may take. Default: no limit.
    #[serde(default, skip_serializing_if = "ForwardLimits::is_empty")]
    pub limits: ForwardLimits,
}

/// Who goes first where streams share carriers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Priority {
    /// Streams that send little, and new ones.
    #[default]
    Auto,
    /// These, whatever they send; before streams that send much.
    Interactive,
    /// All others.
    Bulk,
}

impl Priority {
    #[allow(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
    fn is_auto(&self) -> bool {
        *self == Self::Auto
    }
}

/// As on a command line: lower case.
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

/// What the streams of one forward may take together, in one gateway. Absent: no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ForwardLimits {
    /// Streams at once, 1..=[`FORWARD_LIMIT_MAX`]. A connection too many is reset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub streams: Option<u32>,
    /// New connections a second, 1..=[`FORWARD_LIMIT_MAX`]; after a pause, that many at once. One too
    /// many is reset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub opens_per_second: Option<u32>,
    /// Payload in each direction, [`RATE_MIN`]..=[`RATE_MAX`]. What is more waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<BitRate>,
}

impl ForwardLimits {
    /// Whether nothing is limited.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The first bound that is out of its range: the field and what is wrong with it.
    fn problem(&self) -> Option<(&'static str, String)> {
        for (field, limit) in [
            ("streams", self.streams),
            ("opensPerSecond", self.opens_per_second),
        ] {
            if limit.is_some_and(|limit| !(1..=FORWARD_LIMIT_MAX).contains(&limit)) {
                return Some((field, format!("must be 1..={FORWARD_LIMIT_MAX}")));
            }
        }
        self.rate
            .filter(|rate| !(RATE_MIN..=RATE_MAX).contains(rate))
            .map(|rate| {
                (
                    "rate",
                    format!("{rate} is not from {RATE_MIN} to {RATE_MAX}"),
                )
            })
    }
}

/// Names and ports are unique, targets can be dialled, limits are within their bounds.
pub(crate) fn check(forwards: &[Forward]) -> Result<(), ConfigError> {
    if forwards.len() > FORWARDS_MAX {
        return Err(ConfigError::field(
            "forwards",
            format!("{} entries, at most {FORWARDS_MAX}", forwards.len()),
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
