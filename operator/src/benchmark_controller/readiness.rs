//! Whether an environment is ready for the runner. Pure: computes a verdict from objects of the API
//! server.

use std::collections::BTreeMap;

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

use super::names::{self, Agent, ENVIRONMENT, End, environment};
use super::validate::{Environment, ValidatedBenchmark};
use crate::labels::{COMPONENT, OWNER_NAME};
use crate::pods::{self, is_ready, replica_failure};
use crate::tunnel_controller::end::End as GatewayEnd;
use crate::tunnel_controller::object::Kind;

/// Name of the container for WAN emulation.
pub const WAN_CONTAINER: &str = "wan";

/// The observation of an environment.
#[derive(Debug, Clone, Default)]
pub struct Seen {
    /// The child MuxTunnels.
    pub tunnels: Vec<MuxTunnel>,
    /// Pods of the benchmark.
    pub pods: Vec<Pod>,
    /// Pods of the child MuxTunnels.
    pub gateways: Vec<Pod>,
    /// The Deployments of the agents.
    pub agents: Vec<Deployment>,
}

/// Why an environment has no addresses for the runner: not yet, or never.
#[derive(Debug, Clone, PartialEq, Eq)]
enum NotReady {
    Pending(Unavailable),
    Never(Unavailable),
}

impl From<NotReady> for Readiness {
    fn from(not_ready: NotReady) -> Self {
        match not_ready {
            NotReady::Pending(why) => Self::Pending(why),
            NotReady::Never(why) => Self::Never(why),
        }
    }
}

/// The verdict on an environment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Readiness {
    /// Not ready yet, with the reason.
    Pending(Unavailable),
    /// Ready to be measured.
    Ready(Addresses),
    /// Cannot become ready.
    Never(Unavailable),
}

/// Before the objects of an environment exist, decides whether the environment can never become
/// ready.
#[must_use]
pub fn refusal_beforehand(
    benchmark: &ValidatedBenchmark,
    environment: &Environment,
) -> Option<Unavailable> {
    let has_delay = environment.key.one_way_delay_ms > 0;
    let reason = benchmark.class.refusal(Feature::WanEmulation, "a delay");
    Some(Unavailable {
        status: Status::Refused,
        code: Code::ClassNotPermitted.to_string(),
        reason: reason.filter(|_| has_delay)?,
    })
}

/// Decides whether an environment with applied objects is ready.
#[must_use]
pub fn judge(benchmark: &ValidatedBenchmark, wanted: &Environment, seen: &Seen) -> Readiness {
    match addresses(benchmark, wanted, seen) {
        Ok(addresses) => Readiness::Ready(addresses),
        Err(not_ready) => not_ready.into(),
    }
}

fn addresses(
    benchmark: &ValidatedBenchmark,
    wanted: &Environment,
    seen: &Seen,
) -> Result<Addresses, NotReady> {
    let mut addresses = Addresses {
        direct: None,
        tunnels: Vec::new(),
        network: None,
    };
    for route in benchmark.matrix.routes() {
        match route {
            Route::Direct => {
                let agents = Agents::of(wanted, Path::Direct, seen);
                addresses.direct = Some(pair(&agents, None)?);
            }
            Route::Tunnel(protocol) => {
                let name = names::tunnel(&benchmark.name, wanted.key.index, &protocol);
                // Check the tunnel first, because its conditions describe a fault more precisely
                // than its pods do.
                let entry = entry_host(ready_tunnel(&name, &seen.tunnels)?)?;
                let agents = Agents::of(wanted, Path::Tunnel, seen);
                addresses.tunnels.push(Tunnel {
                    protocol,
                    pair: pair(&agents, Some(entry))?,
                    gateway_status_urls: status_urls(&name, &seen.gateways),
                });
            }
            Route::Network(protocol) => {
                let name = names::network(&benchmark.name, wanted.key.index);
                ready_tunnel(&name, &seen.tunnels)?;
                let agents = Agents {
                    path: Path::Network,
                    label: (OWNER_NAME, name.clone()),
                    pods: &seen.gateways,
                    deployments: &[],
                };
                let server = End::Server.network_address().to_string();
                addresses.network = Some(Tunnel {
                    protocol,
                    pair: pair(&agents, Some(server))?,
                    gateway_status_urls: status_urls(&name, &seen.gateways),
                });
            }
        }
    }
    Ok(addresses)
}

/// The status URLs of the ready gateways of `tunnel`.
fn status_urls(tunnel: &str, gateways: &[Pod]) -> Vec<String> {
    let mine = |pod: &&Pod| pod.labels().get(OWNER_NAME).map(String::as_str) == Some(tunnel);
    let ready = gateways.iter().filter(mine).filter(|pod| is_ready(pod));
    ready
        .filter_map(pods::host)
        .map(|host| format!("http://{}:{ADMIN_PORT}/status", in_url(&host)))
        .collect()
}

/// The agents of a path.
struct Agents<'a> {
    path: Path,
    /// A label of the agents' pods, in addition to the component.
    label: (&'static str, String),
    pods: &'a [Pod],
    /// The agents' Deployments, which may be unable to create pods. Gateways have none.
    deployments: &'a [Deployment],
}

impl<'a> Agents<'a> {
    /// The agents with separate pods.
    fn of(wanted: &Environment, path: Path, seen: &'a Seen) -> Self {
        Self {
            path,
            label: (ENVIRONMENT, environment(wanted.key.index)),
            pods: &seen.pods,
            deployments: &seen.agents,
        }
    }
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
    let Some(tunnel) = tunnels.find(|tunnel| tunnel.metadata.name.as_deref() == Some(name)) else {
        let reason = format!("MuxTunnel {name} does not exist yet");
        return Err(pending(Code::BenchmarkEnvironmentFailed, &reason));
    };
    let status = tunnel.status.as_ref();
    let conditions = status
        .map(|status| status.conditions.as_slice())
        .unwrap_or_default();
    let current = |type_: &str| {
        conditions.iter().find(|condition| {
            condition.type_ == type_ && condition.observed_generation == tunnel.metadata.generation
        })
    };
    if let Some(wan) = current(condition::WAN_EMULATED)
        && let Some(verdict) = judge_wan(name, wan)
    {
        return Err(verdict);
    }
    match current(condition::READY) {
        Some(ready) if ready.status == "True" => Ok(tunnel),
        Some(ready) => {
            let reason = format!("MuxTunnel {name}: {}", ready.message);
            Err(pending(Code::BenchmarkEnvironmentFailed, &reason))
        }
        None => {
            let reason = format!("MuxTunnel {name} has no conditions yet");
            Err(pending(Code::BenchmarkEnvironmentFailed, &reason))
        }
    }
}

/// The host name for connections to the forwards.
fn entry_host(tunnel: &MuxTunnel) -> Result<String, NotReady> {
    let name = tunnel.name_any();
    let service = Kind::Tunnel.child(GatewayEnd::Entry, &name);
    let status = tunnel.status.as_ref();
    let mut services = status.into_iter().flat_map(|status| &status.services);
    let found = services.find(|found| found.name == service);
    found.and_then(|found| found.host.clone()).ok_or_else(|| {
        let reason = format!("MuxTunnel {name} has no address of its entry yet");
        pending(Code::BenchmarkEnvironmentFailed, &reason)
    })
}

/// If the delay cannot be emulated, the environment ends at once. If only the measured delay is
/// wrong, the environment waits, because the delay may still become correct.
fn judge_wan(tunnel: &str, wan: &Condition) -> Option<NotReady> {
    let refused = |code: Code| Unavailable {
        status: Status::Refused,
        code: code.to_string(),
        reason: format!("MuxTunnel {tunnel}: {}", wan.message),
    };
    let code = [Code::WanUnsupported, Code::WanDelayOff]
        .into_iter()
        .find(|code| wan.status != "True" && wan.reason == code.reason())?;
    Some(match code {
        Code::WanDelayOff => NotReady::Pending(refused(code)),
        _ => NotReady::Never(refused(code)),
    })
}

fn agent_host(agents: &Agents<'_>, end: End) -> Result<String, NotReady> {
    let agent = Agent {
        path: agents.path,
        end,
    };
    let (key, value) = &agents.label;
    let is_of_agent = |labels: &BTreeMap<String, String>| {
        let label = |key: &str| labels.get(key).map(String::as_str);
        label(COMPONENT) == Some(agent.component()) && label(key) == Some(value.as_str())
    };
    let mut pods = agents
        .pods
        .iter()
        .filter(|pod| is_of_agent(pod.labels()) && pod.metadata.deletion_timestamp.is_none());
    let Some(pod) = pods.next() else {
        let own = agents.deployments.iter();
        let mut own = own.filter(|deployment| is_of_agent(deployment.labels()));
        let component = agent.component();
        let reason = match own.find_map(replica_failure) {
            Some(refusal) => {
                format!("the pod of the agent {component} cannot be created: {refusal}")
            }
            None => format!("the pod of the agent {component} does not exist yet"),
        };
        return Err(pending(Code::BenchmarkEnvironmentFailed, &reason));
    };
    if let Some(refusal) = wan_refusal(pod) {
        return Err(NotReady::Never(refusal));
    }
    match pods::host(pod).filter(|_| is_ready(pod)) {
        Some(host) => Ok(host),
        None => {
            let reason = format!(
                "pod {} is not ready: {}",
                pod.name_any(),
                why_not_ready(pod)
            );
            Err(pending(Code::BenchmarkEnvironmentFailed, &reason))
        }
    }
}

/// The termination message of the container for WAN emulation, if it refused to start.
fn wan_refusal(pod: &Pod) -> Option<Unavailable> {
    let statuses = pod.status.as_ref()?.init_container_statuses.as_ref()?;
    let wan = statuses
        .iter()
        .find(|status| status.name == WAN_CONTAINER)?;
    let states = [wan.state.as_ref(), wan.last_state.as_ref()];
    let message = states
        .into_iter()
        .flatten()
        .filter_map(|state| state.terminated.as_ref()?.message.as_deref())
        .find(|message| message.contains(&Code::WanUnsupported.to_string()))?;
    Some(Unavailable {
        status: Status::Refused,
        code: Code::WanUnsupported.to_string(),
        reason: format!("pod {}: {}", pod.name_any(), message.trim()),
    })
}

/// Why a pod is not ready, as the kubelet or the scheduler reports it.
#[must_use]
pub fn why_not_ready(pod: &Pod) -> String {
    let Some(status) = &pod.status else {
        return "the pod has no status".to_owned();
    };
    let containers = status
        .init_container_statuses
        .iter()
        .chain(&status.container_statuses);
    let waiting = containers.flatten().find_map(|container| {
        let waiting = container.state.as_ref()?.waiting.as_ref()?;
        let reason = waiting.reason.as_deref().unwrap_or("waiting");
        let message = waiting.message.as_deref().unwrap_or_default();
        Some(format!("container {}: {reason} {message}", container.name))
    });
    let unscheduled = status.conditions.iter().flatten().find_map(|condition| {
        let scheduled = condition.type_ == "PodScheduled" && condition.status != "True";
        scheduled.then(|| condition.message.clone())?
    });
    unscheduled
        .or(waiting)
        .or_else(|| status.message.clone())
        .or_else(|| status.phase.clone())
        .unwrap_or_default()
        .trim()
        .to_owned()
}

fn pending(code: Code, reason: &str) -> NotReady {
    NotReady::Pending(Unavailable {
        status: Status::Failed,
        code: code.to_string(),
        reason: reason.to_owned(),
    })
}

/// The host in the form for a URL. IPv6 addresses get brackets.
#[must_use]
pub fn in_url(host: &str) -> String {
    if host.contains(':') {
        format!("[{host}]")
    } else {
        host.to_owned()
    }
}
