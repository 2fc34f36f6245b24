//! Whether an environment is ready for the runner. Pure: computes a verdict from objects of the API
//! server.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt;
use muxtunnel_bench_api::result::Status;
use muxtunnel_bench_api::runner::{Environment as Addresses, Pair, Tunnel, Unavailable};
use muxtunnel_bench_api::{ECHO_PORT, HTTP_PORT, IPERF_PORT, Path, Route};
use muxtunnel_codes::Code;
use muxtunnel_crds::{Feature, MuxTunnel, condition};
use muxtunnel_gateway_config::ADMIN_PORT;

use super::build::EnvironmentObjects;
use super::names::{self, Agent, ENVIRONMENT, End, environment};
use super::validate::{Environment, ValidatedBenchmark};
use crate::labels::{COMPONENT, OWNER_NAME};
use crate::pods::{self, in_url, is_ready, replica_failure};
use crate::tunnel_controller::end::End as GatewayEnd;
use crate::tunnel_controller::object::Kind;
use crate::tunnel_controller::pods::WAN_CONTAINER;

/// The observation of an environment.
#[derive(Debug, Clone, Default)]
pub struct Seen {
    /// The stored objects of the environment, with their status.
    pub objects: EnvironmentObjects,
    /// Pods of the benchmark.
    pub pods: Vec<Arc<Pod>>,
    /// Pods of the child MuxTunnels.
    pub gateways: Vec<Arc<Pod>>,
}

/// Why an environment has no addresses for the runner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotReady {
    /// It may become ready.
    Pending(Unavailable),
    /// It cannot become ready.
    Never(Unavailable),
}

/// Before the objects of an environment exist, decides whether the environment can never become
/// ready.
pub fn refusal_beforehand(
    benchmark: &ValidatedBenchmark,
    environment: &Environment,
) -> Option<Unavailable> {
    let has_delay = environment.key.one_way_delay_ms > 0;
    let reason = benchmark.class.refusal(Feature::WanEmulation, "a delay");
    let reason = reason.filter(|_| has_delay)?;
    Some(refused(Code::ClassNotPermitted, reason))
}

/// The addresses for the runner of an environment with applied objects.
pub fn addresses(
    benchmark: &ValidatedBenchmark,
    wanted: &Environment,
    seen: &Seen,
) -> Result<Addresses, NotReady> {
    let mut addresses = Addresses {
        direct: None,
        tunnels: Vec::new(),
        network: None,
    };
    let index = wanted.key.index;
    // The agents with separate pods.
    let separate = |path| Agents {
        path,
        label: (ENVIRONMENT, environment(index)),
        pods: &seen.pods,
        deployments: &seen.objects.agents,
    };
    let through = |name: &str, protocol, pair| Tunnel {
        protocol,
        pair,
        gateway_status_urls: status_urls(name, &seen.gateways),
    };
    for route in benchmark.matrix.routes() {
        match route {
            Route::Direct => addresses.direct = Some(pair(&separate(Path::Direct), None)?),
            Route::Tunnel(protocol) => {
                let name = names::tunnel(&benchmark.name, index, &protocol);
                // Check the tunnel first, because its conditions describe a fault more precisely
                // than its pods do.
                let entry = entry_host(ready_tunnel(&name, &seen.objects.tunnels)?)?;
                let pair = pair(&separate(Path::Tunnel), Some(entry))?;
                addresses.tunnels.push(through(&name, protocol, pair));
            }
            Route::Network(protocol) => {
                let name = names::network(&benchmark.name, index);
                ready_tunnel(&name, &seen.objects.tunnels)?;
                let beside = Agents {
                    path: Path::Network,
                    label: (OWNER_NAME, name.clone()),
                    pods: &seen.gateways,
                    deployments: &[],
                };
                let server = End::Server.network_address().to_string();
                let pair = pair(&beside, Some(server))?;
                addresses.network = Some(through(&name, protocol, pair));
            }
        }
    }
    Ok(addresses)
}

/// The status URLs of the ready gateways of `tunnel`.
fn status_urls(tunnel: &str, gateways: &[Arc<Pod>]) -> Vec<String> {
    let mine = |pod: &&Arc<Pod>| pod.labels().get(OWNER_NAME).map(String::as_str) == Some(tunnel);
    let ready = gateways.iter().filter(mine).filter(|pod| is_ready(pod));
    ready
        .filter_map(|pod| pods::host(pod))
        .map(|host| format!("http://{}:{ADMIN_PORT}/status", in_url(&host)))
        .collect()
}

/// The agents of a path.
struct Agents<'a> {
    path: Path,
    /// A label of the agents' pods, in addition to the component.
    label: (&'static str, String),
    pods: &'a [Arc<Pod>],
    /// The agents' Deployments, which may be unable to create pods. Gateways have none.
    deployments: &'a [Deployment],
}

/// The agents of a path. The client connects to `host`. `None`: the client connects to the server's
/// own address.
fn pair(agents: &Agents<'_>, host: Option<String>) -> Result<Pair, NotReady> {
    let (client, server) = (
        agent_host(agents, End::Client)?,
        agent_host(agents, End::Server)?,
    );
    Ok(Pair {
        client_url: format!("http://{}:{HTTP_PORT}", in_url(&client)),
        server_url: format!("http://{}:{HTTP_PORT}", in_url(&server)),
        host: host.unwrap_or(server),
        iperf_port: IPERF_PORT,
        echo_port: ECHO_PORT,
        server_iperf_port: IPERF_PORT,
    })
}

/// The tunnel, if it is ready.
fn ready_tunnel<'a>(name: &str, tunnels: &'a [MuxTunnel]) -> Result<&'a MuxTunnel, NotReady> {
    let mut tunnels = tunnels.iter();
    let tunnel = tunnels.find(|tunnel| tunnel.metadata.name.as_deref() == Some(name));
    let tunnel = tunnel.ok_or_else(|| pending(format!("MuxTunnel {name} does not exist yet")))?;
    let status = tunnel.status.as_ref();
    let conditions = status.map_or(&[][..], |status| &status.conditions);
    let current = |type_: &str| {
        conditions.iter().find(|condition| {
            condition.type_ == type_ && condition.observed_generation == tunnel.metadata.generation
        })
    };
    if let Some(verdict) = current(condition::WAN_EMULATED).and_then(|wan| judge_wan(name, wan)) {
        return Err(verdict);
    }
    match current(condition::READY) {
        Some(ready) if ready.status == "True" => Ok(tunnel),
        Some(ready) => Err(pending(format!("MuxTunnel {name}: {}", ready.message))),
        None => Err(pending(format!("MuxTunnel {name} has no conditions yet"))),
    }
}

/// The host name for connections to the forwards.
fn entry_host(tunnel: &MuxTunnel) -> Result<String, NotReady> {
    let name = tunnel.name_any();
    let service = Kind::Tunnel.child(GatewayEnd::Entry, &name);
    let status = tunnel.status.as_ref();
    let mut services = status.into_iter().flat_map(|status| &status.services);
    let found = services.find(|found| found.name == service);
    found
        .and_then(|found| found.host.clone())
        .ok_or_else(|| pending(format!("MuxTunnel {name} has no address of its entry yet")))
}

/// If the delay cannot be emulated, the environment ends at once. If only the measured delay is
/// wrong, the environment waits, because the delay may still become correct.
fn judge_wan(tunnel: &str, wan: &Condition) -> Option<NotReady> {
    let refused = |code| refused(code, format!("MuxTunnel {tunnel}: {}", wan.message));
    let is = |code: Code| wan.status != "True" && wan.reason == code.reason();
    if is(Code::WanUnsupported) {
        return Some(NotReady::Never(refused(Code::WanUnsupported)));
    }
    is(Code::WanDelayOff).then(|| NotReady::Pending(refused(Code::WanDelayOff)))
}

fn agent_host(agents: &Agents<'_>, end: End) -> Result<String, NotReady> {
    let component = Agent::new(agents.path, end).component();
    let (key, value) = &agents.label;
    let is_of_agent = |labels: &BTreeMap<String, String>| {
        let label = |key: &str| labels.get(key).map(String::as_str);
        label(COMPONENT) == Some(component) && label(key) == Some(value.as_str())
    };
    let mut pods = agents
        .pods
        .iter()
        .filter(|pod| is_of_agent(pod.labels()) && pod.metadata.deletion_timestamp.is_none());
    let Some(pod) = pods.next() else {
        let own = agents.deployments.iter();
        let mut own = own.filter(|deployment| is_of_agent(deployment.labels()));
        let state = match own.find_map(replica_failure) {
            Some(refusal) => format!("cannot be created: {refusal}"),
            None => "does not exist yet".to_owned(),
        };
        return Err(pending(format!("the pod of the agent {component} {state}")));
    };
    if let Some(refusal) = wan_refusal(pod) {
        return Err(NotReady::Never(refusal));
    }
    let host = pods::host(pod).filter(|_| is_ready(pod));
    host.ok_or_else(|| {
        let (name, why) = (pod.name_any(), why_not_ready(pod));
        pending(format!("pod {name} is not ready: {why}"))
    })
}

/// The termination message of the container for WAN emulation, if it refused to start.
fn wan_refusal(pod: &Pod) -> Option<Unavailable> {
    let wan = pods::containers(pod).find(|status| status.name == WAN_CONTAINER)?;
    let states = [wan.state.as_ref(), wan.last_state.as_ref()];
    let message = states
        .into_iter()
        .flatten()
        .filter_map(|state| state.terminated.as_ref()?.message.as_deref())
        .find(|message| message.contains(&Code::WanUnsupported.to_string()))?;
    let reason = format!("pod {}: {}", pod.name_any(), message.trim());
    Some(refused(Code::WanUnsupported, reason))
}

/// Why a pod is not ready, as the kubelet or the scheduler reports it.
pub fn why_not_ready(pod: &Pod) -> String {
    let Some(status) = &pod.status else {
        return "the pod has no status".to_owned();
    };
    let waiting = pods::containers(pod).find_map(|container| {
        let waiting = container.state.as_ref()?.waiting.as_ref()?;
        let reason = waiting.reason.as_deref().unwrap_or("waiting");
        let message = waiting.message.as_deref().unwrap_or_default();
        Some(format!("container {}: {reason} {message}", container.name))
    });
    let mut conditions = status.conditions.iter().flatten();
    let unscheduled = conditions.find(|one| one.type_ == "PodScheduled" && one.status != "True");
    let why = unscheduled.and_then(|condition| condition.message.clone());
    let why = why
        .or(waiting)
        .or_else(|| status.message.clone().or_else(|| status.phase.clone()));
    why.unwrap_or_default().trim().to_owned()
}

fn pending(reason: String) -> NotReady {
    NotReady::Pending(failed(reason))
}

/// The answer to the runner for an environment that cannot be measured.
pub fn failed(reason: String) -> Unavailable {
    Unavailable {
        status: Status::Failed,
        code: Code::BenchmarkEnvironmentFailed.to_string(),
        reason,
    }
}

/// The answer to the runner for an environment that the cluster or its class refuses.
fn refused(code: Code, reason: String) -> Unavailable {
    Unavailable {
        status: Status::Refused,
        code: code.to_string(),
        reason,
    }
}
