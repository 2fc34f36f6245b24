//! The gateways' rules for targets that are not in forwards. Pure.

use muxtunnel_crds::{PeerRule, Policy, PolicyRule};
use muxtunnel_gateway_config as config;
use muxtunnel_gateway_config::{Cidr, CidrError, HostPattern, Ports, Rule, RuleError};

use super::Dereferenced;
use super::forward::not_permitted;
use crate::tunnel_controller::references::{canonical_rule, services_of_rule};

/// The rules for pods of `namespace`, and a sentence for each omitted rule that another namespace
/// does not permit. A rule permits the API server's addresses only if it names them literally.
pub(super) fn policy(
    asked: Option<&Policy>,
    namespace: &str,
    named: &Dereferenced,
) -> Result<(config::Policy, Vec<String>), String> {
    let asked = asked.cloned().unwrap_or_default();
    let rules = |name: &str, rules: &[PolicyRule]| {
        let numbered = rules.iter().enumerate();
        let rule = numbered.map(|(index, rule)| {
            let parsed = policy_rule(rule, namespace);
            parsed.map_err(|problem| format!("policy.{name}[{index}]: {problem}"))
        });
        rule.collect::<Result<Vec<_>, String>>()
    };
    let mut forbidden = Vec::new();
    let mut allow = rules("allow", &asked.allow)?.into_iter();
    let mut deny = rules("deny", &asked.deny)?;
    let mut permitted = Vec::new();
    for (index, rule) in asked.allow.iter().enumerate() {
        let host = rule.host.as_deref();
        let services = host.map(|host| services_of_rule(host, namespace));
        let mut services = services.into_iter().flatten();
        let refused = services.find(|service| named.forbidden.contains(service));
        let rule = allow.next();
        match refused {
            Some(service) => {
                let why = not_permitted(&service, namespace);
                forbidden.push(format!("policy.allow[{index}]: {why}"));
                // A deny rule for the host ends the open streams to the host. There is no deny rule
                // for a pattern, because a pattern may also cover permitted Services.
                let named = rule.filter(|rule| matches!(rule.host, HostPattern::Name(_)));
                deny.extend(named);
            }
            None => permitted.extend(rule),
        }
    }
    let protected = named.api_server.iter().copied().map(Cidr::single);
    let policy = config::Policy {
        allow: permitted,
        deny,
        protected: protected.collect(),
        nat64_prefixes: prefixes(&asked.nat64_prefixes)?,
    };
    Ok((policy, forbidden))
}

/// The rules of one peer. They narrow the exit's rules, so a Service of another namespace needs no
/// grant here.
pub(super) fn peer_rules(
    field: &str,
    rules: &[PeerRule],
    namespace: &str,
) -> Result<Vec<Rule>, String> {
    let numbered = rules.iter().cloned().enumerate();
    let rule = numbered.map(|(index, rule)| {
        let rule = PolicyRule {
            host: rule.host,
            cidr: rule.cidr,
            port: rule.port,
            end_port: rule.end_port,
            peer: None,
        };
        let parsed = policy_rule(&rule, namespace);
        parsed.map_err(|problem| format!("{field}[{index}]: {problem}"))
    });
    rule.collect()
}

fn prefixes(asked: &[String]) -> Result<Vec<Cidr>, String> {
    let numbered = asked.iter().enumerate();
    let prefix = numbered.map(|(index, text)| {
        let prefix: Result<Cidr, CidrError> = text.parse();
        prefix.map_err(|problem| format!("policy.nat64Prefixes[{index}]: {problem}"))
    });
    prefix.collect()
}

fn policy_rule(asked: &PolicyRule, namespace: &str) -> Result<Rule, String> {
    let hosts = match (&asked.host, &asked.cidr) {
        (Some(host), None) => &canonical_rule(host, namespace),
        (None, Some(cidr)) => cidr,
        _ => return Err("a rule needs exactly one of host and cidr".to_owned()),
    };
    let rule: Rule = hosts
        .parse()
        .map_err(|error: RuleError| error.to_string())?;
    let ports = match (asked.port, asked.end_port) {
        (None, None) => Ports::ALL,
        (Some(first), last) if first <= last.unwrap_or(first) => Ports {
            first,
            last: last.unwrap_or(first),
        },
        _ => return Err("endPort needs a port that is not greater than endPort".to_owned()),
    };
    Ok(Rule {
        ports,
        peer: asked.peer.clone(),
        ..rule
    })
}
