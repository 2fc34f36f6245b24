//! Turns a MuxBenchmark into a [`ValidatedBenchmark`], the only input of builders. Pure.
//!
//! Rejects specs that match the schema but cannot be run. The message names the field. The spec is
//! immutable, so a rejection is final.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::ResourceExt;
use muxtunnel_bench_api::{
    EnvironmentKey, Matrix, MatrixError, Path, QUIC_DATAGRAM_BYTES, UDP_RATE_KBIT_S, parse_rate,
};
use muxtunnel_crds::{
    self as crds, BenchmarkCarrier, Gateway, MuxBenchmark, Profile, Protocol, Resources,
};
use muxtunnel_gateway_config::QUIC_MTU_DEFAULT;

use crate::apply::owner_reference;
use crate::protocol::configured;

// The datagrams of a benchmark over QUIC, with the headers of UDP (8 bytes) and IPv4 (20), have
// exactly the default MTU of an interface over QUIC.
const _: () = assert!(QUIC_DATAGRAM_BYTES + 8 + 20 == QUIC_MTU_DEFAULT as u32);

/// A benchmark that can be run.
#[derive(Debug, Clone, PartialEq)]
pub struct ValidatedBenchmark {
    /// Name of the benchmark.
    pub name: String,
    /// The namespace of the benchmark and of its children.
    pub namespace: String,
    /// The owner reference for the benchmark's children.
    pub owner: OwnerReference,
    /// The matrix to measure.
    pub matrix: Matrix,
    /// The environments, in the order of the matrix.
    pub environments: Vec<Environment>,
    /// The mux protocols. If the path Tunnel is measured, every environment has one tunnel per
    /// protocol.
    pub protocols: Vec<Protocol>,
    /// The carrier settings of all tunnels, as far as their protocol supports them.
    pub carrier: BenchmarkCarrier,
    /// Settings of the entry gateways.
    pub entry: Option<Gateway>,
    /// Settings of the exit gateways.
    pub exit: Option<Gateway>,
    /// Resources of the runner's container and of the agents' containers.
    pub resources: Option<Resources>,
    /// Seconds after which the finished Job is deleted.
    pub ttl_seconds_after_finished: Option<i32>,
}

/// One environment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Environment {
    /// The key in the matrix.
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

    /// The protocol of the tunnel that carries IP packets, if IP packets are measured.
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
    /// The object lacks a field that the API server sets on every stored object.
    #[error("the object has no {0}")]
    Metadata(&'static str),
    /// The value is not a multiple of one second, which iperf requires.
    #[error("{field} {value} is not a whole number of seconds")]
    Seconds {
        /// The field.
        field: &'static str,
        /// The value of the field.
        value: String,
    },
    /// The rate of the datagrams is invalid.
    #[error("udp.rate: {0}")]
    UdpRate(String),
    /// The matrix is invalid.
    #[error(transparent)]
    Matrix(#[from] MatrixError),
}

/// Checks a benchmark.
///
/// # Errors
/// [`Invalid`], with the field.
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
        udp_rate_kbit_s: udp_rate(spec)?,
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
        resources: spec.resources.clone(),
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

fn udp_rate(spec: &crds::MuxBenchmarkSpec) -> Result<u32, Invalid> {
    let rate = spec.udp.as_ref().and_then(|udp| udp.rate.as_deref());
    rate.map_or(Ok(UDP_RATE_KBIT_S), parse_rate)
        .map_err(Invalid::UdpRate)
}

fn path_of(path: crds::Path) -> Path {
    match path {
        crds::Path::Direct => Path::Direct,
        crds::Path::Tunnel => Path::Tunnel,
        crds::Path::Network => Path::Network,
    }
}

/// The name of a profile in results.
fn profile_name(profile: Profile) -> &'static str {
    match profile {
        Profile::None => "None",
        Profile::Lan => "Lan",
        Profile::Wan => "Wan",
    }
}

/// The name of a protocol in results.
pub fn protocol_name(protocol: Protocol) -> &'static str {
    configured(protocol).can().name
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::benchmark::benchmark;

    fn udp_rate_of(udp: &str) -> Result<u32, String> {
        let spec = format!("tunnel: {{carrier: {{}}}}\npaths: [Direct, Network]\n{udp}");
        let valid = validate(&benchmark(&spec)).map_err(|error| error.to_string())?;
        Ok(valid.matrix.udp_rate_kbit_s)
    }

    #[test]
    fn the_rate_of_the_datagrams_has_a_default_and_bounds() {
        assert_eq!(udp_rate_of(""), Ok(100_000));
        assert_eq!(udp_rate_of("udp: {}"), Ok(100_000));
        assert_eq!(udp_rate_of("udp: {rate: 1Gbit}"), Ok(1_000_000));
        let error = udp_rate_of("udp: {rate: 20Gbit}").unwrap_err();
        assert!(
            error.starts_with("udp.rate: \"20Gbit\" is not a rate"),
            "{error}"
        );
    }
}
