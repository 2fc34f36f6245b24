//! A carrier over the standard input and output of a command: the module starts the command, logs
//! its standard error, and ends the command.
//!
//! The command runs without a shell. The command shares the gateway's terminal (setsid(2) is not
//! called), so ssh can request a password there. Each line of the command's standard error becomes
//! a line of the log. A line of more than [`LINE_BYTES_MAX`] bytes becomes several lines. After the
//! command's input is closed, the command has [`END_TIME`] to exit.

use std::io::{Error, Result};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use muxtunnel_codes::Code;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::process::{Child, ChildStderr, Command};

use super::pipes::{Leash, Released};
use super::{Pipes, Transport};

const LINE_BYTES_MAX: u64 = 1024;
const END_TIME: Duration = Duration::from_secs(2);

/// A short name of a command: the name of its program. The arguments may be secret.
pub(crate) fn name(words: &[String]) -> String {
    let program = Path::new(words.first().map_or("", String::as_str));
    let name = program.file_name().unwrap_or_default();
    format!("command:{}", name.to_string_lossy())
}

/// Starts a command, which must have at least one word.
///
/// # Errors
/// The command cannot be started.
pub(crate) fn start(words: &[String]) -> Result<Box<dyn Transport>> {
    let (program, arguments) = words
        .split_first()
        .ok_or_else(|| Error::other("the command is empty"))?;
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
        return Err(Error::other("the command was started without pipes"));
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

/// Logs the command's standard error until it ends.
async fn pass_on(words: ChildStderr, command: String) {
    let mut words = BufReader::new(words);
    let mut line = Vec::new();
    while let Ok(1..) = (&mut words)
        .take(LINE_BYTES_MAX)
        .read_until(b'\n', &mut line)
        .await
    {
        let text = String::from_utf8_lossy(&line);
        tracing::info!(command, line = text.trim_end(), "Output of the command");
        line.clear();
    }
}

/// Waits for the end of the command. Kills the command if the command's leash is dropped, and the
/// command does not exit within [`END_TIME`].
async fn attend(mut child: Child, mut released: Released, command: String) {
    let status = tokio::select! {
        status = child.wait() => status,
        _ = &mut released => match tokio::time::timeout(END_TIME, child.wait()).await {
            Ok(status) => status,
            Err(_) => {
                // The command may have exited in the meantime.
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
        Err(error) => {
            tracing::warn!(code = %Code::CarrierLost, command, %error, "Cannot wait for the command");
        }
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
