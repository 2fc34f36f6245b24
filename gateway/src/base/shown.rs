//! The keys and certificates that the status shows.

use muxtunnel_gateway_config::status;

/// What this side presents to its peers, and the keys of the peers, if the security has them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Shown {
    pub(crate) certificate: Option<status::Certificate>,
    pub(crate) public_keys: Vec<String>,
    pub(crate) peers: Vec<status::Peer>,
}

impl Shown {
    /// Whether this side presents the same as `other`.
    pub(crate) fn presents_as(&self, other: &Self) -> bool {
        (&self.certificate, &self.public_keys) == (&other.certificate, &other.public_keys)
    }
}
