//! The rules of IP packets.

use kube::core::Rule;

use super::rule;

/// Pattern of an address; the operator parses it.
pub(crate) const ADDRESS: &str = "^[0-9a-fA-F:.]+$";

pub(crate) fn network_is_of_gateways() -> Rule {
    rule(
        "!has(self.network) || self.side != 'Rendezvous'",
        "'network: side ' + self.side + ' has no packets: write it where the entry and the exit are'",
    )
}

pub(crate) fn network_has_a_protocol_with_packets() -> Rule {
    rule(
        "!has(self.network) || !has(self.carrier) || self.carrier.protocol in ['Native', 'Auto', 'QUIC']",
        "'network is for carrier.protocol Native, Auto or QUIC: ' + self.carrier.protocol + ' carries no IP packets'",
    )
}

/// A route leads to one interface.
pub(crate) fn network_has_one_gateway(end: &str) -> Rule {
    rule(
        format!(
            "!has(self.network) || !has(self.{end}) || ((!has(self.{end}.replicas) || self.{end}.replicas == 1) && \
             !has(self.{end}.autoscaling))"
        ),
        format!(
            "'network: its packets go through one {end} gateway: leave {end}.' + (has(self.{end}.autoscaling) ? \
             'autoscaling' : 'replicas') + ' out'"
        ),
    )
}

/// The matrix has one row of it.
pub(crate) fn network_measured_by_one_protocol() -> Rule {
    rule(
        "!self.paths.exists(p, p == 'Network') || \
         self.protocols.filter(p, p in ['Native', 'Auto', 'QUIC']).size() == 1",
        "'paths: Network needs one of the protocols Native, Auto and QUIC; protocols has %d of them'\
         .format([self.protocols.filter(p, p in ['Native', 'Auto', 'QUIC']).size()])",
    )
}

pub(crate) fn network_measured_with_one_gateway(end: &str) -> Rule {
    rule(
        format!(
            "!self.paths.exists(p, p == 'Network') || !has(self.tunnel.{end}) || ((!has(self.tunnel.{end}.replicas) || \
             self.tunnel.{end}.replicas == 1) && !has(self.tunnel.{end}.autoscaling))"
        ),
        format!(
            "'paths: the packets of Network go through one {end} gateway: leave tunnel.{end}.' + \
             (has(self.tunnel.{end}.autoscaling) ? 'autoscaling' : 'replicas') + ' out'"
        ),
    )
}

pub(crate) fn network_peers_are_of_an_exit() -> Rule {
    rule(
        "!has(self.network) || self.side == 'Exit' || !(has(self.network.peers) || \
         (has(self.network.peersReachEachOther) && self.network.peersReachEachOther))",
        "'network.peers and network.peersReachEachOther are for side Exit; side ' + self.side + ' has one entry'",
    )
}

pub(crate) fn network_rules_are_of_an_exit() -> Rule {
    rule(
        "!has(self.network) || self.side != 'Entry' || !(has(self.network.allow) || has(self.network.deny))",
        "'network.allow and network.deny are what exits go by, and side ' + self.side + ' has none: write them where the \
         exit is'",
    )
}

pub(crate) fn network_ports_in_order() -> Rule {
    rule(
        "!has(self.endPort) || (has(self.port) && self.port <= self.endPort)",
        "'network: endPort %d needs a port that is not more'.format([self.endPort])",
    )
}
