//! Errors of a reconciliation and of its steps.

use muxtunnel_codes::Code;
use muxtunnel_gateway_config::ConfigError;

use crate::apply::ApplyError;
use crate::caches::NotKnown;
use crate::failure::{self, Coded};
use crate::grants;
use crate::key_pair::KeyPairError;

/// Why a reconciliation failed. The controller retries.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The object has no namespace or UID. Every object from an API server has both.
    #[error("the object has no {0}")]
    Incomplete(&'static str),
    /// The grants of other namespaces are not known yet.
    #[error(transparent)]
    Grants(#[from] grants::NotKnown),
    /// The objects of a kind are not known yet.
    #[error(transparent)]
    NotKnown(#[from] NotKnown),
    /// The object cannot be decoded, and could not be read again.
    #[error("cannot read the object: {0}")]
    Object(#[source] kube::Error),
    /// A Certificate of cert-manager could not be read.
    #[error("cannot read a Certificate of cert-manager: {0}")]
    Certificate(#[source] kube::Error),
    /// A key pair could not be created.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// A certificate could not be requested.
    #[error("cannot request a certificate from cert-manager: {0}")]
    Certify(#[source] kube::Error),
    /// The children could not be applied.
    #[error(transparent)]
    Apply(#[from] ApplyError),
    /// The status could not be written.
    #[error("cannot write the status: {0}")]
    UpdateStatus(#[source] kube::Error),
}

impl Coded for Error {
    fn code(&self) -> Code {
        match self {
            Self::Apply(error) => error.code(),
            Self::NotKnown(error) => error.code(),
            Self::Grants(_) => Code::WatchUnanswered,
            _ => failure::code(self),
        }
    }
}

/// A key pair could not be created. The operator retries.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The API server does not answer, or answers with an error.
    #[error("cannot create Secret {name}: {source}")]
    Create {
        /// The Secret's name.
        name: String,
        /// The client's error.
        source: Box<kube::Error>,
    },
    /// The key pair could not be generated.
    #[error(transparent)]
    Make(#[from] KeyPairError),
}

/// A gateway would reject its configuration.
#[derive(Debug, thiserror::Error)]
#[error("cannot render the configuration of the {component}: {source}")]
pub struct BuildError {
    /// `entry`, `exit` or `rendezvous`.
    pub component: &'static str,
    /// The gateway's error.
    pub source: ConfigError,
}
