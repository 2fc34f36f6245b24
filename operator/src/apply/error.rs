//! Why children could not be applied.

use std::fmt;

use kube::Resource;
use kube::core::gvk::ParseGroupVersionError;
use muxtunnel_codes::Code;

use crate::caches::NotKnown;
use crate::failure::{self, Coded};

/// The kind and the name of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Named {
    /// The kind.
    pub kind: String,
    /// The name.
    pub name: String,
}

impl Named {
    pub(super) fn of<K: Resource<DynamicType = ()>>(name: &str) -> Self {
        Self {
            kind: K::kind(&()).into_owned(),
            name: name.to_owned(),
        }
    }
}

impl fmt::Display for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind, self.name)
    }
}

/// Why children could not be applied.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// Objects with required names have another owner. One sentence for each object.
    #[error("{}", .0.join("; "))]
    OwnedByOther(Vec<String>),
    /// The change concerns an immutable field, and the operator does not replace the object. The
    /// text is the API server's message.
    #[error(
        "{0} cannot be changed in place: delete {0} when an interruption is acceptable. The operator \
         then creates a new {kind}, which gets another address or port (refusal of the API server: \
         {1})", kind = .0.kind
    )]
    Immutable(Named, String),
    /// The API server refused a change in words that it also uses for immutable fields, and the
    /// operator keeps the object. The source is the refusal of the change, or of the creation.
    #[error("cannot apply {0}, and the operator does not delete it, because {1}: {2}")]
    NotReplaced(Named, NotReplaced, #[source] Box<kube::Error>),
    /// The API server refused a change of an object in which other managers set fields. The text
    /// names the fields and their managers.
    #[error("cannot apply {0}, in which other field managers set {1}: {2}")]
    Shared(Named, String, #[source] Box<kube::Error>),
    /// The watch is outdated: the object has changed since the operator read it.
    #[error(
        "{0} changed or was deleted during its reconciliation; the operator reconciles it again"
    )]
    Stale(Named),
    /// The caches do not contain the existing children yet.
    #[error(transparent)]
    NotKnown(#[from] NotKnown),
    /// The API server refused a request (`get`, `apply`, `delete`, ...), or could not be reached.
    #[error("cannot {0} {1}: {2}")]
    Api(&'static str, Named, #[source] Box<kube::Error>),
    /// The reference to the owner has an invalid API version. This never happens for the operator's
    /// own kinds.
    #[error("the reference to the owner has an invalid API version: {0}")]
    Owner(#[from] ParseGroupVersionError),
    /// A built object cannot be serialized. This never happens for objects that the operator
    /// builds.
    #[error("cannot serialize {0}: {1}")]
    Serialize(Named, #[source] serde_json::Error),
}

/// Why the operator keeps an object whose change was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotReplaced {
    /// All immutable fields already have the required values.
    #[error("no immutable field differs")]
    NoImmutableField,
    /// The named field differs, but the API server refused the creation of the new object.
    #[error("{0} differs, but the API server refused the new object in a dry run")]
    CreationRefused(&'static str),
}

impl Coded for ApplyError {
    fn code(&self) -> Code {
        match self {
            Self::OwnedByOther(_) => Code::NameTaken,
            Self::Immutable(..) => Code::ImmutableField,
            Self::Stale(_) => Code::StaleRead,
            Self::NotKnown(error) => error.code(),
            Self::NotReplaced(..)
            | Self::Shared(..)
            | Self::Api(..)
            | Self::Owner(_)
            | Self::Serialize(..) => failure::code(self),
        }
    }
}
