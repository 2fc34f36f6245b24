//! The resources of `muxtunnel.dev/v1alpha1`: [`MuxTunnel`], [`MuxExit`], [`MuxPeer`],
//! [`MuxRendezvous`], [`MuxBenchmark`], [`MuxGrant`] and [`MuxClass`].
//!
//! This crate defines their Rust types and their validation rules (`rules`, CEL, which the API
//! server evaluates). It generates the CustomResourceDefinitions ([`schema`]); the binary `crdgen`
//! writes them to `crds/yaml` and into the chart. The doc comments of fields are documentation for
//! users, because they become the schema's descriptions. `operator/` implements the resources.

#![allow(
    unreachable_pub,
    reason = "the derive of KubeSchema declares public types inside functions"
)]

mod benchmark;
mod carrier;
mod class;
mod clients;
mod columns;
mod exit;
mod forward;
mod gateway;
mod grant;
mod key;
mod network;
mod patterns;
mod peer;
mod readable;
mod references;
mod rendezvous;
mod rules;
pub mod schema;
mod security;
mod service;
mod ssh;
mod status;
mod targets;
mod template;
mod tunnel;

pub use benchmark::*;
pub use carrier::*;
pub use class::*;
pub use clients::*;
pub use exit::*;
pub use forward::*;
pub use gateway::*;
pub use grant::*;
pub use key::*;
// The resources share these types with the gateway's file.
pub use muxtunnel_gateway_config::{
    Accept, BitRate, CongestionControl, ConnectWebSocket, Limits, Member, NetworkDns, PeerLimits,
    Pool, Priority, Protocol, ProxyListen, ProxyProtocol, Rule, Send, SshAlgorithms, Timeouts,
    Transport, WebSocket, WebSocketScheme,
};
pub use network::*;
pub use peer::*;
pub use readable::readable;
pub use references::*;
pub use rendezvous::*;
pub use rules::{OWN_SERVICE_ENDS, is_unsafe_sysctl};
pub use security::*;
pub use service::*;
pub use ssh::*;
pub use status::*;
pub use targets::*;
pub use template::*;
pub use tunnel::*;

/// The types of conditions.
pub mod condition {
    /// The spec is valid, its references exist, and it conflicts with no other object.
    pub const ACCEPTED: &str = "Accepted";
    /// Every gateway runs the current configuration, and Services have addresses.
    pub const PROGRAMMED: &str = "Programmed";
    /// Each entry gateway has a carrier. Of a peer: the peer has a carrier.
    pub const CONNECTED: &str = "Connected";
    /// A ready gateway passes connections to at least one target, or accepts carriers.
    pub const AVAILABLE: &str = "Available";
    /// The keys and certificates of the gateways exist, and are valid.
    pub const CREDENTIALS_VALID: &str = "CredentialsValid";
    /// The requested sysctls are in force.
    pub const TUNING_APPLIED: &str = "TuningApplied";
    /// The requested delay is in force.
    pub const WAN_EMULATED: &str = "WANEmulated";
    /// IP packets pass between the networks of both ends.
    pub const NETWORK_READY: &str = "NetworkReady";
    /// All conditions that apply are true.
    pub const READY: &str = "Ready";
    /// The operator works towards the current generation. Present only while it is true.
    pub const RECONCILING: &str = "Reconciling";
    /// The cause needs an administrator. Present only while it is true.
    pub const STALLED: &str = "Stalled";
    /// All objects of a class have its images, its template and its tuning.
    pub const ROLLED_OUT: &str = "RolledOut";
    /// All cells of a benchmark were measured. The benchmark has ended.
    pub const COMPLETE: &str = "Complete";
    /// Some or all cells of a benchmark were not measured. The benchmark has ended.
    pub const FAILED: &str = "Failed";
}
