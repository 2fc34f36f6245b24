//! The verdicts for the conditions, from the observations. Pure.

mod network;
mod tuning;
mod wan;

use std::collections::BTreeSet;

use k8s_openapi::api::apps::v1::Deployment;
use muxtunnel_codes::Code;
use muxtunnel_crds::condition;
use muxtunnel_gateway_config::status::Status;

use super::foremost::{foremost, lacking, no_carrier, unprogrammed};
use super::progress::progress;
use super::{credentials, dials};
use crate::conditions::Verdict;
use crate::tunnel_controller::end::End;
use crate::tunnel_controller::object::Kind;
use crate::tunnel_controller::observe::{Seen, SeenPod};
use crate::tunnel_controller::publish::Observation;
use crate::tunnel_controller::validate::{Replicas, ValidatedObject};

/// What `Ready` and `Available` do not promise.
const FIRST_CONNECTION: &str = "Nodes may need a second until connections reach a new Service \
                                (kube-proxy).";

/// The verdicts for the conditions that apply to the object.
pub fn verdicts(facts: &Observation) -> Vec<Verdict> {
    let (object, seen) = (&*facts.object, &facts.seen);
    let tuning = tuning::tuning_applied(object, seen);
    let programmed = programmed(facts, tuning.as_ref());
    let is_programmed = programmed.holds == Some(true);
    let parts = [
        Some(accepted(object)),
        Some(programmed),
        connected(object, seen),
        Some(available(object, seen)),
        credentials::valid(facts),
        tuning,
        wan::wan_emulated(object, seen),
        network::network_ready(object, seen),
    ];
    let mut verdicts: Vec<_> = parts.into_iter().flatten().collect();
    // Without the sysctls of profile `Auto`, an object is ready.
    let counts = |part: &&Verdict| part.code != Code::SysctlsNotAdmitted;
    let parts: Vec<_> = verdicts.iter().filter(counts).cloned().collect();
    let ready = ready(facts, &parts);
    verdicts.extend(progress(&ready, is_programmed));
    verdicts.push(ready);
    verdicts
}

/// Whether all objects and gateways match the spec, or the foremost cause why not.
fn ready(facts: &Observation, parts: &[Verdict]) -> Verdict {
    let Some(problem) = foremost(facts, parts) else {
        return Verdict::yes(condition::READY, Code::Reconciled)
            .with(format!("{} {FIRST_CONNECTION}", Code::Reconciled.cause()));
    };
    let is_false = parts.iter().any(|part| part.holds == Some(false));
    Verdict {
        holds: is_false.then_some(false),
        ..problem.no(condition::READY)
    }
}

/// Whether other namespaces permit all targets of the spec, which is valid.
fn accepted(object: &ValidatedObject) -> Verdict {
    let fault = lacking(object, Code::TargetNotPermitted);
    let yes = || Verdict::yes(condition::ACCEPTED, Code::Accepted);
    fault.map_or_else(yes, |problem| problem.no(condition::ACCEPTED))
}

/// Whether the children are written, all gateways run the current configuration, and the Services
/// have addresses.
fn programmed(facts: &Observation, tuning: Option<&Verdict>) -> Verdict {
    if let Some(problem) = unprogrammed(facts, tuning) {
        return problem.no(condition::PROGRAMMED);
    }
    if facts.stale.is_empty() {
        return Verdict::yes(condition::PROGRAMMED, Code::Programmed);
    }
    let detail = format!(
        "the API server has not answered these watches for three minutes: {}",
        facts.stale.join(", ")
    );
    Verdict::unknown(condition::PROGRAMMED, Code::WatchUnanswered, detail)
}

pub(super) fn ready_replicas(deployment: &Deployment) -> i32 {
    let status = deployment.status.as_ref();
    status.and_then(|status| status.ready_replicas).unwrap_or(0)
}

/// The requested number of pods, from the spec or from the client that scales the Deployment.
pub(super) fn wanted(replicas: Replicas, deployment: Option<&Deployment>) -> i32 {
    let scaled = || deployment?.spec.as_ref()?.replicas;
    let number = replicas.fixed().or_else(scaled);
    number.unwrap_or_else(|| replicas.least())
}

/// The end whose carriers determine the conditions.
pub(super) const fn viewpoint(object: &ValidatedObject) -> End {
    match object.kind() {
        Kind::Tunnel => End::Entry,
        Kind::Exit => End::Exit,
        Kind::Rendezvous => End::Rendezvous,
    }
}

/// Whether a ready gateway passes connections to at least one target, or accepts carriers.
fn available(object: &ValidatedObject, seen: &Seen) -> Verdict {
    let end = viewpoint(object);
    let no = |code, detail| Verdict::no(condition::AVAILABLE, code, detail);
    if !seen.of(end).any(|pod| pod.ready) {
        let detail = format!("no {} gateway is ready", end.component());
        return no(Code::GatewaysNotReady, detail);
    }
    let has_carrier = |(pod, status): (&SeenPod, &Status)| pod.ready && !status.carriers.is_empty();
    if end == End::Entry && !seen.answers(end).any(has_carrier) {
        let detail = "no ready gateway has a carrier".to_owned();
        return no(Code::CarrierConnecting, detail);
    }
    if let Some(detail) = End::ALL.into_iter().find_map(|end| out_of_files(seen, end)) {
        return no(Code::OpenFilesExhausted, detail);
    }
    if end != End::Entry {
        return Verdict::yes(condition::AVAILABLE, Code::Reconciled)
            .with("a ready gateway accepts carriers");
    }
    let findings = &object.findings.all;
    let lost = findings.iter().filter(|finding| finding.is_lost);
    let mut lost: Vec<_> = lost
        .map(|finding| (finding.code, &*finding.place, finding.text()))
        .collect();
    let failing = dials::failing(seen, end);
    for (place, sentence) in &failing {
        // A forward counts once, with the first of its problems.
        if !lost.iter().any(|(_, known, _)| known == place) {
            lost.push((Code::OpenFailed, place, format!("{place}: {sentence}")));
        }
    }
    let items: BTreeSet<_> = items(object).collect();
    let omitted = lost.iter().filter(|(_, place, _)| !items.contains(*place));
    let count = items.len() + omitted.count();
    let sentences: Vec<_> = lost.iter().map(|(_, _, text)| text.as_str()).collect();
    let sentences = sentences.join("; ");
    let detail = match lost.first() {
        Some((code, ..)) if lost.len() >= count => return no(*code, sentences),
        Some(_) => format!("{sentences}; the operator knows no problem of the other forwards"),
        None => "a ready gateway takes connections, and no forward loses all of them".to_owned(),
    };
    Verdict::yes(condition::AVAILABLE, Code::Reconciled)
        .with(format!("{detail}. {FIRST_CONNECTION}"))
}

/// The items of the spec with a usable target, as findings name them.
fn items(object: &ValidatedObject) -> impl Iterator<Item = String> {
    let streams = &object.streams;
    let forwards = streams.forwards.iter().map(|one| ("forward", &one.name));
    let reverse = streams.reverse_forwards.iter();
    let reverse = reverse.map(|one| ("reverse forward", &one.name));
    let proxies = streams.proxies.iter();
    let proxies = proxies.map(|one| ("proxy", &one.name));
    let all = forwards.chain(reverse).chain(proxies);
    all.map(|(item, name)| format!("{item} {name}"))
}

/// A sentence if no gateway of `end` has open files left for streams.
fn out_of_files(seen: &Seen, end: End) -> Option<String> {
    let mut files = seen
        .answers(end)
        .map(|(pod, status)| (pod, status.process.open_files));
    let (pod, first) = files.next().filter(|(_, files)| files.are_exhausted())?;
    files.all(|(_, files)| files.are_exhausted()).then(|| {
        let (name, streams, limit) = (&pod.name, first.for_streams, first.limit);
        format!("pod {name}: all {streams} open files for streams are in use, of the limit {limit} (RLIMIT_NOFILE)")
    })
}

/// Whether each entry gateway has a carrier. An exit and a rendezvous wait for carriers of others.
fn connected(object: &ValidatedObject, seen: &Seen) -> Option<Verdict> {
    if !object.has(End::Entry) {
        return None;
    }
    let no = |detail| Verdict::no(condition::CONNECTED, Code::CarrierConnecting, detail);
    if seen.answers(End::Entry).next().is_none() {
        return Some(no("no entry gateway answers yet".to_owned()));
    }
    let mut answers = seen.answers(End::Entry);
    if let Some((pod, status)) = answers.find(|(_, status)| status.carriers.is_empty()) {
        return Some(no(no_carrier(pod, status)));
    }
    Some(match failed_over(object, seen) {
        Some(detail) => Verdict::yes(condition::CONNECTED, Code::FailedOver).with(detail),
        None => Verdict::yes(condition::CONNECTED, Code::CarrierUp),
    })
}

/// A sentence if entries use exits of a higher order than the lowest.
fn failed_over(object: &ValidatedObject, seen: &Seen) -> Option<String> {
    let lowest = object.connect.iter().map(|connect| connect.order).min()?;
    let active = active(object, seen);
    let mut used = object.connect.iter();
    let is_lowest = used.any(|one| one.order == lowest && active.contains(&one.name));
    (!active.is_empty() && !is_lowest).then(|| {
        format!(
            "the exits of the lowest order do not answer, so entries use connect {}",
            active.join(", ")
        )
    })
}

/// The names in `connect` of the exits that entries use, in the order of the spec. Empty if the exit
/// belongs to the object.
pub(super) fn active(object: &ValidatedObject, seen: &Seen) -> Vec<String> {
    let connects = seen
        .answers(End::Entry)
        .filter_map(|(_, status)| status.connect.as_ref());
    let active: BTreeSet<_> = connects.flat_map(|connect| &connect.active).collect();
    let exits = object.connect.iter().filter(|_| !object.has(End::Exit));
    let names = exits.map(|connect| &connect.name);
    names
        .filter(|name| active.contains(name))
        .cloned()
        .collect()
}
