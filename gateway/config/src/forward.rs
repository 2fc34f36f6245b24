//! Forwards: their listen addresses, their targets, and the limits of their streams.

use serde::{Deserialize, Serialize};

use crate::check::check_addr_port;
use crate::listen::{self, Auth, ListenProtocol};
use crate::target::{self, Target, UNIX_PREFIX};
use crate::{ConfigError, Direction, Limits, Priority, ProxyProtocol};

/// Maximum number of forwards in a configuration.
pub const FORWARDS_MAX: usize = 64;
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
    #[serde(default, skip_serializing_if = "Limits::is_empty")]
    pub limits: Limits,
}

impl Forward {
    /// Whether the target of every connection is the forward's target. Otherwise clients may name
    /// their targets.
    #[must_use]
    pub const fn has_fixed_target(&self) -> bool {
        matches!(self.protocol, ListenProtocol::Tcp) && self.target.is_some()
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
