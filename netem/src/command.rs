//! Runs `tc` and `iptables-restore`: a complete command, its text, and its error output.
//!
//! The pure builders of [`crate::tc`] and [`crate::nfqueue::rules`] return a [`Command`], which
//! tests compare as text. Only [`Command::run`] starts a process.

use std::{
    fmt,
    io::{self, Write},
    process::{Child, Output, Stdio},
};

/// A program, its arguments and its standard input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Command {
    program: String,
    arguments: Vec<String>,
    input: String,
}

/// A command that failed.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// The program is not on PATH.
    #[error("`{0}` is not installed")]
    NotInstalled(String),
    /// The program could not be started, or its output could not be read.
    #[error("`{command}`: {source}")]
    Io {
        /// The command as typed.
        command: String,
        /// The system's error.
        source: io::Error,
    },
    /// The program ended with a status other than 0.
    #[error("`{command}`: {said}")]
    Failed {
        /// The command as typed.
        command: String,
        /// The standard error of the program on one line, or its exit status.
        said: String,
    },
}

impl Command {
    /// `line`: the program and its arguments, separated by single spaces and without quotes.
    #[must_use]
    pub fn new(line: &str) -> Self {
        let mut words = line.split(' ').map(str::to_owned);
        Self {
            program: words.next().unwrap_or_default(),
            arguments: words.collect(),
            input: String::new(),
        }
    }

    /// The same command with `input` on its standard input.
    #[must_use]
    pub fn with_input(mut self, input: String) -> Self {
        self.input = input;
        self
    }

    /// Runs the command to its end and returns its standard output.
    ///
    /// # Errors
    /// See [`CommandError`]. An exit status other than 0 is an error.
    pub fn run(&self) -> Result<String, CommandError> {
        let output = self.output().map_err(|source| {
            if source.kind() == io::ErrorKind::NotFound {
                return CommandError::NotInstalled(self.program.clone());
            }
            CommandError::Io {
                command: self.to_string(),
                source,
            }
        })?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let said = String::from_utf8_lossy(&output.stderr);
        let said: Vec<&str> = said
            .lines()
            .map(str::trim)
            .filter(|l| !l.is_empty())
            .collect();
        Err(CommandError::Failed {
            command: self.to_string(),
            said: match said.is_empty() {
                true => output.status.to_string(),
                false => said.join("; "),
            },
        })
    }

    fn output(&self) -> io::Result<Output> {
        let mut child = std::process::Command::new(&self.program)
            .args(&self.arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        match feed(&mut child, &self.input) {
            // A program that fails early closes its input, so the write fails. The program's own
            // error message has the reason.
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error),
            _ => child.wait_with_output(),
        }
    }
}

fn feed(child: &mut Child, input: &str) -> io::Result<()> {
    child
        .stdin
        .take()
        .map_or(Ok(()), |mut stdin| stdin.write_all(input.as_bytes()))
}

/// The command line, without the input.
impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.program)?;
        self.arguments
            .iter()
            .try_for_each(|word| write!(f, " {word}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_output_of_a_command_with_input_is_returned() {
        let command = Command::new("cat -").with_input("a\nb\n".to_owned());
        assert_eq!(command.run().unwrap(), "a\nb\n");
    }

    #[test]
    fn a_missing_program_is_named() {
        let error = Command::new("muxwan-no-such-program x").run().unwrap_err();
        assert_eq!(
            error.to_string(),
            "`muxwan-no-such-program` is not installed"
        );
    }

    #[test]
    fn a_failure_says_what_the_program_said() {
        let error = Command::new("ls /no-such-folder")
            .run()
            .unwrap_err()
            .to_string();
        assert!(
            error.starts_with("`ls /no-such-folder`: ") && error.contains("No such file"),
            "{error}"
        );
        let silent = Command::new("false").run().unwrap_err().to_string();
        assert_eq!(silent, "`false`: exit status: 1");
    }
}
