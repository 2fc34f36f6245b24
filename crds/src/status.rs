//! The status of a [`MuxTunnel`](crate::MuxTunnel).

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What the operator saw of a tunnel.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct MuxTunnelStatus {
    /// The generation of the spec that this status speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Ready, Available, CarrierConnected, CertificatesValid, TuningApplied, WanEmulated, NetworkReady.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// The gateways where streams enter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entry: Option<GatewayStatus>,
    /// The gateways where targets are dialled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit: Option<GatewayStatus>,
    /// The gateway where others meet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rendezvous: Option<GatewayStatus>,
    /// The connections between them, as the entry sees them (side Exit: as the exit does, which counts those of
    /// users of ssh as well). A rendezvous has
    /// none of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub carriers: Option<CarrierStatus>,
    /// Who the gateways are, and until when.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificates: Option<CertificatesStatus>,
    /// What limits the direction that moves more, seen at least twice in a row.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bottleneck: Option<Bottleneck>,
    /// Values of sysctls in force in the gateways, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 64))]
    pub sysctls: BTreeMap<String, String>,
}

/// The gateways of one side.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct GatewayStatus {
    /// Pods asked for.
    #[serde(default)]
    pub replicas: i32,
    /// Pods that are ready.
    #[serde(default)]
    pub ready_replicas: i32,
    /// Both, such as 1/2.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 32))]
    pub ready: String,
    /// Entry: host under which the forwards' ports are reached. Exit and rendezvous: `host:port` of the
    /// carriers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 260))]
    pub address: Option<String>,
    /// Exit: `host:port` at which users of ssh log in.
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
    /// Median of the least round-trip times that the kernel saw of late, so without queues, two digits;
    /// follows changes of more than 7 %.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rtt_milliseconds: Option<f64>,
    /// What they run on, such as TCP, or KCP,TCP where several do.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 64))]
    pub transports: String,
}

/// The certificates of a tunnel's gateways. No key is in here, nor anything made of one.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct CertificatesStatus {
    /// That of the entry gateways.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entry: Option<CertificateStatus>,
    /// That of the exit gateways.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit: Option<CertificateStatus>,
    /// Side Exit: the bundle with which entries elsewhere join.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub join: Option<JoinStatus>,
    /// Side Entry with `carrier.joinFrom`: the bundle that it joins by.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub joined: Option<JoinedStatus>,
    /// The greatest `muxtunnel.dev/join-generation` that certificates were issued under; 0 where it is not there. It
    /// counts where the annotation is lower or gone, so that what was revoked stays so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub join_generation: Option<i64>,
}

impl CertificatesStatus {
    /// The join generation that no later one may be below.
    #[must_use]
    pub fn least_generation(&self) -> i64 {
        let published = self.join.as_ref().map(|join| join.generation);
        self.join_generation.max(published).unwrap_or_default()
    }

    /// What is left where the operator issues none any more.
    #[must_use]
    pub fn emptied(&self) -> Self {
        let least = self.least_generation();
        Self {
            join_generation: (least > 0).then_some(least),
            ..Self::default()
        }
    }
}

/// One certificate: as the operator issued it last, else as the gateways say of the one that they use.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct CertificateStatus {
    /// The Secret with it.
    #[schemars(length(max = 253))]
    pub secret_name: String,
    /// The SPIFFE ID in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    pub identity: Option<String>,
    /// When it was issued.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub issued_at: Option<Time>,
    /// When it expires. It is renewed once two thirds of the time until then are over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_after: Option<Time>,
    /// SHA-256 of it (DER), in hexadecimal digits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub fingerprint: Option<String>,
    /// The same of the authority that signed it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub authority: Option<String>,
    /// SHA-256 of the authorities that its gateways trust, as they stand in `ca.crt`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub trust: Option<String>,
}

/// The bundle with which entries elsewhere join an exit.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct JoinStatus {
    /// The Secret with it.
    #[schemars(length(max = 253))]
    pub secret_name: String,
    /// Where it says that the exit is; not there where both sides meet at a rendezvous.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 260))]
    pub address: Option<String>,
    /// The join generation that it was made under. Bundles of another one let nobody in.
    pub generation: i64,
    /// When it expires; a newer one is published once two thirds of its time are over.
    pub expires: Time,
    /// SHA-256 of what is no secret in it.
    #[schemars(length(max = 64))]
    pub digest: String,
}

/// The bundle that an entry joins by.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct JoinedStatus {
    /// The Secret with the copy that was made.
    #[schemars(length(max = 253))]
    pub secret_name: String,
    /// When the bundle expires; a newer one comes through the tunnel once two thirds of its time are over.
    pub expires: Time,
    /// Whether it is a newer one than the copy, which came through the tunnel.
    pub renewed: bool,
}

/// What limits one direction of a tunnel.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Bottleneck {
    /// Which direction.
    pub direction: Direction,
    /// One word: Idle, Cpu, Memory, ReceiveWindow, SendBuffer, CongestionWindow or Application.
    #[schemars(length(min = 1, max = 64), regex(pattern = "^[A-Z][A-Za-z]*$"))]
    pub reason: String,
    /// Where it is, and what to change.
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
