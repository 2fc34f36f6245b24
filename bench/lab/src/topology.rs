//! The places of client, entry, exit and server: all on one loopback, or in four network
//! namespaces.
//!
//! ```text
//!           near             mid (50 ms in the WAN)           far
//!   client ------- entry ------------------------- exit ------------- server
//!      `------------------------- direct (50 ms in the WAN) ------------'
//! ```
//! Systems that carry IP packets run in the gateways' namespaces. Their TUN interfaces are in the
//! namespaces of client and server.
//!
//! This module has only names, links and addresses. [`crate::network`] creates the network.

use std::net::{Ipv4Addr, SocketAddr};

use clap::ValueEnum;
use serde::Serialize;

/// One-way delay on `mid` and on `direct` in most WAN topologies, in milliseconds.
pub(crate) const WAN_DELAY_MS: u32 = 50;
/// One-way delay of a path that changes or is shared, in milliseconds.
const NEARER_DELAY_MS: u32 = 20;
/// One-way delay after the change, in milliseconds.
pub(crate) const CHANGED_DELAY_MS: u32 = 60;
/// Number of source addresses of the client. With one address, a high rate of opens would use up
/// all ports.
pub(crate) const SOURCES: u8 = 8;
/// The four places of a measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// The side of the load's clients.
    Client,
    /// The gateway that clients connect to.
    Entry,
    /// The gateway that connects to the server.
    Exit,
    /// The side of the targets.
    Server,
}

/// How the four places are connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Topology {
    /// One namespace with only `lo`.
    Loopback,
    /// Four namespaces that veth pairs connect, like pods.
    Veth,
    /// As veth, with a delay of 50 ms each way between the gateways and on the direct path, and
    /// with the kernel's default sysctls.
    Wan,
    /// As wan, with larger socket buffers at the ends of the delayed link.
    WanTuned,
    /// As wan-tuned, with a loss of 1 % of the frames each way.
    #[value(name = "wan-loss-1")]
    #[serde(rename = "wan-loss-1")]
    WanLoss1,
    /// As wan-tuned, with a loss of 5 % of the frames each way.
    #[value(name = "wan-loss-5")]
    #[serde(rename = "wan-loss-5")]
    WanLoss5,
    /// As wan, with a delay of 20 ms each way, which the scenario changes to 60 ms.
    WanChanging,
    /// As wan, with a delay of 20 ms each way, a rate of 100 Mbit/s, and a buffer of 500 ms.
    WanDeep,
    /// As wan, with a delay of 20 ms each way, larger socket buffers at the gateways, and the
    /// kernel's default socket buffers pinned at client and server.
    #[value(name = "wan-20")]
    #[serde(rename = "wan-20")]
    Wan20,
    /// As wan-20, with larger socket buffers at client and server as well.
    #[value(name = "wan-20-tuned")]
    #[serde(rename = "wan-20-tuned")]
    Wan20Tuned,
}

impl Topology {
    /// All topologies, in the order of the tables.
    pub(crate) const ALL: [Self; 10] = [
        Self::Loopback,
        Self::Veth,
        Self::Wan,
        Self::WanTuned,
        Self::WanLoss1,
        Self::WanLoss5,
        Self::WanChanging,
        Self::WanDeep,
        Self::Wan20,
        Self::Wan20Tuned,
    ];

    /// The name in tables, JSON lines and flags.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Loopback => "loopback",
            Self::Veth => "veth",
            Self::Wan => "wan",
            Self::WanTuned => "wan-tuned",
            Self::WanLoss1 => "wan-loss-1",
            Self::WanLoss5 => "wan-loss-5",
            Self::WanChanging => "wan-changing",
            Self::WanDeep => "wan-deep",
            Self::Wan20 => "wan-20",
            Self::Wan20Tuned => "wan-20-tuned",
        }
    }

    /// The emulated one-way delay between the gateways and on the direct path, in milliseconds.
    pub(crate) fn one_way_delay_ms(self) -> u32 {
        match self {
            Self::Loopback | Self::Veth => 0,
            Self::Wan | Self::WanTuned | Self::WanLoss1 | Self::WanLoss5 => WAN_DELAY_MS,
            Self::WanChanging | Self::WanDeep | Self::Wan20 | Self::Wan20Tuned => NEARER_DELAY_MS,
        }
    }

    /// The loss on the delayed links each way, in per cent of the frames.
    pub(crate) fn loss_percent(self) -> u32 {
        match self {
            Self::WanLoss1 => 1,
            Self::WanLoss5 => 5,
            _ => 0,
        }
    }

    /// The name of the sysctl profile.
    pub(crate) fn tuning(self) -> &'static str {
        match self {
            Self::WanTuned | Self::WanLoss1 | Self::WanLoss5 | Self::Wan20 | Self::Wan20Tuned => {
                "Wan"
            }
            _ => "None",
        }
    }

    /// Whether the topology has a delay, so that rates need longer to settle.
    pub(crate) fn is_wan(self) -> bool {
        !matches!(self, Self::Loopback | Self::Veth)
    }

    /// The addresses of a topology.
    pub(crate) fn addresses(self) -> Addresses {
        match self {
            Self::Loopback => Addresses {
                entry: Ipv4Addr::LOCALHOST,
                carrier_entry: Ipv4Addr::LOCALHOST,
                carrier_exit: Ipv4Addr::LOCALHOST,
                target: Ipv4Addr::LOCALHOST,
                server: Ipv4Addr::LOCALHOST,
            },
            _ => Addresses {
                entry: Link::Near.right(),
                carrier_entry: Link::Mid.left(),
                carrier_exit: Link::Mid.right(),
                target: Link::Far.right(),
                server: Link::Direct.right(),
            },
        }
    }

    /// Source addresses of the load's connections. `direct`: whether the connections go to the
    /// server instead of the entry.
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

/// The addresses of a topology.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Addresses {
    /// The address of the entry for clients.
    pub(crate) entry: Ipv4Addr,
    /// The address of the entry for the exit.
    pub(crate) carrier_entry: Ipv4Addr,
    /// The address of the exit for the entry.
    pub(crate) carrier_exit: Ipv4Addr,
    /// The address of the server for the exit.
    pub(crate) target: Ipv4Addr,
    /// The address of the server for clients.
    pub(crate) server: Ipv4Addr,
}

/// A veth pair. The number of the link is the third byte of its network's address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Link {
    Near = 1,
    Mid = 2,
    Far = 3,
    Direct = 4,
}

impl Link {
    /// All links.
    pub(crate) const ALL: [Self; 4] = [Self::Near, Self::Mid, Self::Far, Self::Direct];

    /// The name of the interface on both ends.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Near => "near",
            Self::Mid => "mid",
            Self::Far => "far",
            Self::Direct => "direct",
        }
    }

    /// The places at the left and the right end of the link.
    pub(crate) fn ends(self) -> [Place; 2] {
        match self {
            Self::Near => [Place::Client, Place::Entry],
            Self::Mid => [Place::Entry, Place::Exit],
            Self::Far => [Place::Exit, Place::Server],
            Self::Direct => [Place::Client, Place::Server],
        }
    }

    /// Whether the link has the emulated WAN.
    pub(crate) fn is_long(self) -> bool {
        matches!(self, Self::Mid | Self::Direct)
    }

    /// The address of the left end of the link.
    pub(crate) fn left(self) -> Ipv4Addr {
        Ipv4Addr::new(10, 70, self as u8, 1)
    }

    /// The address of the right end of the link.
    pub(crate) fn right(self) -> Ipv4Addr {
        Ipv4Addr::new(10, 70, self as u8, 2)
    }

    /// A further address of the left end of the link.
    pub(crate) fn source(self, number: u8) -> Ipv4Addr {
        Ipv4Addr::new(10, 70, self as u8, 11 + number)
    }
}

/// The addresses of the TUN interfaces at client and server.
pub(crate) const TUNNEL: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 72, 0, 1), Ipv4Addr::new(10, 72, 0, 2)];

/// An address and a port, as text.
pub(crate) fn at(address: Ipv4Addr, port: u16) -> String {
    SocketAddr::from((address, port)).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_flags_and_of_the_json_lines() {
        for topology in Topology::ALL {
            let flag = topology.to_possible_value().unwrap();
            assert_eq!(flag.get_name(), topology.name());
            assert_eq!(serde_json::to_value(topology).unwrap(), topology.name());
        }
    }

    #[test]
    fn a_topology_that_loses_frames_has_the_delay_of_the_wan() {
        for (topology, percent) in [(Topology::WanLoss1, 1), (Topology::WanLoss5, 5)] {
            assert_eq!(topology.loss_percent(), percent);
            assert_eq!(topology.one_way_delay_ms(), WAN_DELAY_MS);
        }
        assert_eq!(Topology::Wan.loss_percent(), 0);
        assert_eq!(Topology::Wan20.one_way_delay_ms(), 20);
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
