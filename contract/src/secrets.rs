//! Secrets that hold certificates, or a join bundle: type and keys.

/// The type of a Secret with a join bundle.
pub const JOIN_TYPE: &str = "muxtunnel.dev/join";

/// Certificates of the authorities of peers, PEM.
pub const AUTHORITIES: &str = "ca.crt";
/// A certificate, PEM.
pub const CERTIFICATE: &str = "tls.crt";
/// The key of the certificate, PEM.
pub const KEY: &str = "tls.key";
