//! What runs on the server's side of a system.

/// What runs on the server's side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Service {
    /// iperf, version 2.
    Iperf2,
    /// `muxlab serve`.
    Load,
    /// iperf, version 3.
    Iperf3,
}

impl Service {
    /// All of them; each system forwards each.
    pub(crate) const ALL: [Self; 3] = [Self::Iperf2, Self::Load, Self::Iperf3];

    /// Where the server listens.
    pub(crate) fn port(self) -> u16 {
        match self {
            Self::Iperf2 => muxtunnel_bench_api::IPERF_PORT,
            Self::Load => muxtunnel_bench_api::ECHO_PORT,
            Self::Iperf3 => 5201,
        }
    }

    /// Where the entry listens for it.
    pub(crate) fn entry_port(self) -> u16 {
        self.port() + 1000
    }

    /// A name for configuration files.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Iperf2 => "iperf2",
            Self::Load => "load",
            Self::Iperf3 => "iperf3",
        }
    }
}
