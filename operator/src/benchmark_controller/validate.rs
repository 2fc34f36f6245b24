//! Turns a MuxBenchmark into a [`ValidatedBenchmark`], the only input of builders. Pure.
//!
//! Rejects specs that match the schema but cannot be run. The message names the field. The spec is
//! immutable, so a rejection is final, unless the class is its cause.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::ResourceExt;
use muxtunnel_bench_api::{
    EnvironmentKey, Matrix, MatrixError, Path, QUIC_DATAGRAM_BYTES, UDP_BITS_PER_SECOND,
};
use muxtunnel_codes::Code;
use muxtunnel_crds::{
    self as crds, BenchmarkContainerName, BenchmarkTunnel, MuxBenchmark, Profile, Protocol,
    Resources, Template,
};
use muxtunnel_gateway_config::QUIC_MTU_DEFAULT;

use crate::apply::owner_reference;
use crate::class::Class;

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
    /// The class of the benchmark.
    pub class: Class,
    /// The `className` of the spec, which the tunnels also have.
    pub class_name: Option<String>,
    /// The matrix to measure.
    pub matrix: Matrix,
    /// The environments, in the order of the matrix.
    pub environments: Vec<Environment>,
    /// The mux protocols. If the path Tunnel is measured, every environment has one tunnel per
    /// protocol.
    pub protocols: Vec<Protocol>,
    /// The settings of all tunnels, as far as their protocol supports them.
    pub tunnel: BenchmarkTunnel,
    /// Settings of the pods of the runner and of the agents.
    pub template: Template<BenchmarkContainerName>,
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
    pub fn measures(&self, path: Path) -> bool {
        self.matrix.paths.contains(&path)
    }

    /// The resources of the container `name`.
    pub fn resources(&self, name: BenchmarkContainerName) -> Option<&Resources> {
        let mut containers = self.template.spec.iter().flat_map(|spec| &spec.containers);
        containers
            .find(|container| container.name == name)?
            .resources
            .as_ref()
    }

    /// The protocol of the tunnel that carries IP packets, if IP packets are measured.
    pub fn network_protocol(&self) -> Option<Protocol> {
        let mut carrying = self.protocols.iter();
        let carrying = carrying.find(|protocol| protocol.can().packets);
        carrying.copied().filter(|_| self.measures(Path::Network))
    }
}

/// Why a benchmark cannot be run.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Invalid {
    /// The object lacks a field that the API server sets on every stored object.
    #[error("the object has no {0}")]
    Metadata(&'static str),
    /// This version of the operator cannot decode the benchmark, the benchmark has no class, or its
    /// class does not permit a part of the spec. A change of the class or another version of the
    /// operator can remove this cause.
    #[error("{1}")]
    Blocked(Code, String),
    /// The matrix is invalid.
    #[error(transparent)]
    Matrix(#[from] MatrixError),
}

/// Checks a benchmark.
///
/// # Errors
/// [`Invalid`], with the field. `class`: the class of the benchmark, or why it has none.
pub fn validate(
    benchmark: &MuxBenchmark,
    class: Result<Class, Invalid>,
) -> Result<ValidatedBenchmark, Invalid> {
    let class = class?;
    let spec = &benchmark.spec;
    let template = spec.template.clone().unwrap_or_default();
    if let Some(metadata) = &template.metadata
        && let Some(refused) = class.refused_key(metadata)
    {
        return Err(Invalid::Blocked(Code::ClassNotPermitted, refused));
    }
    let matrix = Matrix {
        connections: each(spec.connections(), i32::unsigned_abs),
        one_way_delays_ms: spec.delay_milliseconds(),
        profiles: each(spec.profiles(), |profile| profile.as_str().to_owned()),
        paths: each(spec.paths(), path_of),
        protocols: each(spec.protocols(), |own| own.as_str().to_owned()),
        duration_s: spec.duration_seconds(),
        warm_up_s: spec.warm_up_seconds(),
        rounds: spec.rounds().unsigned_abs(),
        udp_bits_per_second: udp_rate(spec),
    };
    matrix.check()?;
    Ok(ValidatedBenchmark {
        name: benchmark.name_any(),
        namespace: benchmark
            .namespace()
            .ok_or(Invalid::Metadata("namespace"))?,
        owner: owner_reference(benchmark).ok_or(Invalid::Metadata("uid"))?,
        class,
        class_name: spec.class_name.clone(),
        environments: environments(spec, &matrix),
        protocols: spec.protocols(),
        matrix,
        tunnel: spec.tunnel.clone().unwrap_or_default(),
        template,
        ttl_seconds_after_finished: spec.ttl_seconds_after_finished,
    })
}

fn each<T, U>(items: Vec<T>, value: fn(T) -> U) -> Vec<U> {
    items.into_iter().map(value).collect()
}

fn environments(spec: &crds::MuxBenchmarkSpec, matrix: &Matrix) -> Vec<Environment> {
    let profiles = spec.profiles();
    let find = |key: EnvironmentKey| {
        let mut profiles = profiles.iter().copied();
        let profile = profiles.find(|name| name.as_str() == key.profile)?;
        Some(Environment { key, profile })
    };
    matrix.environments().into_iter().filter_map(find).collect()
}

fn udp_rate(spec: &crds::MuxBenchmarkSpec) -> u64 {
    let asked = spec.udp.as_ref().and_then(|udp| udp.bits_per_second);
    asked.map_or(UDP_BITS_PER_SECOND, |rate| rate.0)
}

fn path_of(path: crds::Path) -> Path {
    match path {
        crds::Path::Direct => Path::Direct,
        crds::Path::Tunnel => Path::Tunnel,
        crds::Path::Network => Path::Network,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::benchmark::{benchmark, class};

    fn udp_rate_of(udp: &str) -> Result<u64, String> {
        let spec = format!("tunnel: {{}}\npaths: [Direct, Network]\n{udp}");
        let valid = validate(&benchmark(&spec), Ok(class())).map_err(|error| error.to_string())?;
        Ok(valid.matrix.udp_bits_per_second)
    }

    #[test]
    fn the_rate_of_the_datagrams_has_a_default_and_bounds() {
        assert_eq!(udp_rate_of(""), Ok(100_000_000));
        assert_eq!(udp_rate_of("udp: {}"), Ok(100_000_000));
        assert_eq!(udp_rate_of("udp: {bitsPerSecond: 1G}"), Ok(1_000_000_000));
        let error = udp_rate_of("udp: {bitsPerSecond: 20G}").unwrap_err();
        assert_eq!(
            error,
            "udp.bitsPerSecond 20000000000 is out of range: use 100000 to 10000000000"
        );
    }

    /// The schema has no defaults, so an object reads back as it was written.
    #[test]
    fn a_spec_without_fields_has_the_default_matrix() {
        let valid = validate(&benchmark("{}"), Ok(class())).unwrap();
        let matrix = &valid.matrix;
        assert_eq!(matrix.connections, [1, 2, 10]);
        assert_eq!(matrix.one_way_delays_ms, [50, 0]);
        assert_eq!(matrix.profiles, ["None", "WAN"]);
        assert_eq!(matrix.paths, [Path::Direct, Path::Tunnel]);
        assert_eq!(matrix.protocols, ["Native"]);
        assert_eq!(
            (matrix.duration_s, matrix.warm_up_s, matrix.rounds),
            (30, 5, 3)
        );
        assert_eq!(valid.tunnel, BenchmarkTunnel::default());
    }
}
