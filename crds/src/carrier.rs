//! The connections between the gateways.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{JoinFrom, Security, rules};

/// The connections between the gateways.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = rules::pool_has_several(),
    validation = rules::resume_is_native(),
    validation = rules::http_is_no_web_socket(),
    validation = rules::http_speaks_no_noise(),
    validation = rules::others_do_not_join(),
    validation = rules::pool_needs_resume(),
    validation = rules::kcp_is_native(),
    validation = rules::kcp_is_no_tcp(),
    validation = rules::auto_chooses(),
    validation = rules::quic_has_tls(),
    validation = rules::quic_is_udp(),
    validation = rules::join_has_its_own_security()
)]
pub struct Carrier {
    /// The mux protocol spoken on them; both sides must have the same.
    #[serde(default)]
    pub protocol: Protocol,
    /// What they run on; both sides must have the same. Not with protocols QUIC and HTTP3, which have UDP, and not with Auto,
    /// which chooses. Default: TCP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transport: Option<Transport>,
    /// Side Entry: `host:port` of the exit's carrier Service, or with `webSocket` of what leads there; with
    /// `joinFrom` instead of what the bundle says. Side Exit: the same, as entries elsewhere have to dial it, for
    /// the join bundle; without a port that of the Service. Default there: what the Service says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = 260),
        regex(pattern = rules::HOST_MAYBE_PORT)
    )]
    pub address: Option<String>,
    /// Side Entry: the exit is that of a join bundle, which says where it is and how carriers are secured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub join_from: Option<JoinFrom>,
    /// Sides Entry and Exit: where they meet, if neither can be dialled; instead of `address`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rendezvous: Option<Meeting>,
    /// They are WebSocket connections, for paths that let only HTTP pass; both sides must have the same path.
    /// Default: TCP connections. With protocol Auto they may be: where nothing else passes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub web_socket: Option<WebSocket>,
    /// How the kernel paces them, with protocols QUIC and HTTP3 the gateway itself. Default: Auto.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub congestion_control: Option<CongestionControl>,
    /// Not with protocol Jmux: how many there are in each session; each worker of an entry has a session.
    /// Default: 1 to 4, and one without `resume`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<Pool>,
    /// Protocol Native: whether streams outlive their carrier; what is sent is then kept until the other
    /// side has it. Default: true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resume: Option<bool>,
    /// How they are secured. Default: MutualTls, with certificates that the operator issues.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub security: Option<Security>,
}

/// Where an entry and an exit meet: at the gateway of a MuxTunnel of side Rendezvous.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Meeting {
    /// `host:port` of the rendezvous.
    #[schemars(
        length(min = 3, max = 260),
        regex(pattern = rules::HOST_PORT)
    )]
    pub address: String,
    /// The name that the exit registers and the entry visits.
    #[schemars(length(min = 1, max = 63), regex(pattern = "^[-_.a-z0-9]+$"))]
    pub name: String,
    /// The Secret with the name's secret for this side, its key `secret`, in the tunnel's namespace: at least 16
    /// bytes, the same as at the rendezvous. Entry and exit have different ones. A changed one is for new carriers.
    #[schemars(
        length(min = 1, max = 253),
        regex(pattern = rules::SECRET_NAME)
    )]
    pub secret_name: String,
}

/// Carriers as WebSocket connections (RFC 6455): TLS is below them, Noise above.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct WebSocket {
    /// What the entry asks for and the exit answers at, such as /carrier.
    #[schemars(
        length(min = 1, max = 256),
        regex(pattern = "^/[-._~!$&'()*+,;=:@%/a-zA-Z0-9]*$")
    )]
    pub path: String,
    /// The host that the entry's requests name, by which an Ingress may choose. Default: the exit's address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = 260),
        regex(pattern = "^[-_.:\\[\\]a-zA-Z0-9]+$")
    )]
    pub host: Option<String>,
}

/// Carriers of one session.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = rules::pool_in_order())]
pub struct Pool {
    /// As many are kept.
    #[schemars(range(min = 1, max = 16))]
    pub min: u8,
    /// There are never more. Default: `min`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 16))]
    pub max: Option<u8>,
}

/// The mux protocol of carriers.
#[derive(
    JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord,
)]
pub enum Protocol {
    /// Devolutions' JMUX, as jetsocat speaks it.
    Jmux,
    /// Our own, between two gateways of ours.
    #[default]
    Native,
    /// HTTP/2 with a CONNECT for each stream: with another HTTP/2 proxy, or a client of one, at the other end.
    #[serde(rename = "HTTP2")]
    Http2,
    /// HBONE, with a proxy of an Istio mesh at the other end. `security.mode: None` is plaintext HBONE.
    #[serde(rename = "HBONE")]
    Hbone,
    /// QUIC, between two gateways of ours: over UDP, with `security.mode: MutualTls`. The exit's port is one of UDP.
    #[serde(rename = "QUIC")]
    Quic,
    /// HTTP/3 with a CONNECT for each stream, over UDP, with `security.mode: MutualTls`: with another HTTP/3 proxy, or a
    /// client of one, at the other end.
    #[serde(rename = "HTTP3")]
    Http3,
    /// Our own over what the path lets pass, and of that over what carries more: TCP, KCP over UDP, and with `webSocket`
    /// such connections. The exit's port is one of TCP and one of UDP; entries choose, and streams outlive the change.
    Auto,
}

/// What carriers run on.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Transport {
    /// TCP connections.
    #[default]
    #[serde(rename = "TCP")]
    Tcp,
    /// KCP over UDP, for paths that lose packets; the exit's port is one of UDP then.
    #[serde(rename = "KCP")]
    Kcp,
}

/// How the kernel paces carriers.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum CongestionControl {
    /// The gateway chooses by what it measures of the path.
    #[default]
    Auto,
    /// Loss-based, the usual default of Linux.
    Cubic,
    /// By measured bandwidth and round-trip time; the nodes' kernels must have it.
    Bbr,
}
