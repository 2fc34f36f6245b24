//! The exits in use.

use serde::{Deserialize, Serialize};

/// The exits of an entry.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Connect {
    /// The names of the exits in `connect` that get new streams.
    #[serde(default)]
    pub active: Vec<String>,
}
