//! IP packets between the networks of both sides.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::rules;

/// An interface (TUN) in the pod of each gateway, by which IP packets go to the other side and come from there: TCP, UDP,
/// ICMP. Both sides name the same networks. An init container with NET_ADMIN and MKNOD makes the interface, so the
/// namespace needs the Pod Security level `privileged`; the gateway has no capability. The chart's value
/// `network.enabled` permits it. A change restarts the gateways.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Network {
    /// Networks at the entry's side, such as 10.72.0.1/32 or fd00:72::/64. Not every address (0.0.0.0/0): name its halves.
    #[serde(rename = "entryCIDRs")]
    #[schemars(
        length(min = 1, max = 64),
        inner(length(min = 3, max = 49), regex(pattern = rules::NETWORK)),
        extend("x-kubernetes-list-type" = "set")
    )]
    pub entry_cidrs: Vec<String>,
    /// Networks at the exit's side. The address of the exit's Service must not be one of them: the carrier would run inside
    /// itself.
    #[serde(rename = "exitCIDRs")]
    #[schemars(
        length(min = 1, max = 64),
        inner(length(min = 3, max = 49), regex(pattern = rules::NETWORK)),
        extend("x-kubernetes-list-type" = "set")
    )]
    pub exit_cidrs: Vec<String>,
    /// Addresses of the interface in the entry's pod, within `entryCIDRs`: containers of that pod send from there. Default:
    /// none, so that packets alone pass that come from elsewhere with an address of `entryCIDRs`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 16),
        inner(length(min = 2, max = 45), regex(pattern = rules::ADDRESS)),
        extend("x-kubernetes-list-type" = "set")
    )]
    pub entry_addresses: Vec<String>,
    /// The same of the exit's pod, within `exitCIDRs`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 16),
        inner(length(min = 2, max = 45), regex(pattern = rules::ADDRESS)),
        extend("x-kubernetes-list-type" = "set")
    )]
    pub exit_addresses: Vec<String>,
    /// MTU of the interface in bytes. Default: 1500, and 1400 with protocol QUIC, whose datagrams have to fit the path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1280, max = 65535))]
    pub mtu: Option<u16>,
    /// Queues of the interface, each with a worker and carriers of its own. A flow has one of them, so that it is not reordered.
    /// Default: 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 4))]
    pub queues: Option<u16>,
    /// Pods of the gateways pass packets on between the interface and their other interfaces, such as eth0 or one of a Multus
    /// attachment. It needs net.ipv4.ip_forward and net.ipv6.conf.all.forwarding to be 1 in the pod, of the IP versions that
    /// are carried: set them by `tuning.sysctls` where the node does not. Default: false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub forward: bool,
    /// Gateways translate the source of packets that they pass on: what comes out of the tunnel gets the address of the
    /// gateway's pod, so hosts of the other side need no route back; what enters the tunnel gets the address of the interface
    /// (`entryAddresses`, `exitAddresses`). It includes `forward`. Connections to hosts behind a gateway begin at the other side
    /// then. Default: false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub snat: bool,
    /// Side Exit: which entry has which of `entryCIDRs`. Default: one entry at a time has all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["identity"]))]
    pub peers: Vec<NetworkPeer>,
    /// Side Exit: whether entries reach one another. Default: false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub peers_reach_each_other: bool,
    /// Of an exit: where packets of entries may go. Default: to all of `exitCIDRs`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub allow: Vec<NetworkRule>,
    /// Of an exit: where they may not go, whatever is allowed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub deny: Vec<NetworkRule>,
}

/// The networks of one entry.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct NetworkPeer {
    /// The name or public key that its carriers prove.
    #[schemars(length(min = 1, max = 256), regex(pattern = "^[-_.:/+=@%a-zA-Z0-9]+$"))]
    pub identity: String,
    /// Networks within `entryCIDRs`.
    #[serde(rename = "CIDRs")]
    #[schemars(
        length(min = 1, max = 64),
        inner(length(min = 3, max = 49), regex(pattern = rules::NETWORK))
    )]
    pub cidrs: Vec<String>,
}

/// Some destinations of packets.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = rules::network_ports_in_order())]
pub struct NetworkRule {
    /// A network, such as 10.20.0.0/16. Default: every address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 3, max = 49), regex(pattern = rules::NETWORK))]
    pub cidr: Option<String>,
    /// The port of TCP or UDP. Default: every port, and what has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65535))]
    pub port: Option<u16>,
    /// The last port of a range that begins with `port`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65535))]
    pub end_port: Option<u16>,
}
