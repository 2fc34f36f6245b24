//! The exit statuses, which scripts rely on.

use std::io::ErrorKind;
use std::process::ExitCode;

/// The result of a successful run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// No findings. There may be warnings. Status 0.
    Good,
    /// Nothing could be checked. The output names the reason. Status 1.
    Told,
    /// There are findings. Status 3.
    Findings,
}

/// The error of a failed run.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The tool, the API server or a file failed. Status 1.
    #[error("{0:#}")]
    Failed(#[from] anyhow::Error),
    /// Invalid usage. Status 2.
    #[error("{0}")]
    Usage(String),
    /// A wait timed out. Status 4.
    #[error("{0}")]
    TimedOut(String),
}

const GOOD: u8 = 0;
const FAILED: u8 = 1;
const USAGE: u8 = 2;
const FINDINGS: u8 = 3;
const TIMED_OUT: u8 = 4;

/// Exit statuses with their meanings, for the manual.
pub const EXIT_STATUSES: &[(u8, &str)] = &[
    (GOOD, "success, possibly with warnings"),
    (
        FAILED,
        "the tool, a file or the API server failed; standard error has the cause",
    ),
    (USAGE, "the command line cannot be used"),
    (FINDINGS, "`check` has findings"),
    (TIMED_OUT, "a wait reached its timeout"),
];

/// The exit status. Prints a failure to standard error.
#[must_use]
pub fn status(program: &str, ended: Result<Ended, Failure>) -> ExitCode {
    let failure = match ended {
        Ok(Ended::Good) => return ExitCode::from(GOOD),
        Ok(Ended::Told) => return ExitCode::from(FAILED),
        Ok(Ended::Findings) => return ExitCode::from(FINDINGS),
        Err(failure) => failure,
    };
    let status = match &failure {
        // The reader of the pipe, for example `head`, has closed the pipe.
        Failure::Failed(error) if is_broken_pipe(error) => return ExitCode::from(GOOD),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_manual_has_all_exit_statuses() {
        muxtunnel_testkit::exit_statuses::assert_documented("muxtunnel", EXIT_STATUSES);
    }
}
