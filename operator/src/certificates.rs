//! Certificates of gateways: identities, authorities, and how remote entries join.
//!
//! All modules except [`seed`] are pure. A Secret of the operator's namespace stores one random
//! [`authority::Seed`]. The operator derives the authorities of every tunnel from the seed. So
//! there is no table of keys, and two operators derive the same authorities. Keys of leaf
//! certificates are random and exist only in the Secret that a gateway mounts.
//! [`crate::tunnel_controller::build::certificates`] decides when the operator issues a
//! certificate.

pub mod authority;
pub mod cert_manager;
pub mod identity;
pub mod join;
pub mod leaf;
pub mod offer;
pub mod seal;
pub mod seed;

/// Creating a certificate failed.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// The library refuses the certificate or its issuer.
    #[error("cannot create the certificate of {subject}: {source}")]
    Make {
        /// The subject of the certificate.
        subject: String,
        /// The library's error.
        source: rcgen::Error,
    },
    /// The derivation from the seed failed.
    #[error("cannot derive the key of {0}")]
    Derive(String),
    /// A certificate cannot represent the time.
    #[error("{0} seconds since 1970 is not a valid time for a certificate")]
    Time(i64),
}
