//! A network namespace for a test, with a link to the test's namespace and with its own host names.

use std::collections::BTreeMap;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use muxtunnel_testkit::namespace::{self, End};
use tempfile::NamedTempFile;

/// A namespace, which is removed on drop.
pub struct Namespace {
    inside: namespace::Namespace,
    /// The interface at the test's end of the link.
    link: String,
    /// The files that replace files of the host, by path.
    files: BTreeMap<&'static str, NamedTempFile>,
}

impl Namespace {
    /// Creates a namespace. The ends of the link have these addresses, each with a prefix length.
    pub fn new(outside: &[&str], inside: &[&str]) -> Self {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let link = format!("mux{}x{}", std::process::id(), MADE.fetch_add(1, Relaxed));
        let made = Self {
            inside: namespace::Namespace::new().unwrap(),
            link,
            files: BTreeMap::new(),
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

    /// Connects the namespace to `other` by an interface `name` in each. `addresses` has this
    /// namespace's address first, and each has a prefix length.
    pub fn join(&self, other: &Self, name: &str, addresses: [&str; 2]) {
        let ends = [(self, addresses[0]), (other, addresses[1])].map(|(of, address)| End {
            namespace: &of.inside,
            interface: name.to_owned(),
            addresses: vec![address.to_owned()],
        });
        namespace::Namespace::link(ends).unwrap();
    }

    /// Moves an interface of the calling thread's namespace into this namespace, and sets it up
    /// with `address`, which has a prefix length.
    pub fn adopt(&self, interface: &str, address: &str) {
        let here = namespace::Namespace::here().unwrap();
        let place = self.inside.path();
        here.ip(&format!("link set {interface} netns {place}"))
            .unwrap();
        let add = format!("addr add {address} dev {interface}");
        self.inside.ip(&add).unwrap();
        self.inside.ip(&format!("link set {interface} up")).unwrap();
    }

    /// Runs `work` inside the namespace.
    pub fn enter<T>(&self, work: impl FnOnce() -> T) -> T {
        self.inside.enter(work).unwrap()
    }

    /// Runs a program in the namespace.
    pub fn run(&self, words: &[&str]) -> String {
        let mut command = Command::new(words[0]);
        self.inside.run(command.args(&words[1..])).unwrap()
    }

    /// Prepares a program that will run in the namespace with the files of [`Self::set_hosts`] and
    /// [`Self::set_resolv_conf`].
    pub fn command(&self, program: &str) -> Command {
        if self.files.is_empty() {
            return Command::new(program);
        }
        let mut command = Command::new("unshare");
        let mounts = self.files.iter().map(|(path, file)| {
            let file = file.path().display();
            format!("mount --bind {file} {path} && ")
        });
        let script = mounts.collect::<String>() + r#"exec "$0" "$@""#;
        command.args(["--mount", "sh", "-c", &script, program]);
        command
    }

    /// Sets the host names, in the format of /etc/hosts, for programs that are started from now on.
    /// Programs that were started after the first call also see the changes of later calls.
    pub fn set_hosts(&mut self, text: &str) {
        self.set("/etc/hosts", text);
    }

    /// Sets the resolver's configuration. Works as [`Self::set_hosts`].
    pub fn set_resolv_conf(&mut self, text: &str) {
        self.set("/etc/resolv.conf", text);
    }

    fn set(&mut self, path: &'static str, text: &str) {
        let file = self.files.entry(path);
        let file = file.or_insert_with(|| NamedTempFile::new().unwrap());
        // The file is overwritten instead of replaced, because it is mounted for running programs.
        std::fs::write(file.path(), text).unwrap();
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        // Deletes the link explicitly, because the kernel keeps its other end while a process runs
        // in the namespace.
        let _ = Command::new("ip")
            .args(["link", "delete", &self.link])
            .output();
    }
}
