//! [`MuxBenchmark`]: a matrix of measurements that compare a tunnel with the direct path.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    CongestionControl, Duration, Gateway, Pool, Profile, Protocol, Resources, Security, rules,
};

/// A matrix of measurements. Each combination of a delay and a tuning is an environment, in which
/// every path, protocol and number of connections is measured. The log of the benchmark's Job
/// contains the figures.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq)]
#[kube(
    group = "muxtunnel.dev",
    version = "v1alpha1",
    kind = "MuxBenchmark",
    plural = "muxbenchmarks",
    shortname = "mb",
    category = "mux",
    namespaced,
    status = "MuxBenchmarkStatus",
    derive = "PartialEq",
    doc = "A matrix of measurements that compare a tunnel with the direct path.",
    validation = rules::name(28),
    validation = rules::spec_immutable(),
    printcolumn(name = "Complete", type_ = "string", json_path = ".status.conditions[?(@.type==\"Complete\")].status", description = "All cells were measured"),
    printcolumn(name = "Failed", type_ = "string", json_path = ".status.conditions[?(@.type==\"Failed\")].status", description = "Some cells were not measured"),
    printcolumn(name = "Cells", type_ = "string", json_path = ".status.progress", description = "Finished cells and all cells, such as 7/24"),
    printcolumn(name = "Environment", type_ = "string", json_path = ".status.environment", description = "The environment that is measured now"),
    printcolumn(name = "Best", type_ = "number", json_path = ".status.summary.bestRatio", description = "Highest ratio of the tunnel's throughput to the throughput of the direct path", priority = "1"),
    printcolumn(name = "Worst", type_ = "number", json_path = ".status.summary.worstRatio", description = "Lowest ratio of the tunnel's throughput to the throughput of the direct path", priority = "1"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = rules::warm_up_shorter(),
    validation = rules::native_measured("pool"),
    validation = rules::native_measured("resume"),
    validation = rules::native_measured_once(),
    validation = rules::quic_measured_has_tls(),
    validation = rules::hbone_measured_without_keys(),
    validation = rules::network_measured_by_one_protocol(),
    validation = rules::udp_measured_through_the_network(),
    validation = rules::network_measured_with_one_gateway("entry"),
    validation = rules::network_measured_with_one_gateway("exit")
)]
pub struct MuxBenchmarkSpec {
    /// The tunnel that is measured.
    pub tunnel: BenchmarkTunnel,
    /// The program that measures throughput.
    #[serde(default)]
    pub tool: Tool,
    /// Numbers of parallel connections.
    #[serde(default = "connections")]
    #[schemars(length(min = 1, max = 8), inner(range(min = 1, max = 128)), extend("x-kubernetes-list-type" = "set"))]
    pub connections: Vec<i32>,
    /// Emulated one-way delays. The round-trip time grows by twice the delay.
    #[serde(default = "delays")]
    #[schemars(length(min = 1, max = 8), extend("x-kubernetes-list-type" = "set"))]
    #[x_kube(validation = rules::delays_bounded())]
    pub delays: Vec<Duration>,
    /// Sysctl profiles of the gateways and of the direct path. The benchmark measures each profile.
    #[serde(default = "tunings")]
    #[schemars(length(min = 1, max = 8), extend("x-kubernetes-list-type" = "set"))]
    pub tunings: Vec<Profile>,
    /// The paths that are measured. Path Network needs exactly one of the protocols Native, Auto
    /// and QUIC in `protocols`. The path also needs the chart's value `network.enabled`, and a
    /// namespace with the Pod Security level `privileged`.
    #[serde(default = "paths")]
    #[schemars(length(min = 1, max = 8), extend("x-kubernetes-list-type" = "set"))]
    pub paths: Vec<Path>,
    /// Mux protocols. Each protocol has its own tunnel. All tunnels are compared with one direct
    /// path. The path Network has an additional tunnel. Do not list both Native and Auto, because
    /// the results name both of them Native.
    #[serde(default = "protocols")]
    #[schemars(length(min = 1, max = 8), extend("x-kubernetes-list-type" = "set"))]
    pub protocols: Vec<Protocol>,
    /// Duration of one measurement, including the warm-up.
    #[serde(default = "duration")]
    #[x_kube(validation = rules::measurement_bounded())]
    pub duration: Duration,
    /// Length of the warm-up at the start of each measurement. The figures exclude the bytes of the
    /// warm-up.
    #[serde(default = "warm_up")]
    pub warm_up: Duration,
    /// Number of measurements of each cell. The figure of a cell is the median of its measurements.
    #[serde(default = "rounds")]
    #[schemars(range(min = 1, max = 9))]
    pub rounds: i32,
    /// Settings of the measurement with UDP datagrams. Needs Network in `paths`. The benchmark
    /// sends datagrams on the paths Network and Direct.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub udp: Option<BenchmarkUdp>,
    /// Compute resources of the runner's container and of each agent's container: CPU, memory and
    /// ephemeral storage. On the path Network, agents run in the gateways' pods, with the resources
    /// of the gateways. Default: requests of 10m CPU and 16Mi memory, and no limits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<Resources>,
    /// Seconds after the end of the Job until the Job and its log are deleted. Default: never. The
    /// ConfigMap with the results is not deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 31_536_000))]
    pub ttl_seconds_after_finished: Option<i32>,
}

fn connections() -> Vec<i32> {
    vec![1, 2, 10]
}

fn delays() -> Vec<Duration> {
    vec![Duration::from_millis(50), Duration::from_millis(0)]
}

fn tunings() -> Vec<Profile> {
    vec![Profile::None, Profile::Wan]
}

fn paths() -> Vec<Path> {
    vec![Path::Direct, Path::Tunnel]
}

fn protocols() -> Vec<Protocol> {
    vec![Protocol::Native]
}

fn duration() -> Duration {
    Duration::from_millis(30_000)
}

fn warm_up() -> Duration {
    Duration::from_millis(5_000)
}

fn rounds() -> i32 {
    3
}

/// The tunnel that a benchmark measures. The matrix determines its forwards, delay and tuning.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct BenchmarkTunnel {
    /// The connections between the gateways.
    pub carrier: BenchmarkCarrier,
    /// Settings of the entry gateways, which dial carriers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entry: Option<Gateway>,
    /// Settings of the exit gateways, which accept carriers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit: Option<Gateway>,
}

/// The connections between the gateways. The matrix determines their protocol.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = rules::pool_needs_resume(),
    validation = rules::certificates_of_both_ends()
)]
pub struct BenchmarkCarrier {
    /// Congestion control of the carriers. Default: Auto.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub congestion_control: Option<CongestionControl>,
    /// Protocols Native and Auto: the number of carriers of each session. Each worker of an entry
    /// has a session with each exit gateway, but with at most 4. Default: 1 to 4, or 1 if `resume`
    /// is false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<Pool>,
    /// Protocols Native and Auto: whether streams survive the loss of their carrier. Default: true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resume: Option<bool>,
    /// Security of the carriers. Default: mode PublicKeys.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub security: Option<Security>,
}

/// UDP datagrams at a fixed rate. One run of `duration` is measured for each delay and tuning.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct BenchmarkUdp {
    /// Rate of payload in bits per second, from 100kbit to 10Gbit, such as 500kbit, 100Mbit or
    /// 1Gbit. Default: 100Mbit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(max = 11),
        regex(pattern = "^([1-9][0-9]{2,6}kbit|([1-9][0-9]{0,3}|10000)Mbit|([1-9]|10)Gbit)$")
    )]
    pub rate: Option<String>,
}

/// The program that measures throughput.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Tool {
    /// iperf 2. The figures are the receiver's measurements.
    #[default]
    Iperf2,
}

/// A path of the traffic. Direct: from client to server without a tunnel. Tunnel: through the
/// tunnel. Network: as IP packets through the interfaces of the gateways.
#[derive(
    JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord,
)]
pub enum Path {
    /// The client connects to the server without a tunnel. The path has the emulated delay, and the
    /// pods have the gateways' sysctls.
    Direct,
    /// The client connects through the tunnel. The pods of client and server have the kernel's
    /// default sysctls.
    Tunnel,
    /// The client reaches the server by IP packets between the interface addresses of the entry and
    /// of the exit (`spec.network` of a MuxTunnel). Client and server run in the pods of the
    /// gateways, because no other pod has a route to the interfaces. So client and server have the
    /// gateways' sysctls.
    Network,
}

/// The observed state of a benchmark.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct MuxBenchmarkStatus {
    /// The generation of the spec that this status describes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// The conditions Progressing, Complete and Failed. If Complete or Failed is true, the
    /// benchmark has ended.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// When the Job was created.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_time: Option<Time>,
    /// When Complete or Failed became true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completion_time: Option<Time>,
    /// Name of the Job. Its log contains the figures.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub job: Option<String>,
    /// Name of the ConfigMap with the results.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub results_config_map: Option<String>,
    /// The environment that is being measured, such as `50ms Wan`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 128))]
    pub environment: Option<String>,
    /// Finished cells and all cells, such as `7/24`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub progress: Option<String>,
    /// A summary of the results.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub summary: Option<BenchmarkSummary>,
}

/// A summary of the results of a benchmark.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct BenchmarkSummary {
    /// Number of cells by outcome.
    #[serde(default)]
    pub cells: BenchmarkCells,
    /// Highest ratio in any cell: the throughput of the tunnel divided by the throughput of the
    /// direct path. A ratio of 1 means equal throughput.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub best_ratio: Option<f64>,
    /// Lowest ratio in any cell: the throughput of the tunnel divided by the throughput of the
    /// direct path. A ratio of 1 means equal throughput.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worst_ratio: Option<f64>,
}

/// Number of cells of a benchmark by outcome.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct BenchmarkCells {
    /// All cells of the matrix.
    #[serde(default)]
    pub total: i32,
    /// Cells that were measured.
    #[serde(default)]
    pub ok: i32,
    /// Cells that were not measured because a measurement or its environment failed.
    #[serde(default)]
    pub failed: i32,
    /// Cells that were not measured because the delay could not be emulated.
    #[serde(default)]
    pub refused: i32,
}
