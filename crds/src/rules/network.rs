//! The rules of IP packets.

use kube::core::Rule;

use super::{given, has, rule};

/// CEL: `gateway` may have several pods.
pub(super) fn several(gateway: &str) -> String {
    format!(
        "({} || ({} && {gateway}.replicas > 1))",
        has(&format!("{gateway}.autoscaling")),
        has(&format!("{gateway}.replicas"))
    )
}

/// A route points to one interface, so each end can have only one gateway.
pub(crate) fn network_has_one_gateway(gateway: &str) -> Rule {
    let path = format!("self.{gateway}");
    rule(
        format!("!has(self.network) || !{}", several(&path)),
        format!(
            "'network needs exactly one gateway at each end: remove {gateway}.' + (has({path}.autoscaling) ? 'autoscaling' : \
             'replicas')"
        ),
    )
}

pub(crate) fn network_pool_has_one_queue() -> Rule {
    rule(
        format!(
            "!{} || !has(self.queues) || self.queues == 1",
            given("addressPools")
        ),
        "'network.addressPools needs network.queues 1, not %d, because a single worker must manage the assigned \
         addresses'.format([self.queues])",
    )
}

pub(crate) fn network_pools_of_both_families() -> Rule {
    rule(
        "!has(self.addressPools) || self.addressPools.size() < 2 || \
         self.addressPools[0].contains(':') != self.addressPools[1].contains(':')",
        "'network.addressPools %s and %s have the same family: use one IPv4 network and one IPv6 \
         network'.format([self.addressPools[0], self.addressPools[1]])",
    )
}

pub(crate) fn network_ports_in_order() -> Rule {
    rule(
        "!has(self.endPort) || (has(self.port) && self.port <= self.endPort)",
        "'network: endPort %d needs a port that is not greater than endPort'.format([self.endPort])",
    )
}
