//! Network namespaces without names. A namespace exists as long as its [`Namespace`] and the
//! processes in it, so an aborted test does not leave a namespace behind.
//!
//! A namespace belongs to a thread, not to a process. [`Namespace::enter`] moves the calling thread
//! into the namespace and back. Processes that the thread starts inside the namespace stay inside.
//! All functions need root.

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use nix::sched::{CloneFlags, setns, unshare};

const OWN: &str = "/proc/thread-self/ns/net";

/// A network namespace.
#[derive(Debug)]
pub struct Namespace {
    inside: File,
}

/// One end of a link.
#[derive(Debug)]
pub struct End<'a> {
    /// The namespace of the interface.
    pub namespace: &'a Namespace,
    /// The name of the interface.
    pub interface: String,
    /// The addresses of the interface, with prefix lengths.
    pub addresses: Vec<String>,
}

impl Namespace {
    /// Creates a namespace with `lo` up. The calling thread stays in its own namespace.
    ///
    /// # Errors
    /// Without root or without `ip`.
    pub fn new() -> Result<Self> {
        let home = Self::here()?;
        unshare(CloneFlags::CLONE_NEWNET)
            .context("cannot create a network namespace, which needs root")?;
        let made = Self::here();
        home.move_here().context("leaving a network namespace")?;
        let made = made?;
        made.ip("link set lo up")?;
        Ok(made)
    }

    /// The namespace of the calling thread.
    ///
    /// # Errors
    /// Without `/proc`.
    pub fn here() -> Result<Self> {
        Self::of(Path::new(OWN))
    }

    /// The namespace at `path`, which another process returned by [`Self::path`]. That process must
    /// still run.
    ///
    /// # Errors
    /// If the namespace does not exist.
    pub fn of(path: &Path) -> Result<Self> {
        let inside = File::open(path);
        let inside = inside.with_context(|| format!("opening {}", path.display()))?;
        Ok(Self { inside })
    }

    fn move_here(&self) -> nix::Result<()> {
        setns(&self.inside, CloneFlags::CLONE_NEWNET)
    }

    /// Runs `work` with the calling thread inside the namespace.
    ///
    /// # Errors
    /// If the thread cannot move. Errors of `work` are part of its result.
    pub fn enter<T>(&self, work: impl FnOnce() -> T) -> Result<T> {
        let home = Self::here()?;
        self.move_here().context("entering a network namespace")?;
        // Catches a panic, so that the thread leaves the namespace: it may run other tests
        // afterwards.
        let result = catch_unwind(AssertUnwindSafe(work));
        home.move_here().context("leaving a network namespace")?;
        result.or_else(|panicked| resume_unwind(panicked))
    }

    /// A path that `ip` accepts as the name of this namespace.
    #[must_use]
    pub fn path(&self) -> String {
        let id = std::process::id();
        format!("/proc/{id}/fd/{}", self.inside.as_raw_fd())
    }

    /// Runs a program inside, to its end. Returns its output.
    ///
    /// # Errors
    /// If the program is not installed or fails, with its error output.
    pub fn run(&self, command: &mut Command) -> Result<String> {
        let output = self.enter(|| command.output())?;
        let output = output.with_context(|| format!("starting {command:?}"))?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{command:?}: {}", said.trim());
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Runs `ip` inside. `line` has words that are separated by single spaces.
    ///
    /// # Errors
    /// As [`Self::run`].
    pub fn ip(&self, line: &str) -> Result<()> {
        let said = self.run(Command::new("ip").args(line.split(' ')));
        said.context("`ip` (Debian: iproute2)").map(drop)
    }

    /// Joins two namespaces by a link that is up. The link ends when one of the namespaces ends.
    ///
    /// # Errors
    /// If such an interface or address already exists.
    pub fn link(ends: [End<'_>; 2]) -> Result<()> {
        let place =
            |end: &End<'_>| format!("name {} netns {}", end.interface, end.namespace.path());
        let [one, other] = ends.each_ref().map(place);
        let line = format!("link add {one} type veth peer {other}");
        ends[0].namespace.ip(&line)?;
        for end in ends {
            for address in &end.addresses {
                // Without duplicate address detection, the address is usable at once.
                let nodad = if address.contains(':') { " nodad" } else { "" };
                let line = format!("addr add {address} dev {}{nodad}", end.interface);
                end.namespace.ip(&line)?;
            }
            end.namespace
                .ip(&format!("link set {} up", end.interface))?;
        }
        Ok(())
    }

    /// The value of a sysctl inside the namespace. `key` has slashes, such as `net/ipv4/tcp_rmem`.
    ///
    /// # Errors
    /// If the sysctl does not exist.
    pub fn sysctl(&self, key: &str) -> Result<String> {
        let text = self.enter(|| fs::read_to_string(format!("/proc/sys/{key}")))?;
        let text = text.with_context(|| format!("reading the sysctl {key}"))?;
        Ok(text.split_whitespace().collect::<Vec<_>>().join(" "))
    }

    /// Sets a sysctl inside.
    ///
    /// # Errors
    /// If the kernel does not accept the value.
    pub fn set(&self, key: &str, value: &str) -> Result<()> {
        self.enter(|| fs::write(format!("/proc/sys/{key}"), value))?
            .with_context(|| format!("setting the sysctl {key} to {value}"))
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::fs::MetadataExt;

    use super::*;

    fn inode() -> u64 {
        fs::metadata(OWN).unwrap().ino()
    }

    #[test]
    fn a_link_joins_two_namespaces_and_nobody_else() {
        let [one, other] = [(); 2].map(|()| Namespace::new().unwrap());
        let addresses = ["10.249.60.1/30", "10.249.60.2/30", "fd00:249:60::2/64"];
        let addresses = addresses.map(str::to_owned);
        let end = |namespace, addresses: &[String]| End {
            namespace,
            interface: "eth0".to_owned(),
            addresses: addresses.to_vec(),
        };
        Namespace::link([end(&one, &addresses[..1]), end(&other, &addresses[1..])]).unwrap();
        let listener = other.enter(|| TcpListener::bind("10.249.60.2:0")).unwrap();
        let address = listener.unwrap().local_addr().unwrap();
        // The port has no listener any more, so the connection is refused.
        let refused = one.enter(|| TcpStream::connect(address)).unwrap();
        let refused = refused.unwrap_err().kind();
        assert_eq!(refused, std::io::ErrorKind::ConnectionRefused);
        let unknown = one.run(Command::new("ip").args(["addr", "show", "dev", "eth1"]));
        assert!(unknown.is_err());
    }

    #[test]
    fn a_thread_comes_back_whatever_becomes_of_its_work() {
        let namespace = Namespace::new().unwrap();
        let home = inode();
        assert_ne!(namespace.enter(inode).unwrap(), home);
        assert_eq!(inode(), home);
        let panicked = catch_unwind(|| namespace.enter(|| panic!("as the test wants it")));
        assert!(panicked.is_err());
        assert_eq!(inode(), home);
    }

    #[test]
    fn a_sysctl_is_the_namespaces_own() {
        let [one, other] = [(); 2].map(|()| Namespace::new().unwrap());
        let key = "net/ipv4/ip_local_port_range";
        one.set(key, "10000 10010").unwrap();
        assert_eq!(one.sysctl(key).unwrap(), "10000 10010");
        assert_ne!(other.sysctl(key).unwrap(), "10000 10010");
        assert!(one.set("net/ipv4/no_such_key", "1").is_err());
    }
}
