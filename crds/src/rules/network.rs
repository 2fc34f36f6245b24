//! The rules of IP packets.

use kube::core::Rule;

use super::rule;

/// Pattern of the characters of an address. The operator parses the address.
pub(crate) const ADDRESS: &str = "^[0-9a-fA-F:.]+$";

/// Pattern of a domain in which names are looked up.
pub(crate) const DOMAIN: &str = "^[a-zA-Z0-9_][-_.a-zA-Z0-9]*$";

pub(crate) fn network_is_of_gateways() -> Rule {
    rule(
        "!has(self.network) || self.side != 'Rendezvous'",
        "'network: side ' + self.side + ' carries no IP packets: set network in the MuxTunnels of the entry and the exit'",
    )
}

pub(crate) fn network_has_a_protocol_with_packets() -> Rule {
    rule(
        "!has(self.network) || !has(self.carrier) || self.carrier.protocol in ['Native', 'Auto', 'QUIC']",
        "'network needs carrier.protocol Native, Auto or QUIC, because ' + self.carrier.protocol + ' carries no IP packets'",
    )
}

/// A route points to one interface, so each end can have only one gateway.
pub(crate) fn network_has_one_gateway(end: &str) -> Rule {
    rule(
        format!(
            "!has(self.network) || !has(self.{end}) || ((!has(self.{end}.replicas) || self.{end}.replicas == 1) && \
             !has(self.{end}.autoscaling))"
        ),
        format!(
            "'network needs exactly one {end} gateway: remove {end}.' + (has(self.{end}.autoscaling) ? \
             'autoscaling' : 'replicas')"
        ),
    )
}

/// The matrix has one row for the network, so one protocol must carry the packets.
pub(crate) fn network_measured_by_one_protocol() -> Rule {
    rule(
        "!self.paths.exists(p, p == 'Network') || \
         self.protocols.filter(p, p in ['Native', 'Auto', 'QUIC']).size() == 1",
        "'paths has Network, which needs exactly one of the protocols Native, Auto and QUIC; protocols has %d of them'\
         .format([self.protocols.filter(p, p in ['Native', 'Auto', 'QUIC']).size()])",
    )
}

/// Datagrams are measured on the network, and compared with the direct path.
pub(crate) fn udp_measured_through_the_network() -> Rule {
    rule(
        "!has(self.udp) || self.paths.exists(p, p == 'Network')",
        "'udp needs Network in paths: add Network, or remove udp'",
    )
}

pub(crate) fn network_measured_with_one_gateway(end: &str) -> Rule {
    rule(
        format!(
            "!self.paths.exists(p, p == 'Network') || !has(self.tunnel.{end}) || ((!has(self.tunnel.{end}.replicas) || \
             self.tunnel.{end}.replicas == 1) && !has(self.tunnel.{end}.autoscaling))"
        ),
        format!(
            "'paths: Network needs exactly one {end} gateway: remove tunnel.{end}.' + \
             (has(self.tunnel.{end}.autoscaling) ? 'autoscaling' : 'replicas')"
        ),
    )
}

pub(crate) fn network_peers_are_of_an_exit() -> Rule {
    rule(
        "!has(self.network) || self.side == 'Exit' || !(has(self.network.peers) || has(self.network.pool) || \
         (has(self.network.peersReachEachOther) && self.network.peersReachEachOther))",
        "'network.peers, network.pool and network.peersReachEachOther are only for side Exit, not for side ' + self.side + ': remove them'",
    )
}

pub(crate) fn network_rules_are_of_an_exit() -> Rule {
    rule(
        "!has(self.network) || self.side != 'Entry' || !(has(self.network.allow) || has(self.network.deny) || \
         has(self.network.dns))",
        "'network.allow, network.deny and network.dns are only for exits, and side ' + self.side + ' has no exit: set them in \
         the MuxTunnel of the exit'",
    )
}

pub(crate) fn network_pool_has_one_queue() -> Rule {
    rule(
        "!has(self.pool) || !has(self.queues) || self.queues == 1",
        "'network.pool needs network.queues 1, not %d, because a single worker must manage the assigned \
         addresses'.format([self.queues])",
    )
}

pub(crate) fn network_ports_in_order() -> Rule {
    rule(
        "!has(self.endPort) || (has(self.port) && self.port <= self.endPort)",
        "'network: endPort %d needs a port that is not greater than endPort'.format([self.endPort])",
    )
}
