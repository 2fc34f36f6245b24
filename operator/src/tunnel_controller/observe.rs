//! Step 5: looks at the pods that the watch brought, and asks the gateways in them, by HTTP.
//!
//! In: the tunnel. Out: [`Seen`], facts only; [`super::update_status`] judges them. What a gateway says
//! is bounded in time and size, and is believed for its own tunnel's status alone.

use std::future::Future;
use std::time::Duration;

use bytes::Bytes;
use futures::stream::{self, StreamExt};
use http_body_util::{BodyExt, Empty, Limited};
use hyper_util::client::legacy::Client as HttpClient;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use k8s_openapi::api::core::v1::{ContainerState, ContainerStatus, Pod};
use k8s_openapi::jiff::Timestamp;
use kube::{Resource, ResourceExt};
use muxtunnel_codes::Code;
use muxtunnel_gateway_config::ADMIN_PORT;
use muxtunnel_gateway_config::status::Status;

use super::build::{End, wan_container_name};
use super::sandbox;
use super::validate::ValidatedTunnel;
use crate::caches::{Cluster, NotKnown};
use crate::labels;

/// Time for one gateway's answer, connecting included.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(2);
/// Longest answer of a gateway: 64 forwards and 1,024 carriers are about 900 KiB.
const ANSWER_BYTES_MAX: usize = 1 << 20;
/// Gateways that are asked at once.
const ASKED_AT_ONCE: usize = 16;
/// Pods of one tunnel that are looked at: two sides of 32, and as many again in a roll-out.
const PODS_MAX: usize = 128;

/// How old a pod is at least of which it counts that its containers have not been begun.
pub const WAITING_SECONDS_MIN: i64 = 10;

/// What was seen of a tunnel's pods.
#[derive(Debug, Default)]
pub struct Seen {
    /// The pods that are not on their way out.
    pub pods: Vec<SeenPod>,
}

/// What was seen of one pod.
#[derive(Debug)]
pub struct SeenPod {
    /// Which end it serves.
    pub end: End,
    /// Its name.
    pub name: String,
    /// Whether its readiness probe passes.
    pub ready: bool,
    /// Why it does not run.
    pub problem: Option<Problem>,
    /// When it was made, in seconds since 1970, where it has a node and its containers have not been begun for
    /// [`WAITING_SECONDS_MIN`]: perhaps for a Secret.
    pub waiting_since: Option<i64>,
    /// How far its emulation is.
    pub wan: Wan,
    /// What its gateway says, or why it could not be asked; `None`: it does not run.
    pub answer: Option<Result<Status, String>>,
}

/// Why a pod does not run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The class.
    pub code: Code,
    /// The sentence.
    pub detail: String,
}

/// How far the emulation of a pod is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wan {
    /// The pod has none.
    Absent,
    /// It is starting.
    Pending,
    /// It has proved itself.
    Proven,
    /// It has refused.
    Refused(Problem),
}

/// Asks gateways for their status.
pub trait Gateways: Send + Sync + 'static {
    /// The status of the gateway at `address`, an IP, or a sentence that says why there is none.
    fn status(&self, address: &str) -> impl Future<Output = Result<Status, String>> + Send;
}

/// Asks them on their admin port.
pub struct HttpGateways(HttpClient<HttpConnector, Empty<Bytes>>);

impl Default for HttpGateways {
    fn default() -> Self {
        let mut connector = HttpConnector::new();
        connector.set_connect_timeout(Some(ANSWER_TIME_MAX));
        Self(
            HttpClient::builder(TokioExecutor::new())
                // A pod's address may be another pod's tomorrow.
                .pool_max_idle_per_host(0)
                .build(connector),
        )
    }
}

impl Gateways for HttpGateways {
    async fn status(&self, address: &str) -> Result<Status, String> {
        let host = if address.contains(':') {
            format!("[{address}]")
        } else {
            address.to_owned()
        };
        let uri: http::Uri = format!("http://{host}:{ADMIN_PORT}/status")
            .parse()
            .map_err(|error| format!("{address}: {error}"))?;
        tokio::time::timeout(ANSWER_TIME_MAX, self.get(uri))
            .await
            .map_err(|_| format!("no answer within {} s", ANSWER_TIME_MAX.as_secs()))?
    }
}

impl HttpGateways {
    async fn get(&self, uri: http::Uri) -> Result<Status, String> {
        let response = self
            .0
            .get(uri)
            .await
            .map_err(|error| format!("cannot connect: {error}"))?;
        if !response.status().is_success() {
            return Err(format!("answered {}", response.status()));
        }
        let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX)
            .collect()
            .await
            .map_err(|error| format!("the answer breaks off: {error}"))?;
        serde_json::from_slice(&body.to_bytes())
            .map_err(|error| format!("the answer is no status: {error}"))
    }
}

/// Looks at the pods of a tunnel and asks each gateway that runs.
///
/// # Errors
/// [`NotKnown`] where no pod is known yet; a silent gateway is a fact, not an error.
pub async fn observe(
    cluster: &Cluster,
    gateways: &impl Gateways,
    tunnel: &ValidatedTunnel,
) -> Result<Seen, NotKnown> {
    let (namespace, components) = (&tunnel.namespace, End::ALL.map(End::component));
    let known = &cluster.caches.pods;
    let pods = known.children(namespace, &tunnel.name, &components)?;
    let counting: Vec<_> = pods
        .into_iter()
        .take(PODS_MAX)
        .filter_map(|pod| facts(&pod, tunnel).map(|seen| (pod, seen)))
        .collect();
    let mut pods: Vec<SeenPod> = stream::iter(counting)
        .map(|(pod, mut seen)| async move {
            if let Some(address) = running_address(&pod) {
                seen.answer = Some(gateways.status(address).await);
            }
            if seen.problem.is_none() && !tunnel.tuning.is_empty() {
                seen.problem = sandbox::failure(&cluster.client, namespace, &pod).await;
            }
            seen
        })
        .buffer_unordered(ASKED_AT_ONCE)
        .collect()
        .await;
    pods.sort_by(|a, b| (a.end, &a.name).cmp(&(b.end, &b.name)));
    Ok(Seen { pods })
}

fn running_address(pod: &Pod) -> Option<&str> {
    let status = pod.status.as_ref()?;
    let running = status.container_statuses.iter().flatten().any(|container| {
        container
            .state
            .as_ref()
            .is_some_and(|state| state.running.is_some())
    });
    status.pod_ip.as_deref().filter(|_| running)
}

/// What the pod's object says; `None` for one that no longer counts.
fn facts(pod: &Pod, tunnel: &ValidatedTunnel) -> Option<SeenPod> {
    if pod.meta().deletion_timestamp.is_some() {
        return None;
    }
    let component = pod.labels().get(labels::COMPONENT)?;
    let end = End::ALL
        .into_iter()
        .find(|end| end.component() == component)?;
    let status = pod.status.clone().unwrap_or_default();
    let ended = matches!(status.phase.as_deref(), Some("Failed" | "Succeeded"));
    // Failed pods of an earlier spec stay for as long as their ReplicaSet does.
    if ended && !has_sysctls(pod, tunnel) {
        return None;
    }
    let ready = status
        .conditions
        .iter()
        .flatten()
        .any(|condition| condition.type_ == "Ready" && condition.status == "True");
    Some(SeenPod {
        end,
        name: pod.name_any(),
        ready,
        problem: pod_problem(pod),
        waiting_since: waiting_since(pod, Timestamp::now().as_second()),
        wan: wan(pod),
        answer: None,
    })
}

fn has_sysctls(pod: &Pod, tunnel: &ValidatedTunnel) -> bool {
    let sysctls = pod
        .spec
        .iter()
        .filter_map(|spec| spec.security_context.as_ref())
        .flat_map(|context| context.sysctls.iter().flatten())
        .map(|sysctl| (sysctl.name.clone(), sysctl.value.clone()));
    tunnel.sysctls() == sysctls.collect()
}

/// Why a pod does not run, as far as its object says it.
pub(super) fn pod_problem(pod: &Pod) -> Option<Problem> {
    let status = pod.status.as_ref()?;
    let name = pod.name_any();
    let problem = |code, text: &str| Problem {
        code,
        detail: format!("pod {name}: {text}"),
    };
    let message = status.message.as_deref().unwrap_or_default();
    match status.reason.as_deref() {
        Some("SysctlForbidden") => return Some(problem(Code::SysctlForbidden, message)),
        Some(reason) if status.phase.as_deref() == Some("Failed") => {
            return Some(problem(
                Code::GatewaysNotReady,
                &format!("{reason}: {message}"),
            ));
        }
        _ => {}
    }
    let unschedulable = status.conditions.iter().flatten().find(|condition| {
        condition.type_ == "PodScheduled" && condition.reason.as_deref() == Some("Unschedulable")
    });
    if let Some(condition) = unschedulable {
        let message = condition.message.as_deref().unwrap_or_default();
        return Some(problem(
            Code::GatewaysNotReady,
            &format!("cannot be scheduled: {message}"),
        ));
    }
    let init = status.init_container_statuses.iter().flatten();
    init.chain(status.container_statuses.iter().flatten())
        .find_map(waiting)
        .map(|text| problem(Code::GatewaysNotReady, &text))
}

/// Why a container does not start, where that is more than a matter of time.
fn waiting(container: &ContainerStatus) -> Option<String> {
    let waiting = container.state.as_ref()?.waiting.as_ref()?;
    let reason = waiting.reason.as_deref()?;
    if matches!(reason, "ContainerCreating" | "PodInitializing") {
        return None;
    }
    let last = container
        .last_state
        .as_ref()
        .and_then(|state| state.terminated.as_ref())
        .and_then(|ended| ended.message.as_deref());
    let message = last.or(waiting.message.as_deref()).unwrap_or_default();
    Some(format!("container {}: {reason}: {message}", container.name))
}

/// A kubelet that waits for a volume says so in an Event alone.
fn waiting_since(pod: &Pod, now: i64) -> Option<i64> {
    let status = pod.status.as_ref()?;
    let made = pod.creation_timestamp()?.0.as_second();
    let is_scheduled = status
        .conditions
        .iter()
        .flatten()
        .any(|condition| condition.type_ == "PodScheduled" && condition.status == "True");
    let mut containers = status
        .init_container_statuses
        .iter()
        .flatten()
        .chain(status.container_statuses.iter().flatten());
    let is_begun = |container: &ContainerStatus| {
        let waiting = container
            .state
            .as_ref()
            .and_then(|state| state.waiting.as_ref());
        let reason = waiting.and_then(|waiting| waiting.reason.as_deref());
        !matches!(reason, Some("ContainerCreating" | "PodInitializing"))
    };
    let waits = status.phase.as_deref() == Some("Pending")
        && now - made >= WAITING_SECONDS_MIN
        && is_scheduled
        && !containers.any(is_begun);
    waits.then_some(made)
}

fn wan(pod: &Pod) -> Wan {
    let asked = pod.spec.as_ref().and_then(|spec| {
        spec.init_containers
            .iter()
            .flatten()
            .find(|container| container.name == wan_container_name())
    });
    let Some(asked) = asked else {
        return Wan::Absent;
    };
    let status = pod
        .status
        .iter()
        .flat_map(|status| status.init_container_statuses.iter().flatten())
        .find(|container| container.name == wan_container_name());
    let Some(status) = status else {
        return Wan::Pending;
    };
    let state = status.state.clone().unwrap_or_default();
    // A sidecar has started once its startup probe passes; a plain init container as soon as it runs.
    let is_sidecar = asked.restart_policy.as_deref() == Some("Always");
    let exited = state.terminated.is_some_and(|ended| ended.exit_code == 0);
    if exited || (is_sidecar && state.running.is_some() && status.started == Some(true)) {
        return Wan::Proven;
    }
    [&status.state, &status.last_state]
        .into_iter()
        .flatten()
        .find_map(|state| refusal(&pod.name_any(), state))
        .map_or(Wan::Pending, Wan::Refused)
}

/// A termination message that begins with a code is a refusal in muxwan's own words.
fn refusal(pod: &str, state: &ContainerState) -> Option<Problem> {
    let ended = state
        .terminated
        .as_ref()
        .filter(|ended| ended.exit_code != 0)?;
    let message = ended.message.as_deref().unwrap_or_default().trim();
    let delay_off = Code::WanDelayOff.to_string();
    let unsupported = Code::WanUnsupported.to_string();
    let code = if message.contains(&delay_off) {
        Code::WanDelayOff
    } else if message.contains(&unsupported) {
        Code::WanUnsupported
    } else {
        // Ended for another reason, such as the node: it is begun again.
        return None;
    };
    // The condition's message begins with the code already.
    let own_words = message
        .strip_prefix(&format!("{code} "))
        .unwrap_or(message)
        .trim_start_matches(&format!("{}: ", code.reason()));
    Some(Problem {
        code,
        detail: format!("pod {pod}: {own_words}"),
    })
}

#[cfg(test)]
mod tests;
