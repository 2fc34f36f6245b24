//! A child process whose output is read while it runs.

use std::path::Path;
use std::process::Stdio;

use anyhow::Context;
use tokio::process::{Child, ChildStderr, ChildStdout, Command};

/// Starts a program and returns its child process, standard output and standard error. The program
/// ends when the child is dropped.
///
/// # Errors
/// If the program cannot be started.
pub(super) fn start(
    program: &Path,
    arguments: &[&str],
) -> anyhow::Result<(Child, ChildStdout, ChildStderr)> {
    let failed = || format!("cannot start {}", program.display());
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .with_context(failed)?;
    let stdout = child.stdout.take().with_context(failed)?;
    let stderr = child.stderr.take().with_context(failed)?;
    Ok((child, stdout, stderr))
}
