//! Names and labels of what a benchmark owns. A benchmark's name has at most 28 bytes, so that all of
//! these fit their limits (MuxTunnel 40, Service 63).

use std::collections::BTreeMap;

use muxtunnel_bench_api::Path;

use crate::labels;

/// Label with the environment that an object belongs to, `e1`, `e2`, ...
pub const ENVIRONMENT: &str = "muxtunnel.dev/environment";
/// Component of the runner's Job, its pod, and what lives as long as the benchmark.
pub use crate::labels::RUNNER;
/// Name of the Secret with the token of runner and agents.
pub use crate::muxbench::token;
/// Component of the results.
pub const RESULTS: &str = "results";
/// Component of the child MuxTunnels.
pub const TUNNEL: &str = "environment";

/// One of the agents of an environment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Agent {
    /// The path that it is an end of.
    pub path: Path,
    /// Which end.
    pub end: End,
}

/// An end of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum End {
    /// Runs iperf clients and probes.
    Client,
    /// Runs iperf servers and echoes.
    Server,
}

impl End {
    /// Component of the gateways of the same end.
    #[must_use]
    pub const fn gateway_component(self) -> &'static str {
        match self {
            Self::Client => "entry",
            Self::Server => "exit",
        }
    }

    /// Address of the interface in the pod of the gateway of the same end: of 198.18.0.0/15, which is for benchmarks
    /// (RFC 2544, RFC 6890) and is no cluster's.
    #[must_use]
    pub const fn network_address(self) -> &'static str {
        match self {
            Self::Client => "198.18.0.1",
            Self::Server => "198.18.0.2",
        }
    }
}

impl Agent {
    /// All agents of an environment that have pods of their own.
    pub const ALL: [Self; 4] = [
        Self {
            path: Path::Direct,
            end: End::Client,
        },
        Self {
            path: Path::Direct,
            end: End::Server,
        },
        Self {
            path: Path::Tunnel,
            end: End::Client,
        },
        Self {
            path: Path::Tunnel,
            end: End::Server,
        },
    ];

    /// `direct-client` and so on: the component of its Deployment and pod. Agents of the network are in the gateways'.
    #[must_use]
    pub const fn component(self) -> &'static str {
        match (self.path, self.end) {
            (Path::Direct, End::Client) => "direct-client",
            (Path::Direct, End::Server) => "direct-server",
            (Path::Tunnel, End::Client) => "tunnel-client",
            (Path::Tunnel, End::Server) => "tunnel-server",
            (Path::Network, end) => end.gateway_component(),
        }
    }

    /// Name of its Deployment (and, of the tunnel's server, its Service) in the environment `index`.
    #[must_use]
    pub fn name(self, benchmark: &str, index: usize) -> String {
        let environment = environment(index);
        format!("{benchmark}-{environment}-{}", self.component())
    }
}

/// Components of the gateways of the child MuxTunnels.
pub const GATEWAY_COMPONENTS: [&str; 2] = [
    End::Client.gateway_component(),
    End::Server.gateway_component(),
];
/// Components of all that an environment has.
pub const ENVIRONMENT_COMPONENTS: [&str; 5] = [
    "direct-client",
    "direct-server",
    "tunnel-client",
    "tunnel-server",
    TUNNEL,
];

/// Name of the child MuxTunnel of `protocol` in the environment `index`, counted from 0; people count
/// from 1.
#[must_use]
pub fn tunnel(benchmark: &str, index: usize, protocol: &str) -> String {
    let environment = environment(index);
    format!(
        "{benchmark}-{environment}-{}",
        protocol.to_ascii_lowercase()
    )
}

/// Name of the child MuxTunnel that carries IP packets in the environment `index`.
#[must_use]
pub fn network(benchmark: &str, index: usize) -> String {
    tunnel(benchmark, index, "network")
}

/// `e1` for the environment 0.
#[must_use]
pub fn environment(index: usize) -> String {
    format!("e{}", index + 1)
}

/// Name of the Job.
#[must_use]
pub fn job(benchmark: &str) -> String {
    benchmark.to_owned()
}

/// Name of the ConfigMap by which the runner knows the operator.
#[must_use]
pub fn operator(benchmark: &str) -> String {
    format!("{benchmark}-operator")
}

/// Name of the ConfigMap with the results.
#[must_use]
pub fn results(benchmark: &str) -> String {
    format!("{benchmark}-results")
}

/// Labels of an object of the environment `index`.
#[must_use]
pub fn environment_labels(
    benchmark: &str,
    component: &str,
    index: usize,
) -> BTreeMap<String, String> {
    let mut labels = labels::child(benchmark, component);
    labels.insert(ENVIRONMENT.to_owned(), environment(index));
    labels
}
