//! [`MuxTunnel`]: two sets of gateways and the forwards that run between them.

use std::collections::BTreeMap;

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    Carrier, Duration, ExitSsh, Forward, MuxTunnelStatus, Network, PodTemplate, Policy, Rendezvous,
    rules,
};

/// A tunnel: streams enter at the entry gateways, cross in few carrier connections, and leave at the
/// exit gateways towards their targets.
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
    doc = "A tunnel: streams enter at the entry gateways, cross in few carrier connections, and leave at the exit gateways towards their targets.",
    validation = rules::name(40),
    printcolumn(name = "Ready", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].status", description = "All is as asked"),
    printcolumn(name = "Available", type_ = "string", json_path = ".status.conditions[?(@.type==\"Available\")].status", description = "A connection would reach a target"),
    printcolumn(name = "Entry", type_ = "string", json_path = ".status.entry.ready", description = "Entry gateways that are ready, of those asked for"),
    printcolumn(name = "Exit", type_ = "string", json_path = ".status.exit.ready", description = "Exit gateways that are ready, of those asked for"),
    printcolumn(name = "Rendezvous", type_ = "string", json_path = ".status.rendezvous.ready", description = "Rendezvous gateways that are ready, of those asked for", priority = "1"),
    printcolumn(name = "Carriers", type_ = "integer", json_path = ".status.carriers.up", description = "Carriers that are up"),
    printcolumn(name = "RTT", type_ = "number", json_path = ".status.carriers.rttMilliseconds", description = "Round-trip time of the carriers in milliseconds"),
    printcolumn(name = "Transports", type_ = "string", json_path = ".status.carriers.transports", description = "What the carriers run on", priority = "1"),
    printcolumn(name = "Limit", type_ = "string", json_path = ".status.bottleneck.reason", description = "What limits the direction that moves more"),
    printcolumn(name = "Reason", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].reason", description = "Why it is ready or not", priority = "1"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = rules::carrier_address_needed(),
    validation = rules::carrier_address_forbidden(),
    validation = rules::carrier_address_has_port(),
    validation = rules::join_is_an_entrys(),
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
    validation = rules::keys_of_each_end(),
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
    /// Which gateways this object makes. Entry: targets are dialled elsewhere, and `carrier.address`
    /// names the exit there. Exit: streams enter elsewhere. Rendezvous: entries and exits of other objects meet
    /// here. Cannot be changed.
    #[serde(default)]
    #[x_kube(validation = rules::side_immutable())]
    pub side: Side,
    /// Settings of the gateways where streams enter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entry: Option<Gateway>,
    /// Settings of the gateways where targets are dialled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit: Option<Gateway>,
    /// Side Rendezvous: settings of the gateway where others meet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rendezvous: Option<Rendezvous>,
    /// What is listened on and where it leads. A change reaches running gateways without a restart. Side Exit
    /// needs none where `policy.allow` says what may be dialled.
    #[serde(default)]
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    #[x_kube(
        validation = rules::listen_ports_unique(),
        validation = rules::listen_ports_reserved()
    )]
    pub forwards: Vec<Forward>,
    /// IP packets between the networks of both sides, beside the streams of forwards. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<Network>,
    /// The connections between the gateways. Side Entry needs it, and side Rendezvous has none of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub carrier: Option<Carrier>,
    /// Which targets the exit gateways may dial beside those that forwards name. A change reaches running
    /// gateways without a restart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<Policy>,
    /// When streams that nothing happens on are reset. A change reaches running gateways without a
    /// restart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeouts: Option<Timeouts>,
    /// Kernel settings of the gateways' pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tuning: Option<Tuning>,
    /// Emulation of a wide-area network between the gateways, for tests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wan: Option<Wan>,
}

/// Which gateways an object makes.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Side {
    /// Entry and exit.
    #[default]
    Both,
    /// The entry alone.
    Entry,
    /// The exit alone.
    Exit,
    /// Neither: a gateway at which entries and exits meet that cannot dial each other.
    Rendezvous,
}

impl Side {
    /// Whether entry gateways are made.
    #[must_use]
    pub const fn has_entry(self) -> bool {
        matches!(self, Self::Both | Self::Entry)
    }

    /// Whether exit gateways are made.
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
    /// Number of pods. Default: 1, and with `autoscaling` what that decides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 32))]
    pub replicas: Option<i32>,
    /// The number of pods follows the CPU time that they take; instead of `replicas`. The cluster needs a metrics
    /// server, and `template.resources` a request or limit of CPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub autoscaling: Option<Autoscaling>,
    /// Seconds that the open streams of a pod have once it is to end, as in a roll-out; new ones go to other pods.
    /// What is still open then is reset. Default: 25.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 10, max = 86400))]
    pub drain_seconds: Option<u32>,
    /// The Service in front of them: of an entry with the ports of its forwards, of an exit with the carrier port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<GatewayService>,
    /// The Service of an exit with the ports of forwards with direction ExitToEntry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reverse_service: Option<GatewayService>,
    /// Of an exit: networks of the load balancers in front of its carrier port, as the exit's pods see their addresses.
    /// Connections from there have to begin with a header of the PROXY protocol, version 1 or 2, which names the client;
    /// without one they are refused. No header is read from any other address. Any sender in these networks can
    /// name any address. A change reaches running gateways without a restart. Default: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 64),
        inner(length(min = 3, max = 49), regex(pattern = rules::NETWORK))
    )]
    pub trusted_proxies: Vec<String>,
    /// Of an exit: a further port, for users of ssh. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ssh: Option<Box<ExitSsh>>,
    /// Settings of their pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<PodTemplate>,
}

/// How the number of pods of one side follows the CPU time that they take (a HorizontalPodAutoscaler).
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = rules::autoscaling_in_order())]
pub struct Autoscaling {
    /// There are never fewer. Default: 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 32))]
    pub min_replicas: Option<i32>,
    /// There are never more.
    #[schemars(range(min = 1, max = 32))]
    pub max_replicas: i32,
    /// The part of the requested CPU time that a gateway is to take on average. Default: 80.
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
    /// How it is exposed. Default: ClusterIP.
    #[serde(rename = "type", default, skip_serializing_if = "Option::is_none")]
    pub type_: Option<ServiceType>,
    /// Annotations, such as a cloud's load balancer reads.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 32))]
    pub annotations: BTreeMap<String, String>,
    /// Types NodePort and LoadBalancer: which nodes pass connections from outside of the cluster on. Default: Cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub external_traffic_policy: Option<ExternalTrafficPolicy>,
}

/// Which nodes pass connections from outside of the cluster on to a Service's pods.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExternalTrafficPolicy {
    /// Every node, to any pod. The pods see the address of a node instead of the client's.
    Cluster,
    /// Nodes that have a ready pod, to that pod, which sees the client's address. Other nodes drop the connections.
    Local,
}

impl ExternalTrafficPolicy {
    /// The name that a Service's `spec.externalTrafficPolicy` has.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Cluster => "Cluster",
            Self::Local => "Local",
        }
    }
}

/// How a Service is exposed.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ServiceType {
    /// Inside the cluster.
    #[default]
    ClusterIP,
    /// On a port of every node.
    NodePort,
    /// By a load balancer.
    LoadBalancer,
}

impl ServiceType {
    /// The name that a Service's `spec.type` has.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ClusterIP => "ClusterIP",
            Self::NodePort => "NodePort",
            Self::LoadBalancer => "LoadBalancer",
        }
    }
}

/// When streams that nothing happens on are reset. 0s: never.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, Copy, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Timeouts {
    /// Without a byte in either direction for this long, in whole seconds. Default: 0s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = rules::timeout_bounded("timeouts.idle"))]
    pub idle: Option<Duration>,
    /// With one half closed and without a byte for this long, in whole seconds. Default: 1h.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = rules::timeout_bounded("timeouts.halfOpen"))]
    pub half_open: Option<Duration>,
}

/// Kernel settings of the gateways' pods. The applications' own pods need none.
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
    /// Further sysctls; they override those of the profile. Before gateways get them, a Job tries them in a pod of
    /// its own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub sysctls: Vec<Sysctl>,
    /// Allow sysctls that Kubernetes does not count as safe. The nodes must allow them, too
    /// (`--allowed-unsafe-sysctls`): where a kubelet refuses one, running gateways stay as they are, and no new
    /// ones are made.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub allow_unsafe: bool,
}

/// A set of sysctls for a kind of path.
#[derive(
    JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord,
)]
pub enum Profile {
    /// Socket buffers of up to 128 MiB: 10 Gbit/s at 100 ms on one connection.
    Wan,
    /// Socket buffers of up to 16 MiB: 10 Gbit/s at 12 ms on one connection.
    Lan,
    /// The kernel's defaults.
    #[default]
    None,
}

/// One sysctl of the gateways' pods.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Sysctl {
    /// Dotted name.
    #[schemars(
        length(min = 1, max = 128),
        regex(pattern = "^[a-z0-9]([-_a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-_a-z0-9]*[a-z0-9])?)+$")
    )]
    pub name: String,
    /// Value, words parted by single spaces.
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
    /// Delay in each direction: the round-trip time grows by twice this.
    #[x_kube(validation = rules::delay_bounded("wan.delay"))]
    pub delay: Duration,
    /// How much more or less than `delay` a packet may take, each value as likely; packets keep their
    /// order. Default: 0ms.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jitter: Option<Duration>,
    /// The share of packets lost in each direction, such as 0.5%; at most 50%. Default: 0%.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(max = 8),
        regex(pattern = "^(([0-9]|[1-4][0-9])([.][0-9]{1,4})?|50)%$")
    )]
    pub loss: Option<String>,
    /// What the narrowest link carries in each direction, such as 500kbit, 100Mbit or 1Gbit (a second);
    /// its buffer holds a round trip, at least 50 ms. Default: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(max = 13),
        regex(pattern = "^([1-9][0-9]{2,8}kbit|[1-9][0-9]{0,5}Mbit|([1-9][0-9]{0,2}|1000)Gbit)$")
    )]
    pub rate: Option<String>,
    /// What makes it. Default: Auto.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backend: Option<Backend>,
    /// Which packets it happens to. Default: Carrier.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<Scope>,
}

/// What emulates the path.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Backend {
    /// Kernel netem where the node has it, else the NFQUEUE delay line.
    #[default]
    Auto,
    /// Kernel netem (`sch_netem`).
    Netem,
    /// A delay line in user space behind NFQUEUE.
    Nfqueue,
}

/// Which packets the emulation happens to.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Scope {
    /// Those of the carriers.
    #[default]
    Carrier,
    /// All but those of the admin endpoint.
    All,
}
