//! A network namespace for one run: loopback alone, no firewall rules, the congestion control asked
//! for. It lives as long as the process and its children, so there is nothing to remove.

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::unix::fs::FileExt,
    process::Command,
};

use anyhow::{Context, Result, bail, ensure};
use nix::{
    sched::{CloneFlags, unshare},
    unistd::geteuid,
};

const CONGESTION_CONTROL: &str = "/proc/sys/net/ipv4/tcp_congestion_control";
const AVAILABLE: &str = "/proc/sys/net/ipv4/tcp_available_congestion_control";
const ALLOWED: &str = "/proc/sys/net/ipv4/tcp_allowed_congestion_control";

/// Moves this thread, and what it starts from now on, into a new network namespace.
///
/// # Errors
/// Without root, without `ip`, or when the kernel does not have this congestion control.
pub(crate) fn enter(congestion_control: &str) -> Result<()> {
    ensure!(
        geteuid().is_root(),
        "muxlab makes a network namespace and needs root"
    );
    let allowed = Allowed::add(congestion_control);
    unshare(CloneFlags::CLONE_NEWNET).context("making a network namespace")?;
    let set = fs::write(CONGESTION_CONTROL, congestion_control);
    let restored = allowed.map_or(Ok(()), Allowed::restore);
    restored.with_context(|| format!("restoring {ALLOWED}"))?;
    if let Err(error) = set {
        let has = fs::read_to_string(AVAILABLE).unwrap_or_default();
        bail!(
            "setting the congestion control {congestion_control}: {error}; the kernel has {}",
            has.trim()
        );
    }
    let up = Command::new("ip")
        .args(["link", "set", "lo", "up"])
        .status();
    let up = up.context("starting `ip` (Debian: iproute2)")?;
    ensure!(up.success(), "`ip link set lo up` failed");
    Ok(())
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
