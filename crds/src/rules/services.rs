//! The rules of Services.

use kube::core::Rule;

use super::rule;

/// CEL: clients outside the cluster reach the Service with these settings.
const EXPOSED: &str = "(has(self.type) && self.type != 'ClusterIP')";

/// Kubernetes refuses `externalTrafficPolicy` for a Service of type ClusterIP, which clients
/// outside the cluster cannot reach.
pub(crate) fn traffic_policy_needs_exposure() -> Rule {
    rule(
        format!("!has(self.externalTrafficPolicy) || {EXPOSED}"),
        "'externalTrafficPolicy ' + self.externalTrafficPolicy + ' is for type NodePort or LoadBalancer: \
         remove it, or set type'",
    )
}

pub(crate) fn load_balancer_fields() -> Rule {
    rule(
        "!(has(self.loadBalancerClass) || has(self.loadBalancerSourceRanges)) || (has(self.type) && self.type == \
         'LoadBalancer')",
        "(has(self.loadBalancerClass) ? 'loadBalancerClass' : 'loadBalancerSourceRanges') + ' is for type LoadBalancer: \
         remove it, or set type'",
    )
}

pub(crate) fn node_port_needs_exposure() -> Rule {
    rule(
        format!("!has(self.nodePort) || {EXPOSED}"),
        "'nodePort %d is for type NodePort or LoadBalancer: remove it, or set type'.format([self.nodePort])",
    )
}

/// CEL: clients outside the cluster reach the Service of port `f`. `suffix` is the end of the name
/// of the Service without `serviceName`.
fn exposed(suffix: &str) -> String {
    format!(
        "(has(self.spec.services) && self.spec.services.exists(s, has(s.type) && s.type != 'ClusterIP' && \
         (has(f.serviceName) ? s.name == f.serviceName : s.name == self.metadata.name + '{suffix}')))"
    )
}

/// Without `from` the NetworkPolicy admits only the object's namespace, so a public port would have
/// no clients.
pub(crate) fn clients_needed(list: &str, suffix: &str) -> Rule {
    let open = format!("!has(f.from) && {}", exposed(suffix));
    rule(
        format!("!has(self.spec.{list}) || self.spec.{list}.all(f, !({open}))"),
        format!(
            "'{list} %s: its Service is of type NodePort or LoadBalancer, and needs from, the clients that may reach the \
             port'.format([self.spec.{list}.filter(f, {open})[0].name])"
        ),
    )
}

pub(crate) fn node_ports_need_exposure(list: &str, suffix: &str) -> Rule {
    let inside = format!("has(f.nodePort) && !{}", exposed(suffix));
    rule(
        format!("!has(self.spec.{list}) || self.spec.{list}.all(f, !({inside}))"),
        format!(
            "'{list} %s: nodePort needs a Service of type NodePort or LoadBalancer in \
             services'.format([self.spec.{list}.filter(f, {inside})[0].name])"
        ),
    )
}
