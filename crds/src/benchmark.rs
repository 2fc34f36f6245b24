//! [`MuxBenchmark`]: a matrix of measurements that compare a tunnel with the direct path.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use muxtunnel_gateway_config::{BitRate, CongestionControl, Pool, Protocol, Transport};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with_macros::{apply, skip_serializing_none};

use crate::{BenchmarkContainerName, Gateway, Profile, SecurityMode, Template, patterns, rules};

/// A matrix of measurements. Each combination of a delay and a profile is an environment, in which
/// every path, protocol and number of connections is measured. The log of the benchmark's Job
/// contains the figures.
#[apply(crate = "serde_with_macros", Vec => #[serde(default, skip_serializing_if = "Vec::is_empty")])]
#[skip_serializing_none]
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Debug, Clone, Default, PartialEq)]
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
    validation = rules::name(),
    validation = rules::spec_immutable()
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = rules::warm_up_shorter(),
    validation = rules::native_measured("pool"),
    validation = rules::native_measured("resume"),
    validation = rules::native_measured("transport"),
    validation = rules::quic_measured_has_tls(),
    validation = rules::hbone_measured_without_keys(),
    validation = rules::network_measured_by_one_protocol(),
    validation = rules::udp_measured_through_the_network(),
    validation = rules::network_measured_with_one_gateway("entry"),
    validation = rules::network_measured_with_one_gateway("exit"),
)]
pub struct MuxBenchmarkSpec {
    /// The MuxClass of the benchmark and of its tunnels. Default: the class with `default`.
    #[schemars(length(min = 1, max = 63), regex(pattern = patterns::LABEL))]
    pub class_name: Option<String>,
    /// The tunnel that is measured.
    pub tunnel: Option<BenchmarkTunnel>,
    /// Numbers of parallel connections. Default: 1, 2 and 10.
    #[schemars(length(min = 1, max = 8), inner(range(min = 1, max = 128)), extend("x-kubernetes-list-type" = "set"))]
    pub connections: Vec<i32>,
    /// Emulated one-way delays in milliseconds. The round-trip time grows by twice the delay. Default:
    /// 50 and 0.
    #[schemars(length(min = 1, max = 8), inner(range(min = 0, max = 10_000)), extend("x-kubernetes-list-type" = "set"))]
    pub delay_milliseconds: Vec<u32>,
    /// Sysctl profiles of the gateways and of the direct path. The benchmark measures each profile.
    /// Default: None and WAN.
    #[schemars(length(min = 1, max = 3), extend("x-kubernetes-list-type" = "set"))]
    pub profiles: Vec<Profile>,
    /// The paths that are measured. Path Network needs exactly one of the protocols Native and QUIC in
    /// `protocols`. The path also needs a class that permits Network, and a namespace with the Pod
    /// Security level `privileged`. Default: Direct and Tunnel.
    #[schemars(length(min = 1, max = 3), extend("x-kubernetes-list-type" = "set"))]
    pub paths: Vec<Path>,
    /// Mux protocols. Each protocol has its own tunnel. All tunnels are compared with one direct path.
    /// The path Network has an additional tunnel. Default: Native.
    #[schemars(length(min = 1, max = 6), extend("x-kubernetes-list-type" = "set"))]
    pub protocols: Vec<Protocol>,
    /// Seconds of one measurement, including the warm-up. Default: 30.
    #[schemars(range(min = 1, max = 3600))]
    pub duration_seconds: Option<u32>,
    /// Seconds of the warm-up at the start of each measurement. The figures exclude the bytes of the
    /// warm-up. Default: 5.
    #[schemars(range(min = 0, max = 3599))]
    pub warm_up_seconds: Option<u32>,
    /// Number of measurements of each cell. The figure of a cell is the median of its measurements.
    /// Default: 3.
    #[schemars(range(min = 1, max = 9))]
    pub rounds: Option<i32>,
    /// Settings of the measurement with UDP datagrams. Needs Network in `paths`. The benchmark
    /// sends datagrams on the paths Network and Direct. Default: no measurement with datagrams.
    pub udp: Option<BenchmarkUdp>,
    /// The program that measures throughput. Default: Iperf2.
    pub tool: Option<Tool>,
    /// Settings of the pods of the runner and of agents. On the path Network, agents run in the
    /// gateways' pods.
    pub template: Option<Template<BenchmarkContainerName>>,
    /// Seconds after the end of the Job until the Job and its log are deleted. Default: never. The
    /// ConfigMap with the results is not deleted.
    #[schemars(range(min = 0, max = 31_536_000))]
    pub ttl_seconds_after_finished: Option<i32>,
}

/// The items of `given`, or the default.
fn items<T: Clone>(given: &[T], default: &[T]) -> Vec<T> {
    match given {
        [] => default.to_vec(),
        given => given.to_vec(),
    }
}

impl MuxBenchmarkSpec {
    /// Numbers of parallel connections.
    #[must_use]
    pub fn connections(&self) -> Vec<i32> {
        items(&self.connections, &[1, 2, 10])
    }

    /// Emulated one-way delays.
    #[must_use]
    pub fn delay_milliseconds(&self) -> Vec<u32> {
        items(&self.delay_milliseconds, &[50, 0])
    }

    /// Sysctl profiles.
    #[must_use]
    pub fn profiles(&self) -> Vec<Profile> {
        items(&self.profiles, &[Profile::None, Profile::Wan])
    }

    /// The paths that are measured.
    #[must_use]
    pub fn paths(&self) -> Vec<Path> {
        items(&self.paths, &[Path::Direct, Path::Tunnel])
    }

    /// Mux protocols.
    #[must_use]
    pub fn protocols(&self) -> Vec<Protocol> {
        items(&self.protocols, &[Protocol::Native])
    }

    /// Seconds of one measurement.
    #[must_use]
    pub fn duration_seconds(&self) -> u32 {
        self.duration_seconds.unwrap_or(30)
    }

    /// Seconds of the warm-up.
    #[must_use]
    pub fn warm_up_seconds(&self) -> u32 {
        self.warm_up_seconds.unwrap_or(5)
    }

    /// Number of measurements of each cell.
    #[must_use]
    pub fn rounds(&self) -> i32 {
        self.rounds.unwrap_or(3)
    }
}

/// The tunnel that a benchmark measures. The matrix determines its forwards, delay and profile.
#[skip_serializing_none]
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct BenchmarkTunnel {
    /// The connections between the gateways.
    pub carrier: Option<BenchmarkCarrier>,
    /// Security of the carriers. Default: mode PublicKeys.
    pub security: Option<BenchmarkSecurity>,
    /// Settings of the entry gateways, which dial carriers.
    pub entry: Option<Gateway>,
    /// Settings of the exit gateways, which accept carriers.
    pub exit: Option<Gateway>,
}

/// The connections between the gateways. The matrix determines their protocol.
#[skip_serializing_none]
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = rules::web_socket_not_measured(),
    validation = rules::kcp_controls_congestion(),
    validation = rules::pool_needs_resume(),
)]
pub struct BenchmarkCarrier {
    /// The transport of protocol Native: TCP, KCP or Auto. Default: TCP.
    pub transport: Option<Transport>,
    /// Congestion control of the carriers. Default: Auto.
    pub congestion_control: Option<CongestionControl>,
    /// Seconds without a byte of the other side after which a gateway probes a carrier. Default: 15.
    #[schemars(range(min = 5, max = 300))]
    pub liveness_seconds: Option<u32>,
    /// Protocol Native: the number of carriers of each session. Each worker of an entry has a session
    /// with each exit gateway, but with at most 4. Default: as the work needs, at most 16, or 1 with
    /// transport KCP or if `resume` is false.
    pub pool: Option<Pool>,
    /// Protocol Native: whether streams survive the loss of their carrier. Default: true.
    pub resume: Option<bool>,
}

/// Security of the carriers of a benchmark.
#[skip_serializing_none]
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, Copy, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = rules::measured_without_certificates())]
pub struct BenchmarkSecurity {
    /// The security mode: PublicKeys or None.
    pub mode: Option<SecurityMode>,
}

/// UDP datagrams at a fixed rate. One run of `durationSeconds` is measured for each delay and profile.
#[skip_serializing_none]
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct BenchmarkUdp {
    /// Rate of payload in bits per second, from 100k to 10G, such as 500k, 100M or 1G. Default: 100M.
    #[schemars(extend("pattern" = patterns::UDP_RATE, "maximum" = 10_000_000_000_i64))]
    pub bits_per_second: Option<BitRate>,
}

/// The program that measures throughput. Default: Iperf2.
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
#[skip_serializing_none]
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct MuxBenchmarkStatus {
    /// The generation of the spec that this status describes.
    pub observed_generation: Option<i64>,
    /// The conditions Complete, Failed, Ready, Reconciling and Stalled. If Complete or Failed is true,
    /// the benchmark has ended.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// When the Job was created.
    pub start_time: Option<Time>,
    /// When Complete or Failed became true.
    pub completion_time: Option<Time>,
    /// Name of the Job. Its log contains the figures.
    #[schemars(length(max = 253))]
    pub job_name: Option<String>,
    /// Name of the ConfigMap with the results.
    #[schemars(length(max = 253))]
    pub results_config_map_name: Option<String>,
    /// The environment that is being measured.
    pub environment: Option<BenchmarkEnvironment>,
    /// Number of cells by outcome.
    pub cells: Option<BenchmarkCells>,
    /// Highest throughput of the tunnel in any cell, in percent of the throughput of the direct path.
    pub best_ratio_percent: Option<i32>,
    /// Lowest throughput of the tunnel in any cell, in percent of the throughput of the direct path.
    pub worst_ratio_percent: Option<i32>,
}

/// An environment of a benchmark.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct BenchmarkEnvironment {
    /// One-way delay.
    pub delay_milliseconds: u32,
    /// Sysctl profile.
    pub profile: Profile,
}

/// Number of cells of a benchmark by outcome.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub struct BenchmarkCells {
    /// All cells of the matrix.
    pub total: i32,
    /// Cells that were measured.
    pub ok: i32,
    /// Cells that were not measured because a measurement or its environment failed.
    pub failed: i32,
    /// Cells that were not measured because the delay could not be emulated.
    pub refused: i32,
}
