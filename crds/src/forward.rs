//! Forwards: the listening port, the protocol of its clients, and the target.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::rules;

/// A listening port and the target of its streams.
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
    /// Unique name of the forward. The port in the Service of the listening side has the same name.
    #[schemars(
        length(min = 1, max = 15),
        regex(pattern = "^[a-z]([-a-z0-9]*[a-z0-9])?$")
    )]
    pub name: String,
    /// The direction in which streams are opened. ExitToEntry needs `carrier.protocol` Native,
    /// HTTP2, QUIC or Auto, needs `listen.protocol` Tcp, and does not permit `proxyProtocol`.
    /// Default: EntryToExit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub direction: Option<ForwardDirection>,
    /// The listening port and its clients.
    pub listen: Listen,
    /// The target: exactly one of `service` and `address`. Required with protocol Tcp. Optional
    /// with Auto, for clients that name no target. Not permitted with Socks5 and HttpConnect: their
    /// clients name the target, which `policy` must allow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<Target>,
    /// The users that may connect. Permitted with protocols Socks5 and HttpConnect, and with Auto
    /// without a target. Default: every client may connect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auth: Option<Auth>,
    /// PROXY headers, which contain the client's address. The fields select whether the gateway
    /// accepts these headers from load balancers, and whether it sends them to the target.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proxy_protocol: Option<ProxyProtocol>,
    /// Priority over streams of other forwards on the same carriers. Default: Auto.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<Priority>,
    /// Limits of this forward. Each entry gateway applies a limit to the sum of its own streams of
    /// this forward. Default: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<ForwardLimits>,
}

/// The direction in which the streams of a forward are opened. EntryToExit: entries listen, and
/// exits dial the target. ExitToEntry: exits listen, and entries dial the target. ExitToEntry needs
/// `carrier.protocol` Native, HTTP2, QUIC or Auto, needs `listen.protocol` Tcp, and does not permit
/// `proxyProtocol`. Default: EntryToExit.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ForwardDirection {
    /// Entry gateways listen, and exit gateways dial the target.
    #[default]
    EntryToExit,
    /// Exit gateways listen, and entry gateways dial the target. Use this direction for targets
    /// that only entries can reach.
    ExitToEntry,
}

/// The priority of streams that share carriers. Auto: new streams and streams that send little data
/// go first. Interactive: even with much data, streams go ahead of bulk streams. Bulk: streams go
/// last. Default: Auto. With `carrier.protocol` HTTP2, HBONE and SSH, the priority has no effect.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Priority {
    /// New streams and streams that send little data go first. Examples are shells and the requests
    /// and responses of databases.
    #[default]
    Auto,
    /// Even with much data, the streams of this forward go ahead of bulk streams. Streams that send
    /// little data still go first, as with Auto.
    Interactive,
    /// The streams of this forward go last. Use this priority for backups and copies.
    Bulk,
}

/// Limits of a forward. Each entry gateway applies a limit to the sum of its own streams of the
/// forward.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct ForwardLimits {
    /// Maximum number of concurrent streams. Connections beyond the limit are reset. Default: no
    /// limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub streams: Option<u32>,
    /// Maximum number of new connections per second. After one second without new connections, this
    /// number of connections may arrive at once. Connections beyond the limit are reset. Default:
    /// no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub opens_per_second: Option<u32>,
    /// Maximum rate of payload in each direction, in bits per second, such as 500kbit, 100Mbit or
    /// 1Gbit. The gateway delays payload beyond the limit. Default: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(max = 13),
        regex(pattern = "^([1-9][0-9]{2,8}kbit|[1-9][0-9]{0,5}Mbit|([1-9][0-9]{0,2}|1000)Gbit)$")
    )]
    pub rate: Option<String>,
}

/// The listening port of a forward, and its clients.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Listen {
    /// Port at which the gateways of the listening side and their Service accept clients. 64000 and
    /// 64001 are reserved, and with `wan` also 64003.
    #[schemars(range(min = 1, max = 65535))]
    pub port: u16,
    /// The protocol of clients. Tcp: each connection is one stream to the target. Socks5: SOCKS5
    /// with the command CONNECT. HttpConnect: HTTP, as to a proxy. Auto: SOCKS5, SOCKS4, SOCKS4a
    /// and HTTP on one port. Default: Tcp.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<ListenProtocol>,
    /// The clients that the gateways' NetworkPolicy admits, if the cluster's network enforces
    /// NetworkPolicies. Required if the Service of the port is of type NodePort or LoadBalancer.
    /// Default: the pods of the tunnel's namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<ListenFrom>,
}

/// The clients of a listening port: pods and addresses, or all.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = rules::listen_from_all_or_some())]
pub struct ListenFrom {
    /// All clients, inside and outside the cluster.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub all: bool,
    /// Namespaces whose pods are admitted. Default with `podLabels`: the tunnel's namespace.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 16),
        inner(
            length(min = 1, max = 63),
            regex(pattern = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")
        )
    )]
    pub namespaces: Vec<String>,
    /// Labels of the admitted pods. Default with `namespaces`: all pods of these namespaces.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 16))]
    pub pod_labels: BTreeMap<String, String>,
    /// Networks of additional clients, such as 192.0.2.0/24. Behind a load balancer or a node port,
    /// use the source addresses that the gateways see.
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

impl Listen {
    /// The protocol of clients, with its default.
    #[must_use]
    pub fn protocol(&self) -> ListenProtocol {
        self.protocol.unwrap_or_default()
    }
}

/// The protocol of a forward's clients. Default: Tcp.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ListenProtocol {
    /// Plain TCP: each connection is one stream to the target.
    #[default]
    Tcp,
    /// SOCKS5 (RFC 1928) with the command CONNECT. Each client names its target.
    Socks5,
    /// HTTP, as to a proxy. Each connection carries a CONNECT request, or one request for an
    /// absolute `http://` URL.
    HttpConnect,
    /// SOCKS5, SOCKS4, SOCKS4a and HTTP on one port. If `target` is set, clients of other protocols
    /// reach this target.
    Auto,
}

/// Authentication of the clients of a SOCKS or HTTP forward.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Auth {
    /// The users and their passwords: a file of at most 64 KiB with a line `name:hash` for each
    /// user, as `htpasswd -nB -C 10 NAME` prints the line. Hashes are bcrypt of version 2y, 2b or
    /// 2a, with cost 4 to 14. The gateways also accept passwords in plain text, but write a warning
    /// to their log. A changed file applies to new clients.
    pub users_secret: UsersSecret,
}

/// A key of a Secret, whose value is a file of users.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "camelCase")]
pub struct UsersSecret {
    /// The Secret with the file, in the tunnel's namespace.
    #[schemars(
        length(min = 1, max = 253),
        regex(pattern = rules::SECRET_NAME)
    )]
    pub name: String,
    /// The key of the file in the Secret. Default: users.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = 253),
        regex(pattern = "^[-_a-zA-Z0-9][-._a-zA-Z0-9]*$")
    )]
    pub key: Option<String>,
}

/// Headers of the PROXY protocol, which contain a client's address.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct ProxyProtocol {
    /// Whether each connection must begin with a PROXY header, which a load balancer sends. Set
    /// this field only if no other sender can reach the port, because any sender can claim any
    /// client address.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub accept: bool,
    /// Whether the target receives a PROXY header (version 2) before the payload. Needs
    /// `carrier.protocol` Native.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub send: bool,
}

/// The target of a forward: exactly one of `service` and `address`.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Target {
    /// A Service of the tunnel's namespace, or of a namespace that permits the reference.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<ServiceTarget>,
    /// A host and a port. The dialling side resolves the name of the host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<AddressTarget>,
}

/// A Service as a target.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ServiceTarget {
    /// Name of the Service.
    #[schemars(
        length(min = 1, max = 63),
        regex(pattern = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")
    )]
    pub name: String,
    /// Namespace of the Service. A namespace other than the tunnel's must permit the reference by a
    /// ReferenceGrant (Gateway API) or a MuxGrant. Default: the tunnel's namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = 63),
        regex(pattern = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")
    )]
    pub namespace: Option<String>,
    /// Number or name of the Service's port.
    #[schemars(extend("minimum" = 1, "maximum" = 65535, "maxLength" = 15, "pattern" = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub port: IntOrString,
}

/// A host as a target.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct AddressTarget {
    /// DNS name or IP address (IPv6 without brackets). The exit resolves the name; with direction
    /// ExitToEntry, the entry resolves it. The name of a Service of another namespace
    /// (NAME.NAMESPACE.svc) needs a grant of that namespace, as with `service`.
    #[schemars(length(min = 1, max = 253), regex(pattern = "^[-_.:a-zA-Z0-9]+$"))]
    pub host: String,
    /// TCP port.
    #[schemars(range(min = 1, max = 65535))]
    pub port: u16,
}
