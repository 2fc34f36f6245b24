//! Processes of a run: started inside a namespace, logged, ended with their value, and ended by the
//! kernel when `muxlab` itself ends, however it does.
//!
//! The last is what `muxlab child` is for ([`become_child`]): it asks the kernel for it and then
//! becomes the program, so the process id stays.

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

/// The reason of a row whose program is not installed.
pub(crate) const NOT_FOUND: &str = "not found";

/// The pause between two looks at something that is waited for.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Bytes kept of what a process prints.
const OUTPUT_BYTES_MAX: u64 = 4 << 20;

/// What `muxlab child` is told.
#[derive(Debug, Args)]
pub(crate) struct ChildArgs {
    /// The program and its arguments.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<String>,
}

/// Becomes the program; the kernel kills it when the thread that started it ends.
///
/// # Errors
/// When it cannot; otherwise it does not return.
pub(crate) fn become_child(args: &ChildArgs) -> Result<()> {
    prctl::set_pdeathsig(Signal::SIGKILL).context("binding this process to muxlab")?;
    let (program, arguments) = args.command.split_first().context("no program is given")?;
    Err(Command::new(program).args(arguments).exec()).with_context(|| format!("starting {program}"))
}

/// The path of a program: `name` itself where it names a folder, else looked up on PATH.
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

/// A command that [`Process`] runs, or that is run to its end; it ends with muxlab.
///
/// # Errors
/// When the program is [`NOT_FOUND`], or muxlab does not find itself.
pub(crate) fn command(program: &Path, arguments: &[String]) -> Result<Command> {
    let program = find(program)?;
    let mut command = Command::new(env::current_exe().context("finding muxlab itself")?);
    command.arg("child").arg("--").arg(program).args(arguments);
    command.stdin(Stdio::null());
    Ok(command)
}

/// A running process; it and its descendants end with this value.
#[derive(Debug)]
pub(crate) struct Process(Child);

impl Process {
    /// Starts a program inside `namespace`, with its output in the file `log`.
    ///
    /// # Errors
    /// [`NOT_FOUND`], or what the system said.
    pub(crate) fn start(
        namespace: &Namespace,
        program: &Path,
        arguments: &[String],
        log: &Path,
    ) -> Result<Self> {
        let mut command = command(program, arguments)?;
        let file = File::create(log).with_context(|| format!("making {}", log.display()))?;
        command.stdout(file.try_clone()?).stderr(file);
        Self::spawn(namespace, &mut command)
    }

    /// Starts a prepared command inside `namespace`.
    ///
    /// # Errors
    /// What the system said.
    pub(crate) fn spawn(namespace: &Namespace, command: &mut Command) -> Result<Self> {
        let child = namespace.enter(|| command.spawn())?;
        Ok(Self(
            child.with_context(|| format!("starting {command:?}"))?,
        ))
    }

    /// Its process id and those of all its descendants.
    pub(crate) fn pids(&self) -> Vec<u32> {
        usage::tree(self.0.id())
    }

    /// Sends it a signal.
    ///
    /// # Errors
    /// When it has ended.
    pub(crate) fn signal(&self, signal: Signal) -> Result<()> {
        let pid = i32::try_from(self.0.id())?;
        Ok(kill(Pid::from_raw(pid), signal)?)
    }

    /// The handle, for its output.
    pub(crate) fn child(&mut self) -> &mut Child {
        &mut self.0
    }

    /// Whether it has ended by itself.
    pub(crate) fn has_ended(&mut self) -> bool {
        matches!(self.0.try_wait(), Ok(Some(_)))
    }

    /// Waits until it ends by itself, up to `patience`, reading what it prints meanwhile.
    ///
    /// # Errors
    /// When it has not ended by then, or has no piped output and errors.
    pub(crate) fn finish(mut self, patience: Duration) -> Result<Finished> {
        let output = self.0.stdout.take().context("it has no piped output")?;
        let errors = self.0.stderr.take().context("it has no piped errors")?;
        let [output, errors] = [collect(output), collect(errors)];
        let deadline = Instant::now() + patience;
        let status = loop {
            if let Some(status) = self.0.try_wait()? {
                break status;
            }
            if Instant::now() >= deadline {
                bail!("it has not ended after {patience:?}");
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

/// Reads all of it on a thread, up to [`OUTPUT_BYTES_MAX`].
fn collect(pipe: impl Read + Send + 'static) -> JoinHandle<String> {
    thread::spawn(move || {
        let mut text = Vec::new();
        // What was read before an error still says something.
        let _ = pipe.take(OUTPUT_BYTES_MAX).read_to_end(&mut text);
        String::from_utf8_lossy(&text).into_owned()
    })
}

impl Drop for Process {
    fn drop(&mut self) {
        // Errors say that a process has ended already.
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

/// Asks again and again until it is so, up to `patience`.
///
/// # Errors
/// When it never was.
pub(crate) fn wait_until(
    patience: Duration,
    what: &str,
    mut is_so: impl FnMut() -> Result<bool>,
) -> Result<()> {
    let deadline = Instant::now() + patience;
    while !is_so()? {
        if Instant::now() >= deadline {
            bail!("waited {patience:?} for {what}");
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
