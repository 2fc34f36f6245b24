//! Where client, entry, exit and server are: all on one loopback, or in four network namespaces.
//!
//! ```text
//!           near             mid (50 ms in the WAN)           far
//!   client ------- entry ------------------------- exit ------------- server
//!      `------------------------- direct (50 ms in the WAN) ------------'
//! ```
//! Systems that carry IP packets run between the gateways' namespaces; their TUN interfaces are at client and server.
//!
//! Names, links and addresses only; [`crate::network`] makes it.

use std::net::{Ipv4Addr, SocketAddr};

use clap::ValueEnum;
use serde::Serialize;

/// One way, on `mid` and on `direct`.
pub(crate) const WAN_DELAY_MS: u32 = 50;
/// The same where the path changes, or is shared with others.
const NEARER_DELAY_MS: u32 = 20;
/// What it changes to.
pub(crate) const CHANGED_DELAY_MS: u32 = 60;
/// Addresses that a client can connect from, so that a rate of opens does not run out of ports.
pub(crate) const SOURCES: u8 = 8;
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
    /// As wan, and 1 % of the frames are lost each way.
    #[value(name = "wan-loss-1")]
    #[serde(rename = "wan-loss-1")]
    WanLoss1,
    /// As wan, and 5 % of the frames are lost each way.
    #[value(name = "wan-loss-5")]
    #[serde(rename = "wan-loss-5")]
    WanLoss5,
    /// As wan with 20 ms each way, which a scenario changes to 60 ms.
    WanChanging,
    /// As wan with 20 ms each way, and 100 Mbit/s behind a buffer of 500 ms.
    WanDeep,
    /// As wan with 20 ms each way, larger socket buffers at the gateways, and a pinned `tcp_rmem` at client and server.
    #[value(name = "wan-20")]
    #[serde(rename = "wan-20")]
    Wan20,
    /// The same with larger socket buffers at client and server as well.
    #[value(name = "wan-20-tuned")]
    #[serde(rename = "wan-20-tuned")]
    Wan20Tuned,
}

impl Topology {
    /// All of them, in the order of the tables.
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

    /// The emulated delay between the gateways, and on the direct path.
    pub(crate) fn one_way_delay_ms(self) -> u32 {
        match self {
            Self::Loopback | Self::Veth => 0,
            Self::Wan | Self::WanTuned | Self::WanLoss1 | Self::WanLoss5 => WAN_DELAY_MS,
            Self::WanChanging | Self::WanDeep | Self::Wan20 | Self::Wan20Tuned => NEARER_DELAY_MS,
        }
    }

    /// Frames of 100 that the delayed links lose, each way.
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
            Self::WanTuned | Self::Wan20 | Self::Wan20Tuned => "Wan",
            _ => "None",
        }
    }

    /// Whether there is a delay, so that rates need longer to settle.
    pub(crate) fn is_wan(self) -> bool {
        !matches!(self, Self::Loopback | Self::Veth)
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
            _ => Addresses {
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
pub(crate) enum Link {
    Near = 1,
    Mid = 2,
    Far = 3,
    Direct = 4,
}

impl Link {
    /// All of them.
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

    /// Who is on its left and on its right.
    pub(crate) fn ends(self) -> [Place; 2] {
        match self {
            Self::Near => [Place::Client, Place::Entry],
            Self::Mid => [Place::Entry, Place::Exit],
            Self::Far => [Place::Exit, Place::Server],
            Self::Direct => [Place::Client, Place::Server],
        }
    }

    /// Whether the WAN is here.
    pub(crate) fn is_long(self) -> bool {
        matches!(self, Self::Mid | Self::Direct)
    }

    /// The address of its left end.
    pub(crate) fn left(self) -> Ipv4Addr {
        Ipv4Addr::new(10, 70, self as u8, 1)
    }

    /// The address of its right end.
    pub(crate) fn right(self) -> Ipv4Addr {
        Ipv4Addr::new(10, 70, self as u8, 2)
    }

    /// Further addresses of the left end.
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
