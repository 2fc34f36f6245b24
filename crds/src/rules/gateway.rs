//! The rules of gateways, clients and targets.

use kube::core::Rule;

use super::{given, rule};

pub(crate) fn replicas_or_autoscaling() -> Rule {
    rule(
        "!has(self.replicas) || !has(self.autoscaling)",
        "'replicas %d and autoscaling exclude each other: remove replicas, and set autoscaling.minReplicas and \
         maxReplicas'.format([self.replicas])",
    )
}

pub(crate) fn autoscaling_in_order() -> Rule {
    rule(
        "!has(self.minReplicas) || self.minReplicas <= self.maxReplicas",
        "'autoscaling: minReplicas %d is more than maxReplicas %d: lower minReplicas, or raise \
         maxReplicas'.format([self.minReplicas, self.maxReplicas])",
    )
}

pub(crate) fn jitter_within_delay() -> Rule {
    rule(
        "!has(self.jitterMilliseconds) || self.jitterMilliseconds <= self.delayMilliseconds",
        "'wanEmulation.jitterMilliseconds %d is more than delayMilliseconds %d: set a smaller \
         jitter'.format([self.jitterMilliseconds, self.delayMilliseconds])",
    )
}

pub(crate) fn peers_of_type() -> Rule {
    rule(
        format!("(self.type == 'Peers') == {}", given("peers")),
        "self.type == 'Peers' ? 'from: type Peers needs peers' : 'from: peers is for type Peers, not for ' + self.type + \
         ': remove peers'",
    )
}

pub(crate) fn target_exactly_one() -> Rule {
    rule(
        "has(self.serviceRef) != has(self.host)",
        "'a target of port %d needs exactly one of serviceRef and host'.format([self.port])",
    )
}

/// Clients of other protocols cannot authenticate.
pub(crate) fn fallback_of_auto() -> Rule {
    rule(
        format!(
            "!{} || (self.protocol == 'Auto' && !has(self.usersSecretRef))",
            given("fallbackTargets")
        ),
        "'proxy ' + self.name + ': fallbackTargets needs protocol Auto, and no usersSecretRef'",
    )
}
