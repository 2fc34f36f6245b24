//! The foremost cause that keeps an object from being ready. Pure.
//!
//! [`foremost`] is the only place that decides which of several causes `Ready` reports. The list in
//! it has the order in which a person has to remove the causes: first what the operator cannot
//! write, then what the gateways cannot use, then the pods, the gateways, the carriers and the
//! addresses.

use k8s_openapi::api::apps::v1::Deployment;
use kube::ResourceExt;
use muxtunnel_codes::Code;
use muxtunnel_crds::condition;
use muxtunnel_gateway_config::status::Status;

use super::addresses::{is_balanced, load_balancers};
use super::verdicts::{answers, ready_replicas, wanted};
use super::{files, named};
use crate::conditions::Verdict;
use crate::pods::replica_failure;
use crate::tunnel_controller::apply::Applied;
use crate::tunnel_controller::build::Certified;
use crate::tunnel_controller::build::config_map::expected_hash;
use crate::tunnel_controller::end::End;
use crate::tunnel_controller::observe::{Seen, SeenPod};
use crate::tunnel_controller::pods::WAITING_SECONDS_MIN;
use crate::tunnel_controller::problem::Problem;
use crate::tunnel_controller::validate::{Finding, Replicas, ValidatedObject};

/// The observations of one object.
#[derive(Clone, Copy)]
pub(super) struct Facts<'a> {
    pub(super) object: &'a ValidatedObject,
    pub(super) applied: &'a Applied,
    pub(super) seen: &'a Seen,
    pub(super) certified: &'a Certified,
}

/// The foremost cause, or `None` if the object is ready. `parts`: the conditions that `Ready`
/// depends on.
pub(super) fn foremost(facts: Facts<'_>, parts: &[Verdict]) -> Option<Problem> {
    let is = |part: &Verdict, type_: &str| part.type_ == type_ && part.holds != Some(true);
    let causes: [&dyn Fn() -> Option<Problem>; 5] = [
        &|| facts.applied.refusal.clone(),
        &|| part(parts, is_obstacle),
        &|| part(parts, |part| is(part, condition::ACCEPTED)),
        &|| part(parts, |part| is(part, condition::PROGRAMMED)),
        &|| part(parts, |part| part.holds != Some(true)),
    ];
    causes.into_iter().find_map(|cause| cause())
}

/// Why the gateways do not have the current spec, or are not reachable. `tuning`: whether the
/// requested sysctls are in force. An obstacle there holds the Deployments.
pub(super) fn unprogrammed(facts: Facts<'_>, tuning: Option<&Verdict>) -> Option<Problem> {
    let Facts {
        object, applied, ..
    } = facts;
    let causes: [&dyn Fn() -> Option<Problem>; 6] = [
        &|| applied.refusal.clone(),
        &|| part(tuning, is_obstacle),
        &|| lacking(object, Code::TargetServiceNotFound),
        &|| not_rolled_out(facts),
        &|| behind(facts),
        &|| without_address(object, applied),
    ];
    causes.into_iter().find_map(|cause| cause())
}

fn part<'a>(
    parts: impl IntoIterator<Item = &'a Verdict>,
    counts: impl Fn(&Verdict) -> bool,
) -> Option<Problem> {
    let part = parts.into_iter().find(|part| counts(part))?;
    Some(Problem {
        code: part.code,
        detail: part.detail.clone(),
    })
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
    let sentences: Vec<_> = object.findings.of(code).map(Finding::text).collect();
    let detail = sentences.join("; ");
    (!sentences.is_empty()).then_some(Problem { code, detail })
}

/// The ends whose Deployments are not rolled out: a sentence with the cause for each end, and the
/// code of the first.
fn not_rolled_out(facts: Facts<'_>) -> Option<Problem> {
    let mut code = None;
    let mut sentences = Vec::new();
    for (end, gateway) in &facts.object.gateways {
        let (end, deployment) = (*end, deployment(facts, *end));
        if deployment.is_some_and(|deployment| is_rolled_out(deployment, gateway.replicas)) {
            continue;
        }
        let wanted = wanted(gateway.replicas, deployment);
        let cause = cause_at(facts, end, deployment);
        let waits = (cause.as_ref()).is_some_and(|cause| cause.code == Code::CarrierConnecting);
        if waits && answers(facts.seen, end).count() >= usize::try_from(wanted).unwrap_or(0) {
            // These entries have the spec. Only a carrier is missing, which is another condition.
            continue;
        }
        let mut sentence = format!(
            "{}: {} of {wanted} gateways ready",
            end.component(),
            deployment.map_or(0, ready_replicas),
        );
        if let Some(cause) = &cause {
            sentence.push_str(": ");
            sentence.push_str(&cause.detail);
        }
        code.get_or_insert(cause.map_or(Code::GatewaysNotReady, |cause| cause.code));
        sentences.push(sentence);
    }
    let detail = sentences.join("; ");
    code.map(|code| Problem { code, detail })
}

fn deployment<'a>(facts: Facts<'a>, end: End) -> Option<&'a Deployment> {
    named(&facts.applied.deployments, &facts.object.child(end))
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
fn cause_at(facts: Facts<'_>, end: End, deployment: Option<&Deployment>) -> Option<Problem> {
    let Facts { seen, .. } = facts;
    let causes: [&dyn Fn() -> Option<Problem>; 7] = [
        &|| paused(deployment?),
        &|| pods_refused(deployment?),
        &|| pods(seen, end).find_map(|pod| pod.problem.clone()),
        &|| pods(seen, end).find_map(unreachable),
        &|| {
            answers(seen, end)
                .filter(|one| !awaits_restart(one.1))
                .find_map(faulty)
        },
        &|| not_started(facts, end),
        &|| without_carrier(seen, end),
    ];
    causes.into_iter().find_map(|cause| cause())
}

fn pods(seen: &Seen, end: End) -> impl Iterator<Item = &SeenPod> {
    seen.pods.iter().filter(move |pod| pod.end == end)
}

/// A paused Deployment, whose controller creates no pod with a new template.
fn paused(deployment: &Deployment) -> Option<Problem> {
    let spec = deployment.spec.as_ref()?;
    (spec.paused == Some(true)).then(|| Problem {
        code: Code::DeploymentPaused,
        detail: format!("Deployment {} is paused", deployment.name_any()),
    })
}

/// The reason why pods cannot be created, for example a quota or Pod Security.
fn pods_refused(deployment: &Deployment) -> Option<Problem> {
    Some(Problem {
        code: Code::PodsRefused,
        detail: replica_failure(deployment)?,
    })
}

/// A ready gateway whose status the operator cannot read.
fn unreachable(pod: &SeenPod) -> Option<Problem> {
    match &pod.answer {
        Some(Err(error)) if pod.ready => Some(Problem {
            code: Code::GatewayUnreachable,
            detail: format!("pod {}: {error}", pod.name),
        }),
        _ => None,
    }
}

/// A gateway that reports what it cannot use: its configuration, another file, or a port.
fn faulty((pod, status): (&SeenPod, &Status)) -> Option<Problem> {
    let problem = |code, text: String| Problem {
        code,
        detail: format!("pod {}: {text}", pod.name),
    };
    if let Some(error) = &status.config_error {
        return Some(problem(Code::ConfigPending, error.clone()));
    }
    if let Some(text) = files::rejected(status) {
        return Some(problem(Code::FileRejected, text));
    }
    let failed = status.forwards.iter().find_map(|forward| {
        let error = forward.error.as_ref()?;
        Some(format!("forward {}: {error}", forward.name))
    });
    failed.map(|text| problem(Code::ListenFailed, text))
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
fn not_started(facts: Facts<'_>, end: End) -> Option<Problem> {
    let pod = pods(facts.seen, end).find(|pod| pod.answer.is_none())?;
    let secrets: Vec<_> = facts.object.secrets(end).into_iter().collect();
    let is_new = |made: i64| facts.certified.now - made < WAITING_SECONDS_MIN;
    if secrets.is_empty() || pod.made.is_some_and(is_new) {
        return None;
    }
    let (name, secrets) = (&pod.name, secrets.join(", "));
    Some(Problem {
        code: Code::SecretNotMounted,
        detail: format!(
            "pod {name} has not started; check that these Secrets exist with all keys: {secrets}"
        ),
    })
}

/// An entry that runs, but is not ready because no carrier is up.
fn without_carrier(seen: &Seen, end: End) -> Option<Problem> {
    let mut pods = answers(seen, end);
    let (pod, status) =
        pods.find(|(pod, status)| end == End::Entry && !pod.ready && status.carriers.is_empty())?;
    Some(Problem {
        code: Code::CarrierConnecting,
        detail: no_carrier(pod, status),
    })
}

/// A sentence for a gateway without a carrier.
pub(super) fn no_carrier(pod: &SeenPod, status: &Status) -> String {
    let why = status.carrier_error.as_ref();
    let why = why.map_or(String::new(), |error| format!(": {error}"));
    format!("pod {} has no carrier{why}", pod.name)
}

/// The first gateway that does not answer, reports a fault, or runs an older configuration.
fn behind(facts: Facts<'_>) -> Option<Problem> {
    facts.seen.pods.iter().find_map(|pod| {
        if let Some(problem) = unreachable(pod) {
            return Some(problem);
        }
        let status = pod.answer.as_ref()?.as_ref().ok()?;
        if let Some(problem) = faulty((pod, status)) {
            return Some(problem);
        }
        let config_map = named(&facts.applied.config_maps, &facts.object.child(pod.end));
        let hash = config_map.and_then(|own| expected_hash(own, pod.config.as_deref()?));
        let is_newest = hash.as_ref() == Some(&status.config_hash);
        (!is_newest).then(|| Problem {
            code: Code::ConfigPending,
            detail: format!("pod {} runs an older configuration", pod.name),
        })
    })
}

/// The Services whose load balancer has no address yet. An address of the spec replaces the address
/// of the exit's Service.
fn without_address(object: &ValidatedObject, applied: &Applied) -> Option<Problem> {
    let advertised = object.gateways.iter().filter_map(|(end, gateway)| {
        gateway.carrier_port.as_ref()?.advertised.as_ref()?;
        Some(object.child(*end))
    });
    let advertised: Vec<_> = advertised.collect();
    let pending = applied.services.iter().filter(|service| {
        is_balanced(service)
            && load_balancers(service).next().is_none()
            && !advertised.contains(&service.name_any())
    });
    let sentences: Vec<_> = pending
        .map(|service| {
            let name = service.name_any();
            format!("Service {name} has no load balancer address yet")
        })
        .collect();
    (!sentences.is_empty()).then(|| Problem {
        code: Code::AddressPending,
        detail: sentences.join("; "),
    })
}
