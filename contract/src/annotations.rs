//! Annotations of objects of users.

/// Of a tunnel of side Exit: a number, 0 where there is none. A greater one makes all join bundles worthless that were
/// published before, and ends the carriers of those who have one.
pub const JOIN_GENERATION: &str = "muxtunnel.dev/join-generation";
