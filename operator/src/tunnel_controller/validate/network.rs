//! IP packets between the networks of both sides. Pure.

use std::net::IpAddr;

use muxtunnel_crds::{
    Gateway, MuxTunnelSpec, Network, NetworkForwarding, NetworkRule, Protocol, Side,
};
use muxtunnel_gateway_config::{
    Cidr, HostPattern, MTU_DEFAULT, NetworkDns, NetworkPeer, Ports, QUIC_MTU_DEFAULT, Rule,
    check_network_dns, check_network_pool,
};

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
    /// How the entry's pod forwards packets.
    pub entry_forwarding: NetworkForwarding,
    /// How the exit's pod forwards packets.
    pub exit_forwarding: NetworkForwarding,
    /// The networks of each entry.
    pub peers: Vec<NetworkPeer>,
    /// Networks from which each entry gets an address.
    pub pool: Vec<Cidr>,
    /// DNS servers of the exit's side, which the exit assigns to entries.
    pub dns: Option<NetworkDns>,
    /// Whether entries may send packets to one another.
    pub peers_reach_each_other: bool,
    /// Permitted destinations of packets from entries. If empty, all of the exit's networks.
    pub allow: Vec<Rule>,
    /// Forbidden destinations of packets from entries.
    pub deny: Vec<Rule>,
}

impl ValidatedNetwork {
    /// `protocol`: the protocol of the carriers.
    pub(super) fn of(asked: &Network, protocol: Protocol) -> Result<Self, String> {
        let entry_cidrs = cidrs("network.entryCIDRs", &asked.entry_cidrs)?;
        let exit_cidrs = cidrs("network.exitCIDRs", &asked.exit_cidrs)?;
        let pool = cidrs("network.pool", &asked.pool)?;
        check_network_pool(&pool, &entry_cidrs).map_err(|problem| problem.to_string())?;
        let dns = dns(asked, &exit_cidrs)?;
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
            entry_forwarding: asked.entry_forwarding,
            exit_forwarding: asked.exit_forwarding,
            peers: peers(asked)?,
            pool,
            dns,
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

fn dns(asked: &Network, exit_cidrs: &[Cidr]) -> Result<Option<NetworkDns>, String> {
    let Some(asked) = &asked.dns else {
        return Ok(None);
    };
    let servers = asked.servers.iter().enumerate();
    let servers = servers.map(|(index, text)| {
        let server = text.parse::<IpAddr>();
        server.map_err(|_| format!("network.dns.servers[{index}]: {text:?} is not an address"))
    });
    let dns = NetworkDns {
        servers: servers.collect::<Result<_, _>>()?,
        domains: asked.domains.clone(),
    };
    check_network_dns(&dns, exit_cidrs).map_err(|problem| problem.to_string())?;
    Ok(Some(dns))
}

/// Parses networks, because only parsed text may become an argument of a command.
fn cidrs(field: &str, asked: &[String]) -> Result<Vec<Cidr>, String> {
    let numbered = asked.iter().enumerate();
    let cidr = numbered.map(|(index, text)| {
        let field = format!("{field}[{index}]");
        let cidr = text.parse::<Cidr>();
        let cidr = cidr.map_err(|problem| format!("{field}: {problem}"))?;
        match cidr.is_every() {
            true => Err(format!(
                "{field}: {text} contains every address: use its two halves (0.0.0.0/1 and 128.0.0.0/1, or ::/1 and 8000::/1)"
            )),
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
        let address =
            address.map_err(|_| format!("{field}[{index}]: {text:?} is not an address"))?;
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
            _ => {
                let sentence = "endPort needs a port that is not greater than endPort";
                return Err(wrong(sentence.to_owned()));
            }
        };
        Ok(Rule {
            host: cidr.map_or(HostPattern::Any, HostPattern::Network),
            ports,
            peer: None,
        })
    });
    rule.collect()
}

/// Why the network is refused. `permitted`: whether the installation permits its init container.
pub(super) fn problem(spec: &MuxTunnelSpec, permitted: bool) -> Option<String> {
    let network = spec.network.as_ref()?;
    if !permitted {
        let sentence = "network: the installation does not permit networks, because their init containers have NET_ADMIN and MKNOD: \
                        install the chart with network.enabled=true";
        return Some(sentence.to_owned());
    }
    if spec.side == Side::Rendezvous {
        let sentence = "network: side Rendezvous carries no IP packets: set network in the MuxTunnels of the entry and the exit";
        return Some(sentence.to_owned());
    }
    let carrier = spec.carrier.as_ref();
    if carrier.is_some_and(|carrier| !carries_packets(carrier.protocol)) {
        return Some("network needs carrier.protocol Native, Auto or QUIC, because other protocols carry no IP packets".to_owned());
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
                "network needs exactly one {end} gateway: remove {end}.replicas and {end}.autoscaling"
            ));
        }
    }
    let has_peers = !network.peers.is_empty() || !network.pool.is_empty();
    if (has_peers || network.peers_reach_each_other) && spec.side != Side::Exit {
        let sentence = "network.peers, network.pool and network.peersReachEachOther are only for side Exit: remove them";
        return Some(sentence.to_owned());
    }
    if !network.pool.is_empty() && network.queues.is_some_and(|queues| queues > 1) {
        let sentence = "network.pool needs network.queues 1, because a single worker must manage the assigned addresses";
        return Some(sentence.to_owned());
    }
    for (side, field, forwarding) in [
        (Side::Exit, "entryForwarding", network.entry_forwarding),
        (Side::Entry, "exitForwarding", network.exit_forwarding),
    ] {
        if spec.side == side && forwarding != NetworkForwarding::None {
            return Some(format!(
                "network.{field} is for the gateway of the other side: set it in the MuxTunnel of that side"
            ));
        }
    }
    if network.entry_forwarding == NetworkForwarding::Snat && network.entry_addresses.is_empty() {
        let sentence = "network.entryForwarding: SNAT needs network.entryAddresses, because the packets get an address of them";
        return Some(sentence.to_owned());
    }
    let has_rules = !(network.allow.is_empty() && network.deny.is_empty());
    let sentence = "network.allow, network.deny and network.dns are only for exits, and side Entry has no exit: set them in the \
                    MuxTunnel of the exit";
    ((has_rules || network.dns.is_some()) && spec.side == Side::Entry).then(|| sentence.to_owned())
}
