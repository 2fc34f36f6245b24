//! Transport parameters of connections: windows, congestion control and timeouts.

use std::sync::Arc;
use std::time::Duration;

use muxtunnel_gateway_config::{CongestionControl, Protocol, SessionConfig};
use quinn::congestion::{BbrConfig, CubicConfig};
use quinn::{IdleTimeout, TransportConfig, VarInt};

/// A peer that sends nothing for this long counts as dead. After each packet of the peer, the time
/// begins again once more: with the next packet that the peer must acknowledge (RFC 9000, section
/// 10.1). So after an open that is not acknowledged, an entry dials another exit within 15 s.
const SILENCE_MAX: Duration = Duration::from_secs(14);
/// After this time without a packet in either direction, a keepalive packet is sent. If no
/// acknowledgement arrives, the library sends probes (RFC 9002, section 6.2) until the peer counts
/// as dead.
const KEEPALIVE_EVERY: Duration = Duration::from_secs(4);
/// Maximum window of a stream. 16 MiB fill 1 Gbit/s at a round trip time of 134 ms.
const STREAM_WINDOW_MAX: u64 = 16 << 20;
/// A stalled stream holds at most an eighth of the session's receive memory.
const STREAM_SHARE: u64 = 8;
/// Maximum number of bytes that a peer may send before its session exists.
const WINDOW_FIRST: u32 = 1 << 20;
/// Number of unidirectional streams that the peer may open: its control stream.
const CONTROL_STREAMS: u32 = 1;
/// Number of unidirectional streams that an HTTP/3 peer may open: its control stream, two QPACK
/// streams, and some of unknown types (RFC 9114, section 6.2).
const CONTROL_STREAMS_HTTP3: u32 = 8;

/// Maximum number of bytes in received packets that wait to be read. The oldest packets are dropped
/// first.
const PACKETS_RECEIVED_MAX: usize = 2 << 20;
/// Maximum number of bytes in unsent packets that the library holds: twice the number of bytes that
/// the library sends without a pause.
pub(super) const PACKETS_UNSENT_MAX: usize = 64 << 10;

/// The settings of all connections of a gateway.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    transport: Arc<TransportConfig>,
    congestion_control: &'static str,
    protocol: Protocol,
}

impl Settings {
    /// Returns the settings for sessions of `config`. Streams are permitted once a session exists,
    /// because the library uses 60 bytes for each permitted stream.
    pub(crate) fn new(config: &SessionConfig) -> Self {
        let mut transport = TransportConfig::default();
        let receive = config.memory.receive.0;
        let stream_window = STREAM_WINDOW_MAX.min(receive / STREAM_SHARE);
        let control_streams = match config.protocol {
            Protocol::Http3 => CONTROL_STREAMS_HTTP3,
            _ => CONTROL_STREAMS,
        };
        transport
            .max_concurrent_bidi_streams(VarInt::from_u32(0))
            .max_concurrent_uni_streams(VarInt::from_u32(control_streams))
            .stream_receive_window(window(stream_window))
            .receive_window(VarInt::from_u32(WINDOW_FIRST))
            .send_window(config.memory.retain.0)
            .max_idle_timeout(IdleTimeout::try_from(SILENCE_MAX).ok())
            .keep_alive_interval(Some(KEEPALIVE_EVERY))
            .datagram_receive_buffer_size(config.packets.then_some(PACKETS_RECEIVED_MAX))
            .datagram_send_buffer_size(PACKETS_UNSENT_MAX);
        let congestion_control = match config.congestion_control {
            CongestionControl::Bbr => {
                transport.congestion_controller_factory(Arc::new(BbrConfig::default()));
                "bbr"
            }
            CongestionControl::Auto | CongestionControl::Cubic => {
                transport.congestion_controller_factory(Arc::new(CubicConfig::default()));
                "cubic"
            }
        };
        Self {
            transport: Arc::new(transport),
            congestion_control,
            protocol: config.protocol,
        }
    }

    pub(super) fn transport(&self) -> Arc<TransportConfig> {
        Arc::clone(&self.transport)
    }

    pub(super) const fn protocol(&self) -> Protocol {
        self.protocol
    }

    pub(super) const fn congestion_control(&self) -> &'static str {
        self.congestion_control
    }
}

/// Converts `bytes` to a QUIC window.
pub(crate) fn window(bytes: u64) -> VarInt {
    VarInt::from_u64(bytes).unwrap_or(VarInt::MAX)
}
