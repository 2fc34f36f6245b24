//! Network namespaces without names: each lives as long as this value and the processes in it, so
//! there is nothing to remove, however a run ends.
//!
//! Threads are in namespaces, not processes: [`Namespace::enter`] moves the calling thread in and back,
//! and what it starts meanwhile stays inside. Who is in which is [`crate::topology`]'s.

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::{fd::AsRawFd, unix::fs::FileExt},
    path::Path,
    process::Command,
};

use anyhow::{Context, Result, bail, ensure};
use nix::sched::{CloneFlags, setns, unshare};

const OWN: &str = "/proc/thread-self/ns/net";
const CONGESTION_CONTROL: &str = "net/ipv4/tcp_congestion_control";
const AVAILABLE: &str = "/proc/sys/net/ipv4/tcp_available_congestion_control";
const ALLOWED: &str = "/proc/sys/net/ipv4/tcp_allowed_congestion_control";

/// A network namespace with `lo` up and one congestion control.
#[derive(Debug)]
pub(crate) struct Namespace {
    inside: File,
}

impl Namespace {
    /// Makes a namespace; this thread stays where it is.
    ///
    /// # Errors
    /// Without root, without `ip`, or when the kernel does not have this congestion control.
    pub(crate) fn new(congestion_control: &str) -> Result<Self> {
        let allowed = Allowed::add(congestion_control);
        let home = File::open(OWN).with_context(|| format!("opening {OWN}"))?;
        unshare(CloneFlags::CLONE_NEWNET).context("making a network namespace")?;
        let inside = File::open(OWN);
        setns(&home, CloneFlags::CLONE_NEWNET).context("leaving a network namespace")?;
        let this = Self {
            inside: inside.with_context(|| format!("opening {OWN}"))?,
        };
        let set = this.set(CONGESTION_CONTROL, congestion_control);
        let restored = allowed.map_or(Ok(()), Allowed::restore);
        restored.with_context(|| format!("restoring {ALLOWED}"))?;
        if let Err(error) = set {
            let has = fs::read_to_string(AVAILABLE).unwrap_or_default();
            bail!("{error:#}; the kernel has {}", has.trim());
        }
        this.ip("link set lo up")?;
        Ok(this)
    }

    /// The namespace of another muxlab, which lives meanwhile; `path`: that of [`Self::path`].
    ///
    /// # Errors
    /// When there is none.
    pub(crate) fn of(path: &Path) -> Result<Self> {
        let inside = File::open(path);
        Ok(Self {
            inside: inside.with_context(|| format!("opening {}", path.display()))?,
        })
    }

    /// Does `work` with the calling thread inside.
    ///
    /// # Errors
    /// When the thread cannot move; what `work` returns is its own.
    pub(crate) fn enter<T>(&self, work: impl FnOnce() -> T) -> Result<T> {
        let home = File::open(OWN).with_context(|| format!("opening {OWN}"))?;
        setns(&self.inside, CloneFlags::CLONE_NEWNET).context("entering a network namespace")?;
        let result = work();
        setns(&home, CloneFlags::CLONE_NEWNET).context("leaving a network namespace")?;
        Ok(result)
    }

    /// What `ip` takes for this namespace where it wants a name.
    pub(crate) fn path(&self) -> String {
        format!(
            "/proc/{}/fd/{}",
            std::process::id(),
            self.inside.as_raw_fd()
        )
    }

    /// Runs `ip` inside; `line` has words separated by single spaces.
    ///
    /// # Errors
    /// When it is not installed or fails, with what it said.
    pub(crate) fn ip(&self, line: &str) -> Result<()> {
        let output = self.enter(|| Command::new("ip").args(line.split(' ')).output())?;
        let output = output.context("starting `ip` (Debian: iproute2)")?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "`ip {line}`: {}", said.trim());
        Ok(())
    }

    /// The value of a sysctl inside. `key`: such as `net/ipv4/tcp_rmem`.
    ///
    /// # Errors
    /// When there is none.
    pub(crate) fn sysctl(&self, key: &str) -> Result<String> {
        let text = self.enter(|| fs::read_to_string(format!("/proc/sys/{key}")))?;
        let text = text.with_context(|| format!("reading the sysctl {key}"))?;
        Ok(text.split_whitespace().collect::<Vec<_>>().join(" "))
    }

    /// Sets a sysctl inside.
    ///
    /// # Errors
    /// When the kernel does not take it.
    pub(crate) fn set(&self, key: &str, value: &str) -> Result<()> {
        self.enter(|| fs::write(format!("/proc/sys/{key}"), value))?
            .with_context(|| format!("setting the sysctl {key} to {value}"))
    }
}

/// A namespace takes as its default only what the machine allows to everyone. This allows one more
/// for the moment of setting it; the handle stays that of the namespace it was opened in.
struct Allowed {
    file: File,
    before: String,
}

impl Allowed {
    /// `None` where nothing needs to be added, or where it cannot be, which then shows when the
    /// congestion control is set.
    fn add(congestion_control: &str) -> Option<Self> {
        let before = fs::read_to_string(ALLOWED).ok()?;
        if before
            .split_whitespace()
            .any(|word| word == congestion_control)
        {
            return None;
        }
        let file = OpenOptions::new().write(true).open(ALLOWED).ok()?;
        let this = Self { file, before };
        let with = format!("{} {congestion_control}", this.before.trim());
        this.file.write_all_at(with.as_bytes(), 0).ok()?;
        Some(this)
    }

    fn restore(self) -> io::Result<()> {
        self.file.write_all_at(self.before.as_bytes(), 0)
    }
}
