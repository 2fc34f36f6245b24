//! Parts of the status of several kinds.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with_macros::{apply, skip_serializing_none};

/// Numbers of pods.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub struct GatewayStatus {
    /// Requested pods.
    pub replicas: i32,
    /// Ready pods.
    pub ready_replicas: i32,
}

/// A Service that clients dial.
#[skip_serializing_none]
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct ServiceStatus {
    /// Name of the Service.
    #[schemars(length(max = 63))]
    pub name: String,
    /// The host at which clients reach the ports. Absent: the Service has no address yet.
    #[schemars(length(max = 253))]
    pub host: Option<String>,
    /// The ports of the Service.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 128), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub ports: Vec<ServicePortStatus>,
}

/// A port of a Service.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct ServicePortStatus {
    /// Name of the forward, proxy or reverse port.
    #[schemars(length(max = 15))]
    pub name: String,
    /// The port that clients dial at `host`.
    pub port: u16,
}

/// An address that entries dial.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Endpoint {
    /// DNS name or IP address.
    #[schemars(length(max = 253))]
    pub host: String,
    /// Port.
    pub port: u16,
    /// The protocol of the port.
    pub protocol: EndpointProtocol,
}

/// The protocol of a port.
#[derive(
    JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord,
)]
pub enum EndpointProtocol {
    /// TCP.
    TCP,
    /// UDP.
    UDP,
}

/// The connections between the gateways.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct CarrierStatus {
    /// Carriers that are connected.
    #[serde(default)]
    pub connected: i32,
    /// Transports of the carriers, such as TCP or KCP.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8), inner(length(max = 32)), extend("x-kubernetes-list-type" = "set"))]
    pub transports: Vec<String>,
}

/// The IP packets between the gateways.
#[apply(crate = "serde_with_macros", Vec => #[serde(default, skip_serializing_if = "Vec::is_empty")])]
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct NetworkStatus {
    /// Number of sessions that carry packets.
    #[serde(default)]
    pub sessions: i32,
    /// Addresses that the exit has assigned to the entry.
    #[schemars(length(max = 8), inner(length(max = 64)), extend("x-kubernetes-list-type" = "atomic"))]
    pub addresses: Vec<String>,
    /// DNS servers of the exit's end, which the exit has assigned to the entry.
    #[schemars(length(max = 8), inner(length(max = 64)), extend("x-kubernetes-list-type" = "atomic"))]
    pub dns_servers: Vec<String>,
}

/// The bottleneck of one direction.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Bottleneck {
    /// The direction with the bottleneck.
    pub direction: Direction,
    /// The bottleneck: Idle, CPU, Memory, ReceiveWindow, SendBuffer, CongestionWindow, Application,
    /// or Other, which a gateway of a newer version reports.
    #[schemars(length(min = 1, max = 64), regex(pattern = "^[A-Z][A-Za-z]*$"))]
    pub reason: String,
    /// The end that reports the bottleneck, and the setting to change.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 1024))]
    pub message: String,
}

/// A direction of payload.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From the entry to the exit.
    EntryToExit,
    /// From the exit to the entry.
    ExitToEntry,
}

/// The effective value of a sysctl in the gateways.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct SysctlStatus {
    /// Name with dots, such as net.ipv4.tcp_rmem.
    #[schemars(length(max = 128))]
    pub name: String,
    /// The effective value.
    #[schemars(length(max = 256))]
    pub value: String,
}
