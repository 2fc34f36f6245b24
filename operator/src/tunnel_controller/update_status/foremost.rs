//! The foremost cause that keeps an object from being ready. Pure.
//!
//! [`foremost`] is the only place that decides which of several causes `Ready` reports. The list in
//! it has the order in which a person has to remove the causes: first what the operator cannot
//! write, then what the gateways cannot use, then the pods, the gateways, the carriers and the
//! addresses.

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Service;
use kube::ResourceExt;
use muxtunnel_codes::Code;
use muxtunnel_crds::condition;
use muxtunnel_gateway_config::status::Status;

use super::addresses::{is_balanced, load_balancers};
use super::files;
use super::verdicts::{ready_replicas, wanted};
use crate::conditions::Verdict;
use crate::pods::replica_failure;
use crate::tunnel_controller::build::config_map::expected_hash;
use crate::tunnel_controller::end::End;
use crate::tunnel_controller::observe::SeenPod;
use crate::tunnel_controller::pods::WAITING_SECONDS_MIN;
use crate::tunnel_controller::problem::Problem;
use crate::tunnel_controller::publish::Observation;
use crate::tunnel_controller::validate::{Finding, Replicas, ValidatedObject};

/// The foremost cause, or `None` if the object is ready. `parts`: the conditions that `Ready`
/// depends on.
pub(super) fn foremost(facts: &Observation, parts: &[Verdict]) -> Option<Problem> {
    let fails = |part: &Verdict| part.holds != Some(true);
    let of = |type_: &str| part(parts, |part| part.type_ == type_ && fails(part));
    let refusal = facts.applied.refusal.clone();
    refusal
        .or_else(|| part(parts, is_obstacle))
        .or_else(|| of(condition::ACCEPTED))
        .or_else(|| of(condition::PROGRAMMED))
        .or_else(|| part(parts, fails))
}

/// Why the gateways do not have the current spec, or are not reachable. `tuning`: whether the
/// requested sysctls are in force. An obstacle there holds the Deployments.
pub(super) fn unprogrammed(facts: &Observation, tuning: Option<&Verdict>) -> Option<Problem> {
    let refusal = facts.applied.refusal.clone();
    refusal
        .or_else(|| part(tuning, is_obstacle))
        .or_else(|| lacking(&facts.object, Code::TargetServiceNotFound))
        .or_else(|| not_rolled_out(facts))
        .or_else(|| facts.seen.pods.iter().find_map(|pod| behind(facts, pod)))
        .or_else(|| without_address(facts))
}

fn part<'a>(
    parts: impl IntoIterator<Item = &'a Verdict>,
    counts: impl Fn(&Verdict) -> bool,
) -> Option<Problem> {
    let part = parts.into_iter().find(|part| counts(part))?;
    Some(Problem::new(part.code, &*part.detail))
}

/// Whether the condition names an obstacle that keeps pods from starting, or carriers from being
/// established.
fn is_obstacle(part: &Verdict) -> bool {
    part.holds == Some(false)
        && match part.code {
            // These causes follow from the pods or the Services, or resolve themselves.
            Code::CertificatePending | Code::CertificateExpiring | Code::KeyPending => false,
            _ if part.type_ == condition::CREDENTIALS_VALID => true,
            code => matches!(
                code,
                Code::SysctlForbidden
                    | Code::SandboxFailed
                    | Code::SysctlProbing
                    | Code::SysctlProbeFailed
                    | Code::PodSecurityTooStrict
                    | Code::WanUnsupported
                    | Code::InterfaceFailed
            ),
        }
}

/// The problems of targets with this code.
pub(super) fn lacking(object: &ValidatedObject, code: Code) -> Option<Problem> {
    joined(code, object.findings.of(code).map(Finding::text))
}

/// One problem with all `sentences`, if there are any.
fn joined(code: Code, sentences: impl Iterator<Item = String>) -> Option<Problem> {
    let sentences: Vec<_> = sentences.collect();
    (!sentences.is_empty()).then(|| Problem::new(code, sentences.join("; ")))
}

/// The ends whose Deployments are not rolled out: a sentence with the cause for each end, and the
/// code of the first.
fn not_rolled_out(facts: &Observation) -> Option<Problem> {
    let mut code = None;
    let mut sentences = Vec::new();
    for (end, gateway) in &facts.object.gateways {
        let (end, deployment) = (*end, facts.deployment(*end));
        if deployment.is_some_and(|deployment| is_rolled_out(deployment, gateway.replicas)) {
            continue;
        }
        let wanted = wanted(gateway.replicas, deployment);
        let cause = cause_at(facts, end, deployment);
        let waits = (cause.as_ref()).is_some_and(|cause| cause.code == Code::CarrierConnecting);
        if waits && facts.seen.answers(end).count() >= usize::try_from(wanted).unwrap_or(0) {
            // These entries have the spec. Only a carrier is missing, which is another condition.
            continue;
        }
        let (name, ready) = (end.component(), deployment.map_or(0, ready_replicas));
        let why = cause
            .as_ref()
            .map_or(String::new(), |cause| format!(": {}", cause.detail));
        sentences.push(format!("{name}: {ready} of {wanted} gateways ready{why}"));
        code.get_or_insert(cause.map_or(Code::GatewaysNotReady, |cause| cause.code));
    }
    joined(code?, sentences.into_iter())
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

/// The foremost cause why the gateways of an end are not ready.
fn cause_at(facts: &Observation, end: End, deployment: Option<&Deployment>) -> Option<Problem> {
    let (seen, mut pods) = (&facts.seen, facts.seen.of(end));
    let refused = |detail| Problem::new(Code::PodsRefused, detail);
    deployment
        .and_then(paused)
        // The reason why pods cannot be created is, for example, a quota or Pod Security.
        .or_else(|| replica_failure(deployment?).map(refused))
        .or_else(|| pods.find_map(|pod| pod.problem.clone()))
        .or_else(|| seen.of(end).find_map(unreachable))
        .or_else(|| {
            let mut answers = seen.answers(end).filter(|one| !awaits_restart(one.1));
            answers.find_map(faulty)
        })
        .or_else(|| not_started(facts, end))
        .or_else(|| without_carrier(facts, end))
}

/// A paused Deployment, whose controller creates no pod with a new template.
fn paused(deployment: &Deployment) -> Option<Problem> {
    let is_paused = deployment.spec.as_ref()?.paused == Some(true);
    let detail = format!("Deployment {} is paused", deployment.name_any());
    is_paused.then(|| Problem::new(Code::DeploymentPaused, detail))
}

/// A ready gateway whose status the operator cannot read.
fn unreachable(pod: &SeenPod) -> Option<Problem> {
    let error = pod.answer.as_ref()?.as_ref().err()?;
    let detail = format!("pod {}: {error}", pod.name);
    (pod.ready).then(|| Problem::new(Code::GatewayUnreachable, detail))
}

/// A gateway that reports what it cannot use: its configuration, another file, or a port.
fn faulty((pod, status): (&SeenPod, &Status)) -> Option<Problem> {
    let failed = || {
        status.forwards.iter().find_map(|forward| {
            let error = forward.error.as_ref()?;
            Some(format!("forward {}: {error}", forward.name))
        })
    };
    let (code, text) = if let Some(error) = &status.config_error {
        (Code::ConfigPending, error.clone())
    } else if let Some(text) = files::rejected(status) {
        (Code::FileRejected, text)
    } else {
        (Code::ListenFailed, failed()?)
    };
    Some(Problem::new(code, format!("pod {}: {text}", pod.name)))
}

/// Whether the gateway rejects a part of its configuration only until it restarts. The roll-out
/// restarts the gateway.
fn awaits_restart(status: &Status) -> bool {
    let code = Code::ConfigNeedsRestart.to_string();
    let error = status.config_error.as_ref();
    error.is_some_and(|error| error.starts_with(&code))
}

/// A pod that has not started. It may wait for a Secret, which the kubelet reports only in an Event
/// of the pod.
fn not_started(facts: &Observation, end: End) -> Option<Problem> {
    let pod = facts.seen.of(end).find(|pod| pod.answer.is_none())?;
    let secrets: Vec<_> = facts.object.secrets(end).into_iter().collect();
    let is_new = |made: i64| facts.certified.now - made < WAITING_SECONDS_MIN;
    if secrets.is_empty() || pod.made.is_some_and(is_new) {
        return None;
    }
    let (name, secrets) = (&pod.name, secrets.join(", "));
    let detail = format!(
        "pod {name} has not started; check that these Secrets exist with all keys: {secrets}"
    );
    Some(Problem::new(Code::SecretNotMounted, detail))
}

/// An entry that runs, but is not ready because no carrier is up.
fn without_carrier(facts: &Observation, end: End) -> Option<Problem> {
    let mut pods = facts.seen.answers(end).filter(|_| end == End::Entry);
    let (pod, status) = pods.find(|(pod, status)| !pod.ready && status.carriers.is_empty())?;
    let detail = no_carrier(pod, status);
    Some(Problem::new(Code::CarrierConnecting, detail))
}

/// A sentence for a gateway without a carrier.
pub(super) fn no_carrier(pod: &SeenPod, status: &Status) -> String {
    let why = status.carrier_error.as_ref();
    let why = why.map_or(String::new(), |error| format!(": {error}"));
    format!("pod {} has no carrier{why}", pod.name)
}

/// A gateway that does not answer, reports a fault, or runs an older configuration.
fn behind(facts: &Observation, pod: &SeenPod) -> Option<Problem> {
    if let Some(problem) = unreachable(pod) {
        return Some(problem);
    }
    let status = pod.status()?;
    faulty((pod, status)).or_else(|| {
        let detail = format!("pod {} runs an older configuration", pod.name);
        (!is_newest(facts, pod, status)).then(|| Problem::new(Code::ConfigPending, detail))
    })
}

/// Whether the gateway runs the newest configuration that its pod mounts.
pub(super) fn is_newest(facts: &Observation, pod: &SeenPod, status: &Status) -> bool {
    let (config_map, key) = (facts.config_map(pod.end), pod.config.as_deref());
    let hash = config_map.and_then(|config_map| expected_hash(config_map, key?));
    hash.as_ref() == Some(&status.config_hash)
}

/// The Services whose load balancer has no address yet. An address of the spec replaces the address
/// of the exit's Service.
fn without_address(facts: &Observation) -> Option<Problem> {
    let is_advertised = |service: &Service| {
        let mut gateways = facts.object.gateways.iter();
        gateways.any(|(end, gateway)| {
            let port = gateway.carrier_port.as_ref();
            port.is_some_and(|port| port.advertised.is_some())
                && facts.object.child(*end) == service.name_any()
        })
    };
    let pending = facts.applied.services.iter().filter(|service| {
        is_balanced(service) && load_balancers(service).next().is_none() && !is_advertised(service)
    });
    let sentence = |service: &Service| {
        let name = service.name_any();
        format!("Service {name} has no load balancer address yet")
    };
    joined(Code::AddressPending, pending.map(sentence))
}
