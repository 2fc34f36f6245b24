//! The verdicts for the conditions, from the observations. Pure.

mod network;
mod tuning;
mod wan;

use k8s_openapi::api::apps::v1::Deployment;
use muxtunnel_codes::Code;
use muxtunnel_crds::tunnel_condition as condition;
use muxtunnel_gateway_config::status::Status;

use super::foremost::{Facts, foremost, no_carrier};
use super::{credentials, dials};
use crate::conditions::Verdict;
use crate::tunnel_controller::apply::Applied;
use crate::tunnel_controller::build::Certified;
use crate::tunnel_controller::end::End;
use crate::tunnel_controller::observe::{Seen, SeenPod};
use crate::tunnel_controller::validate::{Replicas, ValidatedTunnel};
use network::network_ready;
use tuning::tuning_applied;
use wan::wan_emulated;

/// What `Ready` and `Available` do not promise.
const FIRST_CONNECTION: &str = "Nodes may need a second until connections reach a new Service \
                                (kube-proxy).";

/// The verdicts for the seven conditions.
#[must_use]
pub fn verdicts(
    tunnel: &ValidatedTunnel,
    applied: &Applied,
    seen: &Seen,
    certified: &Certified,
) -> Vec<Verdict> {
    let carrier = carrier_connected(tunnel, seen);
    let credentials = credentials::valid(tunnel, applied, seen, certified);
    let tuning = tuning_applied(tunnel, seen);
    let wan = wan_emulated(tunnel, seen);
    let network = network_ready(tunnel, seen);
    let facts = Facts {
        tunnel,
        applied,
        seen,
        certified,
    };
    vec![
        ready(facts, &[&carrier, &credentials, &tuning, &wan, &network]),
        available(tunnel, seen),
        carrier,
        credentials,
        tuning,
        wan,
        network,
    ]
}

/// Whether all objects and gateways match the spec, or the foremost cause why not.
fn ready(facts: Facts<'_>, parts: &[&Verdict]) -> Verdict {
    match foremost(facts, parts) {
        Some(problem) => Verdict::no(condition::READY, problem.code, problem.detail),
        None => Verdict {
            detail: format!("{} {FIRST_CONNECTION}", Code::Reconciled.cause()),
            ..Verdict::yes(condition::READY, Code::Reconciled)
        },
    }
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
    let mut failing = dials::failing(seen, end);
    // A forward counts once, with the first of its problems.
    let of_forward = |sentence: &str| sentence.split(": ").next().map(str::to_owned);
    let known = lost.iter().flat_map(|(_, sentences)| sentences.iter());
    let known: Vec<_> = known.map(|sentence| of_forward(sentence)).collect();
    failing.retain(|sentence| !known.contains(&of_forward(sentence)));
    let lost: Vec<_> = lost
        .into_iter()
        .chain([(Code::OpenFailed, &failing)])
        .flat_map(|(code, sentences)| sentences.iter().map(move |sentence| (code, sentence)))
        .collect();
    let sentences: Vec<_> = lost.iter().map(|(_, sentence)| sentence.as_str()).collect();
    match lost.first() {
        Some((code, _)) if lost.len() >= tunnel.listen_ports.len() => {
            no(*code, sentences.join("; "))
        }
        Some(_) => Verdict {
            detail: format!(
                "{}; the operator knows no problem of the other forwards. {FIRST_CONNECTION}",
                sentences.join("; ")
            ),
            ..Verdict::yes(condition::AVAILABLE, Code::Reconciled)
        },
        None => Verdict {
            detail: format!(
                "a ready gateway takes connections, and no forward loses all of them. {FIRST_CONNECTION}"
            ),
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
        (_, Some((pod, status))) => Verdict::no(
            condition::CARRIER_CONNECTED,
            Code::CarrierConnecting,
            no_carrier(pod, status),
        ),
        (true, None) => Verdict::no(
            condition::CARRIER_CONNECTED,
            Code::CarrierConnecting,
            format!("no {} gateway answers yet", end.component()),
        ),
    }
}
