//! Reasons why the operator does not apply the spec to the children of an object.

use muxtunnel_codes::Code;

use super::error::Error;
use super::problem::Problem;
use crate::failure::{self, Coded};

/// Why children stay unchanged. Targets and peers whose permission was revoked are still withdrawn,
/// except after a failure that leaves them unknown: then the next reconciliation withdraws them.
#[derive(Debug)]
pub enum Hindrance {
    /// `spec.paused` is true.
    Paused,
    /// This version of the operator cannot decode the object. The text is the decoder's error.
    Undecoded(String),
    /// The spec is invalid. The sentence names the field.
    Invalid(String),
    /// A user has to remove an obstacle first.
    Blocked(Problem),
    /// A step failed and is retried.
    Failed(Error),
}

impl Hindrance {
    /// The problem that the status reports.
    pub fn problem(&self) -> Problem {
        match self {
            Self::Paused => Problem::new(Code::Paused, ""),
            Self::Undecoded(reason) => {
                let detail = format!("the object cannot be decoded: {reason}");
                Problem::new(Code::UnknownValue, detail)
            }
            Self::Invalid(sentence) => Problem::new(Code::InvalidSpec, sentence),
            Self::Blocked(problem) => problem.clone(),
            Self::Failed(error) => Problem::new(error.code(), failure::chain(error)),
        }
    }

    /// The result after a parallel step has failed with `error`. If `reached` is already
    /// [`Self::Failed`], returns this earlier failure. Otherwise `error` replaces `reached`, even a
    /// success.
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
