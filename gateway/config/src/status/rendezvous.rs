//! The state of a rendezvous.

use serde::{Deserialize, Serialize};

/// The state of a rendezvous. [`super::Status::streams`] has the refusals by code.
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
