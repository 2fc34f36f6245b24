//! [`MuxTunnel`]: two sets of gateways and the forwards that run between them.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Carrier, Duration, Forward, PodTemplate, Policy, Rendezvous, rules};

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
    validation = rules::keys_of_each_end(),
    validation = rules::reverse_is_native(),
    validation = rules::sources_are_native(),
    validation = rules::forwards_needed(),
    validation = rules::dynamic_needs_policy(),
    validation = rules::policy_is_of_an_exit(),
    validation = rules::wan_port_reserved()
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

/// What the operator saw of a tunnel.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct MuxTunnelStatus {
    /// The generation of the spec that this status speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Ready, Available, CarrierConnected, CertificatesValid, TuningApplied, WanEmulated.
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
    /// The connections between them, as the entry sees them (side Exit: as the exit does). A rendezvous has
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
