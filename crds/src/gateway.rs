//! The pods of one end, their time-outs and their kernel settings.

use kube::KubeSchema;
use muxtunnel_gateway_config::{BitRate, named};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with_macros::skip_serializing_none;

use crate::{Template, rules};

/// The gateways of one end.
#[skip_serializing_none]
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = rules::replicas_or_autoscaling())]
pub struct Gateway {
    /// Number of pods. Not permitted with `autoscaling`. Default: 1 when the Deployment is created.
    /// Later, the operator leaves the number unchanged, so `kubectl scale` or another autoscaler may
    /// set it.
    #[schemars(range(min = 1, max = 32))]
    pub replicas: Option<i32>,
    /// Adapts the number of pods to their CPU usage. This field replaces `replicas`. The cluster
    /// needs a metrics server. The container gateway in `template` must have a request or a limit of
    /// CPU.
    pub autoscaling: Option<Autoscaling>,
    /// Seconds that a terminating pod waits for the end of its open streams, for example in a
    /// roll-out. Other pods accept the new streams. Streams that are still open after this time are
    /// reset. Default: 25.
    #[schemars(range(min = 10, max = 86400))]
    pub drain_seconds: Option<u32>,
    /// Settings of the gateways' pods.
    pub template: Option<Template>,
}

/// A HorizontalPodAutoscaler, which sets the number of pods of one end by their CPU usage.
#[skip_serializing_none]
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = rules::autoscaling_in_order())]
pub struct Autoscaling {
    /// Least number of pods. Default: 1.
    #[schemars(range(min = 1, max = 32))]
    pub min_replicas: Option<i32>,
    /// Greatest number of pods.
    #[schemars(range(min = 1, max = 32))]
    pub max_replicas: i32,
    /// Target value for the average CPU usage of the pods, in percent of the requested CPU time.
    /// Default: 80.
    #[serde(rename = "targetCPUUtilizationPercentage")]
    #[schemars(range(min = 1, max = 1000))]
    pub target_cpu_utilization_percentage: Option<i32>,
}

/// Kernel settings of the gateways' pods. The pods of applications do not need these settings.
#[skip_serializing_none]
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = rules::sysctls_namespaced(),
    validation = rules::sysctls_of_the_operator(),
    validation = rules::sysctls_unsafe(),
    validation = rules::sysctl_values()
)]
pub struct Tuning {
    /// A set of sysctls for a kind of path. Default: Auto.
    pub profile: Option<TuningProfile>,
    /// Additional sysctls, which override sysctls of the profile. A Job tests them in its own pod
    /// before the operator sets them in gateways.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub sysctls: Vec<Sysctl>,
    /// Permits sysctls outside Kubernetes' safe set. The nodes must also permit them (kubelet flag
    /// `--allowed-unsafe-sysctls`). If a kubelet refuses a sysctl, running gateways stay unchanged,
    /// and the operator creates no new gateways. Default: false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub allow_unsafe: bool,
}

/// A set of sysctls for a kind of path. Auto: those of WAN, if the nodes and the namespace admit
/// them; otherwise the kernel's defaults, and the condition TuningApplied has the reason. WAN:
/// enough for about 5 Gbit/s on one connection with a round-trip time of 100 ms. LAN: enough for 10
/// Gbit/s on one connection with a round-trip time of 12 ms. None: the kernel's defaults.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum TuningProfile {
    /// The sysctls of WAN for each end whose pods are admitted with them.
    #[default]
    Auto,
    /// The sysctls of [`Profile::Wan`].
    #[serde(rename = "WAN")]
    Wan,
    /// The sysctls of [`Profile::Lan`].
    #[serde(rename = "LAN")]
    Lan,
    /// The kernel's defaults.
    None,
}

impl From<Profile> for TuningProfile {
    fn from(profile: Profile) -> Self {
        match profile {
            Profile::Wan => Self::Wan,
            Profile::Lan => Self::Lan,
            Profile::None => Self::None,
        }
    }
}

named! {
    /// A set of sysctls that a benchmark measures. WAN: enough for about 5 Gbit/s on one connection with
    /// a round-trip time of 100 ms. LAN: enough for 10 Gbit/s on one connection with a round-trip time
    /// of 12 ms. None: the kernel's defaults.
    #[derive(JsonSchema, Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
    pub enum Profile {
        /// Receive buffers of up to 128 MiB and send buffers of up to 64 MiB, enough for about 5 Gbit/s
        /// on one connection with a round-trip time of 100 ms.
        Wan = "WAN",
        /// Socket buffers of up to 16 MiB, enough for 10 Gbit/s on one connection with a round-trip
        /// time of 12 ms.
        Lan = "LAN",
        /// The kernel's defaults.
        #[default]
        None = "None",
    }
}

/// One sysctl of the gateways' pods.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
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
#[skip_serializing_none]
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = rules::jitter_within_delay())]
pub struct WanEmulation {
    /// One-way delay in milliseconds. The gateways of an end delay the packets that they send. So the
    /// round-trip time of a MuxTunnel without `connect` grows by twice this value.
    #[schemars(range(min = 0, max = 10_000))]
    pub delay_milliseconds: u32,
    /// Maximum deviation of a packet's delay from `delayMilliseconds`. The deviations are uniformly
    /// distributed. Packets keep their order. Default: 0.
    #[schemars(range(min = 0, max = 10_000))]
    pub jitter_milliseconds: Option<u32>,
    /// The share of packets that the emulation drops in each direction, in parts per million: 5000
    /// are 0.5 %. Default: 0.
    #[serde(rename = "lossPPM")]
    #[schemars(range(min = 0, max = 500_000))]
    pub loss_ppm: Option<u32>,
    /// Rate of the emulated link in each direction, in bits per second, from 100k to 1T, such as 500k,
    /// 100M or 1G. The link's buffer holds the data of one round trip, and at least the data of 50
    /// ms. Default: no limit.
    pub bits_per_second: Option<BitRate>,
    /// The mechanism of the emulation. Default: Auto.
    pub backend: Option<Backend>,
    /// The packets that the emulation affects. Default: Carrier.
    pub scope: Option<Scope>,
}

impl WanEmulation {
    /// Whether the path has a delay, a loss or a rate. Without them, it needs no emulation.
    #[must_use]
    pub fn emulates(&self) -> bool {
        let has_loss = self.loss_ppm.is_some_and(|share| share > 0);
        self.delay_milliseconds > 0 || has_loss || self.bits_per_second.is_some()
    }
}

/// The mechanism of the emulation. Netem: the kernel's `sch_netem`. NFQUEUE: a delay line in user
/// space behind NFQUEUE. Auto: Netem if the node supports it, otherwise NFQUEUE. Default: Auto.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Backend {
    /// Kernel netem if the node supports netem, otherwise the NFQUEUE delay line.
    #[default]
    Auto,
    /// Kernel netem (`sch_netem`).
    Netem,
    /// A delay line in user space behind NFQUEUE.
    #[serde(rename = "NFQUEUE")]
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
