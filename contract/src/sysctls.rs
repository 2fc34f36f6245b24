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
