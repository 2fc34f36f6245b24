//! How a run ends: the exit statuses, which scripts rely on.

use std::io::ErrorKind;
use std::process::ExitCode;

/// A run that did what it was asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// No fault was found; warnings may have been shown. Status 0.
    Good,
    /// What was printed says why nothing could be found out. Status 1.
    Told,
    /// There are findings. Status 3.
    Findings,
}

/// A run that did not.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The tool, the API server or a file failed. Status 1.
    #[error("{0:#}")]
    Failed(#[from] anyhow::Error),
    /// What was typed cannot be meant. Status 2.
    #[error("{0}")]
    Usage(String),
    /// What was waited for did not come in time. Status 4.
    #[error("{0}")]
    TimedOut(String),
}

const FAILED: u8 = 1;
const USAGE: u8 = 2;
const FINDINGS: u8 = 3;
const TIMED_OUT: u8 = 4;

/// The exit status; a failure is told on standard error.
#[must_use]
pub fn status(program: &str, ended: Result<Ended, Failure>) -> ExitCode {
    let failure = match ended {
        Ok(Ended::Good) => return ExitCode::SUCCESS,
        Ok(Ended::Told) => return ExitCode::from(FAILED),
        Ok(Ended::Findings) => return ExitCode::from(FINDINGS),
        Err(failure) => failure,
    };
    let status = match &failure {
        // The reader of a pipe has seen enough.
        Failure::Failed(error) if is_broken_pipe(error) => return ExitCode::SUCCESS,
        Failure::Failed(_) => FAILED,
        Failure::Usage(_) => USAGE,
        Failure::TimedOut(_) => TIMED_OUT,
    };
    eprintln!("{program}: {failure}");
    ExitCode::from(status)
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<std::io::Error>())
        .any(|error| error.kind() == ErrorKind::BrokenPipe)
}
