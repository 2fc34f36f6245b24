//! A network namespace of a test's own, with a link to it and names that lead where the test says.

use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use muxtunnel_testkit::namespace::{self, End};
use tempfile::NamedTempFile;

/// One of them; removed when dropped.
pub struct Namespace {
    inside: namespace::Namespace,
    /// This end of the link.
    link: String,
    /// In the manner of /etc/hosts, where there are names of its own.
    hosts: Option<NamedTempFile>,
}

impl Namespace {
    /// The link's ends have these addresses, each with the length of its prefix.
    pub fn new(outside: &[&str], inside: &[&str]) -> Self {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let link = format!("mux{}x{}", std::process::id(), MADE.fetch_add(1, Relaxed));
        let made = Self {
            inside: namespace::Namespace::new().unwrap(),
            link,
            hosts: None,
        };
        let end = |namespace, interface: &str, addresses: &[&str]| End {
            namespace,
            interface: interface.to_owned(),
            addresses: addresses.iter().copied().map(str::to_owned).collect(),
        };
        let here = namespace::Namespace::here().unwrap();
        let ends = [
            end(&here, &made.link, outside),
            end(&made.inside, "eth0", inside),
        ];
        namespace::Namespace::link(ends).unwrap();
        made
    }

    /// Joins it to `other` by an interface `name` in each. Addresses: this one's first, each with the length of its prefix.
    pub fn join(&self, other: &Self, name: &str, addresses: [&str; 2]) {
        let ends = [(self, addresses[0]), (other, addresses[1])].map(|(of, address)| End {
            namespace: &of.inside,
            interface: name.to_owned(),
            addresses: vec![address.to_owned()],
        });
        namespace::Namespace::link(ends).unwrap();
    }

    /// Does `work` inside.
    pub fn enter<T>(&self, work: impl FnOnce() -> T) -> T {
        self.inside.enter(work).unwrap()
    }

    /// Runs a program in it.
    pub fn run(&self, words: &[&str]) -> String {
        let mut command = Command::new(words[0]);
        self.inside.run(command.args(&words[1..])).unwrap()
    }

    /// A program that finds the names of [`Self::set_hosts`], to be started inside.
    pub fn command(&self, program: &str) -> Command {
        let Some(hosts) = &self.hosts else {
            return Command::new(program);
        };
        let mut command = Command::new("unshare");
        let script = r#"mount --bind "$0" /etc/hosts && exec "$@""#;
        command.args(["--mount", "sh", "-c", script]);
        command.arg(hosts.path()).arg(program);
        command
    }

    /// Names for programs that are started in it from now on, in the manner of /etc/hosts. Those that have been
    /// started after a first call see what later ones say.
    pub fn set_hosts(&mut self, text: &str) {
        let hosts = self
            .hosts
            .get_or_insert_with(|| NamedTempFile::new().unwrap());
        // Not renamed: what has been started sees this very file.
        std::fs::write(hosts.path(), text).unwrap();
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        // The other end is in use for as long as a process of it runs.
        let _ = Command::new("ip")
            .args(["link", "delete", &self.link])
            .output();
    }
}
