//! The matrix: the cells of a benchmark, their order, and the runner's flags for them.
//!
//! The order of environments and cells is the same in the operator, the runner and the results.
//! Environments are ordered by one-way delay, then by profile. Cells of an environment are ordered
//! by number of connections, then by route.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::{
    AXIS_MAX, CELLS_MAX, CONNECTIONS_MAX, DATAGRAM_BYTES, DURATION_SECONDS_MAX,
    ONE_WAY_DELAY_MS_MAX, QUIC_DATAGRAM_BYTES, ROUNDS_MAX, UDP_BITS_PER_SECOND_MAX,
    UDP_BITS_PER_SECOND_MIN,
};

/// The profile that leaves the kernel's defaults.
pub const UNTUNED: &str = "None";
/// The mux protocols that carry IP packets.
pub const PACKET_PROTOCOLS: [&str; 2] = ["Native", "QUIC"];
/// Greatest length of the name of a profile or protocol in bytes.
const NAME_BYTES_MAX: usize = 32;

/// The path of the payload from client to server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Path {
    /// From client to server without a tunnel, with the same emulated delay and sysctls as the
    /// gateways.
    Direct,
    /// Through the tunnel. Client and server have the kernel's default sysctls.
    Tunnel,
    /// As IP packets through the interfaces of the tunnel's gateways. Client and server run in the
    /// gateways' pods.
    Network,
}

/// Writes the path in lower case, as in the results.
impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Direct => "direct",
            Self::Tunnel => "tunnel",
            Self::Network => "network",
        })
    }
}

/// Accepts `Direct` as in the resource, and `direct` as in the results.
impl FromStr for Path {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "direct" | "Direct" => Ok(Self::Direct),
            "tunnel" | "Tunnel" => Ok(Self::Tunnel),
            "network" | "Network" => Ok(Self::Network),
            _ => Err(format!(
                "{text:?} is not a path; paths are Direct, Tunnel and Network"
            )),
        }
    }
}

/// A route of the comparison.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Route {
    /// The route without a tunnel.
    Direct,
    /// The route through the tunnel of this mux protocol.
    Tunnel(String),
    /// The route of IP packets over this mux protocol.
    Network(String),
}

impl Route {
    /// The path of the route's cells.
    #[must_use]
    pub const fn path(&self) -> Path {
        match self {
            Self::Direct => Path::Direct,
            Self::Tunnel(_) => Path::Tunnel,
            Self::Network(_) => Path::Network,
        }
    }

    /// The mux protocol in lower case, as in the results.
    #[must_use]
    pub fn protocol(&self) -> Option<String> {
        match self {
            Self::Direct => None,
            Self::Tunnel(protocol) | Self::Network(protocol) => Some(protocol.to_ascii_lowercase()),
        }
    }
}

/// Writes `direct`, `jmux`, `native` or `network`.
impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.path(), self.protocol()) {
            (Path::Tunnel, Some(protocol)) => f.pad(&protocol),
            (path, _) => path.fmt(f),
        }
    }
}

/// The parameters of one benchmark.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Matrix {
    /// Numbers of parallel iperf connections.
    pub connections: Vec<u32>,
    /// Emulated one-way delays in milliseconds. The RTT is twice the delay.
    pub one_way_delays_ms: Vec<u32>,
    /// Names of the sysctl profiles of the gateways, for example `None` and `WAN`.
    pub profiles: Vec<String>,
    /// The paths to compare.
    pub paths: Vec<Path>,
    /// Mux protocols, each with its own tunnel. The direct path has none.
    pub protocols: Vec<String>,
    /// Seconds of a run, warm-up included.
    pub duration_s: u32,
    /// Seconds at the start of a run whose bytes are not counted.
    pub warm_up_s: u32,
    /// Number of runs of each cell.
    pub rounds: u32,
    /// Payload rate of the datagrams in bit/s. Datagrams are sent only if the network is measured.
    pub udp_bits_per_second: u64,
}

/// An environment: pods that the operator creates and removes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnvironmentKey {
    /// Position in the order of environments, from 0.
    pub index: usize,
    /// Emulated one-way delay, milliseconds.
    pub one_way_delay_ms: u32,
    /// Sysctl profile of the gateways and of the direct pair.
    pub profile: String,
}

/// One cell of the matrix.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CellKey {
    /// Position in the order of cells, from 0.
    pub index: usize,
    /// Index of the environment of the cell.
    pub environment: usize,
    /// The route of the cell's connections.
    pub route: Route,
    /// Number of parallel iperf connections.
    pub connections: u32,
}

/// Why a matrix is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MatrixError {
    /// An axis has no value, or too many values.
    #[error("{axis} has {count} values: use 1 to {AXIS_MAX}")]
    AxisLength {
        /// Name of the axis.
        axis: &'static str,
        /// Number of values on the axis.
        count: usize,
    },
    /// A value is on its axis twice.
    #[error("{axis} has {value} twice: remove one of them")]
    Repeated {
        /// Name of the axis.
        axis: &'static str,
        /// The repeated value.
        value: String,
    },
    /// A number is outside its range.
    #[error("{field} {value} is out of range: use {min} to {max}")]
    OutOfRange {
        /// Name of the field.
        field: &'static str,
        /// Value of the field.
        value: u64,
        /// The least possible value.
        min: u64,
        /// The greatest possible value.
        max: u64,
    },
    /// A name has other characters than letters, digits and `-`, or is too long.
    #[error("{axis} has {value:?}: use names of 1 to {NAME_BYTES_MAX} letters, digits and dashes")]
    Name {
        /// Name of the axis.
        axis: &'static str,
        /// The invalid name.
        value: String,
    },
    /// A matrix with the path Network has one route of IP packets, so it must have exactly one
    /// protocol that carries IP packets.
    #[error(
        "paths has Network, which needs exactly one of the protocols Native and QUIC; protocols has {0} of them"
    )]
    PacketProtocols(usize),
    /// The warm-up is not shorter than the run.
    #[error(
        "warmUpSeconds {warm_up_s} must be less than durationSeconds {duration_s}, which includes the warm-up"
    )]
    WarmUp {
        /// Seconds of the warm-up.
        warm_up_s: u32,
        /// Seconds of a run.
        duration_s: u32,
    },
    /// The product of the axes is too large.
    #[error("the matrix has {0} cells: reduce them to at most {CELLS_MAX}")]
    TooManyCells(usize),
}

impl Matrix {
    /// Checks every axis and number.
    ///
    /// # Errors
    /// The first violated rule, with the offending value.
    pub fn check(&self) -> Result<(), MatrixError> {
        check_axis("connections", &self.connections)?;
        check_axis("delayMilliseconds", &self.one_way_delays_ms)?;
        check_axis("profiles", &self.profiles)?;
        check_axis("paths", &self.paths)?;
        check_axis("protocols", &self.protocols)?;
        for value in &self.connections {
            check_range("connections", *value, 1..=CONNECTIONS_MAX)?;
        }
        for value in &self.one_way_delays_ms {
            check_range("delayMilliseconds", *value, 0..=ONE_WAY_DELAY_MS_MAX)?;
        }
        for (axis, names) in [("profiles", &self.profiles), ("protocols", &self.protocols)] {
            check_names(axis, names)?;
        }
        check_range("durationSeconds", self.duration_s, 1..=DURATION_SECONDS_MAX)?;
        if self.warm_up_s >= self.duration_s {
            return Err(MatrixError::WarmUp {
                warm_up_s: self.warm_up_s,
                duration_s: self.duration_s,
            });
        }
        check_range("rounds", self.rounds, 1..=ROUNDS_MAX)?;
        check_range(
            "udp.bitsPerSecond",
            self.udp_bits_per_second,
            UDP_BITS_PER_SECOND_MIN..=UDP_BITS_PER_SECOND_MAX,
        )?;
        let carrying = self.packet_protocols().count();
        if self.paths.contains(&Path::Network) && carrying != 1 {
            return Err(MatrixError::PacketProtocols(carrying));
        }
        let cells = self.cells().len();
        if cells > CELLS_MAX {
            return Err(MatrixError::TooManyCells(cells));
        }
        Ok(())
    }

    /// The environments in the order of their creation.
    #[must_use]
    pub fn environments(&self) -> Vec<EnvironmentKey> {
        let mut environments = Vec::new();
        for one_way_delay_ms in &self.one_way_delays_ms {
            for profile in &self.profiles {
                environments.push(EnvironmentKey {
                    index: environments.len(),
                    one_way_delay_ms: *one_way_delay_ms,
                    profile: profile.clone(),
                });
            }
        }
        environments
    }

    /// The routes of each environment, in the order of their paths. The tunnel has one route for
    /// each protocol. The direct path and the network have one route each.
    #[must_use]
    pub fn routes(&self) -> Vec<Route> {
        let of_path = |path: &Path| match path {
            Path::Direct => vec![Route::Direct],
            Path::Tunnel => self.protocols.iter().cloned().map(Route::Tunnel).collect(),
            Path::Network => self.packet_protocols().map(Route::Network).collect(),
        };
        self.paths.iter().flat_map(of_path).collect()
    }

    /// Whether UDP and ping-pong are measured on `route`. They are measured on the network, and on
    /// the direct path for comparison.
    #[must_use]
    pub fn measures_datagrams(&self, route: &Route) -> bool {
        self.paths.contains(&Path::Network) && route.path() != Path::Tunnel
    }

    /// Payload of a datagram in bytes. The direct path uses the same payload, so that both paths
    /// can be compared.
    #[must_use]
    pub fn datagram_bytes(&self) -> u32 {
        if self.packet_protocols().any(|protocol| protocol == "QUIC") {
            QUIC_DATAGRAM_BYTES
        } else {
            DATAGRAM_BYTES
        }
    }

    fn packet_protocols(&self) -> impl Iterator<Item = String> {
        let carrying = |name: &&String| PACKET_PROTOCOLS.contains(&name.as_str());
        self.protocols.iter().filter(carrying).cloned()
    }

    /// All cells in the order of measurement.
    #[must_use]
    pub fn cells(&self) -> Vec<CellKey> {
        let mut cells = Vec::new();
        for environment in self.environments() {
            for connections in &self.connections {
                for route in self.routes() {
                    cells.push(CellKey {
                        index: cells.len(),
                        environment: environment.index,
                        route,
                        connections: *connections,
                    });
                }
            }
        }
        cells
    }

    /// The flags of `muxbench run` that describe this matrix.
    #[must_use]
    pub fn to_args(&self) -> Vec<String> {
        vec![
            format!("--connections={}", join(&self.connections)),
            format!("--delay-milliseconds={}", join(&self.one_way_delays_ms)),
            format!("--profiles={}", self.profiles.join(",")),
            format!("--paths={}", join(&self.paths)),
            format!("--protocols={}", self.protocols.join(",")),
            format!("--duration-seconds={}", self.duration_s),
            format!("--warm-up-seconds={}", self.warm_up_s),
            format!("--rounds={}", self.rounds),
            format!("--udp-bits-per-second={}", self.udp_bits_per_second),
        ]
    }
}

fn join<T: ToString>(values: &[T]) -> String {
    let texts: Vec<_> = values.iter().map(ToString::to_string).collect();
    texts.join(",")
}

fn check_axis<T: PartialEq + fmt::Debug>(
    axis: &'static str,
    values: &[T],
) -> Result<(), MatrixError> {
    if values.is_empty() || values.len() > AXIS_MAX {
        return Err(MatrixError::AxisLength {
            axis,
            count: values.len(),
        });
    }
    for (index, value) in values.iter().enumerate() {
        if values[..index].contains(value) {
            return Err(MatrixError::Repeated {
                axis,
                value: format!("{value:?}"),
            });
        }
    }
    Ok(())
}

fn check_range<T: Into<u64> + PartialOrd + Copy>(
    field: &'static str,
    value: T,
    range: RangeInclusive<T>,
) -> Result<(), MatrixError> {
    if range.contains(&value) {
        return Ok(());
    }
    Err(MatrixError::OutOfRange {
        field,
        value: value.into(),
        min: (*range.start()).into(),
        max: (*range.end()).into(),
    })
}

fn check_names(axis: &'static str, names: &[String]) -> Result<(), MatrixError> {
    let good = |name: &&String| {
        (1..=NAME_BYTES_MAX).contains(&name.len())
            && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-')
    };
    match names.iter().find(|name| !good(name)) {
        Some(value) => Err(MatrixError::Name {
            axis,
            value: value.clone(),
        }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests;
