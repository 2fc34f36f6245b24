//! Certificates of gateways: who they are, who signs that, and how an entry elsewhere joins.
//!
//! All but [`seed`] is pure. One random [`authority::Seed`] is kept, in a Secret of the operator's own namespace; the
//! authorities of every tunnel follow from it, so there is no table of keys, and two operators make the same ones.
//! Keys of leaf certificates are random and are kept nowhere but in the Secret that a gateway mounts.
//! [`crate::tunnel_controller::build::certificates`] decides when to issue.

pub mod authority;
pub mod cert_manager;
pub mod identity;
pub mod join;
pub mod leaf;
pub mod offer;
pub mod seal;
pub mod seed;

/// A certificate could not be made.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// What signs it, or is signed, is refused by the library.
    #[error("cannot make the certificate of {subject}: {source}")]
    Make {
        /// Whose.
        subject: String,
        /// The library's error.
        source: rcgen::Error,
    },
    /// Nothing could be derived from the seed.
    #[error("cannot derive the key of {0}")]
    Derive(String),
    /// A time that no certificate can say.
    #[error("{0} seconds since 1970 is no time for a certificate")]
    Time(i64),
}
