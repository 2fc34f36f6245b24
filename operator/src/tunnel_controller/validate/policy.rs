//! What may be dialled beside the targets of forwards, as gateways read it. Pure.

use std::net::IpAddr;

use muxtunnel_crds::{Policy, PolicyRule};
use muxtunnel_gateway_config as config;
use muxtunnel_gateway_config::{Cidr, CidrError, Ports, Rule, RuleError};

/// `api_server`: its addresses, which a rule has to name literally.
pub(super) fn policy(
    asked: Option<&Policy>,
    api_server: &[IpAddr],
) -> Result<config::Policy, String> {
    let asked = asked.cloned().unwrap_or_default();
    let rules = |name: &str, rules: &[PolicyRule]| {
        let numbered = rules.iter().enumerate();
        let rule = numbered.map(|(index, rule)| {
            let rule = policy_rule(rule);
            rule.map_err(|problem| format!("policy.{name}[{index}]: {problem}"))
        });
        rule.collect::<Result<Vec<_>, String>>()
    };
    Ok(config::Policy {
        allow: rules("allow", &asked.allow)?,
        deny: rules("deny", &asked.deny)?,
        protected: api_server.iter().copied().map(Cidr::single).collect(),
        nat64_prefixes: prefixes(&asked.nat64_prefixes)?,
    })
}

fn prefixes(asked: &[String]) -> Result<Vec<Cidr>, String> {
    let numbered = asked.iter().enumerate();
    let prefix = numbered.map(|(index, text)| {
        let prefix: Result<Cidr, CidrError> = text.parse();
        prefix.map_err(|problem| format!("policy.nat64Prefixes[{index}]: {problem}"))
    });
    prefix.collect()
}

fn policy_rule(asked: &PolicyRule) -> Result<Rule, String> {
    let hosts = match (&asked.host, &asked.cidr) {
        (Some(host), None) => host,
        (None, Some(cidr)) => cidr,
        _ => return Err("needs exactly one of host and cidr".to_owned()),
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
        _ => return Err("endPort needs a port that is not more".to_owned()),
    };
    Ok(Rule {
        ports,
        peer: asked.peer.clone(),
        ..rule
    })
}
