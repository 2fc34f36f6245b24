//! Renders the objects of a validated benchmark. Pure: reads no cluster.
//!
//! The Job, the token and the results live as long as the benchmark. An environment has up to four
//! agents with their own pods. If the path Tunnel is measured, the environment has one MuxTunnel
//! per protocol, each with forwards, and one Service, the target of these forwards. If the path
//! Network is measured, the environment has one further MuxTunnel, which carries IP packets. Each
//! kind of object has its own file.

pub mod agents;
pub mod results;
pub mod runner;
pub mod tunnel;

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{PodSpec, PodTemplateSpec, Service};
use k8s_openapi::jiff::Timestamp;
use kube::api::ObjectMeta;
use kube::{Resource, ResourceExt};
use muxtunnel_bench_api::Path;
use muxtunnel_crds::MuxTunnel;

use super::names::{self, Agent, End};
use super::validate::{Environment, ValidatedBenchmark};
use crate::labels;
use crate::pods;
use crate::settings::Settings;
use crate::tunnel_controller;
use crate::tunnel_controller::dereference::{Credentials, Dereferenced};
use crate::tunnel_controller::object::Object;
use crate::tunnel_controller::references::ServiceName;

/// All objects of one environment; empty if there is no environment.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct EnvironmentObjects {
    /// The Service that is the target of the tunnels' forwards.
    pub services: Vec<Service>,
    /// The agents.
    pub agents: Vec<Deployment>,
    /// The tunnels to measure.
    pub tunnels: Vec<MuxTunnel>,
}

impl EnvironmentObjects {
    /// When the first object was created.
    pub fn created(&self) -> Option<Timestamp> {
        let services = self.services.iter().map(Resource::meta);
        let agents = self.agents.iter().map(Resource::meta);
        let all = services
            .chain(agents)
            .chain(self.tunnels.iter().map(Resource::meta));
        let times = all.filter_map(|meta| meta.creation_timestamp.as_ref());
        times.map(|time| time.0).min()
    }
}

/// An environment (`e1`, `e2`, ...) whose objects cannot be rendered, and the problem.
#[derive(Debug, thiserror::Error)]
#[error("the tunnel of environment {0} {1}")]
pub struct BuildError(String, String);

/// The objects of `environment`, for the measured paths.
///
/// # Errors
/// [`BuildError`] if the tunnel's controller would reject the requested gateways.
pub fn environment(
    settings: &Settings,
    benchmark: &ValidatedBenchmark,
    environment: &Environment,
) -> Result<EnvironmentObjects, BuildError> {
    let server = Agent::new(Path::Tunnel, End::Server);
    let service = agents::service(benchmark, environment, server);
    let mut tunnels = Vec::new();
    // Any tunnel gives the same pods for the direct pair: the tunnels differ only in their
    // protocol, and a protocol affects neither sysctls nor the delay.
    let mut gateways = BTreeMap::new();
    for protocol in &benchmark.protocols {
        let tunnel = tunnel::tunnel(benchmark, environment, *protocol);
        gateways = self::gateways(settings, (benchmark, environment), &tunnel, &service)?;
        tunnels.push(tunnel);
    }
    let measured = |agent: &&Agent| benchmark.measures(agent.path);
    let mut agents = Vec::new();
    for agent in Agent::ALL.iter().filter(measured) {
        let end = agent.end.gateway_component();
        let gateway = gateways.get(end).ok_or_else(|| {
            let environment = names::environment(environment.key.index);
            BuildError(environment, format!("has no {end} gateways"))
        })?;
        agents.push(agents::deployment(benchmark, environment, *agent, gateway));
    }
    let mut services = vec![service.clone()];
    if !benchmark.measures(Path::Tunnel) {
        tunnels.clear();
        services.clear();
    }
    if let Some(protocol) = benchmark.network_protocol() {
        let network = tunnel::network(benchmark, environment, protocol);
        self::gateways(settings, (benchmark, environment), &network, &service)?;
        tunnels.push(network);
    }
    Ok(EnvironmentObjects {
        services,
        agents,
        tunnels,
    })
}

/// The metadata of an object that is deleted with its benchmark. `labels`: those of its pods, if it
/// has pods.
fn owned(
    benchmark: &ValidatedBenchmark,
    name: String,
    labels: BTreeMap<String, String>,
) -> ObjectMeta {
    let place = (&*benchmark.namespace, name);
    labels::metadata(place, labels, Some(&benchmark.owner))
}

/// A pod of the benchmark with these labels, and with those of the template.
fn template(
    benchmark: &ValidatedBenchmark,
    labels: BTreeMap<String, String>,
    pod: PodSpec,
) -> PodTemplateSpec {
    let asked = benchmark.class.common(&benchmark.template).metadata;
    pods::template(asked.unwrap_or_default(), labels, pod)
}

/// The pods of the gateways that the tunnel's controller will create, by component. The direct pair
/// is derived from these pods, so it has the same sysctls and delay.
fn gateways(
    settings: &Settings,
    (benchmark, environment): (&ValidatedBenchmark, &Environment),
    tunnel: &MuxTunnel,
    target: &Service,
) -> Result<BTreeMap<String, PodSpec>, BuildError> {
    let failed = |problem: String| BuildError(names::environment(environment.key.index), problem);
    let mut tunnel = tunnel.clone();
    // The tunnel does not exist yet, so it has no UID.
    tunnel.metadata.uid = Some(String::new());
    let namespace = tunnel.namespace().unwrap_or_default();
    let target_name = ServiceName::new(namespace, target.name_any());
    let named = Dereferenced {
        services: [(target_name, target.clone())].into(),
        // The tunnel's controller creates the keys. No pod of the direct pair has them.
        credentials: Credentials {
            pair: Some(String::new()),
            ..Credentials::default()
        },
        ..Dereferenced::default()
    };
    let tunnel = Object::from(Arc::new(tunnel));
    let class = benchmark.class.clone();
    let valid = tunnel_controller::validate::validate(&tunnel, &named, class);
    let valid =
        valid.map_err(|hindrance| failed(format!("is invalid: {}", hindrance.problem().detail)))?;
    let resources = tunnel_controller::build::build(&valid, settings);
    let resources = resources.map_err(|error| failed(format!("cannot be rendered: {error}")))?;
    let pods = resources.deployments.into_iter().filter_map(|deployment| {
        let component = deployment.labels().get(labels::COMPONENT)?.clone();
        Some((component, deployment.spec?.template.spec?))
    });
    Ok(pods.collect())
}
