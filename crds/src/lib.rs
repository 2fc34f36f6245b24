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

pub mod bad_objects;
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

pub use benchmark::{
    BenchmarkCarrier, BenchmarkCells, BenchmarkEnvironment, BenchmarkSecurity, BenchmarkTunnel,
    BenchmarkUdp, MuxBenchmark, MuxBenchmarkSpec, MuxBenchmarkStatus, Path, Tool,
};
pub use carrier::{Carrier, ExitCarrier, WebSocket};
pub use class::{
    ClassImages, ClassNamespaces, ClassObjects, Feature, ImagePullPolicy, MuxClass, MuxClassSpec,
    MuxClassStatus, NamespacesFrom, OnFailure, Permitted, Rollout,
};
pub use clients::{Clients, ClientsType};
pub use exit::{CarrierLimits, ExitRendezvous, MuxExit, MuxExitSpec, MuxExitStatus, PeerCounts};
pub use forward::{Forward, Proxy, ReverseForward, ReversePort};
pub use gateway::{Autoscaling, Backend, Gateway, Profile, Scope, Sysctl, Tuning, WanEmulation};
pub use grant::{MuxGrant, MuxGrantFrom, MuxGrantSpec, MuxGrantTo};
pub use key::{KeyOrigin, KeySource, KeyStatus};
// The resources share these types with the gateway's file.
pub use muxtunnel_gateway_config::{
    Accept, BitRate, CongestionControl, Limits, PeerLimits, Pool, Priority, Protocol, ProxyListen,
    ProxyProtocol, RuleFields as Rule, Send, SshAlgorithms, Timeouts, Transport, WebSocketScheme,
};
pub use network::{
    ExitNetwork, Network, NetworkDns, NetworkEnd, NetworkForwarding, NetworkRule, NetworkSettings,
};
pub use peer::{MuxPeer, MuxPeerSpec, MuxPeerStatus};
pub use readable::readable;
pub use references::{ExitRef, HostPort, IssuerRef, SecretRef, ServiceRef, UsersSecretRef};
pub use rendezvous::{Member, MuxRendezvous, MuxRendezvousSpec, MuxRendezvousStatus};
pub use rules::{OWN_SERVICE_ENDS, is_unsafe_sysctl};
pub use security::{
    CertificateSource, Certificates, CsiSource, ExitSecurity, Security, SecurityMode,
};
pub use service::{
    CarrierService, ExternalTrafficPolicy, IpFamily, IpFamilyPolicy, Service, ServiceSettings,
    ServiceType,
};
pub use ssh::{Ssh, SshHostKey, SshLogin, SshService};
pub use status::{
    Bottleneck, CarrierStatus, Direction, Endpoint, EndpointProtocol, GatewayStatus, NetworkStatus,
    ServicePortStatus, ServiceStatus, SysctlStatus,
};
pub use targets::Target;
pub use template::{
    BenchmarkContainerName, ContainerName, DnsPolicy, Resources, Template, TemplateContainer,
    TemplateMetadata, TemplateSpec,
};
pub use tunnel::{
    Connect, ConnectStatus, ConnectWebSocket, MuxTunnel, MuxTunnelSpec, MuxTunnelStatus,
    RendezvousRef,
};

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
