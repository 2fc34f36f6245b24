//! Why the children of a tunnel are not made what its spec asks for.

use muxtunnel_codes::Code;

use super::error::Error;
use super::problem::Problem;
use crate::failure::{self, Coded};

/// Why children stay as they are: but what is no longer permitted goes, and certificates of gateways that run are renewed.
#[derive(Debug)]
pub enum Hindrance {
    /// An annotation says that everything is to stay as it is.
    Paused,
    /// The spec can be built by nobody; the sentence names the field.
    Invalid(String),
    /// It cannot be built before the bundle that it joins by is there, and good.
    Unjoined(Problem),
    /// Something is in the way of a child, until a person does something.
    Blocked(Problem),
    /// A step failed; it is tried again.
    Failed(Error),
}

impl Hindrance {
    /// What is said of it.
    #[must_use]
    pub fn problem(&self) -> Problem {
        match self {
            Self::Paused => Problem {
                code: Code::Paused,
                detail: String::new(),
            },
            Self::Invalid(sentence) => Problem {
                code: Code::InvalidSpec,
                detail: sentence.clone(),
            },
            Self::Unjoined(problem) | Self::Blocked(problem) => problem.clone(),
            Self::Failed(error) => Problem {
                code: error.code(),
                detail: failure::chain(error),
            },
        }
    }

    /// What was `reached`, now that a step besides has failed: the first failure counts.
    pub(super) fn failed<T, U>(
        reached: Result<T, Self>,
        error: impl Into<Error>,
    ) -> Result<U, Self> {
        Err(match reached {
            Err(Self::Failed(first)) => Self::Failed(first),
            _ => Self::Failed(error.into()),
        })
    }
}

impl<E: Into<Error>> From<E> for Hindrance {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}
