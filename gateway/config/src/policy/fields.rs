//! The fields of a rule for targets, in the file and in the operator's resources.

use serde::{Deserialize, Serialize};
use serde_with_macros::skip_serializing_none;

use super::{HostPattern, Ports, Rule, parse_host, parse_network, parse_peer};
use crate::target::unix_path_problem;

/// A rule for targets: exactly one of `host` and `cidr`.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(
    feature = "schemars",
    derive(schemars::JsonSchema),
    schemars(extend("x-kubernetes-validations" = [
        {
            "rule": "has(self.host) != has(self.cidr)",
            "message": "a rule needs exactly one of host and cidr",
        },
        {
            "rule": "!has(self.endPort) || (has(self.port) && self.port <= self.endPort)",
            "messageExpression": "'endPort %d needs a port that is not greater than endPort'.format([self.endPort])",
        },
    ]))
)]
#[serde(rename_all = "camelCase")]
pub struct RuleFields {
    /// A DNS name, or `*.DOMAIN` for every name below a domain, or `*` for every name and address.
    #[cfg_attr(
        feature = "schemars",
        schemars(
            length(min = 1, max = 253),
            regex(pattern = r"^(\*|(\*\.)?[-_.a-zA-Z0-9]+)$")
        )
    )]
    pub host: Option<String>,
    /// A network, such as 10.0.0.0/8 or 2001:db8::/32.
    #[cfg_attr(
        feature = "schemars",
        schemars(
            length(min = 3, max = 49),
            regex(pattern = "^[0-9a-fA-F:.]+/[0-9]{1,3}$")
        )
    )]
    pub cidr: Option<String>,
    /// The TCP port. Default: every port.
    #[cfg_attr(feature = "schemars", schemars(range(min = 1, max = 65535)))]
    pub port: Option<u16>,
    /// The last port of a range that begins with `port`.
    #[cfg_attr(feature = "schemars", schemars(range(min = 1, max = 65535)))]
    pub end_port: Option<u16>,
}

impl TryFrom<&RuleFields> for Rule {
    type Error = &'static str;

    fn try_from(fields: &RuleFields) -> Result<Self, Self::Error> {
        let host = match (fields.host.as_deref(), fields.cidr.as_deref()) {
            (Some(host), None) if host.contains('/') => {
                return Err("host is a name: write a network in cidr");
            }
            (Some(host), None) => parse_host(host)?,
            (None, Some(cidr)) => HostPattern::Network(parse_network(cidr)?),
            _ => return Err("a rule needs exactly one of host and cidr"),
        };
        let ports = match (fields.port, fields.end_port) {
            (Some(0), _) => return Err("a port must be from 1 to 65535"),
            (None, None) => Ports::ALL,
            (Some(port), None) => Ports::single(port),
            (Some(first), Some(last)) if first <= last => Ports { first, last },
            (_, Some(_)) => return Err("endPort needs a port that is not greater than endPort"),
        };
        Ok(Self {
            host,
            ports,
            peer: None,
        })
    }
}

/// A rule of a Unix socket has no such fields: they are empty.
impl From<&Rule> for RuleFields {
    fn from(rule: &Rule) -> Self {
        let (host, cidr) = match &rule.host {
            HostPattern::Any => (Some("*".to_owned()), None),
            HostPattern::Name(name) => (Some(name.clone()), None),
            HostPattern::Below(domain) => (Some(format!("*.{domain}")), None),
            HostPattern::Network(cidr) => (None, Some(format!("{}/{}", cidr.address, cidr.length))),
            HostPattern::Unix(_) => return Self::default(),
        };
        let ports = Some(rule.ports).filter(|ports| *ports != Ports::ALL);
        Self {
            host,
            cidr,
            port: ports.map(|ports| ports.first),
            end_port: ports
                .filter(|ports| !ports.is_single())
                .map(|ports| ports.last),
        }
    }
}

/// The form of a rule in the file.
#[skip_serializing_none]
#[derive(Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Fields {
    host: Option<String>,
    cidr: Option<String>,
    unix: Option<String>,
    port: Option<u16>,
    end_port: Option<u16>,
    peer: Option<String>,
}

impl TryFrom<Fields> for Rule {
    type Error = String;

    fn try_from(fields: Fields) -> Result<Self, String> {
        let peer = fields.peer.as_deref().map(parse_peer).transpose()?;
        let target = RuleFields {
            host: fields.host,
            cidr: fields.cidr,
            port: fields.port,
            end_port: fields.end_port,
        };
        let Some(path) = fields.unix else {
            return Ok(Self {
                peer,
                ..Self::try_from(&target)?
            });
        };
        if target != RuleFields::default() {
            return Err("unix has neither host, cidr nor ports: remove them".to_owned());
        }
        match unix_path_problem(&path) {
            Some(problem) => Err(format!("unix: {problem}")),
            None => Ok(Self {
                host: HostPattern::Unix(path),
                ports: Ports::ALL,
                peer,
            }),
        }
    }
}

impl From<Rule> for Fields {
    fn from(rule: Rule) -> Self {
        let RuleFields {
            host,
            cidr,
            port,
            end_port,
        } = RuleFields::from(&rule);
        Self {
            host,
            cidr,
            port,
            end_port,
            unix: match rule.host {
                HostPattern::Unix(path) => Some(path),
                _ => None,
            },
            peer: rule.peer,
        }
    }
}
