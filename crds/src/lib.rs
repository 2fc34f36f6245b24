//! The resources of `muxtunnel.dev/v1alpha1`: [`MuxTunnel`], [`MuxBenchmark`] and [`MuxGrant`].
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
mod carrier;
mod duration;
mod forward;
mod grant;
mod network;
mod policy;
mod rendezvous;
mod rules;
pub mod schema;
mod security;
mod ssh;
mod status;
mod template;
mod tunnel;

pub use benchmark::{
    BenchmarkCarrier, BenchmarkCells, BenchmarkSummary, BenchmarkTunnel, MuxBenchmark,
    MuxBenchmarkSpec, MuxBenchmarkStatus, Path, Tool,
};
pub use carrier::{Carrier, CongestionControl, Meeting, Pool, Protocol, Transport, WebSocket};
pub use duration::{Duration, DurationError};
pub use forward::{
    AddressTarget, Auth, Forward, ForwardDirection, ForwardLimits, Listen, ListenFrom,
    ListenProtocol, Priority, ProxyProtocol, ServiceTarget, Target, UsersSecret,
};
pub use grant::{MuxGrant, MuxGrantFrom, MuxGrantSpec, MuxGrantTo};
pub use network::{Network, NetworkPeer, NetworkRule};
pub use policy::{Policy, PolicyRule};
pub use rendezvous::Rendezvous;
pub use rules::is_unsafe_sysctl;
pub use security::{IssuerRef, JoinFrom, Security, SecurityEnd, SecurityMode};
pub use ssh::{ExitSsh, SshHostKey, SshLogin};
pub use status::{
    Bottleneck, CarrierStatus, CertificateStatus, CertificatesStatus, Direction, GatewayStatus,
    JoinStatus, JoinedStatus, MuxTunnelStatus,
};
pub use template::{PodTemplate, Resources};
pub use tunnel::{
    Autoscaling, Backend, ExternalTrafficPolicy, Gateway, GatewayService, MuxTunnel, MuxTunnelSpec,
    Profile, Scope, ServiceType, Side, Sysctl, Timeouts, Tuning, Wan,
};

/// The types of conditions of a [`MuxTunnel`].
pub mod tunnel_condition {
    /// All is as asked.
    pub const READY: &str = "Ready";
    /// A connection would reach a target.
    pub const AVAILABLE: &str = "Available";
    /// Every entry gateway has a carrier.
    pub const CARRIER_CONNECTED: &str = "CarrierConnected";
    /// The gateways have certificates that are good, and the newest of them.
    pub const CERTIFICATES_VALID: &str = "CertificatesValid";
    /// The sysctls asked for are in force.
    pub const TUNING_APPLIED: &str = "TuningApplied";
    /// The delay asked for is in force.
    pub const WAN_EMULATED: &str = "WanEmulated";
    /// IP packets pass between the networks of both sides.
    pub const NETWORK_READY: &str = "NetworkReady";
    /// The operator hears of changes. There only where it does not.
    pub const WATCHES_CURRENT: &str = "WatchesCurrent";
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
