//! Defaults that several crates use.

/// `drainSeconds` of an end: seconds from SIGTERM until open streams are reset.
pub const DRAIN_SECONDS: u32 = 25;
