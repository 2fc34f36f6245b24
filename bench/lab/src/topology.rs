//! Where client, entry, exit and server are: all on one loopback, or in four network namespaces.
//!
//! ```text
//!           near             mid (50 ms in the WAN)           far
//!   client ------- entry ------------------------- exit ------------- server
//!      `------------------------- direct (50 ms in the WAN) ------------'
//! ```
//! Owns [`Topology`], its addresses, and the [`Network`] that is built of it: namespaces, veth pairs,
//! sysctls, delay lines. All of it is gone when the value is, or when muxlab ends.

use std::{
    net::{Ipv4Addr, SocketAddr},
    path::Path,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use serde::Serialize;

use crate::{
    namespace::Namespace,
    process::{Process, wait_until},
};

/// One way, on `mid` and on `direct`.
pub(crate) const WAN_DELAY_MS: u32 = 50;
/// Addresses that a client can connect from, so that a rate of opens does not run out of ports.
const SOURCES: u8 = 8;
/// Ports of the outgoing connections; what listens is below.
const PORT_RANGE: &str = "10000 63999";
/// How long a delay line may take until it has proved its delay.
const DELAY_PATIENCE: Duration = Duration::from_secs(30);

/// What is raised by tuning: the values of the operator's profile `Wan`.
const TUNED: [(&str, &str); 2] = [
    ("net/ipv4/tcp_rmem", "4096 131072 134217728"),
    ("net/ipv4/tcp_wmem", "4096 65536 67108864"),
];

/// The four ends of what is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// The load's side.
    Client,
    /// The gateway that clients connect to.
    Entry,
    /// The gateway that connects to the server.
    Exit,
    /// The targets.
    Server,
}

/// How the four are connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Topology {
    /// One namespace with nothing but `lo`.
    Loopback,
    /// Four namespaces joined by veth pairs, as pods are.
    Veth,
    /// As veth, with 50 ms each way between the gateways, and on the direct path; kernel defaults.
    Wan,
    /// As wan, with larger socket buffers at the ends of the delayed link.
    WanTuned,
}

impl Topology {
    /// The name in tables, JSON lines and flags.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Loopback => "loopback",
            Self::Veth => "veth",
            Self::Wan => "wan",
            Self::WanTuned => "wan-tuned",
        }
    }

    /// The emulated delay between the gateways, and on the direct path.
    pub(crate) fn one_way_delay_ms(self) -> u32 {
        if self.is_wan() { WAN_DELAY_MS } else { 0 }
    }

    /// The name of the sysctl profile.
    pub(crate) fn tuning(self) -> &'static str {
        match self {
            Self::WanTuned => "Wan",
            _ => "None",
        }
    }

    /// Whether there is a delay, so that rates need longer to settle.
    pub(crate) fn is_wan(self) -> bool {
        matches!(self, Self::Wan | Self::WanTuned)
    }

    /// Who has which address.
    pub(crate) fn addresses(self) -> Addresses {
        match self {
            Self::Loopback => Addresses {
                entry: Ipv4Addr::LOCALHOST,
                carrier_entry: Ipv4Addr::LOCALHOST,
                carrier_exit: Ipv4Addr::LOCALHOST,
                target: Ipv4Addr::LOCALHOST,
                server: Ipv4Addr::LOCALHOST,
            },
            Self::Veth | Self::Wan | Self::WanTuned => Addresses {
                entry: Link::Near.right(),
                carrier_entry: Link::Mid.left(),
                carrier_exit: Link::Mid.right(),
                target: Link::Far.right(),
                server: Link::Direct.right(),
            },
        }
    }

    /// Where the load's connections may come from. `direct`: to the server, not to the entry.
    pub(crate) fn sources(self, direct: bool) -> Vec<Ipv4Addr> {
        (0..SOURCES)
            .map(|number| match (self, direct) {
                (Self::Loopback, _) => Ipv4Addr::new(127, 0, 1, 1 + number),
                (_, false) => Link::Near.source(number),
                (_, true) => Link::Direct.source(number),
            })
            .collect()
    }
}

/// Who has which address.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Addresses {
    /// The entry, for clients.
    pub(crate) entry: Ipv4Addr,
    /// The entry, for the exit.
    pub(crate) carrier_entry: Ipv4Addr,
    /// The exit, for the entry.
    pub(crate) carrier_exit: Ipv4Addr,
    /// The server, for the exit.
    pub(crate) target: Ipv4Addr,
    /// The server, for clients.
    pub(crate) server: Ipv4Addr,
}

/// A veth pair; the number is the third part of its network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Link {
    Near = 1,
    Mid = 2,
    Far = 3,
    Direct = 4,
}

impl Link {
    const ALL: [Self; 4] = [Self::Near, Self::Mid, Self::Far, Self::Direct];

    /// The name of the interface on both ends.
    fn name(self) -> &'static str {
        match self {
            Self::Near => "near",
            Self::Mid => "mid",
            Self::Far => "far",
            Self::Direct => "direct",
        }
    }

    fn ends(self) -> [Place; 2] {
        match self {
            Self::Near => [Place::Client, Place::Entry],
            Self::Mid => [Place::Entry, Place::Exit],
            Self::Far => [Place::Exit, Place::Server],
            Self::Direct => [Place::Client, Place::Server],
        }
    }

    /// Whether the WAN is here.
    fn is_long(self) -> bool {
        matches!(self, Self::Mid | Self::Direct)
    }

    fn left(self) -> Ipv4Addr {
        Ipv4Addr::new(10, 70, self as u8, 1)
    }

    fn right(self) -> Ipv4Addr {
        Ipv4Addr::new(10, 70, self as u8, 2)
    }

    /// Further addresses of the left end.
    fn source(self, number: u8) -> Ipv4Addr {
        Ipv4Addr::new(10, 70, self as u8, 11 + number)
    }
}

/// A topology that exists.
#[derive(Debug)]
pub(crate) struct Network {
    pub(crate) topology: Topology,
    /// One, or one a place.
    namespaces: Vec<Namespace>,
    /// What the kernel gave the sysctls of [`TUNED`].
    defaults: Vec<String>,
    delays: Vec<Process>,
}

impl Network {
    /// Builds it. `muxwan`: the program that makes delays; `logs`: a folder for what it says.
    ///
    /// # Errors
    /// What is missing, or what the system said.
    pub(crate) fn build(
        topology: Topology,
        congestion_control: &str,
        muxwan: &Path,
        logs: &Path,
    ) -> Result<Self> {
        let count = if topology == Topology::Loopback { 1 } else { 4 };
        let namespaces: Vec<Namespace> = (0..count)
            .map(|_| Namespace::new(congestion_control))
            .collect::<Result<_>>()?;
        let mut this = Self {
            topology,
            namespaces,
            defaults: Vec::new(),
            delays: Vec::new(),
        };
        for namespace in &this.namespaces {
            namespace.set("net/ipv4/ip_local_port_range", PORT_RANGE)?;
            // Ports of ended connections are used again after a second, on every topology alike.
            namespace.set("net/ipv4/tcp_tw_reuse", "1")?;
        }
        let first = this.namespace(Place::Client);
        this.defaults = TUNED
            .iter()
            .map(|(key, _)| first.sysctl(key))
            .collect::<Result<_>>()?;
        if topology != Topology::Loopback {
            Link::ALL.into_iter().try_for_each(|link| this.lay(link))?;
        }
        if topology.is_wan() {
            this.delay(muxwan, logs)?;
        }
        Ok(this)
    }

    /// The namespace of a place.
    pub(crate) fn namespace(&self, place: Place) -> &Namespace {
        &self.namespaces[place as usize % self.namespaces.len()]
    }

    /// Gives the ends of the delayed link what the topology's tuning says, everyone else the kernel's
    /// defaults. `direct`: the ends are client and server, else the gateways.
    ///
    /// # Errors
    /// When the kernel does not take a value.
    pub(crate) fn tune(&self, direct: bool) -> Result<()> {
        if self.topology != Topology::WanTuned {
            return Ok(());
        }
        for place in [Place::Client, Place::Entry, Place::Exit, Place::Server] {
            let is_end = matches!(place, Place::Client | Place::Server) == direct;
            for ((key, tuned), default) in TUNED.iter().zip(&self.defaults) {
                self.namespace(place)
                    .set(key, if is_end { tuned } else { default })?;
            }
        }
        Ok(())
    }

    /// The process ids of the delay lines.
    pub(crate) fn delay_pids(&self) -> Vec<u32> {
        self.delays.iter().flat_map(Process::pids).collect()
    }

    /// Whether a socket listens on `port` in the namespace of `place`; connecting to find out could use
    /// up a peer's one carrier.
    pub(crate) fn listens(&self, place: Place, port: u16) -> Result<bool> {
        self.namespace(place).enter(|| {
            ["tcp", "tcp6"].iter().any(|table| {
                std::fs::read_to_string(format!("/proc/thread-self/net/{table}"))
                    .is_ok_and(|table| lists_listener(&table, port))
            })
        })
    }

    fn lay(&self, link: Link) -> Result<()> {
        let [left, right] = link.ends().map(|place| self.namespace(place));
        let name = link.name();
        left.ip(&format!(
            "link add name {name} netns {} type veth peer name {name} netns {}",
            left.path(),
            right.path()
        ))?;
        let mut addresses = vec![link.left()];
        if link.ends()[0] == Place::Client {
            addresses.extend((0..SOURCES).map(|number| link.source(number)));
        }
        for address in addresses {
            left.ip(&format!("addr add {address}/24 dev {name}"))?;
        }
        right.ip(&format!("addr add {}/24 dev {name}", link.right()))?;
        [left, right]
            .into_iter()
            .try_for_each(|end| end.ip(&format!("link set {name} up")))
    }

    /// Starts a delay line at both ends of each long link, and waits until they have proved it.
    fn delay(&mut self, muxwan: &Path, logs: &Path) -> Result<()> {
        for link in Link::ALL.into_iter().filter(|link| link.is_long()) {
            for (place, end) in link.ends().into_iter().zip(["left", "right"]) {
                let name = format!("muxwan-{}-{end}", link.name());
                let [log, report] = ["log", "json"].map(|kind| logs.join(format!("{name}.{kind}")));
                let line = format!(
                    "run --delay {WAN_DELAY_MS}ms --all --interface {} --backend nfqueue --report {}",
                    link.name(),
                    report.display()
                );
                let _ = std::fs::remove_file(&report);
                let arguments: Vec<String> = line.split(' ').map(str::to_owned).collect();
                let process = Process::start(self.namespace(place), muxwan, &arguments, &log);
                let mut process = process.with_context(|| format!("{}", muxwan.display()))?;
                wait_until(DELAY_PATIENCE, "the delay line", || {
                    ensure!(!process.has_ended(), "the delay line was refused");
                    Ok(report.is_file())
                })
                .with_context(|| format!("see {}", log.display()))?;
                self.delays.push(process);
            }
        }
        Ok(())
    }
}

/// An address and a port, as text.
pub(crate) fn at(address: Ipv4Addr, port: u16) -> String {
    SocketAddr::from((address, port)).to_string()
}

/// `table`: `/proc/net/tcp` or `tcp6`, where state 0A is LISTEN.
fn lists_listener(table: &str, port: u16) -> bool {
    table.lines().any(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let local = fields.get(1).and_then(|address| address.rsplit_once(':'));
        local.is_some_and(|(_, hex)| u16::from_str_radix(hex, 16) == Ok(port))
            && fields.get(3) == Some(&"0A")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listening_port_is_told_from_a_connected_one() {
        let table = "  sl  local_address rem_address   st tx_queue\n\
                        0: 0100007F:1838 00000000:0000 0A 00000000:00000000\n\
                        1: 0100007F:1839 0100007F:1838 01 00000000:00000000\n";
        assert!(lists_listener(table, 6200));
        assert!(!lists_listener(table, 6201));
    }

    #[test]
    fn the_tunnel_and_the_direct_path_reach_the_server_at_different_addresses() {
        let addresses = Topology::Veth.addresses();
        assert_eq!(addresses.target, Ipv4Addr::new(10, 70, 3, 2));
        assert_eq!(addresses.server, Ipv4Addr::new(10, 70, 4, 2));
        assert!(
            Topology::Wan
                .sources(true)
                .iter()
                .all(|a| a.octets()[2] == 4)
        );
        assert_eq!(
            Topology::Loopback.sources(false).len(),
            usize::from(SOURCES)
        );
    }
}
