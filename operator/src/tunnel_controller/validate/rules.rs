//! The gateways' rules for targets that are not in forwards. Pure.

use muxtunnel_codes::Code;
use muxtunnel_gateway_config as config;
use muxtunnel_gateway_config::{Cidr, HostPattern, Rule};

use super::target::not_permitted;
use super::{Dereferenced, Finding};
use crate::tunnel_controller::object::Object;
use crate::tunnel_controller::references::{canonical_rule, services_of_rule};

/// The rules for pods of `namespace`, and a finding for each omitted rule that another namespace
/// does not permit. A rule permits the API server's addresses only if it names them literally.
pub(super) fn rules(
    object: &Object,
    namespace: &str,
    named: &Dereferenced,
) -> (config::Policy, Vec<Finding>) {
    let mut findings = Vec::new();
    let mut deny = canonical(object.deny(), namespace);
    let mut allow = Vec::new();
    let rules = canonical(object.allow(), namespace);
    for (index, (rule, asked)) in rules.into_iter().zip(object.allow()).enumerate() {
        let services = asked.host.names();
        let services = services.map(|host| services_of_rule(&host, namespace));
        let mut services = services.into_iter().flatten();
        match services.find(|service| named.forbidden.contains(service)) {
            None => allow.push(rule),
            Some(service) => {
                findings.push(Finding {
                    code: Code::TargetNotPermitted,
                    place: format!("allow[{index}]"),
                    detail: not_permitted(&service, (object.kind(), namespace)),
                    is_lost: false,
                });
                // A deny rule for the host ends the open streams to the host. There is no deny rule
                // for a pattern, because a pattern may also cover permitted Services.
                let is_name = matches!(rule.host, HostPattern::Name(_));
                deny.extend(is_name.then_some(rule));
            }
        }
    }
    let protected = named.api_server.iter().copied().map(Cidr::single);
    let policy = config::Policy {
        allow,
        deny,
        protected: protected.collect(),
        nat64_prefixes: object.nat64_prefixes().to_vec(),
    };
    (policy, findings)
}

/// The rules with canonical hosts. A rule of a MuxPeer narrows the exit's rules, so a Service of another
/// namespace needs no grant there.
pub(super) fn canonical(rules: &[Rule], namespace: &str) -> Vec<Rule> {
    let rules = rules.iter();
    rules.map(|rule| canonical_rule(rule, namespace)).collect()
}
