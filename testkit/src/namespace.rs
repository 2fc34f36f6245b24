//! Network namespaces without names: each lives as long as its [`Namespace`] and the processes in it, so there is nothing
//! to remove, however a run ends.
//!
//! Threads are in namespaces, not processes: [`Namespace::enter`] moves the calling thread in and back, and what it starts
//! meanwhile stays inside. All of it needs root.

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
    /// Where it is.
    pub namespace: &'a Namespace,
    /// What its interface is called there.
    pub interface: String,
    /// Its addresses, each with the length of its prefix.
    pub addresses: Vec<String>,
}

impl Namespace {
    /// Makes a namespace with `lo` up; this thread stays where it is.
    ///
    /// # Errors
    /// Without root or without `ip`.
    pub fn new() -> Result<Self> {
        let home = Self::here()?;
        unshare(CloneFlags::CLONE_NEWNET)
            .context("making a network namespace, which needs root")?;
        let made = Self::here();
        home.move_here().context("leaving a network namespace")?;
        let made = made?;
        made.ip("link set lo up")?;
        Ok(made)
    }

    /// The namespace that the calling thread is in.
    ///
    /// # Errors
    /// Without `/proc`.
    pub fn here() -> Result<Self> {
        Self::of(Path::new(OWN))
    }

    /// The namespace of another process, which lives meanwhile; `path`: that of [`Self::path`].
    ///
    /// # Errors
    /// When there is none.
    pub fn of(path: &Path) -> Result<Self> {
        let inside = File::open(path);
        let inside = inside.with_context(|| format!("opening {}", path.display()))?;
        Ok(Self { inside })
    }

    fn move_here(&self) -> nix::Result<()> {
        setns(&self.inside, CloneFlags::CLONE_NEWNET)
    }

    /// Does `work` with the calling thread inside.
    ///
    /// # Errors
    /// When the thread cannot move; what `work` returns is its own.
    pub fn enter<T>(&self, work: impl FnOnce() -> T) -> Result<T> {
        let home = Self::here()?;
        self.move_here().context("entering a network namespace")?;
        // A thread that panicked may serve others.
        let result = catch_unwind(AssertUnwindSafe(work));
        home.move_here().context("leaving a network namespace")?;
        result.or_else(|panicked| resume_unwind(panicked))
    }

    /// What `ip` takes for this namespace where it wants a name.
    #[must_use]
    pub fn path(&self) -> String {
        let id = std::process::id();
        format!("/proc/{id}/fd/{}", self.inside.as_raw_fd())
    }

    /// Runs a program inside, to its end. Returns what it printed.
    ///
    /// # Errors
    /// When it is not installed or fails, with what it said.
    pub fn run(&self, command: &mut Command) -> Result<String> {
        let output = self.enter(|| command.output())?;
        let output = output.with_context(|| format!("starting {command:?}"))?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{command:?}: {}", said.trim());
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Runs `ip` inside; `line` has words separated by single spaces.
    ///
    /// # Errors
    /// As [`Self::run`].
    pub fn ip(&self, line: &str) -> Result<()> {
        let said = self.run(Command::new("ip").args(line.split(' ')));
        said.context("`ip` (Debian: iproute2)").map(drop)
    }

    /// Joins two namespaces by a link that is up. It is gone with either of them.
    ///
    /// # Errors
    /// Where there is such an interface or address already.
    pub fn link(ends: [End<'_>; 2]) -> Result<()> {
        let place =
            |end: &End<'_>| format!("name {} netns {}", end.interface, end.namespace.path());
        let [one, other] = ends.each_ref().map(place);
        let line = format!("link add {one} type veth peer {other}");
        ends[0].namespace.ip(&line)?;
        for end in ends {
            for address in &end.addresses {
                // Usable at once.
                let nodad = if address.contains(':') { " nodad" } else { "" };
                let line = format!("addr add {address} dev {}{nodad}", end.interface);
                end.namespace.ip(&line)?;
            }
            end.namespace
                .ip(&format!("link set {} up", end.interface))?;
        }
        Ok(())
    }

    /// The value of a sysctl inside. `key`: such as `net/ipv4/tcp_rmem`.
    ///
    /// # Errors
    /// When there is none.
    pub fn sysctl(&self, key: &str) -> Result<String> {
        let text = self.enter(|| fs::read_to_string(format!("/proc/sys/{key}")))?;
        let text = text.with_context(|| format!("reading the sysctl {key}"))?;
        Ok(text.split_whitespace().collect::<Vec<_>>().join(" "))
    }

    /// Sets a sysctl inside.
    ///
    /// # Errors
    /// When the kernel does not take it.
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
        // Nobody listens any more, and the other end says so.
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
