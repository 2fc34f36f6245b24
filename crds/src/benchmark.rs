//! [`MuxBenchmark`]: a matrix of measurements of a tunnel against the direct path.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{CongestionControl, Duration, Gateway, Pool, Profile, Protocol, Security, rules};

/// A matrix of measurements: each delay x tuning is an environment of its own, in which every path,
/// protocol and number of connections is measured. Its Job's log has the figures.
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
    doc = "A matrix of measurements of a tunnel against the direct path.",
    validation = rules::name(28),
    validation = rules::spec_immutable(),
    printcolumn(name = "Complete", type_ = "string", json_path = ".status.conditions[?(@.type==\"Complete\")].status", description = "All cells were measured"),
    printcolumn(name = "Failed", type_ = "string", json_path = ".status.conditions[?(@.type==\"Failed\")].status", description = "Some cells were not measured"),
    printcolumn(name = "Cells", type_ = "string", json_path = ".status.progress", description = "Cells done of all cells"),
    printcolumn(name = "Environment", type_ = "string", json_path = ".status.environment", description = "What is being measured now"),
    printcolumn(name = "Best", type_ = "number", json_path = ".status.summary.bestRatio", description = "Best ratio of tunnel to direct", priority = "1"),
    printcolumn(name = "Worst", type_ = "number", json_path = ".status.summary.worstRatio", description = "Worst ratio of tunnel to direct", priority = "1"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = rules::warm_up_shorter(),
    validation = rules::native_measured("pool"),
    validation = rules::native_measured("resume"),
    validation = rules::quic_measured_has_tls(),
    validation = rules::network_measured_by_one_protocol(),
    validation = rules::network_measured_with_one_gateway("entry"),
    validation = rules::network_measured_with_one_gateway("exit")
)]
pub struct MuxBenchmarkSpec {
    /// The tunnel that is measured.
    pub tunnel: BenchmarkTunnel,
    /// What measures.
    #[serde(default)]
    pub tool: Tool,
    /// Numbers of parallel connections.
    #[serde(default = "connections")]
    #[schemars(length(min = 1, max = 8), inner(range(min = 1, max = 128)), extend("x-kubernetes-list-type" = "set"))]
    pub connections: Vec<i32>,
    /// Emulated delays in each direction: the round-trip time grows by twice this.
    #[serde(default = "delays")]
    #[schemars(length(min = 1, max = 8), extend("x-kubernetes-list-type" = "set"))]
    #[x_kube(validation = rules::delays_bounded())]
    pub delays: Vec<Duration>,
    /// Tunings of the gateways; the direct path gets the same.
    #[serde(default = "tunings")]
    #[schemars(length(min = 1, max = 8), extend("x-kubernetes-list-type" = "set"))]
    pub tunings: Vec<Profile>,
    /// Which paths are measured. Network needs one of the protocols Native, Auto and QUIC in `protocols`, the chart's value
    /// `network.enabled`, and the Pod Security level `privileged`.
    #[serde(default = "paths")]
    #[schemars(length(min = 1, max = 8), extend("x-kubernetes-list-type" = "set"))]
    pub paths: Vec<Path>,
    /// Mux protocols: each has a tunnel of its own, measured beside the same direct path. The path Network has one more
    /// tunnel.
    #[serde(default = "protocols")]
    #[schemars(length(min = 1, max = 8), extend("x-kubernetes-list-type" = "set"))]
    pub protocols: Vec<Protocol>,
    /// How long one measurement lasts, warm-up included.
    #[serde(default = "duration")]
    #[x_kube(validation = rules::measurement_bounded())]
    pub duration: Duration,
    /// Start of each measurement that is left out of the figures.
    #[serde(default = "warm_up")]
    pub warm_up: Duration,
    /// How often each cell is measured; the figure is the median.
    #[serde(default = "rounds")]
    #[schemars(range(min = 1, max = 9))]
    pub rounds: i32,
    /// Seconds after its end at which the Job, and with it the log, is deleted. Default: never. The
    /// results ConfigMap stays.
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

/// The tunnel that a benchmark measures. Forwards, delay and tuning come from the matrix.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct BenchmarkTunnel {
    /// The connections between the gateways.
    pub carrier: BenchmarkCarrier,
    /// Settings of the gateways where streams enter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entry: Option<Gateway>,
    /// Settings of the gateways where targets are dialled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit: Option<Gateway>,
}

/// The connections between the gateways. Their protocol comes from the matrix.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = rules::pool_needs_resume(),
    validation = rules::keys_of_both_ends()
)]
pub struct BenchmarkCarrier {
    /// How the kernel paces them. Default: Auto.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub congestion_control: Option<CongestionControl>,
    /// Of the tunnel of protocol Native: how many there are in each session; each worker of an entry
    /// has a session. Default: 1 to 4, and one without `resume`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<Pool>,
    /// Of the tunnel of protocol Native: whether streams outlive their carrier. Default: true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resume: Option<bool>,
    /// How they are secured. Default: MutualTls, with certificates that the operator issues.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub security: Option<Security>,
}

/// What measures.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Tool {
    /// iperf 2, by the receiver's figures.
    #[default]
    Iperf2,
}

/// Which way the traffic takes.
#[derive(
    JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord,
)]
pub enum Path {
    /// From client to server, with the emulated delay and the gateways' sysctls.
    Direct,
    /// Through the tunnel; client and server keep the kernel's defaults.
    Tunnel,
    /// As IP packets, from the address of the entry's interface to that of the exit's (`spec.network` of a MuxTunnel).
    /// Client and server run in the pods of the gateways and have their sysctls, because no other pod has a route to the
    /// interface.
    Network,
}

/// What the operator saw of a benchmark.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct MuxBenchmarkStatus {
    /// The generation of the spec that this status speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Progressing, Complete, Failed; the last two are terminal.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// When the Job was made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_time: Option<Time>,
    /// When Complete or Failed became true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completion_time: Option<Time>,
    /// Name of the Job whose log has the matrix.
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
    /// Cells done of all cells, such as `7/24`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub progress: Option<String>,
    /// What came out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub summary: Option<BenchmarkSummary>,
}

/// What came out of a benchmark.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct BenchmarkSummary {
    /// Cells by outcome.
    #[serde(default)]
    pub cells: BenchmarkCells,
    /// Best ratio of tunnel to direct in any cell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub best_ratio: Option<f64>,
    /// Worst ratio of tunnel to direct in any cell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worst_ratio: Option<f64>,
}

/// Cells of a benchmark by outcome.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct BenchmarkCells {
    /// All cells of the matrix.
    #[serde(default)]
    pub total: i32,
    /// Measured.
    #[serde(default)]
    pub ok: i32,
    /// Not measured, because something failed.
    #[serde(default)]
    pub failed: i32,
    /// Not measured, because the delay could not be emulated.
    #[serde(default)]
    pub refused: i32,
}
