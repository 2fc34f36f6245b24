//! The rules of Services.

use kube::core::Rule;

use super::{given, no_item, or, rule};

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
        format!(
            "!(has(self.loadBalancerClass) || {}) || (has(self.type) && self.type == 'LoadBalancer')",
            given("loadBalancerSourceRanges")
        ),
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
    no_item(
        "",
        &format!("self.spec.{list}"),
        &format!("!has(f.from) && {}", exposed(suffix)),
        &format!(
            "{list} %s: its Service is of type NodePort or LoadBalancer, and needs from, the clients that may reach the port"
        ),
        &[".name"],
    )
}

pub(crate) fn node_ports_need_exposure(list: &str, suffix: &str) -> Rule {
    no_item(
        "",
        &format!("self.spec.{list}"),
        &format!("has(f.nodePort) && !{}", exposed(suffix)),
        &format!(
            "{list} %s: nodePort needs a Service of type NodePort or LoadBalancer in services"
        ),
        &[".name"],
    )
}

/// The ends of the names of Services that objects have by default. `-exit-udp` is for an exit with
/// separate Services.
pub const OWN_SERVICE_ENDS: [&str; 7] = [
    "-entry",
    "-exit",
    "-exit-headless",
    "-exit-ssh",
    "-exit-udp",
    "-reverse",
    "-rendezvous",
];

/// Who may write a MuxTunnel takes the name of no Service that another object will have. `suffix` is
/// the end of the name of the Service without `serviceName`.
pub(crate) fn service_names_are_of_nobody_else(list: &str, suffix: &str) -> Rule {
    let taken = format!(
        "has(f.serviceName) && f.serviceName.matches('({})$') && f.serviceName != self.metadata.name + '{suffix}'",
        OWN_SERVICE_ENDS.join("|")
    );
    let text = format!(
        "{list} %s: serviceName %s has the form of a Service of another object: choose a name that does not end in {}",
        or(&OWN_SERVICE_ENDS)
    );
    let list = format!("self.spec.{list}");
    no_item("", &list, &taken, &text, &[".name", ".serviceName"])
}

/// Settings of a Service that does not exist would have no effect. `lists` are the lists of ports,
/// each with the end of the name of the Service without `serviceName`. With `connect`, the ports of
/// `reverseForwards` are at the exit of another object.
pub(crate) fn services_are_used(lists: &[(&str, &str)]) -> Rule {
    let uses = lists.iter().map(|(list, suffix)| {
        let is_own = match *list {
            "reverseForwards" => format!("!{} && ", given("spec.connect")),
            _ => String::new(),
        };
        format!(
            "({is_own}has(self.spec.{list}) && self.spec.{list}.exists(p, has(p.serviceName) ? p.serviceName == f.name : f.name \
             == self.metadata.name + '{suffix}'))"
        )
    });
    let unused = format!("!({})", uses.collect::<Vec<_>>().join(" || "));
    let names: Vec<_> = lists.iter().map(|(list, _)| *list).collect();
    let text = format!(
        "services %s: no port of {} has this serviceName: correct the name, or remove the item",
        or(&names)
    );
    no_item("", "self.spec.services", &unused, &text, &[".name"])
}
