//! The class of an error: its code, the same in logs and in the label of a metric.

use std::error::Error;
use std::iter::successors;

use muxtunnel_codes::Code;

/// Reconciliations that fail in a row before the status says so of what may yet succeed.
const FAILURES_MIN: u32 = 3;

/// A write was refused, for the Lease is not held.
#[derive(Debug, Clone, Copy, thiserror::Error)]
#[error("not the leader: nothing is written")]
pub struct NotLeader;

/// An error with a code.
pub trait Coded: Error {
    /// Its code.
    fn code(&self) -> Code;
}

/// By what it came from: the API server, the Lease; else nobody but the operator is to blame.
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

/// Whether somebody has to be told of an error: the API server answered that it refuses; or, where it may yet change its
/// mind, `failures` reconciliations in a row have failed before.
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

/// The error with its causes.
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
