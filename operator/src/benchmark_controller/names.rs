//! Names and labels of a benchmark's objects. A benchmark's name has at most 28 bytes, so that all
//! names fit their limits (MuxTunnel: 40 bytes, Service: 63 bytes).

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use muxtunnel_bench_api::Path;

use crate::labels;

/// Kind of the benchmark, in the labels of its objects.
pub const KIND: &str = "MuxBenchmark";
/// Label with the environment that an object belongs to, `e1`, `e2`, ...
pub const ENVIRONMENT: &str = "muxtunnel.dev/environment";
/// Component of the results.
pub const RESULTS: &str = "results";
/// Component of the child MuxTunnels.
pub const TUNNEL: &str = "environment";

/// One of the agents of an environment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Agent {
    /// The path that the agent measures.
    pub path: Path,
    /// The end of the path.
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
    /// Component of the gateways at this end of the tunnel.
    pub const fn gateway_component(self) -> &'static str {
        match self {
            Self::Client => "entry",
            Self::Server => "exit",
        }
    }

    /// Address of the interface for IP packets in the gateway's pod at this end. The address is in
    /// 198.18.0.0/15, which is reserved for benchmarks (RFC 2544, RFC 6890), so no cluster uses it.
    pub const fn network_address(self) -> Ipv4Addr {
        match self {
            Self::Client => Ipv4Addr::new(198, 18, 0, 1),
            Self::Server => Ipv4Addr::new(198, 18, 0, 2),
        }
    }
}

impl Agent {
    /// All agents of an environment whose pods are not pods of gateways.
    pub const ALL: [Self; 4] = [
        Self::new(Path::Direct, End::Client),
        Self::new(Path::Direct, End::Server),
        Self::new(Path::Tunnel, End::Client),
        Self::new(Path::Tunnel, End::Server),
    ];

    /// The agent at this end of `path`.
    pub const fn new(path: Path, end: End) -> Self {
        Self { path, end }
    }

    /// The component of the agent's Deployment and pod, such as `direct-client`. Agents that
    /// measure IP packets are in the gateways' pods.
    pub const fn component(self) -> &'static str {
        match (self.path, self.end) {
            (Path::Direct, End::Client) => "direct-client",
            (Path::Direct, End::Server) => "direct-server",
            (Path::Tunnel, End::Client) => "tunnel-client",
            (Path::Tunnel, End::Server) => "tunnel-server",
            (Path::Network, end) => end.gateway_component(),
        }
    }

    /// Name of the agent's Deployment in the environment `index`. The Service of the tunnel's
    /// server has the same name.
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
/// Components of all objects of an environment.
pub const ENVIRONMENT_COMPONENTS: [&str; 5] = [
    "direct-client",
    "direct-server",
    "tunnel-client",
    "tunnel-server",
    TUNNEL,
];

/// Name of the child MuxTunnel of `protocol` in the environment `index`. The index starts at 0, and
/// the number in the name starts at 1.
pub fn tunnel(benchmark: &str, index: usize, protocol: &str) -> String {
    let (environment, protocol) = (environment(index), protocol.to_ascii_lowercase());
    format!("{benchmark}-{environment}-{protocol}")
}

/// Name of the child MuxTunnel that carries IP packets in the environment `index`.
pub fn network(benchmark: &str, index: usize) -> String {
    tunnel(benchmark, index, "network")
}

/// Name of an environment, for example `e1` for the index 0.
pub fn environment(index: usize) -> String {
    format!("e{}", index + 1)
}

/// Name of the ConfigMap that authenticates the operator to the runner.
pub fn operator(benchmark: &str) -> String {
    format!("{benchmark}-operator")
}

/// Name of the ConfigMap with the results.
pub fn results(benchmark: &str) -> String {
    format!("{benchmark}-results")
}

/// Labels of an object of the environment `index`.
pub fn environment_labels(
    benchmark: &str,
    component: &str,
    index: usize,
) -> BTreeMap<String, String> {
    in_environment(labels::child(KIND, benchmark, component), index)
}

/// The labels that select the pods of one agent of the environment `index`.
pub fn agent_selector(benchmark: &str, component: &str, index: usize) -> BTreeMap<String, String> {
    in_environment(labels::selector(KIND, benchmark, component), index)
}

fn in_environment(mut labels: BTreeMap<String, String>, index: usize) -> BTreeMap<String, String> {
    labels.insert(ENVIRONMENT.to_owned(), environment(index));
    labels
}
