//! The verdicts for the conditions, from the observations. Pure.

mod network;
mod tuning;
mod wan;

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::Deployment;
use kube::ResourceExt;
use muxtunnel_codes::Code;
use muxtunnel_crds::tunnel_condition as condition;
use muxtunnel_gateway_config::status::Status;

use super::certificates;
use crate::conditions::Verdict;
use crate::pods::replica_failure;
use crate::tunnel_controller::apply::Applied;
use crate::tunnel_controller::build::Certified;
use crate::tunnel_controller::build::config_map::expected_hash;
use crate::tunnel_controller::end::End;
use crate::tunnel_controller::observe::{Seen, SeenPod};
use crate::tunnel_controller::problem::Problem;
use crate::tunnel_controller::validate::{Replicas, ValidatedTunnel};
use network::network_ready;
use tuning::tuning_applied;
use wan::wan_emulated;

/// The verdicts for the seven conditions.
#[must_use]
pub fn verdicts(
    tunnel: &ValidatedTunnel,
    applied: &Applied,
    seen: &Seen,
    certified: &Certified,
) -> Vec<Verdict> {
    let carrier = carrier_connected(tunnel, seen);
    let certificates = certificates::valid(tunnel, seen, certified);
    let tuning = tuning_applied(tunnel, seen);
    let wan = wan_emulated(tunnel, seen);
    let network = network_ready(tunnel, seen);
    vec![
        ready(
            tunnel,
            applied,
            seen,
            [&carrier, &certificates, &tuning, &wan, &network],
        ),
        available(tunnel, seen),
        carrier,
        certificates,
        tuning,
        wan,
        network,
    ]
}

/// The first problem, in the order in which a user would check the tunnel.
fn ready(
    tunnel: &ValidatedTunnel,
    applied: &Applied,
    seen: &Seen,
    parts: [&Verdict; 5],
) -> Verdict {
    let no = |code, detail: String| Verdict::no(condition::READY, code, detail);
    if let Some(problem) = &applied.refusal {
        return no(problem.code, problem.detail.clone());
    }
    let foremost = parts.into_iter().find(|part| {
        part.holds == Some(false)
            && matches!(
                part.code,
                Code::SysctlForbidden
                    | Code::SandboxFailed
                    | Code::SysctlProbing
                    | Code::SysctlProbeFailed
                    | Code::PodSecurityTooStrict
                    | Code::WanDisabled
                    | Code::WanUnsupported
                    | Code::AuthorityUnavailable
                    | Code::IssuerMissing
                    | Code::CertificateSecretTaken
                    | Code::InterfaceFailed
            )
    });
    if let Some(part) = foremost {
        return no(part.code, part.detail.clone());
    }
    if !tunnel.forbidden.is_empty() {
        return no(Code::TargetNotPermitted, tunnel.forbidden.join("; "));
    }
    if !tunnel.unresolved.is_empty() {
        return no(Code::TargetServiceNotFound, tunnel.unresolved.join("; "));
    }
    if let Some(sentence) = not_rolled_out(tunnel, applied, seen) {
        return no(Code::GatewaysNotReady, sentence);
    }
    if let Some(problem) = gateways_behind(applied, seen) {
        return no(problem.code, problem.detail);
    }
    let [carrier, ..] = parts;
    // A tunnel whose entry is remote is ready even without a carrier, because the entry may connect
    // at any time.
    let carrier_counts = tunnel.entry.is_some();
    let open = parts.into_iter().find(|part| {
        part.holds != Some(true)
            && part.code != Code::NotRequested
            && (carrier_counts || part.type_ != carrier.type_)
    });
    match open {
        Some(part) => no(part.code, part.detail.clone()),
        None => Verdict::yes(condition::READY, Code::Reconciled),
    }
}

/// A sentence for each end whose Deployment is not rolled out.
fn not_rolled_out(tunnel: &ValidatedTunnel, applied: &Applied, seen: &Seen) -> Option<String> {
    let mut sentences = Vec::new();
    for end in End::ALL {
        let Some(gateway) = end.gateway(tunnel) else {
            continue;
        };
        let name = end.child_name(tunnel);
        let deployment = applied
            .deployments
            .iter()
            .find(|deployment| deployment.name_any() == name);
        let (ready, reached) = deployment.map_or((0, false), |deployment| {
            let reached = is_rolled_out(deployment, gateway.replicas);
            (ready_replicas(deployment), reached)
        });
        if reached {
            continue;
        }
        let mut sentence = format!(
            "{}: {ready} of {} gateways ready",
            end.component(),
            wanted(gateway.replicas, deployment)
        );
        let problem = seen
            .pods
            .iter()
            .filter(|pod| pod.end == end)
            .find_map(|pod| pod.problem.as_ref())
            .map(|problem| problem.detail.clone())
            .or_else(|| deployment.and_then(replica_failure))
            .or_else(|| not_started(tunnel, end, seen));
        if let Some(problem) = problem {
            sentence.push_str(": ");
            sentence.push_str(&problem);
        }
        sentences.push(sentence);
    }
    (!sentences.is_empty()).then(|| sentences.join("; "))
}

/// A sentence for a pod that may wait for a Secret. The kubelet reports this only in an Event of
/// the pod.
fn not_started(tunnel: &ValidatedTunnel, end: End, seen: &Seen) -> Option<String> {
    let mut pods = seen.pods.iter().filter(|pod| pod.end == end);
    let pod = pods.find(|pod| pod.answer.is_none())?;
    let secrets: Vec<_> = end.secrets(tunnel).into_iter().collect();
    (!secrets.is_empty()).then(|| {
        format!(
            "pod {} has not started; check that these Secrets exist with all keys: {}",
            pod.name,
            secrets.join(", ")
        )
    })
}

pub(super) fn ready_replicas(deployment: &Deployment) -> i32 {
    deployment
        .status
        .as_ref()
        .and_then(|status| status.ready_replicas)
        .unwrap_or(0)
}

/// The requested number of pods, from the spec or from the client that scales the Deployment.
pub(super) fn wanted(replicas: Replicas, deployment: Option<&Deployment>) -> i32 {
    let scaled = || deployment?.spec.as_ref()?.replicas;
    let number = replicas.fixed().or_else(scaled);
    number.unwrap_or_else(|| replicas.least())
}

/// Whether all pods have the newest template and the requested number is ready. With an autoscaler,
/// only its least number has to be ready, because the tunnel works without pods that it has just
/// added. If the spec sets no number, the Deployment's number has to be ready, and at least one.
fn is_rolled_out(deployment: &Deployment, replicas: Replicas) -> bool {
    let Some(status) = &deployment.status else {
        return false;
    };
    let number = |number: Option<i32>| number.unwrap_or(0);
    let (ready, pods) = (number(status.ready_replicas), number(status.replicas));
    let is_complete = match replicas {
        Replicas::Fixed(wanted) => ready == wanted && pods == wanted,
        Replicas::Free(_) => ready >= wanted(replicas, Some(deployment)).max(1),
        Replicas::Autoscaled { min, .. } => ready >= min,
    };
    status.observed_generation >= deployment.metadata.generation
        && number(status.updated_replicas) == pods
        && is_complete
}

/// The problem of the first gateway that has one: it is ready and does not answer, or it answers
/// and either runs an older configuration or cannot listen.
fn gateways_behind(applied: &Applied, seen: &Seen) -> Option<Problem> {
    let expected: BTreeMap<String, Option<String>> = applied
        .config_maps
        .iter()
        .map(|config_map| (config_map.name_any(), expected_hash(config_map)))
        .collect();
    let problem = |code, detail| Some(Problem { code, detail });
    for pod in &seen.pods {
        let status = match &pod.answer {
            Some(Ok(status)) => status,
            Some(Err(error)) if pod.ready => {
                let detail = format!("pod {}: {error}", pod.name);
                return problem(Code::GatewayUnreachable, detail);
            }
            _ => continue,
        };
        let hash = expected
            .iter()
            .find(|(name, _)| name.ends_with(&format!("-{}", pod.end.component())))
            .and_then(|(_, hash)| hash.as_ref());
        if hash != Some(&status.config_hash) {
            let detail = status.config_error.as_ref().map_or_else(
                || format!("pod {} runs an older configuration", pod.name),
                |error| format!("pod {}: {error}", pod.name),
            );
            return problem(Code::ConfigPending, detail);
        }
        let failed = status
            .forwards
            .iter()
            .find_map(|forward| Some((&forward.name, forward.error.as_ref()?)));
        if let Some((name, error)) = failed {
            let detail = format!("pod {}: forward {name}: {error}", pod.name);
            return problem(Code::ListenFailed, detail);
        }
    }
    None
}

pub(super) fn answers(seen: &Seen, end: End) -> impl Iterator<Item = (&SeenPod, &Status)> {
    seen.pods
        .iter()
        .filter(move |pod| pod.end == end)
        .filter_map(|pod| Some((pod, pod.answer.as_ref()?.as_ref().ok()?)))
}

/// The end whose carriers determine the conditions.
pub(super) fn viewpoint(tunnel: &ValidatedTunnel) -> End {
    match (&tunnel.entry, &tunnel.rendezvous) {
        (Some(_), _) => End::Entry,
        (None, Some(_)) => End::Rendezvous,
        (None, None) => End::Exit,
    }
}

fn available(tunnel: &ValidatedTunnel, seen: &Seen) -> Verdict {
    let end = viewpoint(tunnel);
    let no = |code, detail| Verdict::no(condition::AVAILABLE, code, detail);
    if !seen.pods.iter().any(|pod| pod.end == end && pod.ready) {
        let detail = format!("no {} gateway is ready", end.component());
        return no(Code::GatewaysNotReady, detail);
    }
    let works = |(pod, status): (&SeenPod, &Status)| {
        pod.ready && (end != End::Entry || !status.carriers.is_empty())
    };
    if !answers(seen, end).any(works) {
        let detail = "no ready gateway has a carrier".to_owned();
        return no(Code::CarrierConnecting, detail);
    }
    if let Some(detail) = End::ALL.into_iter().find_map(|end| out_of_files(seen, end)) {
        return no(Code::OpenFilesExhausted, detail);
    }
    let lost = [
        (Code::TargetNotPermitted, &tunnel.forbidden),
        (Code::TargetServiceNotFound, &tunnel.unresolved),
        (Code::TargetNotReady, &tunnel.unready),
    ];
    let lost: Vec<_> = lost
        .into_iter()
        .flat_map(|(code, sentences)| sentences.iter().map(move |sentence| (code, sentence)))
        .collect();
    let sentences: Vec<_> = lost.iter().map(|(_, sentence)| sentence.as_str()).collect();
    match lost.first() {
        Some((code, _)) if lost.len() >= tunnel.listen_ports.len() => {
            no(*code, sentences.join("; "))
        }
        Some(_) => Verdict {
            detail: format!(
                "{}; the other forwards reach their targets",
                sentences.join("; ")
            ),
            ..Verdict::yes(condition::AVAILABLE, Code::Reconciled)
        },
        None => Verdict {
            detail: "connections reach their targets".to_owned(),
            ..Verdict::yes(condition::AVAILABLE, Code::Reconciled)
        },
    }
}

/// A sentence if no gateway of `end` has open files left for streams.
fn out_of_files(seen: &Seen, end: End) -> Option<String> {
    let mut files = answers(seen, end).map(|(pod, status)| (pod, status.process.open_files));
    let (pod, first) = files.next().filter(|(_, files)| files.are_exhausted())?;
    files.all(|(_, files)| files.are_exhausted()).then(|| {
        let (name, streams, limit) = (&pod.name, first.for_streams, first.limit);
        format!("pod {name}: all {streams} open files for streams are in use, of the limit {limit} (RLIMIT_NOFILE)")
    })
}

fn carrier_connected(tunnel: &ValidatedTunnel, seen: &Seen) -> Verdict {
    let end = viewpoint(tunnel);
    if end == End::Rendezvous {
        // The carriers that a rendezvous joins belong to other tunnels.
        let none = String::new();
        return Verdict::no(condition::CARRIER_CONNECTED, Code::NotRequested, none);
    }
    let all: Vec<_> = answers(seen, end).collect();
    let without = all.iter().find(|(_, status)| status.carriers.is_empty());
    match (all.is_empty(), without) {
        (false, None) => Verdict::yes(condition::CARRIER_CONNECTED, Code::CarrierUp),
        (_, Some((pod, _))) => Verdict::no(
            condition::CARRIER_CONNECTED,
            Code::CarrierConnecting,
            format!("pod {} has no carrier", pod.name),
        ),
        (true, None) => Verdict::no(
            condition::CARRIER_CONNECTED,
            Code::CarrierConnecting,
            format!("no {} gateway answers yet", end.component()),
        ),
    }
}
