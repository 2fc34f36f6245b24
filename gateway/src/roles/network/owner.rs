//! The owners of addresses, among which the packets of an interface are divided.

use std::sync::Arc;

/// Owner of addresses on the other side.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Owner {
    /// The other side as a whole, if its addresses are not divided among entries.
    Side,
    /// The entry with this verified identity.
    Peer(Arc<str>),
    /// The entry of one session without an identity.
    Session(u64),
}
