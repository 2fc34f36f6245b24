//! The connections between the gateways.

use kube::KubeSchema;
use muxtunnel_gateway_config::{
    CongestionControl, LIVENESS_SECONDS_DEFAULT, Pool, Protocol, Transport, WebSocket,
};
use serde::{Deserialize, Serialize};
use serde_with_macros::skip_serializing_none;

use crate::rules;

/// The connections between the gateways. The other end must have the same `protocol`, `transport`
/// and `webSocket`.
#[skip_serializing_none]
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = rules::pool_has_several(),
    validation = rules::resume_is_possible(),
    validation = rules::pool_needs_resume(),
)]
pub struct Carrier {
    /// Protocol, transport and congestion control.
    #[serde(flatten)]
    pub connection: ExitCarrier,
    /// The number of carriers of each session. Each worker of an entry has a session with each exit
    /// gateway, but with at most 4. Not permitted with protocol JMUX. Default: as the work needs, at
    /// most 16 with protocol Native and 4 with others, or 1 with transport KCP or if `resume` is
    /// false.
    pub pool: Option<Pool>,
    /// Protocol Native: whether streams survive the loss of their carrier. The gateway then retains
    /// sent bytes until the other side acknowledges them. Default: true.
    pub resume: Option<bool>,
}

/// The connections that exit gateways accept. Entries must have the same `protocol`, `transport` and
/// `webSocket`.
#[skip_serializing_none]
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = rules::transport_of_protocol(),
    validation = rules::web_socket_of_transport(),
    validation = rules::kcp_controls_congestion(),
)]
pub struct ExitCarrier {
    /// The mux protocol on the carriers. Native: MuxTunnel's own protocol. QUIC: QUIC over UDP
    /// between two MuxTunnel gateways. HTTP2 and HTTP3: a CONNECT request for each stream; the peer
    /// can also be another proxy. HBONE: the protocol of the proxies in an Istio mesh. JMUX: the
    /// protocol of jetsocat. Default: Native.
    pub protocol: Option<Protocol>,
    /// The transport below the mux protocol. KCP and Auto need protocol Native. WebSocket needs
    /// protocol Native or JMUX. The field is not permitted with protocols QUIC and HTTP3, which use
    /// UDP. Default: TCP.
    pub transport: Option<Transport>,
    /// The WebSocket connections of transport WebSocket, for networks that pass only HTTP. Required
    /// with transport WebSocket. With transport Auto, carriers use WebSocket only if the network
    /// blocks the other transports.
    pub web_socket: Option<WebSocket>,
    /// Congestion control of the carriers. With protocols QUIC and HTTP3, the gateway controls the
    /// congestion. Over TCP, the kernel controls the congestion. With transport KCP, only Auto is
    /// permitted, because KCP has its own congestion control. Default: Auto.
    pub congestion_control: Option<CongestionControl>,
    /// Seconds without a byte of the other side after which a gateway probes a carrier. The probes
    /// keep silent carriers alive behind proxies and load balancers, and detect an exit that has
    /// vanished behind such a device. Default: 15.
    #[schemars(range(min = 5, max = 300))]
    pub liveness_seconds: Option<u32>,
}

impl Carrier {
    /// The value in force of the field of the same name.
    #[must_use]
    pub fn resume(&self) -> bool {
        self.resume.unwrap_or(true)
    }

    /// The value in force of the field of the same name.
    #[must_use]
    pub fn pool(&self) -> Pool {
        let (protocol, transport) = (self.connection.protocol(), self.connection.transport());
        let default = Pool::default_of(protocol, transport, self.resume());
        self.pool.unwrap_or(default)
    }
}

impl ExitCarrier {
    /// The value in force of the field of the same name.
    #[must_use]
    pub fn protocol(&self) -> Protocol {
        self.protocol.unwrap_or_default()
    }

    /// The value in force of the field of the same name. Protocols QUIC and HTTP3 do not use it.
    #[must_use]
    pub fn transport(&self) -> Transport {
        self.transport.unwrap_or_default()
    }

    /// The value in force of the field of the same name.
    #[must_use]
    pub fn liveness_seconds(&self) -> u32 {
        self.liveness_seconds.unwrap_or(LIVENESS_SECONDS_DEFAULT)
    }

    /// Whether carriers run over UDP only.
    #[must_use]
    pub fn is_udp(&self) -> bool {
        !self.protocol().can().bytes || self.transport() == Transport::Kcp
    }

    /// Whether carriers run over TCP and over UDP.
    #[must_use]
    pub fn is_any(&self) -> bool {
        self.transport() == Transport::Auto
    }
}
