//! What is listened on, what is spoken there, and where it leads.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::rules;

/// One port that is listened on and the target its streams lead to.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = rules::target_exactly_one(),
    validation = rules::target_needed(),
    validation = rules::target_forbidden(),
    validation = rules::users_are_asked_for(),
    validation = rules::reverse_is_plain()
)]
pub struct Forward {
    /// Unique name; it also names the port of the Service of the side that listens.
    #[schemars(
        length(min = 1, max = 15),
        regex(pattern = "^[a-z]([-a-z0-9]*[a-z0-9])?$")
    )]
    pub name: String,
    /// Which way its streams are opened. ExitToEntry is for protocol Native, HTTP2, QUIC or Auto. Default: EntryToExit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub direction: Option<ForwardDirection>,
    /// Where streams enter.
    pub listen: Listen,
    /// Where they lead: exactly one of `service` and `address`. Protocol Tcp has one; Auto may have one, for
    /// clients that name none; with the others each client names its own, which `policy` has to allow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<Target>,
    /// Protocols Socks5 and HttpConnect, and Auto without a target: who is served. Default: everybody.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auth: Option<Auth>,
    /// Who is told, and by whom, where a client is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proxy_protocol: Option<ProxyProtocol>,
    /// Who goes first where its streams and those of other forwards share carriers. Default: Auto.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<Priority>,
    /// What its streams may take together, in each entry gateway. Default: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<ForwardLimits>,
}

/// Which way the streams of a forward are opened.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ForwardDirection {
    /// Entry gateways listen, exit gateways dial.
    #[default]
    EntryToExit,
    /// Exit gateways listen, entry gateways dial: for targets that only they can reach.
    ExitToEntry,
}

/// Who goes first where streams share carriers.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Priority {
    /// Streams that send little, and new ones: shells, requests, answers of databases.
    #[default]
    Auto,
    /// These, ahead of streams that send much, even where they send much themselves.
    Interactive,
    /// All others go ahead of these: backups, copies.
    Bulk,
}

/// What the streams of a forward may take together, in each entry gateway.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct ForwardLimits {
    /// Streams at once; one connection too many is reset. Default: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub streams: Option<u32>,
    /// New connections a second, and as many at once after a pause; one too many is reset. Default: no
    /// limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub opens_per_second: Option<u32>,
    /// Payload in each direction, such as 500kbit, 100Mbit or 1Gbit (a second); what is more waits.
    /// Default: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(max = 13),
        regex(pattern = "^([1-9][0-9]{2,8}kbit|[1-9][0-9]{0,5}Mbit|([1-9][0-9]{0,2}|1000)Gbit)$")
    )]
    pub rate: Option<String>,
}

/// Where the streams of a forward enter.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Listen {
    /// Port of the Service and of the gateways of the side that listens. 64000 and 64001 are taken.
    #[schemars(range(min = 1, max = 65535))]
    pub port: u16,
    /// What is spoken on it.
    #[serde(default)]
    pub protocol: ListenProtocol,
    /// The clients that the gateways' NetworkPolicy lets in, where the cluster's network enforces NetworkPolicies. Required
    /// where the Service of the port is no ClusterIP. Default: the pods of the tunnel's namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<ListenFrom>,
}

/// The clients of a listening port: pods and addresses, or all.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = rules::listen_from_all_or_some())]
pub struct ListenFrom {
    /// Every client that reaches the port, in the cluster and outside of it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub all: bool,
    /// The namespaces of the pods. Default, with `podLabels`: the tunnel's namespace.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 16),
        inner(
            length(min = 1, max = 63),
            regex(pattern = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")
        )
    )]
    pub namespaces: Vec<String>,
    /// The labels of the pods. Default, with `namespaces`: all pods there.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 16))]
    pub pod_labels: BTreeMap<String, String>,
    /// Networks of further clients, such as 192.0.2.0/24: behind a load balancer or a node port, these are the addresses
    /// that the cluster's network shows the gateways.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 16),
        inner(
            length(min = 3, max = 49),
            regex(pattern = "^[0-9a-fA-F:.]+/[0-9]{1,3}$")
        )
    )]
    pub ip_blocks: Vec<String>,
}

/// What is spoken on the port of a forward.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ListenProtocol {
    /// Plain TCP: each connection is one stream, and all lead to the target.
    #[default]
    Tcp,
    /// SOCKS5 (RFC 1928), CONNECT alone: each client names its target.
    Socks5,
    /// An HTTP proxy: CONNECT, or one request for an absolute `http://` URL.
    HttpConnect,
    /// SOCKS5, SOCKS4, SOCKS4a and HTTP on one port; with a target, all else leads there.
    Auto,
}

/// Who is served by a forward whose clients can be asked.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Auth {
    /// The users, with their passwords: a file with a line `name:hash` each, as `htpasswd -nB -C 10 NAME` prints it, at
    /// most 64 KiB. Hashes are bcrypt's, of version 2y, 2b or 2a and cost 4 to 14. Passwords in plain text are accepted, and
    /// the gateways' log warns of them. Gateways take changed ones from the next client on.
    pub users_secret: UsersSecret,
}

/// A file of users.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "camelCase")]
pub struct UsersSecret {
    /// The Secret that it is in, in the tunnel's namespace.
    #[schemars(
        length(min = 1, max = 253),
        regex(pattern = rules::SECRET_NAME)
    )]
    pub name: String,
    /// Its key. Default: users.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = 253),
        regex(pattern = "^[-_a-zA-Z0-9][-._a-zA-Z0-9]*$")
    )]
    pub key: Option<String>,
}

/// Headers of the PROXY protocol, version 2, which say where a client is.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct ProxyProtocol {
    /// Each connection begins with one, as a load balancer writes it. Only where nobody but such a sender
    /// reaches the port: a header can say anything.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub accept: bool,
    /// The target is sent one before anything else. Protocol Native.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub send: bool,
}

/// The target of a forward: exactly one of `service` and `address`.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Target {
    /// A Service, of the tunnel's namespace or of one that permits it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<ServiceTarget>,
    /// A host that the side that dials resolves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<AddressTarget>,
}

/// A Service as a target.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ServiceTarget {
    /// Its name.
    #[schemars(
        length(min = 1, max = 63),
        regex(pattern = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")
    )]
    pub name: String,
    /// Its namespace. Another one than the tunnel's has to permit it, by a ReferenceGrant (Gateway API) or a
    /// MuxGrant in it. Default: the tunnel's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = 63),
        regex(pattern = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")
    )]
    pub namespace: Option<String>,
    /// Number or name of its port.
    #[schemars(extend("minimum" = 1, "maximum" = 65535, "maxLength" = 15, "pattern" = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub port: IntOrString,
}

/// A host as a target.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct AddressTarget {
    /// DNS name or IP address (IPv6 without brackets), resolved by the side that dials: the exit, with direction
    /// ExitToEntry the entry. The name of a Service of another namespace of the cluster (NAME.NAMESPACE.svc) has to be
    /// permitted there, as in `service`.
    #[schemars(length(min = 1, max = 253), regex(pattern = "^[-_.:a-zA-Z0-9]+$"))]
    pub host: String,
    /// TCP port.
    #[schemars(range(min = 1, max = 65535))]
    pub port: u16,
}
