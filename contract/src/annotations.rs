//! Annotations that users set on their objects.

/// The join generation of a tunnel of side Exit: a number, and 0 without the annotation. A greater
/// number revokes all join bundles that were published before, and ends the carriers of their
/// holders.
pub const JOIN_GENERATION: &str = "muxtunnel.dev/join-generation";
