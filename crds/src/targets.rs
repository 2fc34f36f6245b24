//! Targets, and the rules that permit them.

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use crate::{ServiceRef, patterns};

/// A target: exactly one of `serviceRef` and `host`, and a port.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Target {
    /// A Service of the object's namespace, or of a namespace that permits the reference.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_ref: Option<ServiceRef>,
    /// DNS name or IP address (IPv6 without brackets). The gateway that dials the target resolves the
    /// name. The name of a Service of another namespace (NAME.NAMESPACE.svc) needs a grant of that
    /// namespace, as with `serviceRef`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253), regex(pattern = patterns::HOST))]
    pub host: Option<String>,
    /// Number of the port of the Service or of the host.
    #[schemars(range(min = 1, max = 65535))]
    pub port: u16,
}

/// A rule for targets: exactly one of `host` and `cidr`, and optionally ports.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Rule {
    /// A DNS name, or `*.DOMAIN` for every name below a domain, or `*` for every name and address.
    /// In a MuxTunnel and a MuxExit, the name of a Service of another namespace
    /// (NAME.NAMESPACE.svc) needs a grant of that namespace. `*.NAMESPACE.svc` needs a grant without
    /// the name of a Service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253), regex(pattern = patterns::RULE_HOST))]
    pub host: Option<String>,
    /// A network, such as 10.0.0.0/8 or 2001:db8::/32.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 3, max = 49), regex(pattern = patterns::CIDR))]
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
