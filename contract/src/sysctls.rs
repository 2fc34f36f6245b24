//! Sysctls that the operator sets and that `muxtunnel check` probes.

/// Permits unprivileged gateways to listen on any port. The sysctl is in Kubernetes' safe set.
pub const UNPRIVILEGED_PORT_START: (&str, &str) = ("net.ipv4.ip_unprivileged_port_start", "0");

/// Profile `Wan`: minimum, default and maximum size of a socket's buffer, in bytes. The send buffer
/// of 64 MiB permits about 5 Gbit/s at a round trip of 100 ms. The kernel's default of 6 MiB permits
/// about 230 Mbit/s in practice.
pub const WAN: &[(&str, &str)] = &[
    ("net.ipv4.tcp_rmem", "4096 131072 134217728"),
    ("net.ipv4.tcp_wmem", "4096 65536 67108864"),
];

/// Profile `Lan`, for paths of a few milliseconds: less memory per connection.
pub const LAN: &[(&str, &str)] = &[
    ("net.ipv4.tcp_rmem", "4096 131072 16777216"),
    ("net.ipv4.tcp_wmem", "4096 65536 16777216"),
];

/// The node's limit of a socket's receive buffer, in bytes. A pod cannot set this sysctl: in the
/// pod's network namespace the sysctl is read-only, or missing with older kernels.
pub const RMEM_MAX: &str = "net.core.rmem_max";
/// The node's limit of a socket's send buffer, in bytes. See [`RMEM_MAX`].
pub const WMEM_MAX: &str = "net.core.wmem_max";
/// Size of the receive and of the send buffer that gateways request for a UDP socket of protocols
/// QUIC and HTTP3, in bytes. The size is the data of 6 ms at 10 Gbit/s.
pub const QUIC_BUFFER_BYTES: usize = 8 << 20;
/// Size of the receive and of the send buffer that gateways request for a UDP socket of transport
/// KCP, in bytes.
pub const KCP_BUFFER_BYTES: usize = 4 << 20;
