//! [`MuxTunnel`]: entry gateways, and exit gateways of their own or elsewhere.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use muxtunnel_gateway_config::{Cidr, ConnectWebSocket, GatewayKey};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with_macros::{apply, skip_serializing_none};

use crate::{
    Bottleneck, Carrier, CarrierStatus, Forward, Gateway, GatewayStatus, KeySource, KeyStatus,
    Network, NetworkStatus, Proxy, ReverseForward, Security, Service, ServiceStatus, SysctlStatus,
    Timeouts, Tuning, WanEmulation, patterns, rules,
};

/// A tunnel between entry gateways, to which clients connect, and exit gateways, which dial the
/// targets. Without `connect`, the exit gateways belong to this object. With `connect`, they belong
/// to MuxExits elsewhere. The streams of all clients share a few carrier connections.
#[apply(crate = "serde_with_macros", Vec => #[serde(default, skip_serializing_if = "Vec::is_empty")])]
#[skip_serializing_none]
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Debug, Clone, Default, PartialEq)]
#[kube(
    group = "muxtunnel.dev",
    version = "v1alpha1",
    kind = "MuxTunnel",
    plural = "muxtunnels",
    shortname = "mt",
    category = "mux",
    namespaced,
    status = "MuxTunnelStatus",
    derive = "PartialEq",
    doc = "A tunnel between entry gateways, to which clients connect, and exit gateways, which dial the targets. The streams of all clients share a few carrier connections.",
    validation = rules::name(),
    validation = rules::name_without("-exit", "MuxTunnel x-exit and MuxExit x both have a Service x-exit-reverse"),
    validation = rules::clients_needed("forwards", "-entry"),
    validation = rules::node_ports_need_exposure("forwards", "-entry"),
    validation = rules::clients_needed("proxies", "-entry"),
    validation = rules::node_ports_need_exposure("proxies", "-entry"),
    validation = rules::clients_needed("reverseForwards", "-reverse"),
    validation = rules::node_ports_need_exposure("reverseForwards", "-reverse"),
    validation = rules::service_names_are_of_nobody_else("forwards", "-entry"),
    validation = rules::service_names_are_of_nobody_else("proxies", "-entry"),
    validation = rules::service_names_are_of_nobody_else("reverseForwards", "-reverse"),
    validation = rules::services_are_used(&[
        ("forwards", "-entry"),
        ("proxies", "-entry"),
        ("reverseForwards", "-reverse"),
    ])
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = rules::tunnel_has_work(),
    validation = rules::connect_excludes_an_own_exit(),
    validation = rules::certificates_of_own_ends(),
    validation = rules::reverse_ports_are_of_the_exit(),
    validation = rules::services_are_of_the_exit("forwards", "targets"),
    validation = rules::services_are_of_the_exit("proxies", "fallbackTargets"),
    validation = rules::exits_have_identities("PublicKeys", "publicKeys"),
    validation = rules::exits_have_identities("Certificates", "certificateNames"),
    validation = rules::web_socket_hosts_have_a_path(),
    validation = rules::https_has_no_certificates(),
    validation = rules::rendezvous_has_keys("connect[].rendezvous"),
    validation = rules::needs_byte_streams("connect[].rendezvous"),
    validation = rules::proxies_have_targets(),
    validation = rules::reverse_needs_listeners("reverseForwards"),
    validation = rules::network_needs_packets(),
    validation = rules::sources_are_sent(),
    validation = rules::quic_has_tls(),
    validation = rules::hbone_has_certificates(),
    validation = rules::own_keys_need_another_end(),
    validation = rules::network_has_one_gateway("entry"),
    validation = rules::network_has_one_gateway("exit"),
    validation = rules::ports_of_one_end(),
    validation = rules::names_unique("forwards", "proxies"),
    validation = rules::names_unique("reverseForwards", "forwards"),
    validation = rules::names_unique("reverseForwards", "proxies"),
    validation = rules::ports_are_no_probes("forwards"),
    validation = rules::ports_are_no_probes("reverseForwards"),
    validation = rules::ports_are_no_probes("proxies"),
)]
pub struct MuxTunnelSpec {
    /// The MuxClass of the object. A change rolls the gateways. Default: the class with `default`.
    #[schemars(length(min = 1, max = 63), regex(pattern = patterns::LABEL))]
    pub class_name: Option<String>,
    /// Whether the operator writes only the status of this object, and leaves its gateways unchanged.
    /// Default: false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub paused: bool,
    /// The MuxExits elsewhere to which the entry gateways connect. Default: the object has its own exit
    /// gateways.
    #[schemars(length(max = 8), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub connect: Vec<Connect>,
    /// Settings of the entry gateways, which dial carriers.
    pub entry: Option<Gateway>,
    /// Settings of the exit gateways, which accept carriers. Not permitted with `connect`.
    pub exit: Option<Gateway>,
    /// The targets that clients of `proxies` may name. Targets of forwards need no rule. The exit
    /// checks the address to which a name resolves. A loopback, link-local or multicast address needs
    /// a rule whose network lies within the loopback, link-local or multicast range. An address of
    /// the API server needs a rule with exactly this address. A rule with the name `localhost`
    /// permits loopback, and a rule with the name `kubernetes.default.svc` permits the address of the
    /// API server's Service. Not permitted with `connect`. A change reaches running gateways without
    /// a restart. Default: only the targets of forwards.
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "atomic"))]
    pub allow: Vec<crate::Rule>,
    /// Denied targets. These rules override `allow`. Not permitted with `connect`. A change reaches
    /// running gateways without a restart. Default: none.
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "atomic"))]
    pub deny: Vec<crate::Rule>,
    /// IPv6 prefixes of 32, 40, 48, 56, 64 or 96 bits that the exit's network translates to IPv4
    /// (NAT64, RFC 6052). An IPv6 address with such a prefix needs the same rule as the IPv4
    /// address that it contains. The prefix 64:ff9b::/96 is built in. Not permitted with `connect`.
    /// Default: none.
    #[schemars(length(max = 8), inner(regex(pattern = patterns::NAT64_PREFIX)), extend("x-kubernetes-list-type" = "set"))]
    pub nat64_prefixes: Vec<Cidr>,
    /// Ports at which entry gateways listen, and their targets, which exit gateways dial. A change
    /// reaches running gateways without a restart.
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    #[x_kube(
        validation = rules::ports_unique(),
        validation = rules::ports_reserved(),
    )]
    pub forwards: Vec<Forward>,
    /// Ports at which exit gateways listen, and their targets, which entry gateways dial. They need
    /// `carrier.protocol` Native, HTTP2 or QUIC. With `connect`, `name` is the name of a port in
    /// `reversePorts` of the MuxExit, and `serviceName`, `nodePort` and `from` are not permitted. A
    /// change reaches running gateways without a restart.
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    #[x_kube(
        validation = rules::ports_unique(),
        validation = rules::ports_reserved(),
    )]
    pub reverse_forwards: Vec<ReverseForward>,
    /// Ports at which entry gateways listen, and whose clients name the targets. A change reaches
    /// running gateways without a restart.
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    #[x_kube(
        validation = rules::ports_unique(),
        validation = rules::ports_reserved(),
    )]
    pub proxies: Vec<Proxy>,
    /// Settings of the Services to which `serviceName` refers. A Service without settings is a
    /// ClusterIP.
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub services: Vec<Service>,
    /// Carries IP packets between the networks of both ends, in addition to streams. Default: no IP
    /// packets.
    pub network: Option<Box<Network>>,
    /// Security of the carriers. Default: mode PublicKeys.
    pub security: Option<Security>,
    /// The connections between the gateways. Default: protocol Native over TCP.
    pub carrier: Option<Carrier>,
    /// The key of the gateways in security mode PublicKeys. Default: generation 1, which the operator
    /// creates.
    pub key: Option<KeySource>,
    /// Time-outs of idle streams. A change reaches running gateways without a restart.
    pub timeouts: Option<Timeouts>,
    /// Kernel settings of the gateways' pods.
    pub tuning: Option<Tuning>,
    /// Emulation of a wide-area network between the gateways, for tests.
    pub wan_emulation: Option<WanEmulation>,
}

/// A MuxExit elsewhere, at an address or at a rendezvous.
#[apply(crate = "serde_with_macros", Vec => #[serde(default, skip_serializing_if = "Vec::is_empty")])]
#[skip_serializing_none]
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = rules::connect_has_an_address(),
    validation = rules::connect_has_a_port(),
    validation = rules::https_has_a_host(),
)]
pub struct Connect {
    /// Unique name of the exit.
    #[schemars(length(min = 1, max = 15), regex(pattern = patterns::NAME))]
    pub name: String,
    /// The lowest order that answers is used, and used again when it returns. Exits of equal order
    /// share the streams. Default: 0.
    #[schemars(range(min = 0, max = 100))]
    pub order: Option<u8>,
    /// DNS name or IP address (IPv6 without brackets) of the exit, or of the Ingress or proxy in front
    /// of it. Required without `rendezvous`.
    #[schemars(length(min = 1, max = 253), regex(pattern = patterns::HOST))]
    pub host: Option<String>,
    /// Port of the exit. Required with `host`.
    #[schemars(range(min = 1, max = 65535))]
    pub port: Option<u16>,
    /// The rendezvous that connects the entry with an exit which it cannot dial. This field replaces
    /// `host` and `port`.
    pub rendezvous: Option<RendezvousRef>,
    /// Security mode PublicKeys: the keys of the exit, from `status.publicKeys` of the MuxExit. Entries
    /// accept only exits with one of these keys. The exit accepts this entry by a MuxPeer with the key
    /// in `status.publicKeys` of this object.
    #[schemars(length(min = 1, max = 4), inner(length(max = 63), regex(pattern = patterns::EXIT_KEY)), extend("x-kubernetes-list-type" = "set"))]
    pub public_keys: Vec<GatewayKey>,
    /// Security mode Certificates: DNS names, IP addresses and URIs. The exit's certificate must
    /// contain at least one of them.
    #[schemars(length(min = 1, max = 32), inner(length(min = 1, max = 256), regex(pattern = patterns::CERTIFICATE_NAME)), extend("x-kubernetes-list-type" = "set"))]
    pub certificate_names: Vec<String>,
    /// The WebSocket connections to this exit.
    pub web_socket: Option<ConnectWebSocket>,
}

/// A MuxRendezvous, which connects an entry and an exit.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct RendezvousRef {
    /// DNS name or IP address (IPv6 without brackets) of the rendezvous.
    #[schemars(length(min = 1, max = 253), regex(pattern = patterns::HOST))]
    pub host: String,
    /// Port of the rendezvous.
    #[schemars(range(min = 1, max = 65535))]
    pub port: u16,
    /// The keys of the rendezvous, from `status.publicKeys` of the MuxRendezvous.
    #[schemars(length(min = 1, max = 4), inner(length(max = 63), regex(pattern = patterns::RENDEZVOUS_KEY)), extend("x-kubernetes-list-type" = "set"))]
    pub public_keys: Vec<GatewayKey>,
}

/// The observed state of a tunnel.
#[apply(crate = "serde_with_macros", Vec => #[serde(default, skip_serializing_if = "Vec::is_empty")])]
#[skip_serializing_none]
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct MuxTunnelStatus {
    /// The generation of the spec that this status describes.
    pub observed_generation: Option<i64>,
    /// The MuxClass that applies.
    #[schemars(length(max = 63))]
    pub class_name: Option<String>,
    /// The conditions Accepted, Programmed, Connected, Available, CredentialsValid, TuningApplied,
    /// WANEmulated, NetworkReady, Ready, Reconciling and Stalled. A condition that does not apply is
    /// absent.
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// With `connect` and security mode PublicKeys: the public keys of the entry, which a MuxPeer
    /// enters. The newest key comes first.
    #[schemars(length(max = 4), inner(length(max = 63)), extend("x-kubernetes-list-type" = "atomic"))]
    pub public_keys: Vec<String>,
    /// The key pairs of `publicKeys`, with their Secrets.
    #[schemars(length(max = 8), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["secretName"]))]
    pub keys: Vec<KeyStatus>,
    /// The entry gateways.
    pub entry: Option<GatewayStatus>,
    /// The exit gateways of this object.
    pub exit: Option<GatewayStatus>,
    /// The Services that clients dial.
    #[schemars(length(max = 32), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub services: Vec<ServiceStatus>,
    /// The exits of `spec.connect`.
    pub connect: Option<ConnectStatus>,
    /// The carriers of the entry.
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

/// The exits of `spec.connect`.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct ConnectStatus {
    /// Names of the exits in use, in the order of `spec.connect`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8), inner(length(max = 15)), extend("x-kubernetes-list-type" = "atomic"))]
    pub active: Vec<String>,
}
