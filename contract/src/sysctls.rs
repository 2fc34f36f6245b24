//! Sysctls that the operator sets and the command line probes.

/// Lets gateways, which have no privileges, listen on any port. In Kubernetes' safe set.
pub const UNPRIVILEGED_PORT_START: (&str, &str) = ("net.ipv4.ip_unprivileged_port_start", "0");

/// Profile `Wan`: `least default most` bytes of a socket's buffer. 128 MiB of window are 10 Gbit/s at 100 ms; the
/// kernel's default of 6 MiB is 230 Mbit/s at 100 ms in practice.
pub const WAN: &[(&str, &str)] = &[
    ("net.ipv4.tcp_rmem", "4096 131072 134217728"),
    ("net.ipv4.tcp_wmem", "4096 65536 67108864"),
];

/// Profile `Lan`, for paths of a few milliseconds: less memory a connection.
pub const LAN: &[(&str, &str)] = &[
    ("net.ipv4.tcp_rmem", "4096 131072 16777216"),
    ("net.ipv4.tcp_wmem", "4096 65536 16777216"),
];

/// Bound the buffers of sockets, bytes: what comes, and what goes. They are the node's. A pod cannot set them: its network
/// namespace shows them read-only, or with older kernels not at all.
pub const RMEM_MAX: &str = "net.core.rmem_max";
/// See [`RMEM_MAX`].
pub const WMEM_MAX: &str = "net.core.wmem_max";
/// What gateways ask for, each way, for a UDP socket of protocols QUIC and HTTP3: what 10 Gbit/s bring in 6 ms.
pub const QUIC_BUFFER_BYTES: usize = 8 << 20;
/// The same for a UDP socket of transport KCP.
pub const KCP_BUFFER_BYTES: usize = 4 << 20;
