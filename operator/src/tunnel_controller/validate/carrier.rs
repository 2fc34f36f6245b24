//! The settings of carriers. Pure.

use muxtunnel_crds::{CongestionControl, Pool, Protocol, Transport};
use muxtunnel_gateway_config::LIVENESS_SECONDS_DEFAULT;

use crate::tunnel_controller::object::Carriers;

/// The settings of carriers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ValidatedCarrier {
    /// The mux protocol.
    pub protocol: Protocol,
    /// The transport.
    pub transport: Transport,
    /// The path of carriers over WebSocket.
    pub web_socket: Option<String>,
    /// The congestion control.
    pub congestion_control: CongestionControl,
    /// Seconds after which a silent carrier is probed.
    pub liveness_seconds: u32,
    /// The number of carriers of a session.
    pub pool: Pool,
    /// Whether streams outlive their carrier.
    pub resume: bool,
}

impl ValidatedCarrier {
    pub(super) fn of(asked: &Carriers<'_>) -> Self {
        let own = asked.connection.cloned().unwrap_or_default();
        let resume = asked.resume.unwrap_or(true);
        let (protocol, transport) = (
            own.protocol.unwrap_or_default(),
            own.transport.unwrap_or_default(),
        );
        Self {
            protocol,
            transport,
            web_socket: own.web_socket.map(|asked| asked.path),
            congestion_control: own.congestion_control.unwrap_or_default(),
            liveness_seconds: own.liveness_seconds.unwrap_or(LIVENESS_SECONDS_DEFAULT),
            pool: (asked.pool).unwrap_or(Pool::default_of(protocol, transport, resume)),
            resume,
        }
    }

    /// Whether carriers run over UDP only.
    #[must_use]
    pub const fn is_udp(&self) -> bool {
        !self.protocol.can().bytes || matches!(self.transport, Transport::Kcp)
    }

    /// Whether carriers run over TCP and over UDP.
    #[must_use]
    pub const fn is_any(&self) -> bool {
        matches!(self.transport, Transport::Auto)
    }
}
