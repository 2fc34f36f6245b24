//! Which targets may be dialled.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::rules;

/// Which targets the exit gateways may dial beside those that forwards name, judged on the address that a
/// name resolves to. Loopback, link-local and multicast addresses and the API server's need a rule within them.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Policy {
    /// What may be dialled. Default: nothing more.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub allow: Vec<PolicyRule>,
    /// What may not, whatever is allowed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub deny: Vec<PolicyRule>,
    /// Prefixes behind which the exit's network translates IPv6 to IPv4 (NAT64, RFC 6052), of 32, 40, 48, 56, 64 or 96
    /// bits. An address behind one needs the same rule as the IPv4 address in it. 64:ff9b::/96 is known.
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

/// Some targets: exactly one of `host` and `cidr`.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = rules::policy_host_or_cidr(),
    validation = rules::policy_ports_in_order()
)]
pub struct PolicyRule {
    /// A DNS name, `*.` and a domain for every name below it, or `*` for every name and address. The name of a Service of
    /// another namespace (NAME.NAMESPACE.svc) has to be permitted there, and `*.NAMESPACE.svc` by a grant that names no Service.
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
    /// The port. Default: every port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65535))]
    pub port: Option<u16>,
    /// The last port of a range that begins with `port`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65535))]
    pub end_port: Option<u16>,
    /// For streams of this peer alone: the name or public key that its carriers proved. Default: everybody.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256), regex(pattern = "^[-_.:/+=@%a-zA-Z0-9]+$"))]
    pub peer: Option<String>,
}
