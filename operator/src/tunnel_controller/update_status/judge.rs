//! From facts to verdicts. Pure.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Service;
use kube::ResourceExt;
use muxtunnel_codes::Code;
use muxtunnel_crds::{
    CarrierStatus, GatewayStatus, MuxTunnelStatus, tunnel_condition as condition,
};
use muxtunnel_gateway_config::CARRIER_PORT;
use muxtunnel_gateway_config::status::Status;

use super::certificates;
use crate::conditions::Verdict;
use crate::tunnel_controller::apply::Applied;
use crate::tunnel_controller::build::{End, config_map::expected_hash, probe};
use crate::tunnel_controller::certify::Certified;
use crate::tunnel_controller::observe::{Problem, Seen, SeenPod, Wan};
use crate::tunnel_controller::rollouts::{Fallback, Held, Rollout, refused_pods};
use crate::tunnel_controller::validate::{Replicas, ValidatedTunnel};

/// Sysctls in the status at most.
const SYSCTLS_MAX: usize = 64;
/// Bytes of one of them at most: those that matter are three numbers at most.
const SYSCTL_BYTES_MAX: usize = 256;
/// Least part of the asked round-trip time that counts as emulated.
const RTT_PART_MIN: f64 = 0.97;

/// The six conditions.
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
    vec![
        ready(
            tunnel,
            applied,
            seen,
            [&carrier, &certificates, &tuning, &wan],
        ),
        available(tunnel, seen),
        carrier,
        certificates,
        tuning,
        wan,
    ]
}

/// The first thing that is not as asked, in the order in which a person would look.
fn ready(
    tunnel: &ValidatedTunnel,
    applied: &Applied,
    seen: &Seen,
    parts: [&Verdict; 4],
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
    // The other side of an exit alone may come whenever it likes.
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

/// A sentence for the ends whose Deployments have not reached what they should be.
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

/// A kubelet that waits for a Secret says so in an Event of the pod alone.
fn not_started(tunnel: &ValidatedTunnel, end: End, seen: &Seen) -> Option<String> {
    let mut pods = seen.pods.iter().filter(|pod| pod.end == end);
    let pod = pods.find(|pod| pod.answer.is_none())?;
    let secrets: Vec<_> = end.secrets(tunnel).into_iter().collect();
    (!secrets.is_empty()).then(|| {
        format!(
            "pod {} has not started; is each of its Secrets there, with its keys: {}?",
            pod.name,
            secrets.join(", ")
        )
    })
}

fn ready_replicas(deployment: &Deployment) -> i32 {
    deployment
        .status
        .as_ref()
        .and_then(|status| status.ready_replicas)
        .unwrap_or(0)
}

/// Pods that are to be there: as asked for, or as the autoscaler has it.
fn wanted(replicas: Replicas, deployment: Option<&Deployment>) -> i32 {
    let scaled = || deployment?.spec.as_ref()?.replicas;
    let number = replicas.fixed().or_else(scaled);
    number.unwrap_or_else(|| replicas.least())
}

/// All pods are of the newest template, and as many as asked for are ready. More pods that an autoscaler has just asked
/// for are on their way, which is nothing that the tunnel lacks.
fn is_rolled_out(deployment: &Deployment, replicas: Replicas) -> bool {
    let Some(status) = &deployment.status else {
        return false;
    };
    let number = |number: Option<i32>| number.unwrap_or(0);
    let (ready, pods) = (number(status.ready_replicas), number(status.replicas));
    let is_complete = match replicas.fixed() {
        Some(wanted) => ready == wanted && pods == wanted,
        None => ready >= replicas.least(),
    };
    status.observed_generation >= deployment.metadata.generation
        && number(status.updated_replicas) == pods
        && is_complete
}

/// Such as a quota or Pod Security that lets no pod be made.
fn replica_failure(deployment: &Deployment) -> Option<String> {
    deployment
        .status
        .as_ref()?
        .conditions
        .iter()
        .flatten()
        .find(|condition| condition.type_ == "ReplicaFailure" && condition.status == "True")
        .and_then(|condition| condition.message.clone())
}

/// The first gateway that is ready but cannot be asked, runs an older configuration, or cannot listen.
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

/// The end whose view of the carriers counts.
fn viewpoint(tunnel: &ValidatedTunnel) -> End {
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
                "other forwards reach their targets; {}",
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

fn carrier_connected(tunnel: &ValidatedTunnel, seen: &Seen) -> Verdict {
    let end = viewpoint(tunnel);
    if end == End::Rendezvous {
        // Those that it joins are others'.
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

fn tuning_applied(tunnel: &ValidatedTunnel, seen: &Seen) -> Verdict {
    let no = |code, detail| Verdict::no(condition::TUNING_APPLIED, code, detail);
    match probe::verdict(tunnel) {
        probe::Verdict::Passed => {}
        probe::Verdict::Pending(detail) => return no(Code::SysctlProbing, detail),
        probe::Verdict::NotAdmitted(detail) => return no(Code::PodSecurityTooStrict, detail),
        probe::Verdict::Failed(detail) => return no(Code::SysctlProbeFailed, detail),
        probe::Verdict::Refused(problem) => return no(problem.code, problem.detail),
    }
    let as_built = Rollout::default();
    for end in End::ALL {
        let rollout = tunnel.rollout(end).unwrap_or(&as_built);
        if let Some(held) = &rollout.held {
            return no(held.problem.code, held_sentence(end, held));
        }
        let refused = refused_pods(seen, end, rollout).find_map(|pod| pod.problem.clone());
        if let Some(Problem { code, detail }) = refused {
            return no(code, detail);
        }
    }
    if tunnel.tuning.is_empty() {
        return no(Code::NotRequested, String::new());
    }
    let mut asked_any = false;
    for (pod, status) in End::ALL.into_iter().flat_map(|end| answers(seen, end)) {
        asked_any = true;
        for (name, wanted) in &tunnel.tuning {
            // A gateway reports what matters to it; the kubelet stands for the others.
            let Some(value) = status.sysctls.get(name) else {
                continue;
            };
            if folded(value) != folded(wanted) {
                let detail = format!("pod {}: {name} is {value}, asked for {wanted}", pod.name);
                return no(Code::SysctlMismatch, detail);
            }
        }
    }
    if asked_any {
        Verdict {
            detail: avoided_sentence(tunnel),
            ..Verdict::yes(condition::TUNING_APPLIED, Code::SysctlsApplied)
        }
    } else {
        let detail = "no gateway answers yet";
        Verdict::unknown(condition::TUNING_APPLIED, Code::GatewaysNotReady, detail)
    }
}

/// What was refused, and what the end has meanwhile.
fn held_sentence(end: End, held: &Held) -> String {
    let meanwhile = match held.fallback {
        Fallback::Template(_) => "its gateways keep the settings that they had",
        Fallback::Stopped | Fallback::Nothing => "it has no gateways",
    };
    format!(
        "{}: {}; {meanwhile} until the spec is tried again, within 10 minutes",
        end.component(),
        held.problem.detail
    )
}

/// The nodes that refused a sysctl though others took it; empty: there are none.
fn avoided_sentence(tunnel: &ValidatedTunnel) -> String {
    let ends = tunnel.rollouts.iter();
    let ends = ends.filter(|(_, rollout)| !rollout.avoided.is_empty());
    let sentences: Vec<_> = ends
        .map(|(end, rollout)| {
            let nodes: Vec<_> = rollout.avoided.iter().map(String::as_str).collect();
            let (end, nodes) = (end.component(), nodes.join(", "));
            format!("{end} gateways avoid nodes that refused a sysctl: {nodes}")
        })
        .collect();
    sentences.join("; ")
}

fn folded(value: &str) -> String {
    value.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn wan_emulated(tunnel: &ValidatedTunnel, seen: &Seen) -> Verdict {
    let no = |code, detail| Verdict::no(condition::WAN_EMULATED, code, detail);
    if tunnel.wan_disabled {
        return no(Code::WanDisabled, String::new());
    }
    let Some(wan) = &tunnel.wan else {
        return no(Code::NotRequested, String::new());
    };
    let refused = seen.pods.iter().find_map(|pod| match &pod.wan {
        Wan::Refused(problem) => Some(problem),
        _ => None,
    });
    if let Some(problem) = refused {
        return no(problem.code, problem.detail.clone());
    }
    if let Some(pod) = seen.pods.iter().find(|pod| pod.wan != Wan::Proven) {
        return no(Code::WanPending, format!("pod {} is starting it", pod.name));
    }
    if seen.pods.is_empty() {
        return no(Code::WanPending, "no gateway runs yet".to_owned());
    }
    let delay = wan.one_way_delay;
    let least = delay
        .as_millis()
        .saturating_sub(wan.jitter.unwrap_or_default().as_millis());
    if tunnel.has_both_sides() {
        let Some(rtt) = least_rtt(seen) else {
            return no(Code::WanPending, "no carrier to measure yet".to_owned());
        };
        let asked = 2.0 * delay.as_millis() as f64;
        // More may be the path's own; less cannot be, but for the jitter.
        if rtt < 2.0 * least as f64 * RTT_PART_MIN {
            let detail =
                format!("the round trip takes {rtt:.1} ms, asked for {asked} ms (2 x {delay})");
            return no(Code::WanDelayOff, detail);
        }
    }
    Verdict {
        detail: format!("each direction is delayed by {delay}"),
        ..Verdict::yes(condition::WAN_EMULATED, Code::WanEmulated)
    }
}

/// The least round-trip time that any entry's carrier has seen, in milliseconds.
fn least_rtt(seen: &Seen) -> Option<f64> {
    answers(seen, End::Entry)
        .flat_map(|(_, status)| &status.carriers)
        .map(|carrier| carrier.rtt_min_milliseconds)
        .filter(|rtt| *rtt > 0.0)
        .min_by(f64::total_cmp)
}

/// The status without its conditions.
#[must_use]
pub fn facts(
    tunnel: &ValidatedTunnel,
    applied: &Applied,
    seen: &Seen,
    certified: &Certified,
) -> MuxTunnelStatus {
    let mut rtts: Vec<f64> = answers(seen, viewpoint(tunnel))
        .flat_map(|(_, status)| &status.carriers)
        .map(|carrier| carrier.rtt_min_milliseconds)
        .collect();
    rtts.sort_by(f64::total_cmp);
    MuxTunnelStatus {
        entry: side(tunnel, applied, End::Entry),
        exit: side(tunnel, applied, End::Exit),
        rendezvous: side(tunnel, applied, End::Rendezvous),
        carriers: tunnel.rendezvous.is_none().then(|| CarrierStatus {
            up: i32::try_from(rtts.len()).unwrap_or(i32::MAX),
            rtt_milliseconds: rtts.get(rtts.len() / 2).copied(),
        }),
        certificates: certificates::facts(tunnel, seen, certified),
        sysctls: sysctls(seen),
        ..MuxTunnelStatus::default()
    }
}

fn side(tunnel: &ValidatedTunnel, applied: &Applied, end: End) -> Option<GatewayStatus> {
    let gateway = end.gateway(tunnel)?;
    let name = end.child_name(tunnel);
    let deployment = applied
        .deployments
        .iter()
        .find(|deployment| deployment.name_any() == name);
    let service = applied
        .services
        .iter()
        .find(|service| service.name_any() == name);
    // There is none in front of an entry that listens for nobody.
    let host = service.map(|service| {
        let own = || format!("{name}.{}.svc", tunnel.namespace);
        load_balancer(service).unwrap_or_else(own)
    });
    let replicas = wanted(gateway.replicas, deployment);
    let ready_replicas = deployment.map_or(0, ready_replicas);
    Some(GatewayStatus {
        replicas,
        ready_replicas,
        ready: format!("{ready_replicas}/{replicas}"),
        address: match end {
            End::Entry => host,
            _ => host
                .filter(|_| end.is_dialled(tunnel))
                .map(|host| format!("{host}:{CARRIER_PORT}")),
        },
    })
}

/// What a load balancer is reached by.
#[must_use]
pub fn load_balancer(service: &Service) -> Option<String> {
    let ingress = service
        .status
        .as_ref()?
        .load_balancer
        .as_ref()?
        .ingress
        .as_ref()?
        .first()?;
    ingress.hostname.clone().or_else(|| ingress.ip.clone())
}

fn cut(mut text: String) -> String {
    text.truncate(text.floor_char_boundary(SYSCTL_BYTES_MAX));
    text
}

/// What the gateways report. Where they differ, all values stand there, with the end they come from.
fn sysctls(seen: &Seen) -> BTreeMap<String, String> {
    let mut values: BTreeMap<&str, BTreeSet<(String, &str)>> = BTreeMap::new();
    for end in End::ALL {
        for (_, status) in answers(seen, end) {
            for (name, value) in &status.sysctls {
                values
                    .entry(name)
                    .or_default()
                    .insert((folded(value), end.component()));
            }
        }
    }
    values
        .into_iter()
        .take(SYSCTLS_MAX)
        .map(|(name, values)| {
            let distinct: BTreeSet<_> = values.iter().map(|(value, _)| value).collect();
            let text = if let [value] = distinct.iter().collect::<Vec<_>>()[..] {
                (*value).clone()
            } else {
                values
                    .iter()
                    .map(|(value, end)| format!("{value} ({end})"))
                    .collect::<Vec<_>>()
                    .join(", ")
            };
            (name.to_owned(), cut(text))
        })
        .collect()
}
