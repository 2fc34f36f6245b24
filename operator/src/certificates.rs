//! X.509 certificates of gateways, which cert-manager issues.

pub mod cert_manager;
pub mod identity;
