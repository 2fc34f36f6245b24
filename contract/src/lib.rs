//! Constants that several crates of MuxTunnel share: labels, annotations, ports, keys of Secrets, sysctls, defaults.
//!
//! The crate has only constants, and no dependencies. A constant that only one crate uses belongs in that crate.

pub mod defaults;
pub mod labels;
pub mod ports;
pub mod secrets;
pub mod sysctls;
