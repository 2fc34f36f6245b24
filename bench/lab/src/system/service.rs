//! The servers on the server's side of a system.

/// A server on the server's side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Service {
    /// A server of iperf 2.
    Iperf2,
    /// `muxlab serve`, the server of the lab's own load.
    Load,
    /// A server of iperf 3.
    Iperf3,
}

impl Service {
    /// All services. Each system forwards every service.
    pub(crate) const ALL: [Self; 3] = [Self::Iperf2, Self::Load, Self::Iperf3];

    /// The port on which the server listens.
    pub(crate) fn port(self) -> u16 {
        match self {
            Self::Iperf2 => muxtunnel_bench_api::IPERF_PORT,
            Self::Load => muxtunnel_bench_api::ECHO_PORT,
            Self::Iperf3 => 5201,
        }
    }

    /// The port on which the entry listens for the clients of this service.
    pub(crate) fn entry_port(self) -> u16 {
        self.port() + 1000
    }

    /// The name in configuration files.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Iperf2 => "iperf2",
            Self::Load => "load",
            Self::Iperf3 => "iperf3",
        }
    }
}
