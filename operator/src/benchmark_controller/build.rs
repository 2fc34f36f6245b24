//! From a validated benchmark to the objects that make it up. Pure: reads no cluster.
//!
//! What lives as long as the benchmark: Job, token, results. What an environment has: a MuxTunnel for
//! each protocol, one that carries IP packets, a Service behind the others and up to four agents. One file a kind of
//! object.

pub mod agents;
pub mod metadata;
pub mod results;
pub mod runner;
pub mod tunnel;

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{PodSpec, Service};
use kube::ResourceExt;
use muxtunnel_bench_api::Path;
use muxtunnel_crds::MuxTunnel;

use super::names::{self, Agent, End};
use super::validate::{Environment, ValidatedBenchmark};
use crate::settings::Settings;
use crate::tunnel_controller;
use crate::tunnel_controller::dereference::Dereferenced;
use crate::tunnel_controller::hindrance::Hindrance;
use crate::tunnel_controller::references::ServiceName;

/// All objects of one environment; none of any kind when there is no environment.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct EnvironmentObjects {
    /// The tunnels that are measured.
    pub tunnels: Vec<MuxTunnel>,
    /// The Service that their forwards target.
    pub services: Vec<Service>,
    /// The agents.
    pub agents: Vec<Deployment>,
}

/// The objects of an environment could not be rendered.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// The tunnel would be refused.
    #[error("the tunnel of environment {environment} would be refused: {problem}")]
    Refused {
        /// `e1`, `e2`, ...
        environment: String,
        /// What is wrong with it.
        problem: String,
    },
    /// Its gateways cannot be rendered.
    #[error("the tunnel of environment {environment}: {source}")]
    Gateways {
        /// `e1`, `e2`, ...
        environment: String,
        /// What is wrong with them.
        source: tunnel_controller::Error,
    },
    /// It renders no gateways of one end.
    #[error("the tunnel of environment {environment} has no {end} gateways")]
    NoGateway {
        /// `e1`, `e2`, ...
        environment: String,
        /// `entry` or `exit`.
        end: &'static str,
    },
}

/// The objects of `environment`: those of the paths that are measured.
///
/// # Errors
/// [`BuildError`], when the tunnel's own controller would refuse what is asked of the gateways.
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
    // Tunnels differ in their protocol alone, which changes neither sysctls nor delay.
    let mut gateways = BTreeMap::new();
    for protocol in &benchmark.protocols {
        let tunnel = tunnel::tunnel(benchmark, environment, *protocol);
        gateways = self::gateways(settings, environment, &tunnel, &service)?;
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
        agents.push(agents::deployment(
            settings,
            benchmark,
            environment,
            *agent,
            gateway,
        ));
    }
    let mut services = vec![service.clone()];
    if !benchmark.measures(Path::Tunnel) {
        tunnels.clear();
        services.clear();
    }
    if let Some(protocol) = benchmark.network_protocol() {
        let network = tunnel::network(benchmark, environment, protocol);
        self::gateways(settings, environment, &network, &service)?;
        tunnels.push(network);
    }
    Ok(EnvironmentObjects {
        tunnels,
        services,
        agents,
    })
}

/// The pods of the gateways that the tunnel's controller will make, by component. The direct pair is
/// made from them, so that it cannot differ in sysctls or delay.
fn gateways(
    settings: &Settings,
    environment: &Environment,
    tunnel: &MuxTunnel,
    target: &Service,
) -> Result<BTreeMap<String, PodSpec>, BuildError> {
    let environment = names::environment(environment.key.index);
    let failed = |source| BuildError::Gateways {
        environment: environment.clone(),
        source,
    };
    let mut tunnel = tunnel.clone();
    // It has not been created, so the API server has not given it a UID yet.
    tunnel.metadata.uid = Some(String::new());
    let target_name = ServiceName {
        namespace: tunnel.namespace().unwrap_or_default(),
        name: target.name_any(),
    };
    let named = Dereferenced {
        services: [(target_name, target.clone())].into(),
        ..Dereferenced::default()
    };
    let valid = match tunnel_controller::validate::validate(&tunnel, &named, settings) {
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
