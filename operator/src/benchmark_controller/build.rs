//! Renders the objects of a validated benchmark. Pure: reads no cluster.
//!
//! The Job, the token and the results live as long as the benchmark. An environment has up to four
//! agents with their own pods. If the path Tunnel is measured, the environment has one MuxTunnel
//! per protocol, each with forwards, and one Service, the target of these forwards. If the path
//! Network is measured, the environment has one further MuxTunnel, which carries IP packets. Each
//! kind of object has its own file.

pub mod agents;
pub mod metadata;
pub mod results;
pub mod runner;
pub mod template;
pub mod tunnel;

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{PodSpec, Service};
use kube::ResourceExt;
use muxtunnel_bench_api::Path;
use muxtunnel_crds::MuxTunnel;

use super::names::{self, Agent, End};
use super::validate::{Environment, ValidatedBenchmark};
use crate::settings::Settings;
use crate::tunnel_controller;
use crate::tunnel_controller::dereference::{Credentials, Dereferenced};
use crate::tunnel_controller::hindrance::Hindrance;
use crate::tunnel_controller::object::Object;
use crate::tunnel_controller::references::ServiceName;

/// All objects of one environment; empty if there is no environment.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct EnvironmentObjects {
    /// The tunnels to measure.
    pub tunnels: Vec<MuxTunnel>,
    /// The Service that is the target of the tunnels' forwards.
    pub services: Vec<Service>,
    /// The agents.
    pub agents: Vec<Deployment>,
}

/// The objects of an environment could not be rendered.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// The tunnel's controller would reject the tunnel.
    #[error("the tunnel of environment {environment} is invalid: {problem}")]
    Refused {
        /// `e1`, `e2`, ...
        environment: String,
        /// The problem.
        problem: String,
    },
    /// The gateways of the tunnel cannot be rendered.
    #[error("cannot render the gateways of the tunnel of environment {environment}: {source}")]
    Gateways {
        /// `e1`, `e2`, ...
        environment: String,
        /// The error of the tunnel's controller.
        source: tunnel_controller::Error,
    },
    /// The tunnel has no gateways at one end.
    #[error("the tunnel of environment {environment} has no {end} gateways")]
    NoGateway {
        /// `e1`, `e2`, ...
        environment: String,
        /// `entry` or `exit`.
        end: &'static str,
    },
}

/// The objects of `environment`, for the measured paths.
///
/// # Errors
/// [`BuildError`] if the tunnel's controller would reject the requested gateways.
pub fn environment(
    settings: &Settings,
    benchmark: &ValidatedBenchmark,
    environment: &Environment,
) -> Result<EnvironmentObjects, BuildError> {
    let server = Agent {
        path: Path::Tunnel,
        end: End::Server,
    };
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
        let gateway = gateways.get(end).ok_or_else(|| BuildError::NoGateway {
            environment: names::environment(environment.key.index),
            end,
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
        tunnels,
        services,
        agents,
    })
}

/// The pods of the gateways that the tunnel's controller will create, by component. The direct pair
/// is derived from these pods, so it has the same sysctls and delay.
fn gateways(
    settings: &Settings,
    (benchmark, environment): (&ValidatedBenchmark, &Environment),
    tunnel: &MuxTunnel,
    target: &Service,
) -> Result<BTreeMap<String, PodSpec>, BuildError> {
    let environment = names::environment(environment.key.index);
    let failed = |source| BuildError::Gateways {
        environment: environment.clone(),
        source,
    };
    let mut tunnel = tunnel.clone();
    // The tunnel does not exist yet, so it has no UID.
    tunnel.metadata.uid = Some(String::new());
    let target_name = ServiceName {
        namespace: tunnel.namespace().unwrap_or_default(),
        name: target.name_any(),
    };
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
    let valid = match tunnel_controller::validate::validate(&tunnel, &named, class) {
        Ok(valid) => valid,
        Err(Hindrance::Failed(error)) => return Err(failed(error)),
        Err(hindrance) => {
            return Err(BuildError::Refused {
                environment,
                problem: hindrance.problem().detail,
            });
        }
    };
    let resources = tunnel_controller::build::build(&valid, settings);
    let resources = resources.map_err(|error| failed(error.into()))?;
    let pods = resources.deployments.into_iter().filter_map(|deployment| {
        let component = deployment.labels().get(crate::labels::COMPONENT)?.clone();
        Some((component, deployment.spec?.template.spec?))
    });
    Ok(pods.collect())
}
