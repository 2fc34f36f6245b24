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
use super::build::wan_container_name;
use super::config_file::mounted_key;
use super::end::End;
use super::hindrance::Hindrance;
use super::pods::{end_of, own_pods, pod_problem};
use super::problem::Problem;
use super::validate::{ValidatedObject, ValidatedState};
use crate::caches::{Caches, NotKnown};
use crate::metrics::tunnels::Gateway;
use crate::pods::{is_ready, is_started};

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
    /// The gateways and their answers, for the metrics.
    pub(crate) fn gateways(&self) -> Vec<Gateway<'_>> {
        let gateways = self.pods.iter().map(|pod| Gateway {
            end: pod.end.component(),
            pod: &pod.name,
            status: pod.answer.as_ref().and_then(|answer| answer.as_ref().ok()),
        });
        gateways.collect()
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
        Self(
            HttpClient::builder(TokioExecutor::new())
                // The client keeps no idle connection, because another pod may get the address
                // later.
                .pool_max_idle_per_host(0)
                .build(connector),
        )
    }
}

impl Gateways for HttpGateways {
    async fn status(&self, address: &str) -> Result<Status, String> {
        let body = self.get(address, "status").await?;
        status_in(&body)
    }
}

impl HttpGateways {
    async fn get(&self, address: &str, what: &str) -> Result<Bytes, String> {
        let host = if address.contains(':') {
            format!("[{address}]")
        } else {
            address.to_owned()
        };
        let uri: http::Uri = format!("http://{host}:{ADMIN_PORT}/{what}")
            .parse()
            .map_err(|error| format!("{address}: {error}"))?;
        tokio::time::timeout(ANSWER_TIME_MAX, self.body(uri))
            .await
            .map_err(|_| format!("no answer within {} s", ANSWER_TIME_MAX.as_secs()))?
    }

    /// Returns the body of a successful answer. For any other answer, the error contains the first
    /// line.
    async fn body(&self, uri: http::Uri) -> Result<Bytes, String> {
        let response = self
            .0
            .get(uri)
            .await
            .map_err(|error| format!("cannot connect: {error}"))?;
        let status = response.status();
        let bytes_max = if status.is_success() {
            ANSWER_BYTES_MAX
        } else {
            REFUSAL_BYTES_MAX
        };
        let body = Limited::new(response.into_body(), bytes_max)
            .collect()
            .await
            .map_err(|error| format!("the answer ended early: {error}"))?
            .to_bytes();
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

/// Observes the children of `reached`, if they were applied.
///
/// # Errors
/// The earlier hindrance, or [`NotKnown`].
pub async fn observe_all<G: Gateways>(
    caches: &Caches,
    prober: &Prober<G>,
    reached: Result<(Box<ValidatedObject>, Applied), Hindrance>,
    state: &ValidatedState,
) -> Result<Observed, Hindrance> {
    let (object, applied) = reached?;
    let seen = observe(caches, prober, &object, state).await?;
    Ok((object, applied, seen))
}

/// Reads the pods of an object and queries each running gateway. Returns `None` while an answer is
/// missing.
///
/// # Errors
/// [`NotKnown`] if the pods are not known yet. A gateway that does not answer is not an error.
pub async fn observe<G: Gateways>(
    caches: &Caches,
    prober: &Prober<G>,
    object: &ValidatedObject,
    state: &ValidatedState,
) -> Result<Option<Seen>, NotKnown> {
    let pods = own_pods(caches, &state.holder)?;
    let counting: Vec<_> = pods
        .into_iter()
        .take(PODS_MAX)
        .filter_map(|pod| facts(&pod, object).map(|seen| (pod, seen)))
        .collect();
    let address_of = |pod: &Pod| running_address(pod).map(str::to_owned);
    let running = counting.iter().filter_map(|(pod, _)| address_of(pod));
    let asked = running.collect();
    let Some(mut answers) = prober.answers(&state.holder, asked).await else {
        return Ok(None);
    };
    let mut pods = Vec::with_capacity(counting.len());
    for (pod, mut seen) in counting {
        if let Some(address) = running_address(&pod) {
            seen.answer = answers.remove(address);
        }
        let uid = pod.uid().filter(|_| seen.problem.is_none());
        if let Some(uid) = uid {
            let sandbox = state.sandboxes.get(&uid);
            let sandbox = sandbox.filter(|_| !object.pods.tuning.is_empty());
            seen.problem = sandbox.or(state.mounts.get(&uid)).cloned();
        }
        pods.push(seen);
    }
    pods.sort_by(|a, b| (a.end, &a.name).cmp(&(b.end, &b.name)));
    Ok(Some(Seen { pods }))
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
    let has_sysctls = has_sysctls(pod, object);
    if ended && !has_sysctls {
        return None;
    }
    Some(SeenPod {
        end,
        name: pod.name_any(),
        node: pod.spec.as_ref().and_then(|spec| spec.node_name.clone()),
        config: pod
            .spec
            .as_ref()
            .and_then(|spec| mounted_key(spec, &object.child(end)))
            .map(str::to_owned),
        made: pod.creation_timestamp().map(|made| made.0.as_second()),
        has_sysctls,
        started: is_started(pod),
        ready: is_ready(pod),
        problem: pod_problem(pod),
        wan: wan(pod),
        answer: None,
    })
}

fn has_sysctls(pod: &Pod, object: &ValidatedObject) -> bool {
    let sysctls = pod
        .spec
        .iter()
        .filter_map(|spec| spec.security_context.as_ref())
        .flat_map(|context| context.sysctls.iter().flatten())
        .map(|sysctl| (sysctl.name.clone(), sysctl.value.clone()));
    object.pods.sysctls() == sysctls.collect()
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
    // For a sidecar, `started` means that its startup probe has passed. For a plain init container,
    // `started` only means that the container runs, so it must have exited with status 0.
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

/// A termination message with one of these two codes is a refusal of muxwan.
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
        // The container ended for another reason, such as a node failure, and is restarted.
        return None;
    };
    // The condition's message already begins with the code, so the detail omits the code.
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
