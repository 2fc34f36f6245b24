//! How connections send and receive: windows, congestion control, time-outs.

use std::sync::Arc;
use std::time::Duration;

use muxtunnel_gateway_config::{CongestionControl, Protocol, SessionConfig};
use quinn::congestion::{BbrConfig, CubicConfig};
use quinn::{IdleTimeout, TransportConfig, VarInt};

/// An other end of which nothing is heard for so long is gone.
const SILENCE_MAX: Duration = Duration::from_secs(15);
/// After so long without a packet one is sent that asks for an answer: three may be lost.
const KEEPALIVE_EVERY: Duration = Duration::from_secs(4);
/// What a stream's window is at most: 16 MiB fill 1 Gbit/s at a round trip of 134 ms.
const STREAM_WINDOW_MAX: u64 = 16 << 20;
/// A stream that stalls holds at most one part in so many of what the session may receive.
const STREAM_SHARE: u64 = 8;
/// What a peer may send before its session is there.
const WINDOW_FIRST: u32 = 1 << 20;
/// Streams in one direction that the peer may have: its control stream.
const CONTROL_STREAMS: u32 = 1;
/// The same of HTTP/3: its control stream, two of QPACK, and some whose kind is not known here (RFC 9114, section 6.2).
const CONTROL_STREAMS_HTTP3: u32 = 8;

/// What packets of a connection take that came and were not looked at, bytes: the oldest ones give way.
const PACKETS_RECEIVED_MAX: usize = 2 << 20;
/// What packets take that are to be sent next, and that nothing overtakes: twice what the library sends without a pause.
pub(crate) const PACKETS_UNSENT_MAX: usize = 64 << 10;

/// Of all connections of a gateway.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    transport: Arc<TransportConfig>,
    congestion_control: &'static str,
    protocol: Protocol,
}

impl Settings {
    /// Of the connections of these sessions. Streams are allowed once a session is there: the library keeps 60 bytes for each
    /// that may come.
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

/// `bytes` as a window.
pub(crate) fn window(bytes: u64) -> VarInt {
    VarInt::from_u64(bytes).unwrap_or(VarInt::MAX)
}
