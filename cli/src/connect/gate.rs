//! The program `muxgate`.
//!
//! `muxgate` ends with this process, even if this process is killed: [`become_gate`] runs in the child,
//! requests a signal for the death of its parent, and then becomes `muxgate`.

use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Output, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use rustix::process::{Pid, Signal, getppid, kill_process, set_parent_process_death_signal};
use tokio::process::{Child, Command};
use tokio::time::timeout;

use crate::args::GateArgs;

/// Time that `muxgate` has to end its streams.
const DRAIN: Duration = Duration::from_secs(60);
/// The program of this process.
const SELF: &str = "/proc/self/exe";

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

    /// Runs the program to its end, and returns its standard output.
    pub(super) async fn ask(&self, arguments: &[&OsStr]) -> Result<String> {
        let output = Command::new(&self.program)
            .args(arguments)
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output()
            .await
            .map_err(|error| not_run(&self.program, &error))?;
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
        let child = Command::new(SELF)
            .args(["gate", "--parent"])
            .arg(std::process::id().to_string())
            .arg(&self.program)
            .args(arguments)
            .stdin(Stdio::null())
            // Ctrl-C reaches only this process, which then ends `muxgate` in order.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| not_run(&self.program, &error))?;
        Ok(Running { child })
    }
}

/// Becomes `muxgate`, which gets SIGTERM when the parent of this process ends. Returns only with an
/// error.
pub(crate) fn become_gate(args: &GateArgs) -> anyhow::Error {
    if let Err(error) = set_parent_process_death_signal(Some(Signal::TERM)) {
        return anyhow!("cannot follow the end of `connect`: {error}");
    }
    // The parent may have ended before the request.
    if getppid().map(Pid::as_raw_pid) != Some(args.parent) {
        return anyhow!("`connect` has ended");
    }
    let mut command = std::process::Command::new(&args.program);
    not_run(&args.program, &command.args(&args.arguments).exec())
}

fn not_run(program: &Path, error: &std::io::Error) -> anyhow::Error {
    let hint = match error.kind() {
        ErrorKind::NotFound => ": install muxgate on the PATH, or name the program with --muxgate",
        _ => "",
    };
    anyhow!("cannot run {}: {error}{hint}", program.display())
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
