//! The targets that exits may dial.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::rules;

/// The targets that exit gateways may dial in addition to the targets of forwards. The exit checks
/// the address to which a name resolves. A loopback, link-local or multicast address needs a rule
/// whose network lies within the loopback, link-local or multicast range. An address of the API
/// server needs a rule with exactly this address. A rule with the name `localhost` permits
/// loopback, and a rule with the name `kubernetes.default.svc` permits the address of the API
/// server's Service.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Policy {
    /// Permitted targets. Default: only the targets of forwards.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub allow: Vec<PolicyRule>,
    /// Denied targets. These rules override `allow`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub deny: Vec<PolicyRule>,
    /// IPv6 prefixes of 32, 40, 48, 56, 64 or 96 bits that the exit's network translates to IPv4
    /// (NAT64, RFC 6052). An IPv6 address with such a prefix needs the same rule as the IPv4
    /// address that it contains. The prefix 64:ff9b::/96 is built in.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 8),
        inner(
            length(min = 3, max = 49),
            regex(pattern = "^[0-9a-fA-F:.]+/(32|40|48|56|64|96)$")
        )
    )]
    pub nat64_prefixes: Vec<String>,
}

/// A rule for targets: exactly one of `host` and `cidr`.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = rules::policy_host_or_cidr(),
    validation = rules::policy_ports_in_order()
)]
pub struct PolicyRule {
    /// A DNS name, or `*.DOMAIN` for every name below a domain, or `*` for every name and address.
    /// The name of a Service of another namespace (NAME.NAMESPACE.svc) needs a grant of that
    /// namespace. `*.NAMESPACE.svc` needs a grant without the name of a Service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = 253),
        regex(pattern = "^(\\*|(\\*\\.)?[-_.a-zA-Z0-9]+)$")
    )]
    pub host: Option<String>,
    /// A network, such as 10.0.0.0/8 or 2001:db8::/32.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 3, max = 49),
        regex(pattern = "^[0-9a-fA-F:.]+/[0-9]{1,3}$")
    )]
    pub cidr: Option<String>,
    /// The TCP port. Default: every port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65535))]
    pub port: Option<u16>,
    /// The last port of a range that begins with `port`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65535))]
    pub end_port: Option<u16>,
    /// Limits the rule to the streams of one peer, by the name or public key that the peer proved.
    /// Default: all peers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256), regex(pattern = "^[-_.:/+=@%a-zA-Z0-9]+$"))]
    pub peer: Option<String>,
}

/// A rule for the targets of one peer: exactly one of `host` and `cidr`.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = rules::policy_host_or_cidr(),
    validation = rules::policy_ports_in_order()
)]
pub struct PeerRule {
    /// A DNS name, or `*.DOMAIN` for every name below a domain, or `*` for every name and address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = 253),
        regex(pattern = "^(\\*|(\\*\\.)?[-_.a-zA-Z0-9]+)$")
    )]
    pub host: Option<String>,
    /// A network, such as 10.0.0.0/8 or 2001:db8::/32.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 3, max = 49),
        regex(pattern = "^[0-9a-fA-F:.]+/[0-9]{1,3}$")
    )]
    pub cidr: Option<String>,
    /// The TCP port. Default: every port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65535))]
    pub port: Option<u16>,
    /// The last port of a range that begins with `port`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65535))]
    pub end_port: Option<u16>,
}
