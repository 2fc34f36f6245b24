//! The gateways' rules for targets that are not in forwards. Pure.

use muxtunnel_codes::Code;
use muxtunnel_crds as crds;
use muxtunnel_gateway_config as config;
use muxtunnel_gateway_config::{Cidr, HostPattern, Rule};

use super::target::not_permitted;
use super::{Dereferenced, Finding, each};
use crate::tunnel_controller::object::Object;
use crate::tunnel_controller::references::{canonical_rule, services_of_rule};

/// The rules for pods of `namespace`, and a finding for each omitted rule that another namespace
/// does not permit. A rule permits the API server's addresses only if it names them literally.
pub(super) fn rules(
    object: &Object,
    namespace: &str,
    named: &Dereferenced,
) -> Result<(config::Policy, Vec<Finding>), String> {
    let mut findings = Vec::new();
    let mut deny = parsed("deny", object.deny(), namespace)?;
    let mut allow = Vec::new();
    let rules = parsed("allow", object.allow(), namespace)?;
    for (index, (rule, asked)) in rules.into_iter().zip(object.allow()).enumerate() {
        let host = asked.host.as_deref();
        let services = host.map(|host| services_of_rule(host, namespace));
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
        nat64_prefixes: each("nat64Prefixes", object.nat64_prefixes(), |text| {
            text.parse::<Cidr>()
        })?,
    };
    Ok((policy, findings))
}

/// The rules of the list `field`. A rule of a MuxPeer narrows the exit's rules, so a Service of
/// another namespace needs no grant there.
pub(super) fn parsed(
    field: &str,
    rules: &[crds::Rule],
    namespace: &str,
) -> Result<Vec<Rule>, String> {
    each(field, rules, |asked| rule(asked, namespace))
}

fn rule(asked: &crds::Rule, namespace: &str) -> Result<Rule, &'static str> {
    let host = asked.host.as_deref();
    Rule::try_from(&crds::Rule {
        host: host.map(|host| canonical_rule(host, namespace)),
        ..asked.clone()
    })
}
