//! A network namespace of a test's own, with a link to it and names that lead where the test says.

use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use super::tools::{run, stdout};

/// One of them; removed when dropped.
pub struct Namespace {
    pub name: String,
    link: String,
}

impl Namespace {
    /// The link's ends have these addresses, each with the length of its prefix.
    pub fn new(outside: &[&str], inside: &[&str]) -> Self {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let id = format!("{}x{}", std::process::id(), MADE.fetch_add(1, Relaxed));
        let namespace = Self {
            name: format!("muxgate-{id}"),
            link: format!("mux{id}"),
        };
        let (name, link) = (namespace.name.as_str(), namespace.link.as_str());
        let inner = format!("{link}i");
        ip(&["netns", "add", name]);
        ip(&[
            "link", "add", link, "type", "veth", "peer", "name", &inner, "netns", name,
        ]);
        outside.iter().for_each(|address| add(&[], address, link));
        inside
            .iter()
            .for_each(|address| add(&["-n", name], address, &inner));
        ip(&["link", "set", link, "up"]);
        ip(&["-n", name, "link", "set", &inner, "up"]);
        ip(&["-n", name, "link", "set", "lo", "up"]);
        namespace
    }

    /// Runs a program in it.
    pub fn run(&self, words: &[&str]) -> String {
        let within = [&["netns", "exec", &self.name], words].concat();
        stdout(&run("ip", "iproute2", &within))
    }

    /// Names for programs that are started in it from now on, in the manner of /etc/hosts. Those that have been
    /// started after a first call see what later ones say.
    pub fn set_hosts(&self, text: &str) {
        let folder = self.folder();
        std::fs::create_dir_all(&folder).expect("names of a namespace need /etc/netns");
        // Not renamed: what has been started sees this very file.
        std::fs::write(folder.join("hosts"), text).unwrap();
    }

    fn folder(&self) -> PathBuf {
        PathBuf::from("/etc/netns").join(&self.name)
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(self.folder());
        let _ = Command::new("ip")
            .args(["netns", "delete", &self.name])
            .status();
        let _ = Command::new("ip")
            .args(["link", "delete", &self.link])
            .output();
    }
}

fn add(within: &[&str], address: &str, link: &str) {
    let nodad = address.contains(':').then_some("nodad");
    let words = [within, &["address", "add", address, "dev", link]].concat();
    ip(&[&words, nodad.as_slice()].concat());
}

fn ip(args: &[&str]) {
    stdout(&run("ip", "iproute2", args));
}
