//! What a system's processes are started with.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::topology::{Addresses, Place};

/// What our gateways are allowed in a scenario; the peers run with their own limits.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Streams of one session.
    pub(crate) streams: u32,
    /// `memory.receive`, bytes.
    pub(crate) receive_bytes: u64,
    /// `memory.retain`, bytes.
    pub(crate) retain_bytes: u64,
}

/// What a system's processes are made of.
pub(super) struct Setup<'a> {
    pub(super) addresses: Addresses,
    pub(super) muxgate: &'a Path,
    pub(super) limits: Limits,
    /// For configuration files.
    pub(super) folder: &'a Path,
}

impl Setup<'_> {
    /// Writes a configuration file and returns its path.
    pub(super) fn file(&self, name: &str, text: &str) -> Result<String> {
        let path = self.folder.join(name);
        std::fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
        Ok(path.display().to_string())
    }
}

/// The TUN interface of a system that carries IP packets, as its process makes it in its own namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Interface {
    /// Bytes.
    pub(super) mtu: u16,
    /// Packets that wait for the process; the kernel's default where not given.
    pub(super) queue_packets: Option<u32>,
    /// Those that the process opens; it may be moved once they are there.
    pub(super) queues: u16,
}

impl Interface {
    /// Its name, in each namespace.
    pub(super) const NAME: &'static str = "lab0";

    /// What `ip link set` is told.
    pub(super) fn settings(self) -> String {
        let queue = self
            .queue_packets
            .map(|count| format!(" txqueuelen {count}"));
        format!("mtu {}{}", self.mtu, queue.unwrap_or_default())
    }
}

/// One process to be started.
#[derive(Debug)]
pub(super) struct Launch {
    pub(super) place: Place,
    /// Of its log.
    pub(super) name: &'static str,
    pub(super) program: PathBuf,
    pub(super) arguments: Vec<String>,
    /// The port that listens when the next process may start.
    pub(super) listens: Option<u16>,
    /// The interface that it makes.
    pub(super) interface: Option<Interface>,
}

impl Launch {
    /// `line`: the program and its arguments, separated by single spaces.
    pub(super) fn new(place: Place, line: &str) -> Self {
        let mut words = line.split(' ').map(str::to_owned);
        Self {
            place,
            name: match place {
                Place::Exit => "exit",
                _ => "entry",
            },
            program: words.next().unwrap_or_default().into(),
            arguments: words.collect(),
            listens: None,
            interface: None,
        }
    }

    /// The same, with an interface for IP packets.
    pub(super) fn making(mut self, interface: Interface) -> Self {
        self.interface = Some(interface);
        self
    }

    /// The same, to be waited for.
    pub(super) fn listening(mut self, port: u16) -> Self {
        self.listens = Some(port);
        self
    }

    /// The same under another name: there are two of them at its place.
    pub(super) fn called(mut self, name: &'static str) -> Self {
        self.name = name;
        self
    }
}
