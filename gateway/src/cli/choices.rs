//! Values of the flags for protocol, transport and congestion control.

use clap::ValueEnum;
use muxtunnel_gateway_config::{CongestionControl, Protocol, Transport};

/// Declares the values of a flag, each with its help and its name. A value converts to the variant
/// with the same identifier in the configuration.
macro_rules! choices {
    ($arg:ident of $type:ident {
        $($(#[$help:meta])* $variant:ident = $name:literal,)+
    }) => {
        #[derive(Debug, Clone, Copy, ValueEnum)]
        pub(super) enum $arg {
            $($(#[$help])* #[value(name = $name)] $variant,)+
        }

        impl From<$arg> for $type {
            fn from(typed: $arg) -> Self {
                match typed {
                    $($arg::$variant => Self::$variant,)+
                }
            }
        }
    };
}

choices!(ProtocolArg of Protocol {
    /// JMUX, the protocol of jetsocat.
    Jmux = "JMUX",
    /// The protocol between two muxgates.
    Native = "Native",
    /// HTTP/2 with a CONNECT request for each stream; with --security none, HTTP/2 without TLS
    /// (h2c).
    Http2 = "HTTP2",
    /// HBONE, the tunnel protocol of Istio's proxies; with --security certificates, or with none as
    /// plaintext.
    Hbone = "HBONE",
    /// QUIC, over UDP; with --security tls or certificates.
    Quic = "QUIC",
    /// HTTP/3 with a CONNECT request for each stream; with --security tls or certificates.
    Http3 = "HTTP3",
    /// SSH: an exit accepts ssh -L, -D and -R; an entry connects to an sshd.
    Ssh = "SSH",
});

choices!(TransportArg of Transport {
    /// TCP, or the Unix socket that --connect and --listen specify.
    Tcp = "TCP",
    /// KCP over UDP, for paths that lose packets. The port of --listen is then a UDP port. Needs
    /// protocol Native.
    Kcp = "KCP",
    /// WebSocket, at the path of the ws:// or wss:// address of --connect and --listen.
    WebSocket = "WebSocket",
    /// The faster of TCP and KCP on the path. WebSocket, with a ws:// or wss:// address, is used only
    /// on paths that block both.
    Auto = "Auto",
});

choices!(CongestionControlArg of CongestionControl {
    /// Cubic with protocols QUIC and HTTP/3, and on paths with a round-trip time below 1 ms;
    /// otherwise the system's default.
    Auto = "Auto",
    /// Reduces the rate after packet loss.
    Cubic = "Cubic",
    /// Based on measured bandwidth and round-trip time.
    Bbr = "BBR",
});
