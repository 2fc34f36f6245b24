//! The ends of carriers.

/// One end of carriers.
pub use muxtunnel_gateway_config::Role as End;

/// The component label of Jobs that test sysctls.
pub const PROBE: &str = "sysctl-probe";
