//! The two resources of `muxtunnel.dev/v1alpha1`: [`MuxTunnel`] and [`MuxBenchmark`].
//!
//! Owns their Rust types, their validation rules ([`rules`], CEL, evaluated by the API server) and the
//! generated CustomResourceDefinitions ([`schema`], written to `crds/yaml` and into the chart by the
//! binary `crdgen`). The documentation of the fields is documentation for users: it becomes the schema.
//! Knows nothing of how the resources are put into effect; see `operator/`.

#![allow(
    unreachable_pub,
    reason = "the derive of KubeSchema declares public types inside functions"
)]

pub mod bad_objects;
mod benchmark;
mod duration;
mod rules;
pub mod schema;
mod template;
mod tunnel;

pub use benchmark::{
    BenchmarkCarrier, BenchmarkCells, BenchmarkSummary, BenchmarkTunnel, MuxBenchmark,
    MuxBenchmarkSpec, MuxBenchmarkStatus, Path, Tool,
};
pub use duration::{Duration, DurationError};
pub use template::{PodTemplate, Resources};
pub use tunnel::{
    AddressTarget, Backend, Bottleneck, Carrier, CarrierStatus, CongestionControl, Direction,
    Forward, ForwardLimits, Gateway, GatewayService, GatewayStatus, Listen, ListenProtocol,
    MuxTunnel, MuxTunnelSpec, MuxTunnelStatus, Pool, Priority, Profile, Protocol, Scope, Security,
    SecurityMode, ServiceTarget, ServiceType, Side, Sysctl, Target, Timeouts, Tuning, Wan,
};

/// The types of conditions of a [`MuxTunnel`].
pub mod tunnel_condition {
    /// All is as asked.
    pub const READY: &str = "Ready";
    /// At least one path works.
    pub const AVAILABLE: &str = "Available";
    /// Every entry gateway has a carrier.
    pub const CARRIER_CONNECTED: &str = "CarrierConnected";
    /// The sysctls asked for are in force.
    pub const TUNING_APPLIED: &str = "TuningApplied";
    /// The delay asked for is in force.
    pub const WAN_EMULATED: &str = "WanEmulated";
}

/// The types of conditions of a [`MuxBenchmark`].
pub mod benchmark_condition {
    /// The benchmark is under way.
    pub const PROGRESSING: &str = "Progressing";
    /// All cells were measured. Terminal.
    pub const COMPLETE: &str = "Complete";
    /// The benchmark failed, wholly or in some cells. Terminal.
    pub const FAILED: &str = "Failed";
}
