//! Values of the flags for protocol, transport and congestion control.

use clap::ValueEnum;
use muxtunnel_gateway_config::{CongestionControl, Protocol, Transport};

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(super) enum ProtocolArg {
    /// JMUX, the protocol of jetsocat.
    #[value(name = "JMUX")]
    Jmux,
    /// The protocol between two muxgates.
    #[value(name = "Native")]
    Native,
    /// HTTP/2 with a CONNECT request for each stream; with --security none, HTTP/2 without TLS
    /// (h2c).
    #[value(name = "HTTP2")]
    Http2,
    /// HBONE, the tunnel protocol of Istio's proxies; with --security certificates, or with none as
    /// plaintext.
    #[value(name = "HBONE")]
    Hbone,
    /// QUIC, over UDP; with --security tls or certificates.
    #[value(name = "QUIC")]
    Quic,
    /// HTTP/3 with a CONNECT request for each stream; with --security tls or certificates.
    #[value(name = "HTTP3")]
    Http3,
    /// SSH: an exit accepts ssh -L, -D and -R; an entry connects to an sshd.
    #[value(name = "SSH")]
    Ssh,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(super) enum TransportArg {
    /// TCP, or the Unix socket that --connect and --listen specify.
    #[value(name = "TCP")]
    Tcp,
    /// KCP over UDP, for paths that lose packets. The port of --listen is then a UDP port. Needs
    /// protocol Native.
    #[value(name = "KCP")]
    Kcp,
    /// WebSocket, at the path of the ws:// or wss:// address of --connect and --listen.
    #[value(name = "WebSocket")]
    WebSocket,
    /// The faster of TCP and KCP on the path. WebSocket, with a ws:// or wss:// address, is used only
    /// on paths that block both.
    #[value(name = "Auto")]
    Auto,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(super) enum CongestionControlArg {
    /// Cubic with protocols QUIC and HTTP/3, and on paths with a round-trip time below 1 ms;
    /// otherwise the system's default.
    #[value(name = "Auto")]
    Auto,
    /// Reduces the rate after packet loss.
    #[value(name = "Cubic")]
    Cubic,
    /// Based on measured bandwidth and round-trip time.
    #[value(name = "BBR")]
    Bbr,
}

impl From<ProtocolArg> for Protocol {
    fn from(typed: ProtocolArg) -> Self {
        match typed {
            ProtocolArg::Jmux => Self::Jmux,
            ProtocolArg::Native => Self::Native,
            ProtocolArg::Http2 => Self::Http2,
            ProtocolArg::Hbone => Self::Hbone,
            ProtocolArg::Quic => Self::Quic,
            ProtocolArg::Http3 => Self::Http3,
            ProtocolArg::Ssh => Self::Ssh,
        }
    }
}

impl From<TransportArg> for Transport {
    fn from(typed: TransportArg) -> Self {
        match typed {
            TransportArg::Tcp => Self::Tcp,
            TransportArg::Kcp => Self::Kcp,
            TransportArg::WebSocket => Self::WebSocket,
            TransportArg::Auto => Self::Auto,
        }
    }
}

impl From<CongestionControlArg> for CongestionControl {
    fn from(typed: CongestionControlArg) -> Self {
        match typed {
            CongestionControlArg::Auto => Self::Auto,
            CongestionControlArg::Cubic => Self::Cubic,
            CongestionControlArg::Bbr => Self::Bbr,
        }
    }
}
