//! The resources of `muxtunnel.dev/v1alpha1`: [`MuxTunnel`], [`MuxPeer`], [`MuxBenchmark`] and
//! [`MuxGrant`].
//!
//! This crate defines their Rust types and their validation rules ([`rules`], CEL, which the API
//! server evaluates). It generates the CustomResourceDefinitions ([`schema`]); the binary `crdgen`
//! writes them to `crds/yaml` and into the chart. The doc comments of fields are documentation for
//! users, because they become the schema's descriptions. `operator/` implements the resources.

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
mod key;
mod network;
mod peer;
mod policy;
mod readable;
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
pub use key::{KeyOrigin, KeySource, KeyStatus};
pub use network::{Network, NetworkDns, NetworkForwarding, NetworkPeer, NetworkRule};
pub use peer::{ExitRef, MuxPeer, MuxPeerSpec, MuxPeerStatus};
pub use policy::{PeerRule, Policy, PolicyRule};
pub use readable::readable;
pub use rendezvous::Rendezvous;
pub use rules::is_unsafe_sysctl;
pub use security::{IssuerRef, Security, SecurityEnd, SecurityMode};
pub use ssh::{ExitSsh, SshAlgorithms, SshHostKey, SshLogin};
pub use status::{
    Bottleneck, CarrierStatus, Direction, GatewayStatus, MuxTunnelStatus, PacketStatus,
};
pub use template::{PodTemplate, Resources};
pub use tunnel::{
    Autoscaling, Backend, ExternalTrafficPolicy, Gateway, GatewayService, MuxTunnel, MuxTunnelSpec,
    Profile, Scope, ServiceType, Side, Sysctl, Timeouts, Tuning, Wan,
};

/// The types of conditions of a [`MuxTunnel`].
pub mod tunnel_condition {
    /// All gateways have the current spec.
    pub const READY: &str = "Ready";
    /// A gateway takes connections, and no forward loses all of them.
    pub const AVAILABLE: &str = "Available";
    /// Every entry gateway has a carrier. On side Exit: every exit gateway has a carrier.
    pub const CARRIER_CONNECTED: &str = "CarrierConnected";
    /// The keys and certificates of the gateways exist, and are valid.
    pub const CREDENTIALS_VALID: &str = "CredentialsValid";
    /// The requested sysctls are in force.
    pub const TUNING_APPLIED: &str = "TuningApplied";
    /// The requested delay is in force.
    pub const WAN_EMULATED: &str = "WanEmulated";
    /// IP packets pass between the networks of both sides.
    pub const NETWORK_READY: &str = "NetworkReady";
    /// The API server answers the watches of the operator. The condition exists only while a watch
    /// is unanswered, and is then False.
    pub const WATCHES_CURRENT: &str = "WatchesCurrent";
}

/// The types of conditions of a [`MuxPeer`].
pub mod peer_condition {
    /// The exit exists, and the peer conflicts with no other peer.
    pub const ACCEPTED: &str = "Accepted";
    /// Every gateway of the exit has the current spec.
    pub const PROGRAMMED: &str = "Programmed";
    /// The peer has a carrier.
    pub const CONNECTED: &str = "Connected";
    /// Accepted and Programmed are true.
    pub const READY: &str = "Ready";
}

/// The types of conditions of a [`MuxBenchmark`].
pub mod benchmark_condition {
    /// The benchmark is running.
    pub const PROGRESSING: &str = "Progressing";
    /// All cells were measured. The benchmark has ended.
    pub const COMPLETE: &str = "Complete";
    /// Some or all cells were not measured. The benchmark has ended.
    pub const FAILED: &str = "Failed";
}
