//! IP packets between the networks of both sides. Pure.

use std::net::IpAddr;

use muxtunnel_crds::{Gateway, MuxTunnelSpec, Network, NetworkRule, Protocol, Side};
use muxtunnel_gateway_config::{Cidr, HostPattern, MTU_DEFAULT, NetworkPeer, Ports, Rule};

/// MTU of interfaces whose packets are QUIC datagrams: what fits them on a path with an MTU of 1,500, and some room.
const QUIC_MTU_DEFAULT: u16 = 1400;

/// The networks of both sides, and the interfaces of their gateways.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ValidatedNetwork {
    /// Networks at the entry's side.
    pub entry_cidrs: Vec<Cidr>,
    /// Networks at the exit's side.
    pub exit_cidrs: Vec<Cidr>,
    /// Addresses of the entry's interface.
    pub entry_addresses: Vec<IpAddr>,
    /// Addresses of the exit's interface.
    pub exit_addresses: Vec<IpAddr>,
    /// MTU of the interfaces in bytes.
    pub mtu: u16,
    /// Queues of the interfaces.
    pub queues: u16,
    /// Whether pods of gateways pass packets on.
    pub forward: bool,
    /// Whether they translate the sources of what they pass on.
    pub snat: bool,
    /// Which entry has which networks.
    pub peers: Vec<NetworkPeer>,
    /// Whether entries reach one another.
    pub peers_reach_each_other: bool,
    /// Where packets of entries may go; empty: to all of the exit's networks.
    pub allow: Vec<Rule>,
    /// Where they may not go.
    pub deny: Vec<Rule>,
}

impl ValidatedNetwork {
    /// `protocol`: of the carriers.
    pub(super) fn of(asked: &Network, protocol: Protocol) -> Result<Self, String> {
        let entry_cidrs = cidrs("network.entryCIDRs", &asked.entry_cidrs)?;
        let exit_cidrs = cidrs("network.exitCIDRs", &asked.exit_cidrs)?;
        Ok(Self {
            entry_addresses: addresses(
                "network.entryAddresses",
                &asked.entry_addresses,
                ("entryCIDRs", &entry_cidrs),
            )?,
            exit_addresses: addresses(
                "network.exitAddresses",
                &asked.exit_addresses,
                ("exitCIDRs", &exit_cidrs),
            )?,
            entry_cidrs,
            exit_cidrs,
            mtu: asked.mtu.unwrap_or(mtu_of(protocol)),
            queues: asked.queues.unwrap_or(1),
            forward: asked.forward || asked.snat,
            snat: asked.snat,
            peers: peers(asked)?,
            peers_reach_each_other: asked.peers_reach_each_other,
            allow: rules("network.allow", &asked.allow)?,
            deny: rules("network.deny", &asked.deny)?,
        })
    }
}

const fn carries_packets(protocol: Protocol) -> bool {
    matches!(protocol, Protocol::Native | Protocol::Auto | Protocol::Quic)
}

const fn mtu_of(protocol: Protocol) -> u16 {
    match protocol {
        Protocol::Quic => QUIC_MTU_DEFAULT,
        _ => MTU_DEFAULT,
    }
}

fn peers(asked: &Network) -> Result<Vec<NetworkPeer>, String> {
    let peers = asked.peers.iter().enumerate().map(|(index, peer)| {
        let field = format!("network.peers[{index}].CIDRs");
        Ok(NetworkPeer {
            identity: peer.identity.clone(),
            cidrs: cidrs(&field, &peer.cidrs)?,
        })
    });
    peers.collect()
}

/// Only what was parsed becomes an argument of a command.
fn cidrs(field: &str, asked: &[String]) -> Result<Vec<Cidr>, String> {
    let numbered = asked.iter().enumerate();
    let cidr = numbered.map(|(index, text)| {
        let field = format!("{field}[{index}]");
        let cidr = text.parse::<Cidr>();
        let cidr = cidr.map_err(|problem| format!("{field}: {problem}"))?;
        match cidr.is_every() {
            true => Err(format!("{field}: {text} is every address: name its halves")),
            false => Ok(cidr),
        }
    });
    cidr.collect()
}

fn addresses(
    field: &str,
    asked: &[String],
    (networks, within): (&str, &[Cidr]),
) -> Result<Vec<IpAddr>, String> {
    let numbered = asked.iter().enumerate();
    let address = numbered.map(|(index, text)| {
        let address = text.parse::<IpAddr>();
        let address = address.map_err(|_| format!("{field}[{index}]: {text:?} is no address"))?;
        match within.iter().any(|cidr| cidr.contains(address)) {
            true => Ok(address),
            false => Err(format!(
                "{field}[{index}]: {address} is not within network.{networks}"
            )),
        }
    });
    address.collect()
}

fn rules(field: &str, asked: &[NetworkRule]) -> Result<Vec<Rule>, String> {
    let numbered = asked.iter().enumerate();
    let rule = numbered.map(|(index, rule)| {
        let wrong = |problem: String| format!("{field}[{index}]: {problem}");
        let cidr = rule.cidr.as_ref().map(|text| text.parse::<Cidr>());
        let cidr = cidr.transpose();
        let cidr = cidr.map_err(|problem| wrong(problem.to_string()))?;
        let ports = match (rule.port, rule.end_port) {
            (None, None) => Ports::ALL,
            (Some(first), last) if first <= last.unwrap_or(first) => Ports {
                first,
                last: last.unwrap_or(first),
            },
            _ => return Err(wrong("endPort needs a port that is not more".to_owned())),
        };
        Ok(Rule {
            host: cidr.map_or(HostPattern::Any, HostPattern::Network),
            ports,
            peer: None,
        })
    });
    rule.collect()
}

/// Why the network cannot be, as a sentence. `permitted`: the installation lets pods have its init container.
pub(super) fn problem(spec: &MuxTunnelSpec, permitted: bool) -> Option<String> {
    let network = spec.network.as_ref()?;
    if !permitted {
        let sentence = "network: the installation does not permit it: install the chart with network.enabled=true; its init \
                        containers have NET_ADMIN and MKNOD";
        return Some(sentence.to_owned());
    }
    if spec.side == Side::Rendezvous {
        return Some("network: side Rendezvous has no packets".to_owned());
    }
    let carrier = spec.carrier.as_ref();
    if carrier.is_some_and(|carrier| !carries_packets(carrier.protocol)) {
        return Some("network is for carrier.protocol Native, Auto or QUIC".to_owned());
    }
    let several = |gateway: &Option<Gateway>| {
        let gateway = gateway.as_ref();
        gateway.is_some_and(|gateway| {
            gateway.autoscaling.is_some() || gateway.replicas.is_some_and(|number| number != 1)
        })
    };
    for (end, gateway) in [("entry", &spec.entry), ("exit", &spec.exit)] {
        if several(gateway) {
            return Some(format!(
                "network: its packets go through one {end} gateway: leave {end}.replicas and {end}.autoscaling out"
            ));
        }
    }
    let has_peers = !network.peers.is_empty() || network.peers_reach_each_other;
    if has_peers && spec.side != Side::Exit {
        return Some("network.peers and network.peersReachEachOther are for side Exit".to_owned());
    }
    let has_rules = !(network.allow.is_empty() && network.deny.is_empty());
    (has_rules && spec.side == Side::Entry)
        .then(|| "network.allow and network.deny are what exits go by".to_owned())
}
