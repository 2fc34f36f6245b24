//! Listening ports: their clients and their targets.

use kube::KubeSchema;
use muxtunnel_gateway_config::{Accept, Limits, Priority, ProxyListen, ProxyProtocol};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with_macros::skip_serializing_none;

use crate::{Clients, Target, UsersSecretRef, patterns, rules};

/// A port at which gateways listen for clients, and its Service.
#[skip_serializing_none]
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ListenPort {
    /// Unique name. The port of the Service has the same name.
    #[schemars(length(min = 1, max = 15), regex(pattern = patterns::NAME))]
    pub name: String,
    /// Port at which the gateways and their Service accept clients. 64000 and 64001 are reserved, and
    /// with `wanEmulation` also 64003.
    #[schemars(range(min = 1, max = 65535))]
    pub port: u16,
    /// Name of the Service that has the port. Several ports can have one Service. Default: NAME-entry
    /// for forwards and proxies, NAME-reverse for reverse forwards, and NAME-exit-reverse for the
    /// reverse ports of a MuxExit.
    #[schemars(length(min = 1, max = 63), regex(pattern = patterns::NAME))]
    pub service_name: Option<String>,
    /// Services of types NodePort and LoadBalancer: the port of the nodes. Default: the cluster
    /// selects a port.
    #[schemars(range(min = 1, max = 65535))]
    pub node_port: Option<u16>,
    /// The clients that may reach the port. Required if the Service is of type NodePort or
    /// LoadBalancer. Default: type Namespace.
    pub from: Option<Clients>,
}

/// A port at which entry gateways listen, and the targets that exit gateways dial.
#[skip_serializing_none]
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Forward {
    /// The port of the entry gateways.
    #[serde(flatten)]
    pub listen: ListenPort,
    /// The targets in the order of preference. If a dial fails, the exit dials the next target.
    /// `serviceRef` is not permitted with `connect`.
    #[schemars(length(min = 1, max = 8), extend("x-kubernetes-list-type" = "atomic"))]
    pub targets: Vec<Target>,
    /// PROXY headers, which contain the client's address. Default: neither accepted nor sent.
    pub proxy_protocol: Option<ProxyProtocol>,
    /// Priority over streams of other ports on the same carriers. Default: Auto.
    pub priority: Option<Priority>,
    /// Limits of this forward. Default: no limit.
    pub limits: Option<Limits>,
}

/// A port at which exit gateways listen, and the targets that entry gateways dial.
#[skip_serializing_none]
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ReverseForward {
    /// The port of the exit gateways.
    #[serde(flatten)]
    pub listen: ListenPort,
    /// The targets in the order of preference. If a dial fails, the entry dials the next target.
    #[schemars(length(min = 1, max = 8), extend("x-kubernetes-list-type" = "atomic"))]
    pub targets: Vec<Target>,
    /// Priority over streams of other ports on the same carriers. Default: Auto.
    pub priority: Option<Priority>,
    /// Limits of this forward. Default: no limit.
    pub limits: Option<Limits>,
}

/// A port at which entry gateways listen. Each client names its target, which the exit must allow.
#[skip_serializing_none]
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = rules::fallback_of_auto())]
pub struct Proxy {
    /// The port of the entry gateways.
    #[serde(flatten)]
    pub listen: ListenPort,
    /// The protocol of clients.
    pub protocol: ProxyListen,
    /// The users that may connect: a file of at most 64 KiB with a line `name:hash` for each user, as
    /// `htpasswd -nB -C 10 NAME` prints the line. Hashes are bcrypt of version 2y, 2b or 2a, with cost
    /// 4 to 14. The gateways also accept passwords in plain text, but write a warning to their log. A
    /// changed file applies to new clients. Default: every client may connect.
    pub users_secret_ref: Option<UsersSecretRef>,
    /// Required: each connection must begin with a PROXY header, which a load balancer sends. Set
    /// this field only if no other sender can reach the port, because any sender can claim any client
    /// address. Default: connections have no PROXY header.
    pub accept_proxy_protocol: Option<Accept>,
    /// Protocol Auto without `usersSecretRef`: the targets of clients of other protocols, in the order
    /// of preference. Default: connections of other protocols are refused.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8), extend("x-kubernetes-list-type" = "atomic"))]
    pub fallback_targets: Vec<Target>,
    /// Priority over streams of other ports on the same carriers. Default: Auto.
    pub priority: Option<Priority>,
    /// Limits of this proxy. Default: no limit.
    pub limits: Option<Limits>,
}
