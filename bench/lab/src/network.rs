//! Creates the network of a [`Topology`]: namespaces, veth pairs, sysctls and delay lines. The
//! network disappears when its value is dropped, or when muxlab ends.

use std::{collections::BTreeMap, fs, net::Ipv4Addr, path::Path, process::Command, time::Duration};

use anyhow::{Context, Result, ensure};
use muxtunnel_testkit::namespace::{End, Namespace};
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::{
    congestion_control::namespace_with,
    process::{Process, wait_until},
    topology::{CHANGED_DELAY_MS, Link, Place, SOURCES, Topology},
};

/// Ports of outgoing connections. Listeners use ports below this range.
const PORT_RANGE: &str = "10000 63999";
/// Time-out for the first successful measurement of a delay line.
const DELAY_PATIENCE: Duration = Duration::from_secs(30);

/// The tuned sysctls, with the values of the operator's profile `Wan`.
const TUNED: [(&str, &str); 2] = [
    ("net/ipv4/tcp_rmem", "4096 131072 134217728"),
    ("net/ipv4/tcp_wmem", "4096 65536 67108864"),
];

/// The values of the sysctls in [`TUNED`] for client and server on [`Topology::Wan20`]. The values
/// are pinned because kernels have different defaults: the maximum of `tcp_rmem` in Linux 6.18 is
/// 32 MiB.
const PINNED: [&str; 2] = ["4096 131072 6291456", "4096 16384 4194304"];

/// The network of a topology.
#[derive(Debug)]
pub(crate) struct Network {
    pub(crate) topology: Topology,
    /// Either one namespace for all places, or one namespace for each place.
    namespaces: Vec<Namespace>,
    /// The kernel's default values of the sysctls in [`TUNED`].
    defaults: [String; 2],
    delays: Vec<Process>,
}

impl Network {
    /// Builds the network. `muxwan`: the program that emulates delays. `logs`: the folder for its
    /// logs and reports.
    ///
    /// # Errors
    /// If a program or right is missing, or a system call fails.
    pub(crate) fn build(
        topology: Topology,
        congestion_control: &str,
        muxwan: &Path,
        logs: &Path,
    ) -> Result<Self> {
        let count = if topology == Topology::Loopback { 1 } else { 4 };
        let namespaces: Vec<Namespace> = (0..count)
            .map(|_| namespace_with(congestion_control))
            .collect::<Result<_>>()?;
        let mut this = Self {
            topology,
            namespaces,
            defaults: Default::default(),
            delays: Vec::new(),
        };
        for namespace in &this.namespaces {
            namespace.set("net/ipv4/ip_local_port_range", PORT_RANGE)?;
            // Makes the kernel reuse ports of ended connections after one second, on every
            // topology.
            namespace.set("net/ipv4/tcp_tw_reuse", "1")?;
        }
        let first = this.namespace(Place::Client);
        let [rmem, wmem] = TUNED.map(|(key, _)| first.sysctl(key));
        this.defaults = [rmem?, wmem?];
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

    /// Sets the sysctls of the topology in each namespace. `direct`: whether the measured path is
    /// the direct path, so that client and server, not the gateways, are at the ends of the delayed
    /// link.
    ///
    /// # Errors
    /// If the kernel rejects a value.
    pub(crate) fn tune(&self, direct: bool) -> Result<()> {
        let tuned = TUNED.map(|(_, value)| value);
        let defaults = self.defaults.each_ref().map(String::as_str);
        for place in [Place::Client, Place::Entry, Place::Exit, Place::Server] {
            let is_application = matches!(place, Place::Client | Place::Server);
            let values = match self.topology {
                topology if topology.tuning() == "None" => return Ok(()),
                Topology::Wan20 if is_application => PINNED,
                Topology::Wan20 | Topology::Wan20Tuned => tuned,
                _ if is_application == direct => tuned,
                _ => defaults,
            };
            for ((key, _), value) in TUNED.iter().zip(values) {
                self.namespace(place).set(key, value)?;
            }
        }
        Ok(())
    }

    /// The sysctls in force at the near end of the delayed link, by name: at the client if
    /// `direct`, otherwise at the entry.
    ///
    /// # Errors
    /// If a sysctl cannot be read.
    pub(crate) fn sysctls(&self, direct: bool) -> Result<BTreeMap<String, String>> {
        let end = self.namespace(if direct { Place::Client } else { Place::Entry });
        TUNED
            .iter()
            .map(|(key, _)| Ok((key.replace('/', "."), end.sysctl(key)?)))
            .collect()
    }

    /// The process ids of the delay lines.
    pub(crate) fn delay_pids(&self) -> Vec<u32> {
        self.delays.iter().flat_map(Process::pids).collect()
    }

    /// Changes the delay of [`Topology::WanChanging`], or restores the original delay.
    ///
    /// # Errors
    /// If a delay line has ended.
    pub(crate) fn change_delay(&self, is_changed: bool) -> Result<()> {
        let signal = match is_changed {
            true => Signal::SIGUSR1,
            false => Signal::SIGUSR2,
        };
        for line in &self.delays {
            line.signal(signal).context("cannot signal a delay line")?;
        }
        Ok(())
    }

    /// Whether the interface `name` exists at `place` and has `queues` queues. With several queues,
    /// `numqueues` and `numdisabled` must both equal `queues`.
    ///
    /// # Errors
    /// If the output of `ip` is not JSON.
    pub(crate) fn has_interface(&self, name: &str, place: Place, queues: u16) -> Result<bool> {
        let mut ip = Command::new("ip");
        ip.args(["-j", "-d", "link", "show", "dev", name]);
        let Ok(shown) = self.namespace(place).run(&mut ip) else {
            return Ok(false);
        };
        let shown: Value = serde_json::from_str(&shown).context("cannot parse the output of ip")?;
        let info = &shown[0]["linkinfo"]["info_data"];
        let are = |field: &str| info[field] == queues;
        Ok(queues == 1 || (are("numqueues") && are("numdisabled")))
    }

    /// Moves the interface `name` from `from` to `to`. Then sets its address, MTU and queue length
    /// in the new namespace.
    ///
    /// # Errors
    /// If the kernel rejects a value.
    pub(crate) fn move_interface(
        &self,
        name: &str,
        [from, to]: [Place; 2],
        address: Ipv4Addr,
        settings: &str,
    ) -> Result<()> {
        let (from, to) = (self.namespace(from), self.namespace(to));
        from.ip(&format!("link set dev {name} netns {}", to.path()))?;
        to.ip(&format!("addr add {address}/24 dev {name}"))?;
        to.ip(&format!("link set dev {name} {settings} up"))?;
        Ok(())
    }

    /// Whether a socket listens on `port` in the namespace of `place`. The lab does not connect to
    /// test this, because a connection could use up the only carrier of a peer.
    pub(crate) fn listens(&self, place: Place, port: u16) -> Result<bool> {
        self.namespace(place).enter(|| {
            ["tcp", "tcp6", "udp", "udp6"].iter().any(|table| {
                fs::read_to_string(format!("/proc/thread-self/net/{table}"))
                    .is_ok_and(|table| lists_listener(&table, port))
            })
        })
    }

    fn lay(&self, link: Link) -> Result<()> {
        let [left, right] = link.ends();
        let mut lefts = vec![link.left()];
        if left == Place::Client {
            lefts.extend((0..SOURCES).map(|number| link.source(number)));
        }
        let end = |place, addresses: &[Ipv4Addr]| End {
            namespace: self.namespace(place),
            interface: link.name().to_owned(),
            addresses: addresses.iter().map(|one| format!("{one}/24")).collect(),
        };
        Namespace::link([end(left, &lefts), end(right, &[link.right()])])
    }

    /// Starts a delay line at both ends of each long link, and waits until both have verified their
    /// delay.
    fn delay(&mut self, muxwan: &Path, logs: &Path) -> Result<()> {
        for link in Link::ALL.into_iter().filter(|link| link.is_long()) {
            for (place, end) in link.ends().into_iter().zip(["left", "right"]) {
                let name = format!("muxwan-{}-{end}", link.name());
                let [log, report] = ["log", "json"].map(|kind| logs.join(format!("{name}.{kind}")));
                let line = format!(
                    "run{} --all --interface {} --backend nfqueue --report {}",
                    impairments(self.topology),
                    link.name(),
                    report.display()
                );
                let _ = fs::remove_file(&report);
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

/// The impairment flags of muxwan. Each end impairs arriving packets, so the two ends cover both
/// directions. With loss or a rate, muxwan makes the kernel segment super-packets into frames
/// first.
fn impairments(topology: Topology) -> String {
    let delay = format!(" --delay {}ms", topology.one_way_delay_ms());
    match topology {
        Topology::WanChanging => format!("{delay} --changed-delay {CHANGED_DELAY_MS}ms"),
        Topology::WanDeep => format!("{delay} --rate 100M --buffer 500ms"),
        _ if topology.loss_percent() > 0 => {
            format!("{delay} --loss {}%", topology.loss_percent())
        }
        _ => delay,
    }
}

/// `table`: a table of `/proc/net`. State 0A is LISTEN, and 07 is an unconnected UDP socket.
fn lists_listener(table: &str, port: u16) -> bool {
    table.lines().any(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let local = fields.get(1).and_then(|address| address.rsplit_once(':'));
        local.is_some_and(|(_, hex)| u16::from_str_radix(hex, 16) == Ok(port))
            && matches!(fields.get(3), Some(&("0A" | "07")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loss_is_asked_for_where_the_topology_has_some() {
        assert_eq!(impairments(Topology::WanTuned), " --delay 50ms");
        assert_eq!(impairments(Topology::WanLoss5), " --delay 50ms --loss 5%");
        assert_eq!(
            impairments(Topology::WanChanging),
            " --delay 20ms --changed-delay 60ms"
        );
        assert_eq!(
            impairments(Topology::WanDeep),
            " --delay 20ms --rate 100M --buffer 500ms"
        );
    }

    #[test]
    fn a_listening_port_is_told_from_a_connected_one() {
        let table = "  sl  local_address rem_address   st tx_queue\n\
                        0: 0100007F:1838 00000000:0000 0A 00000000:00000000\n\
                        1: 0100007F:1839 0100007F:1838 01 00000000:00000000\n";
        assert!(lists_listener(table, 6200));
        assert!(!lists_listener(table, 6201));
        let table = "   sl  local_address rem_address   st tx_queue\n\
                     2121: 0100007F:1838 00000000:0000 07 00000000:00000000\n\
                     2122: 0100007F:1839 0100007F:1838 01 00000000:00000000\n";
        assert!(lists_listener(table, 6200));
        assert!(!lists_listener(table, 6201));
    }
}
