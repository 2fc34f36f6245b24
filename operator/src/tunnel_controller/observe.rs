//! Step 5: reads the pods in the cache, and queries their gateways by HTTP.
//!
//! Input: the object. Output: [`Seen`], which contains only facts. [`super::update_status`]
//! evaluates these facts. A gateway's answer is limited in time and size, and affects only the
//! status of its own object.

mod prober;

use std::future::Future;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Empty, Limited};
use hyper_util::client::legacy::Client as HttpClient;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use k8s_openapi::api::core::v1::{ContainerState, Pod};
use kube::{Resource, ResourceExt};
use muxtunnel_codes::Code;
use muxtunnel_gateway_config::ADMIN_PORT;
use muxtunnel_gateway_config::status::Status;

pub use prober::Prober;

use super::apply::Applied;
use super::config_file::mounted_key;
use super::end::End;
use super::hindrance::Hindrance;
use super::pods::{WAN_CONTAINER, end_of, own_pods, pod_problem};
use super::problem::Problem;
use super::validate::{ValidatedObject, ValidatedState};
use crate::caches::Caches;
use crate::pods::{has_sysctls, in_url, is_ready, is_started};

/// Time limit for one gateway's answer, including the connection setup.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(2);
/// Longest answer of a gateway, in bytes. An answer with 64 forwards and 1,024 carriers has about
/// 900 KiB.
const ANSWER_BYTES_MAX: usize = 1 << 20;
/// Longest error line of a gateway, in bytes.
const REFUSAL_BYTES_MAX: usize = 1 << 10;
/// Maximum number of pods of an object that are read: 32 per side, and twice as many during a
/// roll-out.
pub(super) const PODS_MAX: usize = 128;

/// The observation of an object's pods.
#[derive(Debug, Default)]
pub struct Seen {
    /// The pods that are not being deleted.
    pub pods: Vec<SeenPod>,
}

impl Seen {
    /// The pods of `end`.
    pub(super) fn of(&self, end: End) -> impl Iterator<Item = &SeenPod> {
        self.pods.iter().filter(move |pod| pod.end == end)
    }

    /// The gateways of `end` that answered.
    pub(super) fn answers(&self, end: End) -> impl Iterator<Item = (&SeenPod, &Status)> {
        self.of(end).filter_map(|pod| Some((pod, pod.status()?)))
    }

    /// The gateways of all ends that answered.
    pub(super) fn all_answers(&self) -> impl Iterator<Item = (&SeenPod, &Status)> {
        End::ALL.into_iter().flat_map(|end| self.answers(end))
    }
}

/// The observation of a pod.
#[derive(Debug)]
pub struct SeenPod {
    /// The end that the pod serves.
    pub end: End,
    /// Name of the pod.
    pub name: String,
    /// Node of the pod, if it is scheduled.
    pub node: Option<String>,
    /// The key of the pod's configuration in the end's ConfigMap.
    pub config: Option<String>,
    /// UID of the pod's ReplicaSet.
    pub set: Option<String>,
    /// When the pod was created, in seconds since 1970.
    pub made: Option<i64>,
    /// Whether the pod has the requested sysctls.
    pub has_sysctls: bool,
    /// Whether the node has created the pod's sandbox.
    pub started: bool,
    /// Whether the pod's readiness probe passes.
    pub ready: bool,
    /// Why the pod does not run.
    pub problem: Option<Problem>,
    /// The state of the pod's WAN emulation.
    pub wan: Wan,
    /// The gateway's status, or why the query failed. `None` if the gateway does not run.
    pub answer: Option<Result<Status, String>>,
}

impl SeenPod {
    /// The gateway's status, if it answered.
    pub(super) fn status(&self) -> Option<&Status> {
        self.answer.as_ref()?.as_ref().ok()
    }
}

/// The state of a pod's WAN emulation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wan {
    /// The pod has no WAN emulation.
    Absent,
    /// The WAN emulation is starting.
    Pending,
    /// The self-probe of the WAN emulation has passed.
    Proven,
    /// The WAN emulation refused to start.
    Refused(Problem),
}

/// Queries gateways.
pub trait Gateways: Send + Sync + 'static {
    /// The status of the gateway at `address` (an IP address), or why the query failed.
    fn status(&self, address: &str) -> impl Future<Output = Result<Status, String>> + Send;
}

/// Queries gateways on their admin port.
pub struct HttpGateways(HttpClient<HttpConnector, Empty<Bytes>>);

impl Default for HttpGateways {
    fn default() -> Self {
        let mut connector = HttpConnector::new();
        connector.set_connect_timeout(Some(ANSWER_TIME_MAX));
        let mut builder = HttpClient::builder(TokioExecutor::new());
        // The client keeps no idle connection, because another pod may get the address later.
        Self(builder.pool_max_idle_per_host(0).build(connector))
    }
}

impl Gateways for HttpGateways {
    async fn status(&self, address: &str) -> Result<Status, String> {
        let uri: http::Uri = format!("http://{}:{ADMIN_PORT}/status", in_url(address))
            .parse()
            .map_err(|error| format!("{address}: {error}"))?;
        let body = tokio::time::timeout(ANSWER_TIME_MAX, self.body(uri)).await;
        let late = |_| format!("no answer within {} s", ANSWER_TIME_MAX.as_secs());
        status_in(&body.map_err(late)??)
    }
}

impl HttpGateways {
    /// Returns the body of a successful answer. For any other answer, the error contains the first
    /// line.
    async fn body(&self, uri: http::Uri) -> Result<Bytes, String> {
        let response = self.0.get(uri).await;
        let response = response.map_err(|error| format!("cannot connect: {error}"))?;
        let status = response.status();
        let bytes_max = match status.is_success() {
            true => ANSWER_BYTES_MAX,
            false => REFUSAL_BYTES_MAX,
        };
        let body = Limited::new(response.into_body(), bytes_max)
            .collect()
            .await;
        let body = body.map_err(|error| format!("the answer ended early: {error}"))?;
        let body = body.to_bytes();
        if status.is_success() {
            return Ok(body);
        }
        let said = String::from_utf8_lossy(&body);
        Err(format!("answered {status}: {}", said.trim_end()))
    }
}

fn status_in(body: &[u8]) -> Result<Status, String> {
    let answer = &mut serde_json::Deserializer::from_slice(body);
    serde_path_to_error::deserialize(answer)
        .map_err(|error| format!("the answer is not a valid status: {error}"))
}

/// An object, its children, and the observation of its gateways. The observation is `None` while an
/// answer is missing.
pub type Observed = (Box<ValidatedObject>, Applied, Option<Seen>);

/// Observes the children of `reached`, if they were applied: reads the pods of the object, and
/// queries each running gateway. A gateway that does not answer is not an error.
///
/// # Errors
/// The earlier hindrance, or [`NotKnown`](crate::caches::NotKnown) if the pods are not known yet.
pub async fn observe<G: Gateways>(
    caches: &Caches,
    prober: &Prober<G>,
    reached: Result<(Box<ValidatedObject>, Applied), Hindrance>,
    state: &ValidatedState,
) -> Result<Observed, Hindrance> {
    let (object, applied) = reached?;
    let pods = own_pods(caches, &state.holder)?.into_iter();
    let counting = pods.filter_map(|pod| {
        let seen = facts(&pod, &object)?;
        Some((pod, seen))
    });
    let counting: Vec<_> = counting.take(PODS_MAX).collect();
    let running = counting.iter().filter_map(|(pod, _)| running_address(pod));
    let asked = running.map(str::to_owned).collect();
    let Some(mut answers) = prober.answers(state.holder.id(), asked).await else {
        return Ok((object, applied, None));
    };
    let mut pods = Vec::with_capacity(counting.len());
    for (pod, mut seen) in counting {
        if let Some(address) = running_address(&pod) {
            seen.answer = answers.remove(address);
        }
        if let Some(uid) = pod.uid().filter(|_| seen.problem.is_none()) {
            let sandbox = state.sandboxes.get(&uid);
            let sandbox = sandbox.filter(|_| object.pods.tuning(seen.end).is_some());
            seen.problem = sandbox.or(state.mounts.get(&uid)).cloned();
        }
        pods.push(seen);
    }
    pods.sort_by(|a, b| (a.end, &a.name).cmp(&(b.end, &b.name)));
    Ok((object, applied, Some(Seen { pods })))
}

fn running_address(pod: &Pod) -> Option<&str> {
    let status = pod.status.as_ref()?;
    let mut containers = status.container_statuses.iter().flatten();
    let is_running =
        containers.any(|one| one.state.as_ref().is_some_and(|one| one.running.is_some()));
    status.pod_ip.as_deref().filter(|_| is_running)
}

/// The facts from the pod's object, or `None` for a pod that is being deleted, or that has ended
/// with the sysctls of an earlier spec.
fn facts(pod: &Pod, object: &ValidatedObject) -> Option<SeenPod> {
    if pod.meta().deletion_timestamp.is_some() {
        return None;
    }
    let end = end_of(pod)?;
    let status = pod.status.clone().unwrap_or_default();
    let ended = matches!(status.phase.as_deref(), Some("Failed" | "Succeeded"));
    // Ended pods of an earlier spec are ignored: they exist as long as their ReplicaSet.
    let sysctls = object.pods.sysctls(end);
    let spec = pod.spec.as_ref();
    let has_sysctls = spec.is_some_and(|spec| has_sysctls(spec, &sysctls));
    if ended && !has_sysctls {
        return None;
    }
    let key = spec.and_then(|spec| mounted_key(spec, &object.child(end)));
    Some(SeenPod {
        end,
        name: pod.name_any(),
        node: spec.and_then(|spec| spec.node_name.clone()),
        config: key.map(str::to_owned),
        set: {
            let mut owners = pod.owner_references().iter();
            let owner = owners.find(|owner| owner.controller == Some(true));
            owner.map(|owner| owner.uid.clone())
        },
        made: pod.creation_timestamp().map(|made| made.0.as_second()),
        has_sysctls,
        started: is_started(pod),
        ready: is_ready(pod),
        problem: pod_problem(pod),
        wan: wan(pod),
        answer: None,
    })
}

fn wan(pod: &Pod) -> Wan {
    let containers = pod.spec.iter().flat_map(|spec| &spec.init_containers);
    let Some(asked) = containers.flatten().find(|one| one.name == WAN_CONTAINER) else {
        return Wan::Absent;
    };
    let statuses = pod
        .status
        .iter()
        .flat_map(|status| &status.init_container_statuses);
    let Some(status) = statuses.flatten().find(|one| one.name == WAN_CONTAINER) else {
        return Wan::Pending;
    };
    let state = status.state.clone().unwrap_or_default();
    // For a sidecar, `started` means that its startup probe has passed. For a plain init container,
    // `started` only means that the container runs, so it must have exited with status 0.
    let is_sidecar = asked.restart_policy.as_deref() == Some("Always");
    let exited = state.terminated.is_some_and(|ended| ended.exit_code == 0);
    if exited || (is_sidecar && state.running.is_some() && status.started == Some(true)) {
        return Wan::Proven;
    }
    let mut states = [&status.state, &status.last_state].into_iter().flatten();
    let refusal = states.find_map(|state| refusal(&pod.name_any(), state));
    refusal.map_or(Wan::Pending, Wan::Refused)
}

/// A termination message with one of these two codes is a refusal of muxwan.
fn refusal(pod: &str, state: &ContainerState) -> Option<Problem> {
    let ended = state.terminated.as_ref();
    let ended = ended.filter(|ended| ended.exit_code != 0)?;
    let message = ended.message.as_deref().unwrap_or_default().trim();
    // Otherwise the container ended for another reason, such as a node failure, and is restarted.
    let code = [Code::WanDelayOff, Code::WanUnsupported]
        .into_iter()
        .find(|code| message.contains(&code.to_string()))?;
    // The condition's message already begins with the code, so the detail omits the code.
    let own_words = message
        .strip_prefix(&format!("{code} "))
        .unwrap_or(message)
        .trim_start_matches(&format!("{}: ", code.reason()));
    Some(Problem::new(code, format!("pod {pod}: {own_words}")))
}

#[cfg(test)]
mod tests;
