//! [`MuxPeer`]: one entry that may use an exit.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use muxtunnel_gateway_config::{Cidr, ExpirationTime, PeerLimits};
use serde::{Deserialize, Serialize};
use serde_with_macros::{apply, skip_serializing_none};

use crate::{ExitRef, patterns, rules};

/// One entry that may use an exit of its namespace. Deletion ends the carriers and the streams of the
/// entry.
#[skip_serializing_none]
#[apply(crate = "serde_with_macros", Vec => #[serde(default, skip_serializing_if = "Vec::is_empty")])]
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq)]
#[kube(
    group = "muxtunnel.dev",
    version = "v1alpha1",
    kind = "MuxPeer",
    plural = "muxpeers",
    shortname = "mp",
    category = "mux",
    namespaced,
    status = "MuxPeerStatus",
    derive = "PartialEq",
    doc = "One entry that may use an exit of its namespace. Deletion ends the carriers and the streams of the entry.",
    validation = rules::label_name()
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = rules::peer_identity(),
    validation = rules::ttl_needs_expiration(),
    // The gateways of the former exit would not notice the change.
    validation = rules::immutable("exitRef.name", "MuxPeer"),
)]
pub struct MuxPeerSpec {
    /// The exit that the peer may use. Immutable.
    pub exit_ref: ExitRef,
    /// The keys of the peer, from `status.publicKeys` of its MuxTunnel or from `muxgate keygen`.
    /// Several keys are valid while the peer replaces its key. Required if the exit's security mode is
    /// PublicKeys.
    #[schemars(length(min = 1, max = 4), inner(length(max = 63), regex(pattern = patterns::ENTRY_KEY)), extend("x-kubernetes-list-type" = "set"))]
    pub public_keys: Vec<String>,
    /// Names of which the peer's certificate must contain at least one: DNS names, IP addresses and
    /// URIs. A name that ends in `/*` stands for every name with this prefix. Required if the exit's
    /// security mode is Certificates.
    #[schemars(length(min = 1, max = 32), inner(length(min = 1, max = 256), regex(pattern = patterns::PEER_NAME)), extend("x-kubernetes-list-type" = "set"))]
    pub certificate_names: Vec<String>,
    /// Whether the exit refuses the peer. True ends its carriers and streams, and keeps the object.
    /// Default: false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub suspend: bool,
    /// The time from which the exit refuses the peer, by the clock of the exit's gateways. Its
    /// carriers and streams then end. Default: never.
    pub expiration_time: Option<ExpirationTime>,
    /// Seconds after `expirationTime` until the operator deletes the object. Default: never.
    #[schemars(range(min = 0, max = 31_536_000))]
    pub ttl_seconds_after_expiration: Option<i32>,
    /// The targets that the peer may reach, within the targets that the exit permits. Default: all
    /// targets that the exit permits.
    #[schemars(length(max = 32), extend("x-kubernetes-list-type" = "atomic"))]
    pub allow: Vec<crate::Rule>,
    /// The targets that the peer may not reach. These rules override `allow`.
    #[schemars(length(max = 32), extend("x-kubernetes-list-type" = "atomic"))]
    pub deny: Vec<crate::Rule>,
    /// The ports of the exit that the peer may serve: names of `reversePorts` of the MuxExit. If several
    /// MuxPeers name a port, the oldest one has it. Default: none.
    #[schemars(length(max = 16), inner(length(min = 1, max = 15), regex(pattern = patterns::NAME)), extend("x-kubernetes-list-type" = "set"))]
    pub reverse_ports: Vec<String>,
    /// The networks at the entry's side, within `network.peerCIDRs` of the MuxExit. Default: an address
    /// of `network.addressPools`.
    #[serde(rename = "networkCIDRs")]
    #[schemars(length(max = 64), inner(regex(pattern = patterns::NETWORK)), extend("x-kubernetes-list-type" = "set"))]
    pub network_cidrs: Vec<Cidr>,
    /// Limits of the peer's carriers and streams. Default: at most 64 carriers.
    pub limits: Option<PeerLimits>,
}

/// The observed state of a peer.
#[skip_serializing_none]
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct MuxPeerStatus {
    /// The generation of the spec that this status describes.
    pub observed_generation: Option<i64>,
    /// The conditions Accepted, Programmed, Connected and Ready.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// Carriers of the peer.
    pub carriers: Option<i32>,
    /// The generation of the exit's key on the peer's last carrier. A peer with an older number still
    /// needs the older key. If the exit's gateways differ, the lowest number. Absent: an own Secret, or
    /// not known.
    pub exit_key_generation: Option<i32>,
    /// When the peer last had a carrier. The operator writes the time when Connected changes, and
    /// once a day while the peer is connected.
    pub last_seen_time: Option<Time>,
}
