//! The class of an error. Logs and the label of a metric contain the same code.

use std::error::Error;
use std::iter::successors;

use muxtunnel_codes::Code;

/// Number of failed reconciliations in a row after which the status reports an error even if a
/// retry may resolve it.
const FAILURES_MIN: u32 = 3;

/// A write was refused, because this operator does not hold the Lease.
#[derive(Debug, Clone, Copy, thiserror::Error)]
#[error("this operator is not the leader, so it writes nothing")]
pub struct NotLeader;

/// An error with a code.
pub trait Coded: Error {
    /// The code of the error.
    fn code(&self) -> Code;
}

/// Returns the code for the source of the error. The source is the API server, the Lease, or
/// otherwise the operator.
#[must_use]
pub fn code(error: &(dyn Error + 'static)) -> Code {
    let causes = || {
        successors(Some(error), |error: &&(dyn Error + 'static)| {
            Error::source(*error)
        })
    };
    if causes().any(<dyn Error>::is::<NotLeader>) {
        return Code::LeaderLost;
    }
    match causes().find_map(of_api) {
        Some(kube::Error::Api(status)) => match status.code {
            409 => Code::WriteConflict,
            429 | 500.. => Code::ApiUnavailable,
            _ => Code::ApiRefused,
        },
        Some(_) => Code::ApiUnavailable,
        None => Code::BuildFailed,
    }
}

/// Whether the status has to report the error. The status reports an error at once if the API
/// server refused the request and a retry cannot resolve the error (4xx, except 409 and 429). The
/// status reports other error statuses of the API server only after [`FAILURES_MIN`] failed
/// reconciliations in a row (`failures`). It reports no other errors.
#[must_use]
pub fn is_refusal(error: &(dyn Error + 'static), failures: u32) -> bool {
    let causes = || {
        successors(Some(error), |error: &&(dyn Error + 'static)| {
            Error::source(*error)
        })
    };
    match causes().find_map(of_api) {
        Some(kube::Error::Api(status)) => {
            let is_final = (400..500).contains(&status.code) && !matches!(status.code, 409 | 429);
            is_final || failures >= FAILURES_MIN
        }
        _ => false,
    }
}

/// The text of the error and of its sources.
#[must_use]
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let part = error.to_string();
        if !text.ends_with(&part) {
            text.push_str(": ");
            text.push_str(&part);
        }
        source = error.source();
    }
    text
}

fn of_api<'a>(cause: &'a (dyn Error + 'static)) -> Option<&'a kube::Error> {
    let boxed = || cause.downcast_ref::<Box<kube::Error>>().map(Box::as_ref);
    cause.downcast_ref().or_else(boxed)
}
