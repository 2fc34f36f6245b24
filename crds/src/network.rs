//! IP packets between the networks of both sides.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::rules;

/// A TUN interface in the pod of each gateway. The interfaces of both sides exchange IP packets,
/// such as TCP, UDP and ICMP. Set the same networks on both sides. An init container with NET_ADMIN
/// and MKNOD creates the interface, so the namespace needs the Pod Security level `privileged`. The
/// gateway itself has no capability. The chart must be installed with `network.enabled`. A change
/// restarts the gateways.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = rules::network_pool_has_one_queue())]
pub struct Network {
    /// Networks at the entry's side, such as 10.72.0.1/32 or fd00:72::/64. Instead of 0.0.0.0/0,
    /// use 0.0.0.0/1 and 128.0.0.0/1.
    #[serde(rename = "entryCIDRs")]
    #[schemars(
        length(min = 1, max = 64),
        inner(length(min = 3, max = 49), regex(pattern = rules::NETWORK)),
        extend("x-kubernetes-list-type" = "set")
    )]
    pub entry_cidrs: Vec<String>,
    /// Networks at the exit's side. They must not contain the address of the exit's Service,
    /// because the carrier's own packets would then enter the tunnel.
    #[serde(rename = "exitCIDRs")]
    #[schemars(
        length(min = 1, max = 64),
        inner(length(min = 3, max = 49), regex(pattern = rules::NETWORK)),
        extend("x-kubernetes-list-type" = "set")
    )]
    pub exit_cidrs: Vec<String>,
    /// Addresses of the interface in the entry's pod, within `entryCIDRs`. Containers of that pod
    /// use them as source addresses. Default: none, so the pod sends only packets that it forwards
    /// for other hosts within `entryCIDRs`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 16),
        inner(length(min = 2, max = 45), regex(pattern = rules::ADDRESS)),
        extend("x-kubernetes-list-type" = "set")
    )]
    pub entry_addresses: Vec<String>,
    /// Addresses of the interface in the exit's pod, within `exitCIDRs`. Default: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 16),
        inner(length(min = 2, max = 45), regex(pattern = rules::ADDRESS)),
        extend("x-kubernetes-list-type" = "set")
    )]
    pub exit_addresses: Vec<String>,
    /// MTU of the interface in bytes. Default: 1500, or 1400 with protocol QUIC, whose datagrams
    /// must fit into the path MTU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1280, max = 65535))]
    pub mtu: Option<u16>,
    /// Queues of the interface, each with its own worker and carriers. All packets of a flow use
    /// one queue, so they are not reordered. Default: 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 4))]
    pub queues: Option<u16>,
    /// How the entry's pod forwards packets between the TUN interface and its other interfaces. None:
    /// the pod forwards no packets. Route: in both directions. SNAT: only connections of other hosts
    /// into the tunnel, with an address of `entryAddresses` as the source. Route and SNAT need the
    /// value 1 of the pod's sysctl net.ipv4.ip_forward for IPv4, and of
    /// net.ipv6.conf.all.forwarding for IPv6. If the node does not set them, use `tuning.sysctls`.
    /// Not permitted on side Exit. Default: None.
    #[serde(default, skip_serializing_if = "NetworkForwarding::is_none")]
    pub entry_forwarding: NetworkForwarding,
    /// How the exit's pod forwards packets between the TUN interface and its other interfaces. None:
    /// the pod forwards no packets. Route: in both directions. SNAT: only connections out of the
    /// tunnel to other hosts, with the pod's address as the source, so these hosts need no route
    /// back. Route and SNAT need the same sysctls as in `entryForwarding`. Not permitted on side
    /// Entry. Default: None.
    #[serde(default, skip_serializing_if = "NetworkForwarding::is_none")]
    pub exit_forwarding: NetworkForwarding,
    /// Side Exit: the networks of each entry. Without `peers` and `pool`, one entry at a time has
    /// all networks of `entryCIDRs`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["identity"]))]
    pub peers: Vec<NetworkPeer>,
    /// Side Exit: networks from which the exit assigns each entry an address. Set at most one IPv4
    /// network and one IPv6 network, both within `entryCIDRs`. The entry receives its address over
    /// its session. `pool` needs `queues: 1`. Default: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 2),
        inner(length(min = 3, max = 49), regex(pattern = rules::NETWORK)),
        extend("x-kubernetes-list-type" = "set")
    )]
    pub pool: Vec<String>,
    /// DNS servers of the exit's side, which entries receive over their sessions. Not permitted on
    /// side Entry. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dns: Option<NetworkDns>,
    /// Side Exit: whether entries may send packets to one another. Default: false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub peers_reach_each_other: bool,
    /// Permitted destinations of packets from entries. Not permitted on side Entry. Default:
    /// `exitCIDRs`, and with `peersReachEachOther` also `entryCIDRs`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub allow: Vec<NetworkRule>,
    /// Forbidden destinations of packets from entries. These rules override `allow`. Not permitted
    /// on side Entry. Default: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub deny: Vec<NetworkRule>,
}

/// How the pod of one end forwards packets between the TUN interface and its other interfaces.
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

impl NetworkForwarding {
    #[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
    fn is_none(&self) -> bool {
        *self == Self::None
    }
}

/// The networks of one entry.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct NetworkPeer {
    /// The identity of the entry: a name in its certificate, or its public key.
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

/// DNS servers of the exit's side.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct NetworkDns {
    /// Addresses of the DNS servers, within `exitCIDRs`. Default: the servers of the exit's pod
    /// that are within `exitCIDRs`, usually the cluster's.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 3),
        inner(length(min = 2, max = 45), regex(pattern = rules::ADDRESS)),
        extend("x-kubernetes-list-type" = "set")
    )]
    pub servers: Vec<String>,
    /// Search domains. Default: the search domains of the exit's pod, or none if `servers` is set.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 6),
        inner(length(min = 1, max = 253), regex(pattern = rules::DOMAIN)),
        extend("x-kubernetes-list-type" = "atomic")
    )]
    pub domains: Vec<String>,
}

/// Destinations of packets, by network and port.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = rules::network_ports_in_order())]
pub struct NetworkRule {
    /// A network, such as 10.20.0.0/16. Default: every address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 3, max = 49), regex(pattern = rules::NETWORK))]
    pub cidr: Option<String>,
    /// The destination port of TCP or UDP. Default: every port, and packets without ports, such as
    /// ICMP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65535))]
    pub port: Option<u16>,
    /// The last port of a range that begins with `port`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65535))]
    pub end_port: Option<u16>,
}
