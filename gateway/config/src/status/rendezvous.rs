//! What a rendezvous knows of itself.

use serde::{Deserialize, Serialize};

/// Who meets at a rendezvous. Refusals are with the streams', by code.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Rendezvous {
    /// Names that have a secret.
    pub names: u64,
    /// Those whose exit is there and waits for visitors.
    pub registered: Vec<String>,
    /// Connections that have not proved anything yet.
    pub strangers: u64,
    /// Visitors whose exit is on its way.
    pub waiting: u64,
    /// Pairs of connections that are one now.
    pub meeting: u64,
    /// The same, since the start.
    pub met: u64,
    /// Passed on since the start, in both directions.
    pub bytes: u64,
}
