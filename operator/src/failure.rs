//! The class of an error. Logs and the label of a metric contain the same code.

use std::error::Error;
use std::iter::successors;

use muxtunnel_codes::Code;

/// Number of failed reconciliations in a row after which the status reports an error that a retry
/// may resolve.
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
pub fn code(error: &(dyn Error + 'static)) -> Code {
    if causes(error).any(<dyn Error>::is::<NotLeader>) {
        return Code::LeaderLost;
    }
    match causes(error).find_map(of_api) {
        Some(kube::Error::Api(status)) => match status.code {
            409 => Code::WriteConflict,
            // A code below 400 is not of the API server: a proxy answers in its place.
            ..400 | 429 | 500.. => Code::ApiUnavailable,
            _ => Code::ApiRefused,
        },
        Some(_) => Code::ApiUnavailable,
        None => Code::BuildFailed,
    }
}

/// Whether the status has to report the error. The status reports an error at once if the API
/// server refused the request and a retry cannot resolve the error (4xx, except 409 and 429). The
/// status reports every other error after [`FAILURES_MIN`] failed reconciliations in a row
/// (`failures`), even if the API server does not answer one kind of requests. The leader writes the
/// status, so the error of an operator that is not the leader is never reported.
pub fn is_reported(error: &(dyn Error + 'static), failures: u32) -> bool {
    match code(error) {
        Code::LeaderLost => false,
        Code::ApiRefused => true,
        _ => failures >= FAILURES_MIN,
    }
}

/// The text of the error and of its sources, without repetitions. The client's error is replaced
/// by the words of the API server.
pub fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = String::new();
    for cause in causes(error) {
        let part = cause.to_string();
        let of_api = of_api(cause);
        let words = of_api.map_or_else(|| part.clone(), in_words);
        if text.contains(&part) {
            text = text.replace(&part, &words);
        } else {
            if !text.is_empty() {
                text.push_str(": ");
            }
            text.push_str(&words);
        }
        if of_api.is_some() {
            // The sources of the client's error repeat its text.
            break;
        }
    }
    text
}

/// The words of the API server, or the reason why it did not answer.
fn in_words(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => {
            let words = [&status.message, &status.reason];
            let words = words.into_iter().find(|words| !words.is_empty());
            let number = || format!("the API server answered with status {}", status.code);
            words.cloned().unwrap_or_else(number)
        }
        _ if causes(error).any(<dyn Error>::is::<NotLeader>) => NotLeader.to_string(),
        kube::Error::Service(_) | kube::Error::HyperError(_) => {
            let last = causes(error).last();
            let last = last.map_or_else(String::new, ToString::to_string);
            format!("the API server did not answer: {last}")
        }
        _ => error.to_string(),
    }
}

/// The error and its sources.
fn causes<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    successors(Some(error), |error: &&'a (dyn Error + 'static)| {
        Error::source(*error)
    })
}

fn of_api<'a>(cause: &'a (dyn Error + 'static)) -> Option<&'a kube::Error> {
    let boxed = || cause.downcast_ref::<Box<kube::Error>>().map(Box::as_ref);
    cause.downcast_ref().or_else(boxed)
}
