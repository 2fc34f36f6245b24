//! Values of the flags for protocol, transport and congestion control.

use clap::ValueEnum;
use muxtunnel_gateway_config::{CongestionControl, Protocol, Transport};

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(super) enum ProtocolArg {
    /// JMUX, the protocol of jetsocat.
    Jmux,
    /// The protocol between two muxgates.
    Native,
    /// HTTP/2 with a CONNECT request for each stream; with --security none, HTTP/2 without TLS
    /// (h2c).
    Http2,
    /// HBONE, the tunnel protocol of Istio's proxies; with --security certificates, or with none as
    /// plaintext.
    Hbone,
    /// QUIC, over UDP; with --security tls or certificates.
    Quic,
    /// HTTP/3 with a CONNECT request for each stream; with --security tls or certificates.
    Http3,
    /// SSH: an exit accepts ssh -L, -D and -R; an entry connects to an sshd.
    Ssh,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(super) enum TransportArg {
    /// TCP, or the WebSocket or Unix socket that --connect and --listen specify.
    Tcp,
    /// KCP over UDP, for paths that lose packets. The port of --listen is then a UDP port. Needs
    /// protocol native.
    Kcp,
    /// The faster of TCP and KCP on the path. WebSocket, if configured, is used only on paths that
    /// block both.
    Auto,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(super) enum CongestionControlArg {
    /// Cubic with protocols QUIC and HTTP/3, and on paths with a round-trip time below 1 ms;
    /// otherwise the system's default.
    Auto,
    /// Reduces the rate after packet loss.
    Cubic,
    /// Based on measured bandwidth and round-trip time.
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
