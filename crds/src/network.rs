//! IP packets between the networks of both ends.

use std::net::IpAddr;

use kube::KubeSchema;
use muxtunnel_gateway_config::{Cidr, NetworkDns};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with_macros::{apply, skip_serializing_none};

use crate::{patterns, rules};

/// A TUN interface in the pod of each gateway. The interfaces of both ends exchange IP packets,
/// such as TCP, UDP and ICMP. An init container with NET_ADMIN and MKNOD creates the interface, so
/// the namespace needs the Pod Security level `privileged`. The gateway itself has no capability.
/// The MuxClass must permit Network. A change restarts the gateways.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Network {
    /// The entry's end.
    pub entry: NetworkEnd,
    /// The exit's end. Its networks must not contain the address of the exit's Service, because the
    /// carrier's own packets would then enter the tunnel. With `connect`, only `cidrs` is permitted.
    pub exit: NetworkEnd,
    /// Settings of the interfaces, and the rules for packets.
    #[serde(flatten)]
    pub settings: NetworkSettings,
}

/// A TUN interface in the pod of the exit's gateway, which exchanges IP packets with the interfaces
/// of entries. An init container with NET_ADMIN and MKNOD creates the interface, so the namespace
/// needs the Pod Security level `privileged`. The gateway itself has no capability. The MuxClass must
/// permit Network. A change restarts the gateway.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = rules::network_pool_has_one_queue(),
    validation = rules::network_pools_of_both_families(),
)]
pub struct ExitNetwork {
    /// The exit's end.
    #[serde(flatten)]
    pub end: NetworkEnd,
    /// The networks that entries may have. They contain `networkCIDRs` of every MuxPeer, and
    /// `addressPools`.
    #[serde(rename = "peerCIDRs")]
    #[schemars(length(min = 1, max = 64), inner(regex(pattern = patterns::NETWORK)), extend("x-kubernetes-list-type" = "set"))]
    pub peer_cidrs: Vec<Cidr>,
    /// Networks from which the exit assigns an address to each entry without `networkCIDRs`. Set at
    /// most one IPv4 network and one IPv6 network, both within `peerCIDRs`. The entry receives its
    /// address over its session. This field needs `queues` 1. Default: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 2), inner(regex(pattern = patterns::NETWORK)), extend("x-kubernetes-list-type" = "set"))]
    pub address_pools: Vec<Cidr>,
    /// Whether entries may send packets to one another. Default: false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub peers_reach_each_other: bool,
    /// Settings of the interface, and the rules for packets.
    #[serde(flatten)]
    pub settings: NetworkSettings,
}

/// Settings of an interface, and the rules for packets from entries.
#[skip_serializing_none]
#[apply(crate = "serde_with_macros", Vec => #[serde(default, skip_serializing_if = "Vec::is_empty")])]
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct NetworkSettings {
    /// MTU of the interface in bytes. Default: 1500, or 1400 with protocol QUIC, whose datagrams
    /// must fit into the path MTU.
    #[schemars(range(min = 1280, max = 65535))]
    pub mtu: Option<u16>,
    /// Queues of the interface, each with its own worker and carriers. All packets of a flow use
    /// one queue, so they are not reordered. Default: 1.
    #[schemars(range(min = 1, max = 4))]
    pub queues: Option<u16>,
    /// DNS servers of the exit's end, which entries receive over their sessions. Not permitted in a
    /// MuxTunnel with `connect`. Default: none.
    pub dns: Option<NetworkDns>,
    /// Permitted destinations of packets from entries. Not permitted in a MuxTunnel with `connect`.
    /// Default: the networks of the exit, and with `peersReachEachOther` also those of entries.
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "atomic"))]
    pub allow: Vec<NetworkRule>,
    /// Forbidden destinations of packets from entries. These rules override `allow`. Not permitted in
    /// a MuxTunnel with `connect`. Default: none.
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "atomic"))]
    pub deny: Vec<NetworkRule>,
}

/// The networks of one end.
#[skip_serializing_none]
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct NetworkEnd {
    /// Networks at this end, such as 10.72.0.1/32 or fd00:72::/64. Instead of 0.0.0.0/0, use
    /// 0.0.0.0/1 and 128.0.0.0/1.
    #[schemars(length(min = 1, max = 64), inner(regex(pattern = patterns::NETWORK)), extend("x-kubernetes-list-type" = "set"))]
    pub cidrs: Vec<Cidr>,
    /// Addresses of the interface in the pod, within `cidrs`. Containers of that pod use them as
    /// source addresses. Default: none, so the pod sends only packets that it forwards for other
    /// hosts within `cidrs`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), inner(length(min = 2, max = 45)), extend("x-kubernetes-list-type" = "set"))]
    pub addresses: Vec<IpAddr>,
    /// How the pod forwards packets.
    pub forwarding: Option<NetworkForwarding>,
}

/// How the pod of one end forwards packets between the TUN interface and its other interfaces. None:
/// the pod forwards no packets. Route: in both directions. SNAT: only connections from the entry's
/// side to the exit's side. Their source is an address of `addresses` at the entry, and the pod's
/// address at the exit, so hosts at the exit's side need no route back. Route and SNAT need the value
/// 1 of the pod's sysctl net.ipv4.ip_forward for IPv4, and of net.ipv6.conf.all.forwarding for IPv6.
/// If the node does not set them, use `tuning.sysctls`. Default: None.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum NetworkForwarding {
    /// The pod forwards no packets.
    #[default]
    None,
    /// The pod forwards packets in both directions, with their source addresses.
    Route,
    /// The pod forwards connections from the entry's side to the exit's side, and translates their
    /// source addresses.
    #[serde(rename = "SNAT")]
    Snat,
}

/// Destinations of packets, by network and port.
#[skip_serializing_none]
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = rules::network_ports_in_order())]
pub struct NetworkRule {
    /// A network, such as 10.20.0.0/16. Default: every address.
    #[schemars(regex(pattern = patterns::NETWORK))]
    pub cidr: Option<Cidr>,
    /// The destination port of TCP or UDP. Default: every port, and packets without ports, such as
    /// ICMP.
    #[schemars(range(min = 1, max = 65535))]
    pub port: Option<u16>,
    /// The last port of a range that begins with `port`.
    #[schemars(range(min = 1, max = 65535))]
    pub end_port: Option<u16>,
}
