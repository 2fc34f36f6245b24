//! The fields of a rule for targets, in the file and in the operator's resources.

use serde::{Deserialize, Serialize};
use serde_with_macros::skip_serializing_none;

use super::{Cidr, HostPattern, Ports, Rule, parse_host, parse_peer};
use crate::target::unix_path_problem;

/// The resources have no field `unix` and no field `peer`.
#[skip_serializing_none]
#[derive(Clone, Serialize, Deserialize)]
#[cfg_attr(
    feature = "schemars",
    derive(schemars::JsonSchema),
    schemars(transform = crate::schema::open),
    schemars(extend("x-kubernetes-validations" = [
        {
            "rule": "has(self.host) != has(self.cidr)",
            "message": "a rule needs exactly one of host and cidr",
        },
        {
            "rule": NO_NUMBER,
            "messageExpression": "'host %s ends in a number, but is not an IP address: correct the name or the address'.format([self.host])",
        },
        {
            "rule": "!has(self.endPort) || (has(self.port) && self.port <= self.endPort)",
            "messageExpression": "'endPort %d needs a port that is not greater than endPort'.format([self.endPort])",
        },
    ]))
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Fields {
    /// A DNS name, or `*.DOMAIN` for every name below a domain, or `*` for every name and address.
    #[cfg_attr(
        feature = "schemars",
        schemars(
            length(min = 1, max = 253),
            regex(pattern = r"^(\*|(\*\.)?([-_a-zA-Z0-9]{1,63}\.)*[-_a-zA-Z0-9]{1,63}\.?)$")
        )
    )]
    host: Option<String>,
    /// A network, such as 10.0.0.0/8 or 2001:db8::/32.
    cidr: Option<Cidr>,
    /// The TCP port. Default: every port.
    #[cfg_attr(feature = "schemars", schemars(range(min = 1, max = 65535)))]
    port: Option<u16>,
    /// The last port of a range that begins with `port`.
    #[cfg_attr(feature = "schemars", schemars(range(min = 1, max = 65535)))]
    end_port: Option<u16>,
    #[cfg_attr(feature = "schemars", schemars(skip))]
    unix: Option<String>,
    #[cfg_attr(feature = "schemars", schemars(skip))]
    peer: Option<String>,
}

/// CEL: the same as [`super::ends_in_number`]. An IPv4 address is no name.
#[cfg(feature = "schemars")]
const NO_NUMBER: &str = "!has(self.host) || !self.host.matches('(^|[.])([0-9]+|0[xX][0-9a-fA-F]*)[.]?$') || \
     self.host.matches('^(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])([.](25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])){3}$')";

impl TryFrom<Fields> for Rule {
    type Error = String;

    fn try_from(fields: Fields) -> Result<Self, String> {
        let ports = Ports::of(fields.port, fields.end_port)?;
        let host = match (fields.host.as_deref(), fields.cidr, fields.unix) {
            (Some(host), None, None) if host.contains('/') => {
                return Err("host is a name: write a network in cidr".to_owned());
            }
            (Some(host), None, None) => parse_host(host)?,
            (None, Some(cidr), None) => HostPattern::Network(cidr),
            (None, None, Some(path)) if ports == Ports::ALL => match unix_path_problem(&path) {
                Some(problem) => return Err(format!("unix: {problem}")),
                None => HostPattern::Unix(path),
            },
            (_, _, Some(_)) => {
                return Err("unix has neither host, cidr nor ports: remove them".to_owned());
            }
            _ => return Err("a rule needs exactly one of host and cidr".to_owned()),
        };
        let peer = fields.peer.as_deref().map(parse_peer).transpose()?;
        Ok(Self { host, ports, peer })
    }
}

impl From<Rule> for Fields {
    fn from(rule: Rule) -> Self {
        let ports = Some(rule.ports).filter(|ports| *ports != Ports::ALL);
        let range = ports.filter(|ports| !ports.is_single());
        let mut fields = Self {
            host: rule.host.names(),
            cidr: None,
            port: ports.map(|ports| ports.first),
            end_port: range.map(|ports| ports.last),
            unix: None,
            peer: rule.peer,
        };
        match rule.host {
            HostPattern::Network(cidr) => fields.cidr = Some(cidr),
            HostPattern::Unix(path) => fields.unix = Some(path),
            HostPattern::Any | HostPattern::Name(_) | HostPattern::Below(_) => {}
        }
        fields
    }
}
