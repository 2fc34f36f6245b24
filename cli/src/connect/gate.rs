//! The program `muxgate`.

use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Output, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};
use tokio::time::timeout;

/// Time that `muxgate` has to end its streams.
const DRAIN: Duration = Duration::from_secs(60);

/// The program.
pub(super) struct Gate {
    program: PathBuf,
}

impl Gate {
    pub(super) fn new(program: &Path) -> Self {
        Self {
            program: program.to_owned(),
        }
    }

    fn not_run(&self, error: &std::io::Error) -> anyhow::Error {
        let hint = match error.kind() {
            ErrorKind::NotFound => {
                ": install muxgate on the PATH, or name the program with --muxgate"
            }
            _ => "",
        };
        anyhow!("cannot run {}: {error}{hint}", self.program.display())
    }

    /// Runs the program to its end, and returns its standard output.
    pub(super) async fn ask(&self, arguments: &[&OsStr]) -> Result<String> {
        let output = Command::new(&self.program)
            .args(arguments)
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output()
            .await
            .map_err(|error| self.not_run(&error))?;
        let Output {
            status,
            stdout,
            stderr,
        } = output;
        if !status.success() {
            let said = String::from_utf8_lossy(&stderr);
            let program = self.program.display();
            return Err(anyhow!("{program} ended with {status}: {}", said.trim()));
        }
        String::from_utf8(stdout).context("the output of muxgate is not UTF-8")
    }

    /// Starts the program.
    pub(super) fn run(&self, arguments: &[OsString]) -> Result<Running> {
        let child = Command::new(&self.program)
            .args(arguments)
            .stdin(Stdio::null())
            // Ctrl-C reaches only this process, which then ends `muxgate` in order.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| self.not_run(&error))?;
        Ok(Running { child })
    }
}

/// The running program.
pub(super) struct Running {
    child: Child,
}

impl Running {
    pub(super) async fn wait(&mut self) -> std::io::Result<ExitStatus> {
        self.child.wait().await
    }

    /// Ends the program in order. Kills it after [`DRAIN`], or when `hurry` completes.
    pub(super) async fn end(mut self, hurry: impl Future<Output = ()>) {
        let id = self.child.id().and_then(|id| i32::try_from(id).ok());
        if let Some(id) = id.and_then(Pid::from_raw) {
            // The program may have ended.
            let _ = kill_process(id, Signal::TERM);
        }
        let is_ended = tokio::select! {
            ended = timeout(DRAIN, self.child.wait()) => ended.is_ok(),
            () = hurry => false,
        };
        if !is_ended {
            // The program may have ended.
            let _ = self.child.kill().await;
        }
    }
}
