//! Why a reconciliation, or a step of it, ended early.

use muxtunnel_codes::Code;
use muxtunnel_gateway_config::ConfigError;

use crate::apply::ApplyError;
use crate::caches::NotKnown;
use crate::certificates::CertificateError;
use crate::certificates::seed::SeedError;
use crate::failure::{self, Coded};
use crate::grants;

/// Why one reconciliation ended early; it is tried again.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The object has no namespace or UID, which no object from an API server lacks.
    #[error("the object has no {0}")]
    Incomplete(&'static str),
    /// What the spec names could not be read.
    #[error(transparent)]
    Dereference(#[from] DereferenceError),
    /// The bundle that it joins by could not be read.
    #[error(transparent)]
    Join(#[from] JoinError),
    /// The certificates could not be seen to.
    #[error(transparent)]
    Certify(#[from] CertifyError),
    /// The children could not be rendered.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// The children could not be applied.
    #[error(transparent)]
    Apply(#[from] ApplyError),
    /// Which pods there are cannot be known.
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
            Self::NotKnown(_) | Self::Dereference(_) | Self::Build(BuildError::Grants(_)) => {
                Code::WatchUnanswered
            }
            _ => failure::code(self),
        }
    }
}

/// What the spec names cannot be known; children stay as they are.
#[derive(Debug, thiserror::Error)]
pub enum DereferenceError {
    /// What other namespaces permit has not been heard yet.
    #[error(transparent)]
    Grants(#[from] grants::NotKnown),
    /// Of a kind nothing has been heard yet.
    #[error(transparent)]
    NotKnown(#[from] NotKnown),
}

/// The bundle could not be read.
#[derive(Debug, thiserror::Error)]
#[error("cannot get Secret {name}: {source}")]
pub struct JoinError {
    /// The Secret.
    pub name: String,
    /// The client's error.
    pub source: kube::Error,
}

/// A certificate could not be seen to; it is tried again.
#[derive(Debug, thiserror::Error)]
pub enum CertifyError {
    /// The API server does not answer, or not as it should.
    #[error("cannot apply Secret {name}: {source}")]
    Apply {
        /// The Secret.
        name: String,
        /// The client's error.
        source: Box<kube::Error>,
    },
    /// What is kept of a newer join bundle could not be written.
    #[error("cannot keep the newer join bundle: {0}")]
    Keep(#[source] Box<kube::Error>),
    /// A Certificate of cert-manager could not be applied.
    #[error("cannot ask cert-manager: {0}")]
    CertManager(#[from] kube::Error),
    /// The seed could not be read.
    #[error(transparent)]
    Seed(#[from] SeedError),
    /// A certificate could not be made.
    #[error(transparent)]
    Make(#[from] CertificateError),
}

/// A child could not be rendered.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// The gateway would refuse its configuration.
    #[error("cannot render the configuration of the {component}: {source}")]
    Config {
        /// `entry`, `exit` or `rendezvous`.
        component: &'static str,
        /// What is wrong.
        source: ConfigError,
    },
    /// What running gateways keep depends on what other namespaces permit.
    #[error(transparent)]
    Grants(#[from] grants::NotKnown),
}

/// The status could not be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write the status: {0}")]
pub struct UpdateStatusError(#[from] kube::Error);
