//! Step 5: looks at the pods that the watch brought, and asks the gateways in them, by HTTP.
//!
//! In: the tunnel. Out: [`Seen`], facts only; [`super::update_status`] judges them. What a gateway says
//! is bounded in time and size, and is believed for its own tunnel's status alone.

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
use muxtunnel_gateway_config::status::Status;
use muxtunnel_gateway_config::{ADMIN_PORT, OFFER_BYTES_MAX};

use prober::Asked;
pub use prober::Prober;

use super::apply::Applied;
use super::build::wan_container_name;
use super::end::End;
use super::hindrance::Hindrance;
use super::pods::{end_of, own_pods, pod_problem};
use super::problem::Problem;
use super::sandbox;
use super::validate::ValidatedTunnel;
use crate::caches::{Cluster, NotKnown};
use crate::metrics::tunnels::Gateway;
use crate::pods::is_ready;

/// Time for one gateway's answer, connecting included.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(2);
/// Longest answer of a gateway: 64 forwards and 1,024 carriers are about 900 KiB.
const ANSWER_BYTES_MAX: usize = 1 << 20;
/// Longest line of a gateway that refuses to answer.
const REFUSAL_BYTES_MAX: usize = 1 << 10;
/// Time for an offer, which the gateway asks for through the tunnel; it gives up itself after 10 s.
const OFFER_TIME_MAX: Duration = Duration::from_secs(12);
/// Entries that are asked for an offer, one after another, until one has it.
const OFFERS_ASKED: usize = 2;
/// Pods of one tunnel that are looked at: two sides of 32, and as many again in a roll-out.
const PODS_MAX: usize = 128;

/// What was seen of a tunnel's pods.
#[derive(Debug, Default)]
pub struct Seen {
    /// The pods that are not on their way out.
    pub pods: Vec<SeenPod>,
    /// What the exit offers, where that was asked for and an entry runs that could ask it, or why it cannot be had.
    pub offer: Option<Result<String, String>>,
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

/// What was seen of one pod.
#[derive(Debug)]
pub struct SeenPod {
    /// Which end it serves.
    pub end: End,
    /// Its name.
    pub name: String,
    /// Its node, once it has one.
    pub node: Option<String>,
    /// When it was made, in seconds since 1970.
    pub made: Option<i64>,
    /// Whether it has the sysctls that the spec asks for.
    pub has_sysctls: bool,
    /// Whether its readiness probe passes.
    pub ready: bool,
    /// Why it does not run.
    pub problem: Option<Problem>,
    /// How far its emulation is.
    pub wan: Wan,
    /// What its gateway says, or why it could not be asked; `None`: it does not run.
    pub answer: Option<Result<Status, String>>,
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

/// Asks gateways.
pub trait Gateways: Send + Sync + 'static {
    /// The status of the gateway at `address`, an IP, or a sentence that says why there is none.
    fn status(&self, address: &str) -> impl Future<Output = Result<Status, String>> + Send;

    /// What the exit offers that the entry gateway at `address` is connected to, or a sentence that says why it cannot
    /// be had.
    fn offer(&self, address: &str) -> impl Future<Output = Result<String, String>> + Send;
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
        let body = self
            .get(address, "status", ANSWER_TIME_MAX, ANSWER_BYTES_MAX)
            .await?;
        status_in(&body)
    }

    async fn offer(&self, address: &str) -> Result<String, String> {
        let body = self
            .get(address, "offer", OFFER_TIME_MAX, OFFER_BYTES_MAX)
            .await?;
        String::from_utf8(body.into()).map_err(|_| "the answer is no text".to_owned())
    }
}

impl HttpGateways {
    async fn get(
        &self,
        address: &str,
        what: &str,
        within: Duration,
        bytes_max: usize,
    ) -> Result<Bytes, String> {
        let host = if address.contains(':') {
            format!("[{address}]")
        } else {
            address.to_owned()
        };
        let uri: http::Uri = format!("http://{host}:{ADMIN_PORT}/{what}")
            .parse()
            .map_err(|error| format!("{address}: {error}"))?;
        tokio::time::timeout(within, self.body(uri, bytes_max))
            .await
            .map_err(|_| format!("no answer within {} s", within.as_secs()))?
    }

    /// The body of a good answer; of another one its line is the error.
    async fn body(&self, uri: http::Uri, bytes_max: usize) -> Result<Bytes, String> {
        let response = self
            .0
            .get(uri)
            .await
            .map_err(|error| format!("cannot connect: {error}"))?;
        let status = response.status();
        let bytes_max = if status.is_success() {
            bytes_max
        } else {
            REFUSAL_BYTES_MAX
        };
        let body = Limited::new(response.into_body(), bytes_max)
            .collect()
            .await
            .map_err(|error| format!("the answer breaks off: {error}"))?
            .to_bytes();
        if status.is_success() {
            return Ok(body);
        }
        let said = String::from_utf8_lossy(&body);
        Err(format!("answered {status}: {}", said.trim_end()))
    }
}

fn status_in(body: &[u8]) -> Result<Status, String> {
    serde_json::from_slice(body).map_err(|error| format!("the answer is no status: {error}"))
}

/// A tunnel, its children, and what was seen of its gateways; `None`: not all have answered yet.
pub type Observed = (Box<ValidatedTunnel>, Applied, Option<Seen>);

/// Looks at what `reached` applied children make, if they were.
///
/// # Errors
/// What hindered them before, and where no pod is known yet.
pub async fn observe_all<G: Gateways>(
    cluster: &Cluster,
    prober: &Prober<G>,
    reached: Result<(Box<ValidatedTunnel>, Applied), Hindrance>,
    asks: bool,
) -> Result<Observed, Hindrance> {
    let (tunnel, applied) = reached?;
    let seen = observe(cluster, prober, &tunnel, asks).await?;
    Ok((tunnel, applied, seen))
}

/// Looks at the pods of a tunnel and asks each gateway that runs; with `asks` also an entry for what the exit offers.
/// `None`: not all have answered yet.
///
/// # Errors
/// [`NotKnown`] where no pod is known yet; a silent gateway is a fact, not an error.
pub async fn observe<G: Gateways>(
    cluster: &Cluster,
    prober: &Prober<G>,
    tunnel: &ValidatedTunnel,
    asks: bool,
) -> Result<Option<Seen>, NotKnown> {
    let namespace = &tunnel.namespace;
    let own = (&**namespace, &*tunnel.name);
    let pods = own_pods(cluster, own, &tunnel.owner)?;
    let counting: Vec<_> = pods
        .into_iter()
        .take(PODS_MAX)
        .filter_map(|pod| facts(&pod, tunnel).map(|seen| (pod, seen)))
        .collect();
    let address_of = |pod: &Pod| running_address(pod).map(str::to_owned);
    let mut asked = Asked {
        gateways: counting
            .iter()
            .filter_map(|(pod, _)| address_of(pod))
            .collect(),
        ..Asked::default()
    };
    if asks {
        let running = counting
            .iter()
            .filter(|(_, seen)| seen.end == End::Entry && seen.ready);
        let running = running.filter_map(|(pod, _)| address_of(pod));
        asked.entries.extend(running.take(OFFERS_ASKED));
    }
    let Some(mut answers) = prober.answers(namespace, &tunnel.name, asked).await else {
        return Ok(None);
    };
    let mut pods = Vec::with_capacity(counting.len());
    for (pod, mut seen) in counting {
        if let Some(address) = running_address(&pod) {
            seen.answer = answers.statuses.remove(address);
        }
        if seen.problem.is_none() && !tunnel.tuning.is_empty() {
            seen.problem = sandbox::failure(&cluster.client, namespace, &pod).await;
        }
        pods.push(seen);
    }
    pods.sort_by(|a, b| (a.end, &a.name).cmp(&(b.end, &b.name)));
    let offer = answers.offer;
    Ok(Some(Seen { pods, offer }))
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
    let end = end_of(pod)?;
    let status = pod.status.clone().unwrap_or_default();
    let ended = matches!(status.phase.as_deref(), Some("Failed" | "Succeeded"));
    // Failed pods of an earlier spec stay for as long as their ReplicaSet does.
    let has_sysctls = has_sysctls(pod, tunnel);
    if ended && !has_sysctls {
        return None;
    }
    Some(SeenPod {
        end,
        name: pod.name_any(),
        node: pod.spec.as_ref().and_then(|spec| spec.node_name.clone()),
        made: pod.creation_timestamp().map(|made| made.0.as_second()),
        has_sysctls,
        ready: is_ready(pod),
        problem: pod_problem(pod),
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
