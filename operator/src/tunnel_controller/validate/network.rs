//! IP packets between the networks of both ends. Pure.

use muxtunnel_crds as crds;
use muxtunnel_crds::{
    NetworkEnd, NetworkForwarding, NetworkRule, NetworkSettings, Protocol, SecurityMode,
};
use muxtunnel_gateway_config::{
    Cidr, DEVICE_DEFAULT, DEVICE_NODE_DEFAULT, HostPattern, MTU_DEFAULT, Network, NetworkPeer,
    Ports, QUIC_MTU_DEFAULT, Rule,
};

use super::{JudgedPeer, each};
use crate::tunnel_controller::object::Object;

/// An identity that no MuxPeer has.
pub(in crate::tunnel_controller) const NOBODY: &str = "-";

/// The networks of both ends, and the interfaces of their gateways.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ValidatedNetwork {
    /// The entry's end.
    pub entry: NetworkEnd,
    /// The exit's end.
    pub exit: NetworkEnd,
    /// The network in the exit's configuration.
    pub config: Network,
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
        let (entry, exit) = (asked.entry.clone(), asked.exit.clone());
        check_end("network.entry", &entry)?;
        check_end("network.exit", &exit)?;
        if entry.forwarding == Some(NetworkForwarding::Snat) && entry.addresses.is_empty() {
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
        let entry = NetworkEnd {
            cidrs: asked.peer_cidrs.clone(),
            ..NetworkEnd::default()
        };
        check_cidrs("network.peerCIDRs", &entry.cidrs)?;
        check_end("network", &asked.end)?;
        let mut network = Self::common(entry, asked.end.clone(), &asked.settings, protocol)?;
        let config = &mut network.config;
        config.peers = peers.iter().filter_map(JudgedPeer::network).collect();
        if identifies && config.peers.is_empty() && asked.address_pools.is_empty() {
            // Without peers and pools, a gateway gives all networks to the first entry.
            config.peers.push(NetworkPeer {
                identity: NOBODY.to_owned(),
                cidrs: asked.peer_cidrs.clone(),
            });
        }
        config.pool.clone_from(&asked.address_pools);
        config.peers_reach_each_other = asked.peers_reach_each_other;
        Ok(network)
    }

    fn common(
        entry: NetworkEnd,
        exit: NetworkEnd,
        asked: &NetworkSettings,
        protocol: Protocol,
    ) -> Result<Self, String> {
        let mtu = match protocol {
            Protocol::Quic => QUIC_MTU_DEFAULT,
            _ => MTU_DEFAULT,
        };
        let config = Network {
            device: DEVICE_DEFAULT.to_owned(),
            node: DEVICE_NODE_DEFAULT.to_owned(),
            entry_cidrs: entry.cidrs.clone(),
            exit_cidrs: exit.cidrs.clone(),
            mtu: asked.mtu.unwrap_or(mtu),
            offloads: true,
            queues: asked.queues.unwrap_or(1),
            peers: Vec::new(),
            pool: Vec::new(),
            dns: asked.dns.clone(),
            set_addresses: false,
            dns_file: None,
            peers_reach_each_other: false,
            allow: each("network.allow", &asked.allow, rule)?,
            deny: each("network.deny", &asked.deny, rule)?,
        };
        Ok(Self {
            entry,
            exit,
            config,
        })
    }
}

fn check_end(field: &str, end: &NetworkEnd) -> Result<(), String> {
    check_cidrs(&format!("{field}.cidrs"), &end.cidrs)?;
    let is_own = |address| end.cidrs.iter().any(|cidr| cidr.contains(address));
    each(
        &format!("{field}.addresses"),
        &end.addresses,
        |address| match is_own(*address) {
            true => Ok(()),
            false => Err(format!("{address} is not within the cidrs of this end")),
        },
    )
    .map(drop)
}

fn check_cidrs(field: &str, cidrs: &[Cidr]) -> Result<(), String> {
    let checked = each(field, cidrs, |cidr| match cidr.is_every() {
        true => Err(format!(
            "{cidr} contains every address: use its two halves (0.0.0.0/1 and 128.0.0.0/1, or ::/1 and 8000::/1)"
        )),
        false => Ok(()),
    });
    checked.map(drop)
}

fn rule(asked: &NetworkRule) -> Result<Rule, &'static str> {
    Ok(Rule {
        host: asked.cidr.map_or(HostPattern::Any, HostPattern::Network),
        ports: Ports::of(asked.port, asked.end_port)?,
        peer: None,
    })
}
