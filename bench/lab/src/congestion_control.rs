//! Namespaces with a congestion control of their own.

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::unix::fs::FileExt,
};

use anyhow::{Context, Result, bail};
use muxtunnel_testkit::namespace::Namespace;

const KEY: &str = "net/ipv4/tcp_congestion_control";
const AVAILABLE: &str = "/proc/sys/net/ipv4/tcp_available_congestion_control";
const ALLOWED: &str = "/proc/sys/net/ipv4/tcp_allowed_congestion_control";

/// Makes a namespace with this congestion control.
///
/// # Errors
/// Without root, without `ip`, or when the kernel does not have it.
pub(crate) fn namespace_with(congestion_control: &str) -> Result<Namespace> {
    let allowed = Allowed::add(congestion_control);
    let namespace = Namespace::new();
    let set = namespace
        .as_ref()
        .map(|namespace| namespace.set(KEY, congestion_control));
    let restored = allowed.map_or(Ok(()), Allowed::restore);
    restored.with_context(|| format!("restoring {ALLOWED}"))?;
    if let Ok(Err(error)) = set {
        let has = fs::read_to_string(AVAILABLE).unwrap_or_default();
        bail!("{error:#}; the kernel has {}", has.trim());
    }
    namespace
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
