//! Types and keys of Secrets with certificates or a join bundle.

/// The type of a Secret with a join bundle.
pub const JOIN_TYPE: &str = "muxtunnel.dev/join";

/// The key for the certificates of the peers' authorities, PEM.
pub const AUTHORITIES: &str = "ca.crt";
/// The key for a certificate, PEM.
pub const CERTIFICATE: &str = "tls.crt";
/// The key for the certificate's private key, PEM.
pub const KEY: &str = "tls.key";
