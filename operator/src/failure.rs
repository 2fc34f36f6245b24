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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::benchmark_controller;
    use crate::benchmark_controller::runner_client::RunnerError;
    use crate::tunnel_controller::{self, error::CertifyError};
    use kube::core::Status;

    fn answered(status: u16) -> kube::Error {
        kube::Error::Api(Status::failure("", "").with_code(status).boxed())
    }

    #[test]
    fn each_answer_has_its_class_however_deep_it_lies() {
        for (status, class) in [
            (403, Code::ApiRefused),
            (409, Code::WriteConflict),
            (422, Code::ApiRefused),
            (429, Code::ApiUnavailable),
            (503, Code::ApiUnavailable),
        ] {
            assert_eq!(code(&answered(status)), class);
            let name = "office-exit".to_owned();
            let source = Box::new(answered(status));
            let deep = tunnel_controller::Error::from(CertifyError::Apply { name, source });
            assert_eq!(deep.code(), class);
        }
        let refused = kube::Error::Service(Box::new(NotLeader));
        let refused = tunnel_controller::Error::from(CertifyError::from(refused));
        assert_eq!(refused.code(), Code::LeaderLost);
        let lost = kube::Error::Service(Box::new(std::io::Error::other("gone")));
        assert_eq!(code(&lost), Code::ApiUnavailable);
        let own = tunnel_controller::Error::Incomplete("UID");
        assert_eq!(own.code(), Code::BuildFailed);
    }

    #[test]
    fn a_runner_that_does_not_answer_is_no_fault_of_the_api_server() {
        let silent = benchmark_controller::Error::from(RunnerError::TimedOut);
        assert_eq!(silent.code(), Code::BenchmarkRunnerSilent);
    }
}
