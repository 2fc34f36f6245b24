//! IP packets between the networks of both ends. Pure.

use std::net::IpAddr;

use muxtunnel_crds as crds;
use muxtunnel_crds::{
    NetworkEnd, NetworkForwarding, NetworkRule, NetworkSettings, Protocol, SecurityMode,
};
use muxtunnel_gateway_config::{
    Cidr, MTU_DEFAULT, NetworkDns, NetworkPeer, QUIC_MTU_DEFAULT, Rule, check_network_dns,
    check_network_pool,
};

use super::{JudgedPeer, each};
use crate::tunnel_controller::object::Object;

/// An identity that no MuxPeer has.
pub(in crate::tunnel_controller) const NOBODY: &str = "-";

/// The networks of both ends, and the interfaces of their gateways.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ValidatedNetwork {
    /// The entry's networks.
    pub entry: NetworkSide,
    /// The exit's networks.
    pub exit: NetworkSide,
    /// MTU of the interfaces in bytes.
    pub mtu: u16,
    /// Queues of the interfaces.
    pub queues: u16,
    /// The networks of each entry.
    pub peers: Vec<NetworkPeer>,
    /// Networks from which each entry gets an address.
    pub pools: Vec<Cidr>,
    /// DNS servers of the exit's networks, which the exit assigns to entries.
    pub dns: Option<NetworkDns>,
    /// Whether entries may send packets to one another.
    pub peers_reach_each_other: bool,
    /// Permitted destinations of packets from entries. If empty, all of the exit's networks.
    pub allow: Vec<Rule>,
    /// Forbidden destinations of packets from entries.
    pub deny: Vec<Rule>,
}

/// The networks of one end.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NetworkSide {
    /// The networks.
    pub cidrs: Vec<Cidr>,
    /// Addresses of the interface.
    pub addresses: Vec<IpAddr>,
    /// How the pod forwards packets.
    pub forwarding: NetworkForwarding,
}

impl NetworkSide {
    fn of(field: &str, asked: &NetworkEnd) -> Result<Self, String> {
        let cidrs = cidrs(&format!("{field}.cidrs"), &asked.cidrs)?;
        Ok(Self {
            addresses: addresses(&format!("{field}.addresses"), &asked.addresses, &cidrs)?,
            cidrs,
            forwarding: asked.forwarding.unwrap_or_default(),
        })
    }
}

impl ValidatedNetwork {
    /// `protocol`: the protocol of the carriers. `peers`: the MuxPeers of an exit.
    pub(super) fn of(
        object: &Object,
        protocol: Protocol,
        peers: &[JudgedPeer],
    ) -> Result<Option<Self>, String> {
        match object {
            Object::Tunnel(tunnel) => {
                let asked = tunnel.spec.network.as_deref();
                asked.map(|asked| Self::of_tunnel(asked, protocol))
            }
            Object::Exit(exit) => {
                let asked = exit.spec.network.as_deref();
                let identifies = object.mode() != Some(SecurityMode::None);
                asked.map(|asked| Self::of_exit(asked, protocol, (peers, identifies)))
            }
            Object::Rendezvous(_) => None,
        }
        .transpose()
    }

    fn of_tunnel(asked: &crds::Network, protocol: Protocol) -> Result<Self, String> {
        let entry = NetworkSide::of("network.entry", &asked.entry)?;
        let exit = NetworkSide::of("network.exit", &asked.exit)?;
        if entry.forwarding == NetworkForwarding::Snat && entry.addresses.is_empty() {
            let sentence = "network.entry.forwarding: SNAT needs network.entry.addresses, because the packets get an address of them";
            return Err(sentence.to_owned());
        }
        Self::common(entry, exit, &asked.settings, protocol)
    }

    fn of_exit(
        asked: &crds::ExitNetwork,
        protocol: Protocol,
        (peers, identifies): (&[JudgedPeer], bool),
    ) -> Result<Self, String> {
        let entry = NetworkSide {
            cidrs: cidrs("network.peerCIDRs", &asked.peer_cidrs)?,
            ..NetworkSide::default()
        };
        let pools = cidrs("network.addressPools", &asked.address_pools)?;
        check_network_pool(&pools, &entry.cidrs).map_err(|problem| problem.to_string())?;
        let exit = NetworkSide::of("network", &asked.end)?;
        let mut peers: Vec<_> = peers.iter().filter_map(JudgedPeer::network).collect();
        if identifies && peers.is_empty() && pools.is_empty() {
            // Without peers and pools, a gateway gives all networks to the first entry.
            peers.push(NetworkPeer {
                identity: NOBODY.to_owned(),
                cidrs: entry.cidrs.clone(),
            });
        }
        let network = Self::common(entry, exit, &asked.settings, protocol)?;
        Ok(Self {
            pools,
            peers,
            peers_reach_each_other: asked.peers_reach_each_other,
            ..network
        })
    }

    fn common(
        entry: NetworkSide,
        exit: NetworkSide,
        asked: &NetworkSettings,
        protocol: Protocol,
    ) -> Result<Self, String> {
        Ok(Self {
            mtu: asked.mtu.unwrap_or(mtu_of(protocol)),
            queues: asked.queues.unwrap_or(1),
            peers: Vec::new(),
            pools: Vec::new(),
            dns: (asked.dns.as_ref())
                .map(|dns| self::dns(dns, &exit.cidrs))
                .transpose()?,
            peers_reach_each_other: false,
            allow: rules("network.allow", &asked.allow)?,
            deny: rules("network.deny", &asked.deny)?,
            entry,
            exit,
        })
    }
}

const fn mtu_of(protocol: Protocol) -> u16 {
    match protocol {
        Protocol::Quic => QUIC_MTU_DEFAULT,
        _ => MTU_DEFAULT,
    }
}

fn dns(asked: &crds::NetworkDns, exit_cidrs: &[Cidr]) -> Result<NetworkDns, String> {
    let dns = NetworkDns {
        servers: each("network.dns.servers", &asked.servers, |text| address(text))?,
        domains: asked.domains.clone(),
    };
    check_network_dns(&dns, exit_cidrs).map_err(|problem| problem.to_string())?;
    Ok(dns)
}

/// Parses networks, because only parsed text may become an argument of a command.
pub(super) fn cidrs(field: &str, asked: &[String]) -> Result<Vec<Cidr>, String> {
    each(field, asked, |text| cidr(text))
}

fn address(text: &str) -> Result<IpAddr, String> {
    let address = text.parse();
    address.map_err(|_| format!("{text:?} is not an address"))
}

/// Parses one network.
pub(super) fn cidr(text: &str) -> Result<Cidr, String> {
    let cidr = text.parse::<Cidr>();
    let cidr = cidr.map_err(|problem| problem.to_string())?;
    match cidr.is_every() {
        true => Err(format!(
            "{text} contains every address: use its two halves (0.0.0.0/1 and 128.0.0.0/1, or ::/1 and 8000::/1)"
        )),
        false => Ok(cidr),
    }
}

fn addresses(field: &str, asked: &[String], within: &[Cidr]) -> Result<Vec<IpAddr>, String> {
    each(field, asked, |text| {
        let address = address(text)?;
        match within.iter().any(|cidr| cidr.contains(address)) {
            true => Ok(address),
            false => Err(format!("{address} is not within the cidrs of this end")),
        }
    })
}

fn rules(field: &str, asked: &[NetworkRule]) -> Result<Vec<Rule>, String> {
    each(field, asked, |asked| {
        Rule::try_from(&crds::Rule {
            host: asked.cidr.is_none().then(|| "*".to_owned()),
            cidr: asked.cidr.clone(),
            port: asked.port,
            end_port: asked.end_port,
        })
    })
}
