//! Namespaces with a chosen congestion control.

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

/// Creates a namespace with this congestion control.
///
/// # Errors
/// If the process is not root, `ip` is missing, or the kernel does not have the congestion control.
pub(crate) fn namespace_with(congestion_control: &str) -> Result<Namespace> {
    let allowed = Allowed::add(congestion_control);
    let namespace = Namespace::new();
    let set = namespace
        .as_ref()
        .map(|namespace| namespace.set(KEY, congestion_control));
    let restored = allowed.map_or(Ok(()), Allowed::restore);
    restored.with_context(|| format!("cannot restore {ALLOWED}"))?;
    if let Ok(Err(error)) = set {
        let has = fs::read_to_string(AVAILABLE).unwrap_or_default();
        bail!(
            "{error:#}; the kernel has the congestion controls {}",
            has.trim()
        );
    }
    namespace
}

/// A namespace accepts as its default only a congestion control that the machine allows to all
/// users. While the lab sets the default, this type allows one more congestion control. The type
/// opens the sysctl's file in the machine's namespace, so its later write also changes the
/// machine's namespace.
struct Allowed {
    file: File,
    before: String,
}

impl Allowed {
    /// Returns `None` if the congestion control is already allowed, or if it cannot be allowed. If
    /// it cannot be allowed, setting the default fails later.
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
