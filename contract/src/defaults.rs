//! Defaults that are stated in more than one place.

/// `drainSeconds` of an end: the seconds that open streams have after SIGTERM.
pub const DRAIN_SECONDS: u32 = 25;
