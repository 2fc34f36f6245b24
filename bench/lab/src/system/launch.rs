//! The processes of a system, and the input for their command lines.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::topology::{Addresses, Place};

/// The limits of our gateways in a scenario. The peers run with their own limits.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Maximum number of streams of one session.
    pub(crate) streams: u32,
    /// `memory.receive`, bytes.
    pub(crate) receive_bytes: u64,
    /// `memory.retain`, bytes.
    pub(crate) retain_bytes: u64,
}

/// A build of muxgate.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Muxgate<'a> {
    pub(crate) program: &'a Path,
    /// The folder with the configuration files of the gateways, if the lab of another tree has
    /// written them. `None`: this lab writes the files.
    pub(crate) files: Option<&'a Path>,
}

/// The input for the command lines and configuration files of a system.
pub(super) struct Setup<'a> {
    pub(super) addresses: Addresses,
    pub(super) muxgate: Muxgate<'a>,
    pub(super) limits: Limits,
    /// Folder for configuration files.
    pub(super) folder: &'a Path,
}

impl Setup<'_> {
    /// Writes a configuration file and returns its path.
    pub(super) fn file(&self, name: &str, text: &str) -> Result<String> {
        let path = self.folder.join(name);
        std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(path.display().to_string())
    }
}

/// The TUN interface of a system that carries IP packets. The system's process creates it in the
/// namespace of the gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Interface {
    /// MTU in bytes.
    pub(super) mtu: u16,
    /// Greatest number of packets that wait for the process. `None`: the kernel's default.
    pub(super) queue_packets: Option<u32>,
    /// Number of queues that the process opens. The lab moves the interface when all queues are
    /// open.
    pub(super) queues: u16,
}

impl Interface {
    /// The name of the interface, the same in each namespace.
    pub(super) const NAME: &'static str = "lab0";

    /// The settings as arguments of `ip link set`.
    pub(super) fn settings(self) -> String {
        let queue = self
            .queue_packets
            .map(|count| format!(" txqueuelen {count}"));
        format!("mtu {}{}", self.mtu, queue.unwrap_or_default())
    }
}

/// A process of a system, before its start.
#[derive(Debug)]
pub(super) struct Launch {
    pub(super) place: Place,
    /// Name of the log file.
    pub(super) name: &'static str,
    pub(super) program: PathBuf,
    pub(super) arguments: Vec<String>,
    /// The port that must listen before the next process starts.
    pub(super) listens: Option<u16>,
    /// The interface that the process creates.
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

    /// Returns a copy whose process creates an interface for IP packets.
    pub(super) fn making(mut self, interface: Interface) -> Self {
        self.interface = Some(interface);
        self
    }

    /// Returns a copy that is ready only when `port` listens.
    pub(super) fn listening(mut self, port: u16) -> Self {
        self.listens = Some(port);
        self
    }

    /// Returns a copy with another name, because two processes run at the same place.
    pub(super) fn called(mut self, name: &'static str) -> Self {
        self.name = name;
        self
    }
}
