//! Forwards and reverse forwards.

use serde::{Deserialize, Serialize};

use crate::text::is_default;
use crate::{Limits, Priority, ProxyProtocol, Target};

/// Maximum number of forwards, and of reverse forwards, in a configuration.
pub const FORWARDS_MAX: usize = 64;
/// Maximum number of targets of a forward, and of fallback targets of a proxy.
pub const TARGETS_MAX: usize = 8;

/// In `forwards`: a port of the entry, and the targets that the exit dials for its streams. In
/// `reverseForwards`: a port of the exit, if its `allowListen` permits the address, and the targets
/// that the entry dials.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Forward {
    /// Unique name, used in logs and metrics.
    pub name: String,
    /// The listen address: `addr:port`, or, in `forwards`, `unix:/path` for a socket of mode 0600 that
    /// this gateway creates.
    pub listen: String,
    /// The targets, 1..=[`TARGETS_MAX`], in the order in which they are dialled. The next target is
    /// dialled if a dial fails.
    pub targets: Vec<Target>,
    /// PROXY protocol headers on the connections, only in `forwards`. Default: none.
    #[serde(default, skip_serializing_if = "is_default")]
    pub proxy_protocol: ProxyProtocol,
    /// The priority of the forward's new streams, relative to the streams of other ports.
    #[serde(default, skip_serializing_if = "is_default")]
    pub priority: Priority,
    /// Limits of the forward's streams. Default: no limit.
    #[serde(default, skip_serializing_if = "is_default")]
    pub limits: Limits,
}
