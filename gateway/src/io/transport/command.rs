//! A command whose standard input and output are a carrier: started, its words passed on to the log, ended.
//!
//! It is started as it is written, without a shell, in the gateway's own session, so that ssh can ask for a
//! password at the terminal. What it writes to its standard error is logged by lines, of which each has at most
//! [`LINE_BYTES_MAX`] bytes. It has [`END_TIME`] to go by itself once its input is closed.

use std::io::{Error, Result};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use muxtunnel_codes::Code;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::process::{Child, ChildStderr, Command};
use tokio::sync::oneshot;

use super::{Pipes, Transport};

const LINE_BYTES_MAX: u64 = 1024;
const END_TIME: Duration = Duration::from_secs(2);

/// Is held as long as a transport is of use; what goes with that ends when this is dropped.
#[derive(Debug)]
pub(super) struct Leash {
    /// Nothing is ever sent.
    _held: oneshot::Sender<()>,
}

/// The other end of a [`Leash`]: an error once that is dropped.
pub(crate) type Released = oneshot::Receiver<()>;

impl Leash {
    pub(super) fn new() -> (Self, Released) {
        let (held, released) = oneshot::channel();
        (Self { _held: held }, released)
    }
}

/// What a command is called where its arguments do not matter, or must not be read: its program's name.
pub(crate) fn name(words: &[String]) -> String {
    let program = Path::new(words.first().map_or("", String::as_str));
    let name = program.file_name().unwrap_or_default();
    format!("command:{}", name.to_string_lossy())
}

/// Starts a command of at least one word.
///
/// # Errors
/// It cannot be started.
pub(crate) fn start(words: &[String]) -> Result<Box<dyn Transport>> {
    let (program, arguments) = words
        .split_first()
        .ok_or_else(|| Error::other("no command"))?;
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(|error| Error::new(error.kind(), format!("cannot start {program}: {error}")))?;
    let name = name(words);
    if let Some(words) = child.stderr.take() {
        drop(tokio::task::spawn_local(pass_on(words, name.clone())));
    }
    let (Some(input), Some(output)) = (child.stdout.take(), child.stdin.take()) else {
        return Err(Error::other("the command has no pipes"));
    };
    let (input, output) = (input.into_owned_fd()?, output.into_owned_fd()?);
    let (leash, released) = Leash::new();
    drop(tokio::task::spawn_local(attend(
        child,
        released,
        name.clone(),
    )));
    Pipes::boxed(input, output, name, Some(leash))
}

/// Logs its words until it has no more.
async fn pass_on(words: ChildStderr, command: String) {
    let mut words = BufReader::new(words);
    let mut line = Vec::new();
    while let Ok(1..) = (&mut words)
        .take(LINE_BYTES_MAX)
        .read_until(b'\n', &mut line)
        .await
    {
        let text = String::from_utf8_lossy(&line);
        tracing::info!(command, line = text.trim_end(), "Command says");
        line.clear();
    }
}

/// Waits for its end, and sees to it once nobody holds its leash.
async fn attend(mut child: Child, mut released: Released, command: String) {
    let status = tokio::select! {
        status = child.wait() => status,
        _ = &mut released => match tokio::time::timeout(END_TIME, child.wait()).await {
            Ok(status) => status,
            Err(_) => {
                // It may have gone meanwhile.
                let _ = child.start_kill();
                child.wait().await
            }
        },
    };
    match status {
        Ok(status) if status.success() => tracing::debug!(command, "Command has ended"),
        Ok(status) => {
            tracing::warn!(code = %Code::CarrierLost, command, %status, "Command has ended");
        }
        Err(error) => tracing::warn!(code = %Code::CarrierLost, command, %error, "Command is lost"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_command_that_nobody_needs_and_that_does_not_go_is_killed() {
        let mut command = Command::new("sleep");
        let child = command.arg("1000").kill_on_drop(true).spawn().unwrap();
        let process = format!("/proc/{}", child.id().unwrap());
        let (leash, released) = Leash::new();
        drop(leash);
        attend(child, released, "command:sleep".to_owned()).await;
        assert!(!Path::new(&process).exists());
    }

    #[test]
    fn a_command_is_called_by_its_program_alone() {
        let words = ["/usr/bin/sshpass", "-p", "secret", "ssh", "far"].map(str::to_owned);
        assert_eq!(name(&words), "command:sshpass");
    }
}
