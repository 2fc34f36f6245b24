//! [`MuxExit`]: exit gateways for entries elsewhere.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use muxtunnel_gateway_config::Cidr;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with_macros::{apply, skip_serializing_none};

use crate::{
    Bottleneck, CarrierService, CarrierStatus, Clients, Endpoint, ExitCarrier, ExitNetwork,
    ExitSecurity, Gateway, HostPort, KeySource, KeyStatus, ListenPort, NetworkStatus,
    RendezvousRef, Service, Ssh, SysctlStatus, Timeouts, Tuning, WanEmulation, patterns, rules,
};

/// Exit gateways for entries elsewhere, which dial the targets. Each entry needs a MuxPeer.
#[apply(crate = "serde_with_macros", Vec => #[serde(default, skip_serializing_if = "Vec::is_empty")])]
#[skip_serializing_none]
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Debug, Clone, Default, PartialEq)]
#[kube(
    group = "muxtunnel.dev",
    version = "v1alpha1",
    kind = "MuxExit",
    plural = "muxexits",
    shortname = "mx",
    category = "mux",
    namespaced,
    status = "MuxExitStatus",
    derive = "PartialEq",
    doc = "Exit gateways for entries elsewhere, which dial the targets. Each entry needs a MuxPeer.",
    validation = rules::name(),
    validation = rules::name_without("-tunnel", "MuxTunnel x and MuxExit x-tunnel both have a Service x-tunnel-exit"),
    validation = rules::clients_needed("reversePorts", "-exit-reverse"),
    validation = rules::node_ports_need_exposure("reversePorts", "-exit-reverse"),
    validation = rules::service_names_are_of_nobody_else("reversePorts", "-exit-reverse"),
    validation = rules::services_are_used(&[("reversePorts", "-exit-reverse")]),
    scale(
        spec_replicas_path = ".spec.gateway.replicas",
        status_replicas_path = ".status.replicas",
        label_selector_path = ".status.selector"
    )
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = rules::exit_has_work(),
    validation = rules::rendezvous_replaces_the_port(),
    validation = rules::rendezvous_has_keys("rendezvous"),
    validation = rules::needs_byte_streams("rendezvous"),
    validation = rules::needs_byte_streams("trustedProxies"),
    validation = rules::reverse_needs_listeners("reversePorts"),
    validation = rules::network_needs_packets(),
    validation = rules::quic_has_tls(),
    validation = rules::hbone_has_certificates(),
    validation = rules::network_has_one_gateway("gateway"),
    validation = rules::ports_are_no_probes("reversePorts"),
    validation = rules::ssh_port_is_no_reverse_port(),
    validation = rules::ssh_port_is_no_probe(),
)]
pub struct MuxExitSpec {
    /// The MuxClass of the object. A change rolls the gateways. Default: the class with `default`.
    #[schemars(length(min = 1, max = 63), regex(pattern = patterns::LABEL))]
    pub class_name: Option<String>,
    /// Whether the operator writes only the status of this object, and leaves its gateways unchanged.
    /// Default: false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub paused: bool,
    /// Settings of the exit gateways.
    pub gateway: Option<Gateway>,
    /// The Service NAME-exit in front of the carrier port. Not permitted with `rendezvous`. Default: a
    /// ClusterIP.
    pub service: Option<CarrierService>,
    /// The rendezvous at which the exit gateways wait for entries. This field replaces `service`.
    #[schemars(length(max = 4), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub rendezvous: Vec<ExitRendezvous>,
    /// The entries that may reach the carrier port. Default: type Any.
    pub from: Option<Clients>,
    /// The address that entries dial. It replaces the address of the Service in `status.endpoints`.
    pub advertised_endpoint: Option<HostPort>,
    /// Source networks of the load balancers in front of the carrier port, as the exit's pods see
    /// them. Connections from these networks must begin with a header of the PROXY protocol, version
    /// 1 or 2, with the client's address. Connections without a header are refused. The gateway does
    /// not read headers from other addresses. Any sender in these networks can claim any client
    /// address. The carriers must use TCP or WebSocket. A change reaches running gateways without a
    /// restart. Default: none.
    #[schemars(length(max = 64), inner(regex(pattern = patterns::NETWORK)), extend("x-kubernetes-list-type" = "set"))]
    pub trusted_proxies: Vec<Cidr>,
    /// Limits of each exit gateway.
    pub limits: Option<CarrierLimits>,
    /// The targets that any peer may reach. A MuxPeer can narrow them for its entry. The exit checks
    /// the address to which a name resolves. A loopback, link-local or multicast address needs a rule
    /// whose network lies within the loopback, link-local or multicast range. An address of the API
    /// server needs a rule with exactly this address. A rule with the name `localhost` permits
    /// loopback, and a rule with the name `kubernetes.default.svc` permits the address of the API
    /// server's Service. A change reaches running gateways without a restart. Default: no targets.
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "atomic"))]
    pub allow: Vec<crate::Rule>,
    /// The targets that no peer may reach. These rules override `allow`. A change reaches running
    /// gateways without a restart. Default: none.
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "atomic"))]
    pub deny: Vec<crate::Rule>,
    /// IPv6 prefixes of 32, 40, 48, 56, 64 or 96 bits that the exit's network translates to IPv4
    /// (NAT64, RFC 6052). An IPv6 address with such a prefix needs the same rule as the IPv4
    /// address that it contains. The prefix 64:ff9b::/96 is built in. Default: none.
    #[schemars(length(max = 8), inner(regex(pattern = patterns::NAT64_PREFIX)), extend("x-kubernetes-list-type" = "set"))]
    pub nat64_prefixes: Vec<Cidr>,
    /// Ports at which the exit gateways listen for peers. A MuxPeer names the ports that its entry may
    /// serve. A change reaches running gateways without a restart. Default: none.
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    #[x_kube(
        validation = rules::ports_unique(),
        validation = rules::ports_reserved(),
    )]
    pub reverse_ports: Vec<ListenPort>,
    /// Settings of the Services to which `serviceName` refers. A Service without settings is a
    /// ClusterIP.
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub services: Vec<Service>,
    /// An additional port, at which users log in with ssh. Default: no ssh port.
    pub ssh: Option<Box<Ssh>>,
    /// Carries IP packets between the networks of the exit and of entries, in addition to streams.
    /// Default: no IP packets.
    pub network: Option<Box<ExitNetwork>>,
    /// Security of the carriers. Default: mode PublicKeys.
    pub security: Option<ExitSecurity>,
    /// The connections that the exit gateways accept. Default: protocol Native over TCP.
    pub carrier: Option<ExitCarrier>,
    /// The key of the gateways in security mode PublicKeys. Default: generation 1, which the operator
    /// creates.
    pub key: Option<KeySource>,
    /// Time-outs of idle streams. A change reaches running gateways without a restart.
    pub timeouts: Option<Timeouts>,
    /// Kernel settings of the gateways' pods.
    pub tuning: Option<Tuning>,
    /// Emulation of a wide-area network at the exit's end, for tests.
    pub wan_emulation: Option<WanEmulation>,
}

/// A MuxRendezvous at which exit gateways wait for entries.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct ExitRendezvous {
    /// Unique name.
    #[schemars(length(min = 1, max = 15), regex(pattern = patterns::NAME))]
    pub name: String,
    /// The address and the keys of the rendezvous.
    #[serde(flatten)]
    pub rendezvous: RendezvousRef,
}

/// Limits of carriers.
#[skip_serializing_none]
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct CarrierLimits {
    /// Maximum number of concurrent carriers of each gateway. Default: 256.
    #[schemars(range(min = 1, max = 1024))]
    pub carriers: Option<u32>,
}

/// The observed state of an exit.
#[apply(crate = "serde_with_macros", Vec => #[serde(default, skip_serializing_if = "Vec::is_empty")])]
#[skip_serializing_none]
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct MuxExitStatus {
    /// The generation of the spec that this status describes.
    pub observed_generation: Option<i64>,
    /// The MuxClass that applies.
    #[schemars(length(max = 63))]
    pub class_name: Option<String>,
    /// The conditions Accepted, Programmed, Available, CredentialsValid, TuningApplied, WANEmulated,
    /// NetworkReady, Ready, Reconciling and Stalled. A condition that does not apply is absent.
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// Security mode PublicKeys: the public keys of the exit, which entries pin. The newest key comes
    /// first.
    #[schemars(length(max = 4), inner(length(max = 63)), extend("x-kubernetes-list-type" = "atomic"))]
    pub public_keys: Vec<String>,
    /// The key pairs of `publicKeys`, with their Secrets.
    #[schemars(length(max = 8), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["secretName"]))]
    pub keys: Vec<KeyStatus>,
    /// Requested pods.
    #[serde(default)]
    pub replicas: i32,
    /// Ready pods.
    #[serde(default)]
    pub ready_replicas: i32,
    /// The selector of the pods, for the scale subresource.
    #[schemars(length(max = 1024))]
    pub selector: Option<String>,
    /// The addresses that entries dial.
    #[schemars(length(max = 8), extend("x-kubernetes-list-type" = "atomic"))]
    pub endpoints: Vec<Endpoint>,
    /// The address that users of ssh dial.
    pub ssh_endpoint: Option<HostPort>,
    /// The MuxPeers of the exit.
    pub peers: Option<PeerCounts>,
    /// The carriers of entries, including ssh connections of users.
    pub carriers: Option<CarrierStatus>,
    /// The bottleneck of the direction with more traffic. The operator writes a bottleneck after at
    /// least two equal observations in a row.
    pub bottleneck: Option<Bottleneck>,
    /// The IP packets of `spec.network`.
    pub network: Option<NetworkStatus>,
    /// The effective values of sysctls in the gateways.
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub sysctls: Vec<SysctlStatus>,
}

/// Numbers of MuxPeers.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub struct PeerCounts {
    /// MuxPeers of the exit.
    pub total: i32,
    /// MuxPeers that have a carrier.
    pub connected: i32,
}
