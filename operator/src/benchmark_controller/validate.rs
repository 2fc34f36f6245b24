//! From a MuxBenchmark to [`ValidatedBenchmark`], the only thing that builders read. Pure.
//!
//! What the rules of the resource let through and cannot be run nevertheless is refused here, with
//! words that name the field. As the spec cannot be changed, such a refusal is final.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::ResourceExt;
use muxtunnel_bench_api::{EnvironmentKey, Matrix, MatrixError, Path};
use muxtunnel_crds::{self as crds, BenchmarkCarrier, Gateway, MuxBenchmark, Profile, Protocol};

use crate::apply::owner_reference;
use crate::protocol::configured;

/// A benchmark that can be run.
#[derive(Debug, Clone, PartialEq)]
pub struct ValidatedBenchmark {
    /// Its name.
    pub name: String,
    /// Its namespace, and that of all that it owns.
    pub namespace: String,
    /// The reference that its children carry.
    pub owner: OwnerReference,
    /// What is measured.
    pub matrix: Matrix,
    /// Environments in the order of the matrix.
    pub environments: Vec<Environment>,
    /// Mux protocols, each of a tunnel in every environment.
    pub protocols: Vec<Protocol>,
    /// The carriers of all tunnels, as far as their protocol has it.
    pub carrier: BenchmarkCarrier,
    /// Settings of the entry gateways.
    pub entry: Option<Gateway>,
    /// Settings of the exit gateways.
    pub exit: Option<Gateway>,
    /// Seconds after which the finished Job is removed.
    pub ttl_seconds_after_finished: Option<i32>,
}

/// One environment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Environment {
    /// Its place in the matrix.
    pub key: EnvironmentKey,
    /// Sysctl profile of the gateways and of the direct pair.
    pub profile: Profile,
}

impl ValidatedBenchmark {
    /// Whether `path` is measured.
    #[must_use]
    pub fn measures(&self, path: Path) -> bool {
        self.matrix.paths.contains(&path)
    }

    /// The protocol of the tunnel that carries IP packets, if they are measured.
    #[must_use]
    pub fn network_protocol(&self) -> Option<Protocol> {
        let mut carrying = self.protocols.iter();
        let carrying = carrying.find(|protocol| configured(**protocol).can().packets);
        carrying.copied().filter(|_| self.measures(Path::Network))
    }
}

/// Why a benchmark cannot be run.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Invalid {
    /// The API server sets it, so only an object that never was there lacks it.
    #[error("the object has no {0}")]
    Metadata(&'static str),
    /// iperf counts whole seconds.
    #[error("{field} {value} is not in whole seconds")]
    Seconds {
        /// The field.
        field: &'static str,
        /// Its value.
        value: String,
    },
    /// The matrix as a whole.
    #[error(transparent)]
    Matrix(#[from] MatrixError),
}

/// Checks a benchmark.
///
/// # Errors
/// [`Invalid`], naming the field.
pub fn validate(benchmark: &MuxBenchmark) -> Result<ValidatedBenchmark, Invalid> {
    let spec = &benchmark.spec;
    let matrix = Matrix {
        connections: spec
            .connections
            .iter()
            .map(|count| count.unsigned_abs())
            .collect(),
        one_way_delays_ms: spec
            .delays
            .iter()
            .map(|delay| u32::try_from(delay.as_millis()).unwrap_or(u32::MAX))
            .collect(),
        tunings: spec
            .tunings
            .iter()
            .map(|profile| profile_name(*profile).to_owned())
            .collect(),
        paths: spec.paths.iter().map(|path| path_of(*path)).collect(),
        protocols: spec
            .protocols
            .iter()
            .map(|name| protocol_name(*name).to_owned())
            .collect(),
        duration_s: whole_seconds("duration", spec.duration)?,
        warm_up_s: whole_seconds("warmUp", spec.warm_up)?,
        rounds: spec.rounds.unsigned_abs(),
    };
    matrix.check()?;
    Ok(ValidatedBenchmark {
        name: benchmark.name_any(),
        namespace: benchmark
            .namespace()
            .ok_or(Invalid::Metadata("namespace"))?,
        owner: owner_reference(benchmark).ok_or(Invalid::Metadata("uid"))?,
        environments: environments(spec, &matrix),
        protocols: spec.protocols.clone(),
        matrix,
        carrier: spec.tunnel.carrier.clone(),
        entry: spec.tunnel.entry.clone(),
        exit: spec.tunnel.exit.clone(),
        ttl_seconds_after_finished: spec.ttl_seconds_after_finished,
    })
}

fn environments(spec: &crds::MuxBenchmarkSpec, matrix: &Matrix) -> Vec<Environment> {
    let find = |key: EnvironmentKey| {
        let profile = spec
            .tunings
            .iter()
            .find(|name| profile_name(**name) == key.tuning)?;
        Some(Environment {
            key,
            profile: *profile,
        })
    };
    matrix.environments().into_iter().filter_map(find).collect()
}

fn whole_seconds(field: &'static str, duration: crds::Duration) -> Result<u32, Invalid> {
    let milliseconds = duration.as_millis();
    let wrong = || Invalid::Seconds {
        field,
        value: duration.to_string(),
    };
    if !milliseconds.is_multiple_of(1000) {
        return Err(wrong());
    }
    u32::try_from(milliseconds / 1000).map_err(|_| wrong())
}

fn path_of(path: crds::Path) -> Path {
    match path {
        crds::Path::Direct => Path::Direct,
        crds::Path::Tunnel => Path::Tunnel,
        crds::Path::Network => Path::Network,
    }
}

/// The name that a profile has in results.
fn profile_name(profile: Profile) -> &'static str {
    match profile {
        Profile::None => "None",
        Profile::Lan => "Lan",
        Profile::Wan => "Wan",
    }
}

/// The name that a protocol has in results.
pub fn protocol_name(protocol: Protocol) -> &'static str {
    configured(protocol).can().name
}
