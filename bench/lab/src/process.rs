//! Processes of a run. The processes start inside a namespace and write a log. A process ends when
//! its value is dropped, and the kernel ends it if `muxlab` itself ends in any way.
//!
//! Each program starts through `muxlab child` ([`become_child`]), which requests that the kernel
//! sends it a signal when its parent ends. Then `muxlab child` executes the program, so the process
//! id stays the same.

use std::{
    env,
    fs::File,
    io::Read,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use clap::Args;
use muxtunnel_testkit::namespace::Namespace;
use nix::{
    sys::{
        prctl,
        signal::{Signal, kill},
    },
    unistd::Pid,
};

use crate::usage;

/// The reason in a row whose program is not installed.
pub(crate) const NOT_FOUND: &str = "not found";

/// The interval between two checks of a condition.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Bytes of a process's output that are read.
const OUTPUT_BYTES_MAX: u64 = 4 << 20;

/// Flags of `muxlab child`.
#[derive(Debug, Args)]
pub(crate) struct ChildArgs {
    /// The program and its arguments.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<String>,
}

/// Executes the program. The kernel kills it when the thread that started it ends.
///
/// # Errors
/// If the program cannot be executed. On success this function does not return.
pub(crate) fn become_child(args: &ChildArgs) -> Result<()> {
    prctl::set_pdeathsig(Signal::SIGKILL).context("cannot bind this process to muxlab")?;
    let (program, arguments) = args.command.split_first().context("no program is given")?;
    Err(Command::new(program).args(arguments).exec())
        .with_context(|| format!("cannot start {program}"))
}

/// The path of a program. A `name` with a folder is already the path. Any other `name` is searched
/// on PATH.
///
/// # Errors
/// [`NOT_FOUND`].
pub(crate) fn find(name: &Path) -> Result<PathBuf> {
    if name.components().count() > 1 {
        if name.is_file() {
            return Ok(name.to_owned());
        }
        bail!(NOT_FOUND);
    }
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .map(|folder| folder.join(name))
        .find(|file| file.is_file())
        .context(NOT_FOUND)
}

/// A command that ends together with muxlab. [`Process`] runs it, or the caller runs it to its end.
///
/// # Errors
/// If the program is [`NOT_FOUND`], or muxlab cannot find its own path.
pub(crate) fn command(program: &Path, arguments: &[String]) -> Result<Command> {
    let program = find(program)?;
    let mut command = Command::new(env::current_exe().context("cannot find muxlab itself")?);
    command.arg("child").arg("--").arg(program).args(arguments);
    command.stdin(Stdio::null());
    Ok(command)
}

/// A running process. The process and its descendants end when this value is dropped.
#[derive(Debug)]
pub(crate) struct Process(Child);

impl Process {
    /// Starts a program inside `namespace`, with its output in the file `log`.
    ///
    /// # Errors
    /// [`NOT_FOUND`], or the system's error.
    pub(crate) fn start(
        namespace: &Namespace,
        program: &Path,
        arguments: &[String],
        log: &Path,
    ) -> Result<Self> {
        let mut command = command(program, arguments)?;
        let file = File::create(log).with_context(|| format!("cannot create {}", log.display()))?;
        command.stdout(file.try_clone()?).stderr(file);
        Self::spawn(namespace, &mut command)
    }

    /// Starts a prepared command inside `namespace`.
    ///
    /// # Errors
    /// The system's error.
    pub(crate) fn spawn(namespace: &Namespace, command: &mut Command) -> Result<Self> {
        let child = namespace.enter(|| command.spawn())?;
        Ok(Self(
            child.with_context(|| format!("cannot start {command:?}"))?,
        ))
    }

    /// The process ids of the process and of all its descendants.
    pub(crate) fn pids(&self) -> Vec<u32> {
        usage::tree(self.0.id())
    }

    /// Sends a signal to the process.
    ///
    /// # Errors
    /// If the process has ended.
    pub(crate) fn signal(&self, signal: Signal) -> Result<()> {
        let pid = i32::try_from(self.0.id())?;
        Ok(kill(Pid::from_raw(pid), signal)?)
    }

    /// The child, for its output.
    pub(crate) fn child(&mut self) -> &mut Child {
        &mut self.0
    }

    /// Whether the process has ended by itself.
    pub(crate) fn has_ended(&mut self) -> bool {
        matches!(self.0.try_wait(), Ok(Some(_)))
    }

    /// Waits until the process ends by itself, up to `patience`, and collects its output.
    ///
    /// # Errors
    /// If the process does not end in time, or its standard output and standard error are not
    /// piped.
    pub(crate) fn finish(mut self, patience: Duration) -> Result<Finished> {
        let output = self.0.stdout.take().context("stdout is not piped")?;
        let errors = self.0.stderr.take().context("stderr is not piped")?;
        let [output, errors] = [collect(output), collect(errors)];
        let deadline = Instant::now() + patience;
        let status = loop {
            if let Some(status) = self.0.try_wait()? {
                break status;
            }
            if Instant::now() >= deadline {
                bail!("the process has not ended after {patience:?}");
            }
            thread::sleep(POLL_INTERVAL);
        };
        let text = |reader: JoinHandle<String>| reader.join().unwrap_or_default();
        Ok(Finished {
            succeeded: status.success(),
            output: text(output),
            errors: text(errors).trim().to_owned(),
        })
    }
}

/// How a process ended.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) succeeded: bool,
    pub(crate) output: String,
    pub(crate) errors: String,
}

/// Reads a pipe to its end on a thread, up to [`OUTPUT_BYTES_MAX`].
fn collect(pipe: impl Read + Send + 'static) -> JoinHandle<String> {
    thread::spawn(move || {
        let mut text = Vec::new();
        // Ignores a read error, because the bytes before it are still useful.
        let _ = pipe.take(OUTPUT_BYTES_MAX).read_to_end(&mut text);
        String::from_utf8_lossy(&text).into_owned()
    })
}

impl Drop for Process {
    fn drop(&mut self) {
        // An error means that a process has already ended.
        for pid in self
            .pids()
            .into_iter()
            .filter_map(|pid| i32::try_from(pid).ok())
        {
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
        let _ = self.0.wait();
    }
}

/// Calls `condition` repeatedly until it is true, up to `patience`.
///
/// # Errors
/// If `condition` does not become true in time.
pub(crate) fn wait_until(
    patience: Duration,
    what: &str,
    mut is_so: impl FnMut() -> Result<bool>,
) -> Result<()> {
    let deadline = Instant::now() + patience;
    while !is_so()? {
        if Instant::now() >= deadline {
            bail!("timed out after {patience:?} waiting for {what}");
        }
        thread::sleep(POLL_INTERVAL);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_looked_up_on_the_path_unless_it_names_a_folder() {
        assert!(find(Path::new("sh")).unwrap().is_absolute());
        assert_eq!(find(Path::new("/bin/sh")).unwrap(), Path::new("/bin/sh"));
        for missing in ["no-such-program-here", "/no/such/program"] {
            assert_eq!(find(Path::new(missing)).unwrap_err().to_string(), NOT_FOUND);
        }
    }
}
