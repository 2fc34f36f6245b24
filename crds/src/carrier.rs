//! The connections between the gateways.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Security, rules};

/// The connections between the gateways.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = rules::pool_has_several(),
    validation = rules::resume_is_native(),
    validation = rules::http_is_no_web_socket(),
    validation = rules::hbone_has_certificates(),
    validation = rules::pool_needs_resume(),
    validation = rules::kcp_is_native(),
    validation = rules::kcp_is_no_tcp(),
    validation = rules::auto_chooses(),
    validation = rules::quic_has_tls(),
    validation = rules::quic_is_udp()
)]
pub struct Carrier {
    /// The mux protocol on the carriers. Both sides must have the same value. Native: MuxTunnel's
    /// own protocol. Auto: Native, over the transport that the entry selects. QUIC: QUIC over UDP
    /// between two MuxTunnel gateways. HTTP2 and HTTP3: a CONNECT request for each stream; the peer
    /// can also be another proxy. HBONE: the protocol of the proxies in an Istio mesh. Jmux: the
    /// protocol of jetsocat.
    #[serde(default)]
    pub protocol: Protocol,
    /// The transport below the mux protocol. Both sides must have the same value. KCP needs
    /// protocol Native. The field is not permitted with protocols QUIC, HTTP3 and Auto: QUIC and
    /// HTTP3 use UDP, and Auto selects the transport. Default: TCP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transport: Option<Transport>,
    /// Side Entry: `host:port` of the exit's carrier Service. With `webSocket`, `host:port` of the
    /// Ingress or proxy in front of that Service. Side Exit: the address in the status, which
    /// entries in other clusters dial. Default: the address and port of the Service. A host without
    /// a port gets the port of the Service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = 260),
        regex(pattern = rules::HOST_MAYBE_PORT)
    )]
    pub address: Option<String>,
    /// Side Entry with security mode PublicKeys: the keys of the exit, from `status.publicKeys` of
    /// the exit. Entries accept only exits with one of these keys. The exit accepts this entry by a
    /// MuxPeer with the key in `status.publicKeys` of this object.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 4), inner(length(equal = 63), regex(pattern = rules::EXIT_KEY)), extend("x-kubernetes-list-type" = "set"))]
    pub public_keys: Vec<String>,
    /// Sides Entry and Exit: the rendezvous that connects an entry and an exit which cannot dial
    /// each other. This field replaces `address`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rendezvous: Option<Meeting>,
    /// With this field, carriers are WebSocket connections, for networks that pass only HTTP. Needs
    /// protocol Native, Jmux or Auto. Both sides must have the same `path`. Default: TCP
    /// connections. With protocol Auto, carriers use WebSocket only if the network blocks the other
    /// transports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub web_socket: Option<WebSocket>,
    /// Congestion control of the carriers. With protocols QUIC and HTTP3, the gateway controls the
    /// congestion. Over TCP, the kernel controls the congestion. With transport KCP, only Auto is
    /// permitted, because KCP has its own congestion control. Default: Auto.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub congestion_control: Option<CongestionControl>,
    /// Seconds without a byte of the other side after which a gateway probes a carrier. The probes
    /// keep silent carriers alive behind proxies and load balancers, and detect an exit that has
    /// vanished behind such a device. Default: 20.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 5, max = 300))]
    pub liveness_seconds: Option<u32>,
    /// The number of carriers of each session. Each worker of an entry has a session with each exit
    /// gateway, but with at most 4. Not permitted with protocol Jmux. Default: 1 to 4, or 1 with
    /// transport KCP or if `resume` is false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<Pool>,
    /// Protocols Native and Auto: whether streams survive the loss of their carrier. The gateway
    /// then retains sent bytes until the other side acknowledges them. Default: true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resume: Option<bool>,
    /// Security of the carriers. Default: mode PublicKeys.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub security: Option<Security>,
}

/// A MuxTunnel of side Rendezvous, whose gateway connects an entry and an exit.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Meeting {
    /// `host:port` of the rendezvous.
    #[schemars(
        length(min = 3, max = 260),
        regex(pattern = rules::HOST_PORT)
    )]
    pub address: String,
    /// The name that the exit registers at the rendezvous, and that the entry requests there.
    #[schemars(length(min = 1, max = 63), regex(pattern = "^[-_.a-z0-9]+$"))]
    pub name: String,
    /// A Secret in the tunnel's namespace. The key `secret` of this Secret contains this side's
    /// secret for the name. The secret has at least 16 bytes, and equals the secret for this side
    /// at the rendezvous. Entry and exit have different secrets. A changed secret applies to new
    /// carriers.
    #[schemars(
        length(min = 1, max = 253),
        regex(pattern = rules::SECRET_NAME)
    )]
    pub secret_name: String,
}

/// Carriers as WebSocket connections (RFC 6455). With security mode PublicKeys, TLS runs inside the
/// WebSocket connection, so proxies that terminate TLS pass it. With MutualTls, TLS encrypts the
/// WebSocket connection.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct WebSocket {
    /// The path of the HTTP requests, such as /carrier. The exit answers only requests with this
    /// path.
    #[schemars(
        length(min = 1, max = 256),
        regex(pattern = "^/[-._~!$&'()*+,;=:@%/a-zA-Z0-9]*$")
    )]
    pub path: String,
    /// The host in the HTTP requests of the entry. An Ingress can route by this host. Default: the
    /// exit's address.
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
    /// Least number of carriers.
    #[schemars(range(min = 1, max = 16))]
    pub min: u8,
    /// Greatest number of carriers. Default: `min`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 16))]
    pub max: Option<u8>,
}

/// The mux protocol of carriers. Native: MuxTunnel's own protocol. Auto: Native, over the transport
/// that the entry selects. QUIC: QUIC over UDP. HTTP2 and HTTP3: a CONNECT request for each stream.
/// HBONE: the tunnel protocol of Istio's proxies. Jmux: the protocol of jetsocat.
#[derive(
    JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord,
)]
pub enum Protocol {
    /// Devolutions' JMUX, the mux protocol of jetsocat.
    Jmux,
    /// MuxTunnel's own protocol, between two MuxTunnel gateways.
    #[default]
    Native,
    /// HTTP/2 with a CONNECT request for each stream. The peer can also be another HTTP/2 proxy, or
    /// a client of an HTTP/2 proxy.
    #[serde(rename = "HTTP2")]
    Http2,
    /// HBONE, with a proxy of an Istio mesh at the other end. `security.mode: None` is plaintext HBONE.
    #[serde(rename = "HBONE")]
    Hbone,
    /// QUIC over UDP between two MuxTunnel gateways, with TLS. The exit's port is a UDP
    /// port.
    #[serde(rename = "QUIC")]
    Quic,
    /// HTTP/3 over UDP with a CONNECT request for each stream, with TLS. The peer can also be another HTTP/3 proxy, or a client of an HTTP/3 proxy.
    #[serde(rename = "HTTP3")]
    Http3,
    /// Native, over the transport that the entry selects: TCP, KCP over UDP, or WebSocket (with
    /// `webSocket`). The entry selects a transport that the network does not block, and prefers the
    /// faster of TCP and KCP. Streams survive a change of the transport. The exit's port is open
    /// for TCP and UDP.
    Auto,
}

/// The transport of carriers. Both sides must have the same value. TCP: TCP connections. KCP: KCP
/// over UDP, for paths that lose packets, with protocol Native. Not permitted with protocols QUIC,
/// HTTP3 and Auto. Default: TCP.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Transport {
    /// TCP connections.
    #[default]
    #[serde(rename = "TCP")]
    Tcp,
    /// KCP over UDP, for paths that lose packets. The exit's port is then a UDP port. Needs
    /// protocol Native.
    #[serde(rename = "KCP")]
    Kcp,
}

/// Congestion control of carriers. Auto: Cubic with protocols QUIC and HTTP3, and on paths with a
/// round-trip time below 1 ms; otherwise the default of the nodes' kernels. Cubic: reduces the rate
/// after packet loss. Bbr: sets the rate by the measured bandwidth and round-trip time. For
/// carriers over TCP, the nodes' kernels must support Bbr. Default: Auto.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum CongestionControl {
    /// Cubic with protocols QUIC and HTTP3, and on paths with a round-trip time below 1 ms;
    /// otherwise the default of the nodes' kernels.
    #[default]
    Auto,
    /// CUBIC, which reduces the rate after packet loss. The usual default of Linux.
    Cubic,
    /// BBR, which sets the rate by the measured bandwidth and round-trip time. For carriers over
    /// TCP, the nodes' kernels must support BBR.
    Bbr,
}
