//! [`MuxTunnel`]: two sets of gateways and the forwards between them.

use std::collections::BTreeMap;

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    Carrier, Duration, ExitSsh, Forward, KeySource, MuxTunnelStatus, Network, PodTemplate, Policy,
    Rendezvous, rules,
};

/// A tunnel between entry gateways, to which clients connect, and exit gateways, which dial the
/// targets. The streams of all clients share a few carrier connections.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq)]
#[kube(
    group = "muxtunnel.dev",
    version = "v1alpha1",
    kind = "MuxTunnel",
    plural = "muxtunnels",
    shortname = "mt",
    category = "mux",
    namespaced,
    status = "MuxTunnelStatus",
    derive = "PartialEq",
    doc = "A tunnel between entry gateways, to which clients connect, and exit gateways, which dial the targets. The streams of all clients share a few carrier connections.",
    validation = rules::name(40),
    printcolumn(name = "Ready", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].status", description = "All gateways have the current spec"),
    printcolumn(name = "Available", type_ = "string", json_path = ".status.conditions[?(@.type==\"Available\")].status", description = "A gateway takes connections, and no forward loses all of them"),
    printcolumn(name = "Reason", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].reason", description = "Reason of the condition Ready"),
    printcolumn(name = "Entry", type_ = "string", json_path = ".status.entry.ready", description = "Ready and requested entry gateways, such as 1/2"),
    printcolumn(name = "Exit", type_ = "string", json_path = ".status.exit.ready", description = "Ready and requested exit gateways, such as 1/2"),
    printcolumn(name = "Rendezvous", type_ = "string", json_path = ".status.rendezvous.ready", description = "Ready and requested rendezvous gateways, such as 1/1", priority = "1"),
    printcolumn(name = "Carriers", type_ = "integer", json_path = ".status.carriers.up", description = "Carriers that are up"),
    printcolumn(name = "RTT ms", type_ = "number", json_path = ".status.carriers.rttMilliseconds", description = "Round-trip time of the carriers in milliseconds"),
    printcolumn(name = "Transports", type_ = "string", json_path = ".status.carriers.transports", description = "Transports of the carriers", priority = "1"),
    printcolumn(name = "Limit", type_ = "string", json_path = ".status.bottleneck.reason", description = "Bottleneck of the direction with more traffic"),
    printcolumn(name = "Key", type_ = "string", json_path = ".status.publicKeys[0]", description = "Public key that the other side enters", priority = "1"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = rules::carrier_address_needed(),
    validation = rules::carrier_address_forbidden(),
    validation = rules::carrier_address_has_port(),
    validation = rules::meeting_is_of_one_side(),
    validation = rules::web_socket_host_is_an_entrys(),
    validation = rules::carrier_needed(),
    validation = rules::rendezvous_needed(),
    validation = rules::rendezvous_alone(),
    validation = rules::service_needs_own_exit(),
    validation = rules::listen_from_needed("entry", "service"),
    validation = rules::listen_from_needed("exit", "reverseService"),
    validation = rules::reverse_service_is_of_the_exit(),
    validation = rules::trusted_proxies_are_of_the_exit(),
    validation = rules::trusted_proxies_need_a_port(),
    validation = rules::kcp_has_no_trusted_proxies(),
    validation = rules::quic_has_no_trusted_proxies(),
    validation = rules::ssh_is_of_the_exit(),
    validation = rules::ssh_needs_an_exit(),
    validation = rules::ssh_port_is_no_forwards(),
    validation = rules::ssh_port_is_no_probe(),
    validation = rules::certificates_of_each_end(),
    validation = rules::public_keys_of_an_exit_elsewhere(),
    validation = rules::key_is_of_an_end(),
    validation = rules::reverse_needs_listeners(),
    validation = rules::sources_are_native(),
    validation = rules::forwards_needed(),
    validation = rules::dynamic_needs_policy(),
    validation = rules::policy_is_of_an_exit(),
    validation = rules::wan_port_reserved(),
    validation = rules::network_is_of_gateways(),
    validation = rules::network_has_a_protocol_with_packets(),
    validation = rules::network_has_one_gateway("entry"),
    validation = rules::network_has_one_gateway("exit"),
    validation = rules::network_peers_are_of_an_exit(),
    validation = rules::network_rules_are_of_an_exit()
)]
pub struct MuxTunnelSpec {
    /// The gateways of this MuxTunnel. Both: entries and exits. Entry: only entries, and `carrier`
    /// names the exit of another MuxTunnel. Exit: only exits, for entries of other MuxTunnels.
    /// Rendezvous: a gateway that connects entries and exits of other MuxTunnels. Immutable.
    #[serde(default)]
    #[x_kube(validation = rules::side_immutable())]
    pub side: Side,
    /// Settings of the entry gateways, which dial carriers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entry: Option<Gateway>,
    /// Settings of the exit gateways, which accept carriers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit: Option<Gateway>,
    /// Side Rendezvous: settings of the gateway that connects entries and exits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rendezvous: Option<Rendezvous>,
    /// Listening ports and their targets. A change reaches running gateways without a restart.
    /// Required, except with `network`, or on side Exit with `policy.allow`. Side Rendezvous has no
    /// forwards.
    #[serde(default)]
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    #[x_kube(
        validation = rules::listen_ports_unique(),
        validation = rules::listen_ports_reserved()
    )]
    pub forwards: Vec<Forward>,
    /// Carries IP packets between the networks of both sides, in addition to the streams of
    /// forwards. Default: no IP packets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<Network>,
    /// The connections between the gateways. Required on side Entry, not permitted on side
    /// Rendezvous.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub carrier: Option<Carrier>,
    /// The key of the gateways in security mode PublicKeys. Default: generation 1, which the
    /// operator creates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<KeySource>,
    /// The targets that exit gateways may dial in addition to the targets of forwards. A change
    /// reaches running gateways without a restart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<Policy>,
    /// Time-outs of idle streams. A change reaches running gateways without a restart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeouts: Option<Timeouts>,
    /// Kernel settings of the gateways' pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tuning: Option<Tuning>,
    /// Emulation of a wide-area network between the gateways, for tests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wan: Option<Wan>,
}

/// The gateways that belong to an object.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Side {
    /// Entry and exit gateways.
    #[default]
    Both,
    /// Only entry gateways.
    Entry,
    /// Only exit gateways.
    Exit,
    /// A gateway that connects entries and exits of other MuxTunnels, which cannot dial each other.
    Rendezvous,
}

impl Side {
    /// Whether the object has entry gateways.
    #[must_use]
    pub const fn has_entry(self) -> bool {
        matches!(self, Self::Both | Self::Entry)
    }

    /// Whether the object has exit gateways.
    #[must_use]
    pub const fn has_exit(self) -> bool {
        matches!(self, Self::Both | Self::Exit)
    }
}

/// Settings of the gateways of one side.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = rules::replicas_or_autoscaling(),
    validation = rules::autoscaling_needs_cpu()
)]
pub struct Gateway {
    /// Number of pods. Not permitted with `autoscaling`. Default: 1 when the Deployment is created.
    /// Later, the operator leaves the number unchanged, so `kubectl scale` or another autoscaler may
    /// set it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 32))]
    pub replicas: Option<i32>,
    /// Adapts the number of pods to their CPU usage. This field replaces `replicas`. The cluster
    /// needs a metrics server. `template.resources` must have a request or a limit of CPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub autoscaling: Option<Autoscaling>,
    /// Seconds that a terminating pod waits for the end of its open streams, for example in a
    /// roll-out. Other pods accept the new streams. Streams that are still open after this time are
    /// reset. Default: 25.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 10, max = 86400))]
    pub drain_seconds: Option<u32>,
    /// The Service in front of the gateways. The Service of entries has the ports of forwards. The
    /// Service of exits has the carrier port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<GatewayService>,
    /// Only for exits: the Service that has the listening ports of forwards with direction
    /// ExitToEntry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reverse_service: Option<GatewayService>,
    /// Only for exits: source networks of the load balancers in front of the carrier port, as the
    /// exit's pods see them. Connections from these networks must begin with a header of the PROXY
    /// protocol, version 1 or 2, with the client's address. Connections without a header are
    /// refused. The gateway does not read headers from other addresses. Any sender in these
    /// networks can claim any client address. Not permitted with protocols Auto, QUIC and HTTP3,
    /// and with transport KCP. A change reaches running gateways without a restart. Default: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 64),
        inner(length(min = 3, max = 49), regex(pattern = rules::NETWORK))
    )]
    pub trusted_proxies: Vec<String>,
    /// Only for exits: an additional port, at which users log in with ssh. Default: no ssh port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ssh: Option<Box<ExitSsh>>,
    /// Settings of the gateways' pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<PodTemplate>,
}

/// A HorizontalPodAutoscaler, which sets the number of pods of one side by their CPU usage.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = rules::autoscaling_in_order())]
pub struct Autoscaling {
    /// Least number of pods. Default: 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 32))]
    pub min_replicas: Option<i32>,
    /// Greatest number of pods.
    #[schemars(range(min = 1, max = 32))]
    pub max_replicas: i32,
    /// Target value for the average CPU usage of the pods, in percent of the requested CPU time.
    /// Default: 80.
    #[serde(
        default,
        rename = "targetCPUUtilizationPercentage",
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(range(min = 1, max = 1000))]
    pub target_cpu_utilization_percentage: Option<i32>,
}

/// The Service in front of the gateways of one side.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = rules::traffic_policy_needs_exposure())]
pub struct GatewayService {
    /// Type of the Service. Default: ClusterIP.
    #[serde(rename = "type", default, skip_serializing_if = "Option::is_none")]
    pub type_: Option<ServiceType>,
    /// Annotations, for example for the load balancer of a cloud.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 32))]
    pub annotations: BTreeMap<String, String>,
    /// For types NodePort and LoadBalancer: the nodes that forward connections from outside the
    /// cluster. Default: Cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub external_traffic_policy: Option<ExternalTrafficPolicy>,
}

/// The nodes that forward connections from outside the cluster to a Service's pods. Cluster: every
/// node, and the pods see the address of a node. Local: only nodes with a ready pod, and the pods
/// see the client's address. Default: Cluster.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExternalTrafficPolicy {
    /// Every node forwards to any pod. The pods see the address of a node instead of the client's.
    Cluster,
    /// A node forwards only to its own ready pods, which see the client's address. Nodes without a
    /// ready pod drop the connections.
    Local,
}

impl ExternalTrafficPolicy {
    /// The value for a Service's `spec.externalTrafficPolicy`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Cluster => "Cluster",
            Self::Local => "Local",
        }
    }
}

/// The type of a Service. ClusterIP: reachable only inside the cluster. NodePort: reachable on a
/// port of every node. LoadBalancer: reachable through a load balancer. Default: ClusterIP.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ServiceType {
    /// The Service is reachable only inside the cluster.
    #[default]
    ClusterIP,
    /// The Service is reachable on a port of every node.
    NodePort,
    /// The Service is reachable through a load balancer.
    LoadBalancer,
}

impl ServiceType {
    /// The value for a Service's `spec.type`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ClusterIP => "ClusterIP",
            Self::NodePort => "NodePort",
            Self::LoadBalancer => "LoadBalancer",
        }
    }
}

/// Time-outs of idle streams, and of clients and targets that have vanished. 0s disables a
/// time-out.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, Copy, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Timeouts {
    /// A stream is reset if it transmits no byte in either direction for this time, in whole
    /// seconds. 0s means no time-out. Default: 0s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = rules::timeout_bounded("timeouts.idle"))]
    pub idle: Option<Duration>,
    /// A stream with one closed direction is reset if it transmits no byte for this time, in whole
    /// seconds. 0s means no time-out. Default: 1h.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = rules::timeout_bounded("timeouts.halfOpen"))]
    pub half_open: Option<Duration>,
    /// A gateway probes a client or target that is silent for this time, in whole seconds. A stream
    /// is reset if the client or target does not answer in as much time again. 0s means no probes.
    /// Default: 60s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = rules::keepalive_bounded())]
    pub keepalive: Option<Duration>,
}

/// Kernel settings of the gateways' pods. The pods of applications do not need these settings.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = rules::sysctls_namespaced(),
    validation = rules::sysctls_of_the_operator(),
    validation = rules::sysctls_unsafe(),
    validation = rules::sysctl_values()
)]
pub struct Tuning {
    /// A set of sysctls for a kind of path. Default: None.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<Profile>,
    /// Additional sysctls, which override sysctls of the profile. A Job tests them in its own pod
    /// before the operator sets them in gateways.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub sysctls: Vec<Sysctl>,
    /// Permits sysctls outside Kubernetes' safe set. The nodes must also permit them (kubelet flag
    /// `--allowed-unsafe-sysctls`). If a kubelet refuses a sysctl, running gateways stay unchanged,
    /// and the operator creates no new gateways.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub allow_unsafe: bool,
}

/// A set of sysctls for a kind of path. Wan: enough for about 5 Gbit/s on one connection with a
/// round-trip time of 100 ms. Lan: enough for 10 Gbit/s on one connection with a round-trip time of
/// 12 ms. None: the kernel's defaults, as without a profile.
#[derive(
    JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord,
)]
pub enum Profile {
    /// Receive buffers of up to 128 MiB and send buffers of up to 64 MiB, enough for about 5 Gbit/s
    /// on one connection with a round-trip time of 100 ms.
    Wan,
    /// Socket buffers of up to 16 MiB, enough for 10 Gbit/s on one connection with a round-trip
    /// time of 12 ms.
    Lan,
    /// The kernel's defaults.
    #[default]
    None,
}

/// One sysctl of the gateways' pods.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Sysctl {
    /// Name with dots, such as net.ipv4.tcp_rmem.
    #[schemars(
        length(min = 1, max = 128),
        regex(pattern = "^[a-z0-9]([-_a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-_a-z0-9]*[a-z0-9])?)+$")
    )]
    pub name: String,
    /// Value: one or more words, separated by single spaces.
    #[schemars(
        length(min = 1, max = 128),
        regex(pattern = "^[-_a-zA-Z0-9]+( [-_a-zA-Z0-9]+)*$")
    )]
    pub value: String,
}

/// Emulation of a wide-area network between the gateways, for tests.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = rules::jitter_within_delay())]
pub struct Wan {
    /// One-way delay, the same in both directions. The round-trip time grows by twice this value.
    #[x_kube(validation = rules::delay_bounded("wan.delay"))]
    pub delay: Duration,
    /// Maximum deviation of a packet's delay from `delay`. The deviations are uniformly
    /// distributed. Packets keep their order. Default: 0ms.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jitter: Option<Duration>,
    /// The share of packets that the emulation drops in each direction, such as 0.5%, at most 50%.
    /// Default: 0%.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(max = 8),
        regex(pattern = "^(([0-9]|[1-4][0-9])([.][0-9]{1,4})?|50)%$")
    )]
    pub loss: Option<String>,
    /// Rate of the emulated link in each direction, in bits per second, such as 500kbit, 100Mbit or
    /// 1Gbit. The link's buffer holds the data of one round trip, and at least the data of 50 ms.
    /// Default: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(max = 13),
        regex(pattern = "^([1-9][0-9]{2,8}kbit|[1-9][0-9]{0,5}Mbit|([1-9][0-9]{0,2}|1000)Gbit)$")
    )]
    pub rate: Option<String>,
    /// The mechanism of the emulation. Default: Auto.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backend: Option<Backend>,
    /// The packets that the emulation affects. Default: Carrier.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<Scope>,
}

/// The mechanism of the emulation. Netem: the kernel's `sch_netem`. Nfqueue: a delay line in user
/// space behind NFQUEUE. Auto: Netem if the node supports it, otherwise Nfqueue. Default: Auto.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Backend {
    /// Kernel netem if the node supports netem, otherwise the NFQUEUE delay line.
    #[default]
    Auto,
    /// Kernel netem (`sch_netem`).
    Netem,
    /// A delay line in user space behind NFQUEUE.
    Nfqueue,
}

/// The packets that the emulation affects. Carrier: the packets of carriers. All: all packets
/// except the packets of the admin endpoint. Default: Carrier.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Scope {
    /// The packets of carriers.
    #[default]
    Carrier,
    /// All packets except the packets of the admin endpoint.
    All,
}
