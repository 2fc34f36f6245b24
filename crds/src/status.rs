//! The status of a [`MuxTunnel`](crate::MuxTunnel).

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::KeyStatus;

/// The observed state of a tunnel.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct MuxTunnelStatus {
    /// The generation of the spec that this status describes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// The conditions Ready, Available, CarrierConnected, CredentialsValid, TuningApplied,
    /// WanEmulated and NetworkReady. WatchesCurrent exists only while the API server does not
    /// answer a watch.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// The entry gateways.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entry: Option<GatewayStatus>,
    /// The exit gateways.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit: Option<GatewayStatus>,
    /// The gateway of a rendezvous.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rendezvous: Option<GatewayStatus>,
    /// The carriers that the entry reports. On side Exit, the exit reports its carriers, including
    /// ssh connections of users. Absent on side Rendezvous.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub carriers: Option<CarrierStatus>,
    /// Sides Entry and Exit with security mode PublicKeys: the public keys, which the other side
    /// enters. The newest key comes first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 4), inner(length(max = 63)), extend("x-kubernetes-list-type" = "atomic"))]
    pub public_keys: Vec<String>,
    /// The key pairs of `publicKeys`, with their Secrets.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["secretName"]))]
    pub keys: Vec<KeyStatus>,
    /// The bottleneck of the direction with more traffic. The operator writes a bottleneck after at
    /// least two equal observations in a row.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bottleneck: Option<Bottleneck>,
    /// The IP packets of `spec.network`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub packets: Option<PacketStatus>,
    /// The effective values of sysctls in the gateways, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 64))]
    pub sysctls: BTreeMap<String, String>,
}

/// The gateways of one side.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct GatewayStatus {
    /// Requested pods.
    #[serde(default)]
    pub replicas: i32,
    /// Ready pods.
    #[serde(default)]
    pub ready_replicas: i32,
    /// Ready and requested pods, such as 1/2.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 32))]
    pub ready: String,
    /// Entry: the host at which clients reach the ports of forwards. Exit and rendezvous:
    /// `host:port` for carriers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 260))]
    pub address: Option<String>,
    /// Exit: `host:port` for users of ssh.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 260))]
    pub ssh_address: Option<String>,
}

/// The connections between the gateways.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct CarrierStatus {
    /// Carriers that are up.
    #[serde(default)]
    pub up: i32,
    /// Median of the carriers' recent minimum round-trip times, which exclude time in queues. The
    /// operator rounds the median to two significant digits. The operator updates this field if the
    /// median has changed by more than 7 %.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rtt_milliseconds: Option<f64>,
    /// Transports of the carriers, separated by commas, such as TCP or KCP,TCP.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 64))]
    pub transports: String,
}

/// The IP packets between the gateways.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct PacketStatus {
    /// Number of sessions that carry packets. The entry reports this number. On side Exit, the exit
    /// reports the number.
    #[serde(default)]
    pub sessions: i32,
    /// Addresses that the exit has assigned to the entry.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8), extend("x-kubernetes-list-type" = "atomic"))]
    pub addresses: Vec<String>,
    /// DNS servers of the exit's side, which the exit has assigned to the entry.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8), extend("x-kubernetes-list-type" = "atomic"))]
    pub dns_servers: Vec<String>,
    /// Number of packets that all gateways together have dropped since they started, by reason.
    /// Each number is rounded down to one significant digit, for example from 23 to 20.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 32))]
    pub drops: BTreeMap<String, i64>,
}

/// The bottleneck of one direction of a tunnel.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Bottleneck {
    /// The direction with the bottleneck.
    pub direction: Direction,
    /// The bottleneck: Idle, Cpu, Memory, ReceiveWindow, SendBuffer, CongestionWindow, Application,
    /// or Other, which a gateway of a newer version reports.
    #[schemars(length(min = 1, max = 64), regex(pattern = "^[A-Z][A-Za-z]*$"))]
    pub reason: String,
    /// The side that reports the bottleneck, and the setting to change.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 1024))]
    pub message: String,
}

/// A direction of a tunnel.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From the entry to the exit.
    ClientToTarget,
    /// From the exit to the entry.
    TargetToClient,
}
