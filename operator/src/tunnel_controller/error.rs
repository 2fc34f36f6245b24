//! Errors of a reconciliation and of its steps.

use muxtunnel_codes::Code;
use muxtunnel_gateway_config::ConfigError;

use crate::apply::ApplyError;
use crate::caches::NotKnown;
use crate::certificates::CertificateError;
use crate::certificates::seed::SeedError;
use crate::failure::{self, Coded};
use crate::grants;

/// Why a reconciliation failed. The controller retries.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The object has no namespace or UID. Every object from an API server has both.
    #[error("the object has no {0}")]
    Incomplete(&'static str),
    /// The objects that the spec names could not be read.
    #[error(transparent)]
    Dereference(#[from] DereferenceError),
    /// The join bundle could not be read.
    #[error(transparent)]
    Join(#[from] JoinError),
    /// A certificate could not be issued or stored.
    #[error(transparent)]
    Certify(#[from] CertifyError),
    /// The children could not be rendered.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// The children could not be applied.
    #[error(transparent)]
    Apply(#[from] ApplyError),
    /// The caches do not contain the pods yet.
    #[error(transparent)]
    NotKnown(#[from] NotKnown),
    /// The status could not be written.
    #[error(transparent)]
    UpdateStatus(#[from] UpdateStatusError),
}

impl Coded for Error {
    fn code(&self) -> Code {
        match self {
            Self::Apply(error) => error.code(),
            Self::NotKnown(error) | Self::Dereference(DereferenceError::NotKnown(error)) => {
                error.code()
            }
            Self::Dereference(DereferenceError::Grants(_)) => Code::WatchUnanswered,
            _ => failure::code(self),
        }
    }
}

/// The objects that the tunnel depends on are not known. The children stay unchanged.
#[derive(Debug, thiserror::Error)]
pub enum DereferenceError {
    /// The grants of other namespaces are not known yet.
    #[error(transparent)]
    Grants(#[from] grants::NotKnown),
    /// The objects of a kind are not known yet.
    #[error(transparent)]
    NotKnown(#[from] NotKnown),
    /// The tunnel cannot be decoded, and could not be read again.
    #[error("cannot read the tunnel: {0}")]
    Tunnel(#[from] kube::Error),
}

/// The bundle could not be read.
#[derive(Debug, thiserror::Error)]
#[error("cannot get Secret {name}: {source}")]
pub struct JoinError {
    /// The Secret's name.
    pub name: String,
    /// The client's error.
    pub source: kube::Error,
}

/// A certificate could not be issued or stored. The operator retries.
#[derive(Debug, thiserror::Error)]
pub enum CertifyError {
    /// The API server does not answer, or answers with an error.
    #[error("cannot apply Secret {name}: {source}")]
    Apply {
        /// The Secret's name.
        name: String,
        /// The client's error.
        source: Box<kube::Error>,
    },
    /// The newer join bundle could not be stored.
    #[error("cannot store the newer join bundle: {0}")]
    Keep(#[source] Box<kube::Error>),
    /// A Certificate of cert-manager could not be applied.
    #[error("cannot request a certificate from cert-manager: {0}")]
    CertManager(#[from] kube::Error),
    /// The seed could not be read.
    #[error(transparent)]
    Seed(#[from] SeedError),
    /// A certificate could not be created.
    #[error(transparent)]
    Make(#[from] CertificateError),
}

/// A child could not be rendered.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// A gateway would reject its configuration.
    #[error("cannot render the configuration of the {component}: {source}")]
    Config {
        /// `entry`, `exit` or `rendezvous`.
        component: &'static str,
        /// The gateway's error.
        source: ConfigError,
    },
}

/// The status could not be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write the status: {0}")]
pub struct UpdateStatusError(#[from] kube::Error);
