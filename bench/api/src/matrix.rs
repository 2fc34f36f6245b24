//! The matrix: which cells a benchmark has, in which order, and the runner's flags that say so.
//!
//! One order holds everywhere: environments by one-way delay, then tuning; within an environment
//! by connections, and for each number of connections the routes side by side.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::{
    AXIS_MAX, CELLS_MAX, CONNECTIONS_MAX, DURATION_SECONDS_MAX, ONE_WAY_DELAY_MS_MAX, ROUNDS_MAX,
};

/// The tuning that leaves the kernel's defaults.
pub const UNTUNED: &str = "None";
/// The mux protocols that carry IP packets.
pub const PACKET_PROTOCOLS: [&str; 2] = ["Native", "QUIC"];
/// Longest name of a tuning or protocol, bytes.
const NAME_BYTES_MAX: usize = 32;

/// Which way the bytes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Path {
    /// From client to server without a tunnel: same emulated delay and sysctls as the gateways.
    Direct,
    /// Through the tunnel; client and server have kernel defaults.
    Tunnel,
    /// As IP packets through the interfaces of the tunnel's gateways, in whose pods client and server are.
    Network,
}

/// Lower case, as in the results.
impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Direct => "direct",
            Self::Tunnel => "tunnel",
            Self::Network => "network",
        })
    }
}

/// Either case: `Direct` as in the resource, `direct` as in the results.
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

/// One of the ways that are compared.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Route {
    /// Without a tunnel.
    Direct,
    /// Through the tunnel of this mux protocol.
    Tunnel(String),
    /// As IP packets, which this mux protocol carries.
    Network(String),
}

impl Route {
    /// What its cells are of.
    #[must_use]
    pub const fn path(&self) -> Path {
        match self {
            Self::Direct => Path::Direct,
            Self::Tunnel(_) => Path::Tunnel,
            Self::Network(_) => Path::Network,
        }
    }

    /// The mux protocol as the results have it: lower case.
    #[must_use]
    pub fn protocol(&self) -> Option<String> {
        match self {
            Self::Direct => None,
            Self::Tunnel(protocol) | Self::Network(protocol) => Some(protocol.to_ascii_lowercase()),
        }
    }
}

/// `direct`, `jmux`, `native`, `network`.
impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.path(), self.protocol()) {
            (Path::Tunnel, Some(protocol)) => f.pad(&protocol),
            (path, _) => path.fmt(f),
        }
    }
}

/// All that one benchmark measures.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Matrix {
    /// Numbers of parallel iperf connections.
    pub connections: Vec<u32>,
    /// Emulated one-way delays, milliseconds; the RTT is twice that.
    pub one_way_delays_ms: Vec<u32>,
    /// Names of the sysctl profiles of the gateways, for example `None` and `Wan`.
    pub tunings: Vec<String>,
    /// The paths compared.
    pub paths: Vec<Path>,
    /// Mux protocols, each of a tunnel of its own; the direct path has none.
    pub protocols: Vec<String>,
    /// Seconds of a run, warm-up included.
    pub duration_s: u32,
    /// Seconds at the start of a run that are left out of the figures.
    pub warm_up_s: u32,
    /// Times that each cell is run.
    pub rounds: u32,
}

/// One environment: what the operator brings up and removes again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnvironmentKey {
    /// Place in the order of environments, from 0.
    pub index: usize,
    /// Emulated one-way delay, milliseconds.
    pub one_way_delay_ms: u32,
    /// Sysctl profile of the gateways and of the direct pair.
    pub tuning: String,
}

/// One cell of the matrix.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CellKey {
    /// Place in the order of cells, from 0.
    pub index: usize,
    /// The environment it is measured in.
    pub environment: usize,
    /// Which way the bytes go.
    pub route: Route,
    /// Parallel iperf connections.
    pub connections: u32,
}

/// Why a matrix cannot be run.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MatrixError {
    /// An axis has no value, or too many.
    #[error("{axis} has {count} values; 1 to {AXIS_MAX} are possible")]
    AxisLength {
        /// The axis.
        axis: &'static str,
        /// Its values.
        count: usize,
    },
    /// A value is on its axis twice.
    #[error("{axis} has {value} twice")]
    Repeated {
        /// The axis.
        axis: &'static str,
        /// The value.
        value: String,
    },
    /// A number is outside its range.
    #[error("{field} is {value}; {min} to {max} are possible")]
    OutOfRange {
        /// The field.
        field: &'static str,
        /// Its value.
        value: u32,
        /// The least possible.
        min: u32,
        /// The most possible.
        max: u32,
    },
    /// A name has other characters than letters, digits and `-`, or is too long.
    #[error("{axis} has {value:?}; names are 1 to {NAME_BYTES_MAX} letters, digits and dashes")]
    Name {
        /// The axis.
        axis: &'static str,
        /// The value.
        value: String,
    },
    /// IP packets need one protocol that carries them: a matrix has one route of them.
    #[error(
        "paths has Network, which needs one of the protocols Native and QUIC; protocols has {0} of them"
    )]
    PacketProtocols(usize),
    /// Nothing is left to measure.
    #[error("a warm-up of {warm_up_s} s leaves nothing of a run of {duration_s} s")]
    WarmUp {
        /// Seconds left out.
        warm_up_s: u32,
        /// Seconds of a run.
        duration_s: u32,
    },
    /// The product of the axes is too large.
    #[error("the matrix has {0} cells; at most {CELLS_MAX} are possible")]
    TooManyCells(usize),
}

impl Matrix {
    /// Checks every axis and number.
    ///
    /// # Errors
    /// The first rule that is broken, with the offending value.
    pub fn check(&self) -> Result<(), MatrixError> {
        check_axis("connections", &self.connections)?;
        check_axis("delays", &self.one_way_delays_ms)?;
        check_axis("tunings", &self.tunings)?;
        check_axis("paths", &self.paths)?;
        check_axis("protocols", &self.protocols)?;
        for value in &self.connections {
            check_range("connections", *value, 1, CONNECTIONS_MAX)?;
        }
        for value in &self.one_way_delays_ms {
            check_range("delays (milliseconds)", *value, 0, ONE_WAY_DELAY_MS_MAX)?;
        }
        for (axis, names) in [("tunings", &self.tunings), ("protocols", &self.protocols)] {
            check_names(axis, names)?;
        }
        check_range(
            "duration (seconds)",
            self.duration_s,
            1,
            DURATION_SECONDS_MAX,
        )?;
        if self.warm_up_s >= self.duration_s {
            return Err(MatrixError::WarmUp {
                warm_up_s: self.warm_up_s,
                duration_s: self.duration_s,
            });
        }
        check_range("rounds", self.rounds, 1, ROUNDS_MAX)?;
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

    /// The environments in the order in which they are brought up.
    #[must_use]
    pub fn environments(&self) -> Vec<EnvironmentKey> {
        let mut environments = Vec::new();
        for one_way_delay_ms in &self.one_way_delays_ms {
            for tuning in &self.tunings {
                environments.push(EnvironmentKey {
                    index: environments.len(),
                    one_way_delay_ms: *one_way_delay_ms,
                    tuning: tuning.clone(),
                });
            }
        }
        environments
    }

    /// The ways that are compared in each environment: the paths in their order, the tunnel once for
    /// each protocol, the network once.
    #[must_use]
    pub fn routes(&self) -> Vec<Route> {
        let of_path = |path: &Path| match path {
            Path::Direct => vec![Route::Direct],
            Path::Tunnel => self.protocols.iter().cloned().map(Route::Tunnel).collect(),
            Path::Network => self.packet_protocols().map(Route::Network).collect(),
        };
        self.paths.iter().flat_map(of_path).collect()
    }

    fn packet_protocols(&self) -> impl Iterator<Item = String> {
        let carrying = |name: &&String| PACKET_PROTOCOLS.contains(&name.as_str());
        self.protocols.iter().filter(carrying).cloned()
    }

    /// All cells in the order in which they are measured.
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
        let delays = self.one_way_delays_ms.iter().map(|ms| format!("{ms}ms"));
        vec![
            format!("--connections={}", join(&self.connections)),
            format!("--delays={}", delays.collect::<Vec<_>>().join(",")),
            format!("--tunings={}", self.tunings.join(",")),
            format!("--paths={}", join(&self.paths)),
            format!("--protocols={}", self.protocols.join(",")),
            format!("--duration={}s", self.duration_s),
            format!("--warm-up={}s", self.warm_up_s),
            format!("--rounds={}", self.rounds),
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

fn check_range(field: &'static str, value: u32, min: u32, max: u32) -> Result<(), MatrixError> {
    if (min..=max).contains(&value) {
        Ok(())
    } else {
        Err(MatrixError::OutOfRange {
            field,
            value,
            min,
            max,
        })
    }
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
