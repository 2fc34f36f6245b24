//! What several parts of MuxTunnel agree on, said once: labels, annotations, ports, keys of Secrets, sysctls, defaults.
//!
//! Constants alone, without a dependency. A name that one crate alone uses stays there.

pub mod annotations;
pub mod defaults;
pub mod labels;
pub mod ports;
pub mod secrets;
pub mod sysctls;
