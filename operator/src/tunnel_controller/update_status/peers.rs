//! Writes the statuses of an exit's MuxPeers. This module requires a client. [`status`] is the pure
//! part. An unchanged status is not written.

use std::time::Duration;

use futures::stream::{self, StreamExt};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use muxtunnel_codes::Code;
use muxtunnel_crds::condition::{ACCEPTED, CONNECTED, PROGRAMMED, READY};
use muxtunnel_crds::{KeyStatus, MuxPeerStatus};
use tracing::warn;

use super::foremost::is_newest;
use super::progress::progress;
use super::{StatusDebounce, credentials, write};
use crate::caches::Cluster;
use crate::clock::Now;
use crate::conditions::{Verdict, conditions, find, is_true};
use crate::tunnel_controller::end::End;
use crate::tunnel_controller::problem::Problem;
use crate::tunnel_controller::publish::{Observation, Outcome};
use crate::tunnel_controller::validate::{JudgedPeer, ValidatedSecurity, ValidatedState};
use crate::undecoded;

/// Maximum number of concurrent writes for one exit.
const CONCURRENCY: usize = 8;
/// Time limit for all writes of one reconciliation.
const TIME_MAX: Duration = Duration::from_secs(5);
/// Seconds after which the time of a connected peer is written again.
const SEEN_SECONDS: i64 = 24 * 3600;

/// Writes the changed statuses, within [`TIME_MAX`]. A failure is logged, because the next
/// reconciliation writes again.
pub async fn update_peers(
    cluster: &Cluster,
    (state, outcome): (&ValidatedState, &Outcome),
    debounce: &StatusDebounce,
    now: Now,
) {
    let still = |status: &MuxPeerStatus| MuxPeerStatus {
        carriers: status.carriers.map(|_| 0),
        ..status.clone()
    };
    let changed = state.peers.iter().filter_map(|peer| {
        let new = status(peer, outcome, &now.whole_second())?;
        let uid = peer.object.uid().unwrap_or_default();
        let change = (peer.object.status.as_ref(), &new);
        let counts = &debounce.counts;
        (counts.writes(&uid, change, still, now.instant)).then_some((&peer.object, new))
    });
    let writes =
        stream::iter(changed).for_each_concurrent(CONCURRENCY, |(object, new)| async move {
            if let Err(error) = write(cluster, &**object, &new).await {
                warn!(peer = object.name_any(), %error, "cannot write the status of a MuxPeer");
            }
        });
    let _the_next_one_goes_on = tokio::time::timeout(TIME_MAX, writes).await;
}

/// The status of `peer`, or `None` if there is no observation. Pure.
fn status(peer: &JudgedPeer, outcome: &Outcome, now: &Time) -> Option<MuxPeerStatus> {
    let old = peer.object.status.clone().unwrap_or_default();
    let generation = peer.object.metadata.generation;
    // The last verdict is that of `Ready`.
    let with = |verdicts: &[Verdict]| {
        let is_programmed = |one: &Verdict| one.type_ == PROGRAMMED && one.holds == Some(true);
        let ready = verdicts.last();
        let progress = ready.and_then(|ready| progress(ready, verdicts.iter().any(is_programmed)));
        let all: Vec<_> = verdicts.iter().cloned().chain(progress).collect();
        MuxPeerStatus {
            observed_generation: generation,
            conditions: conditions(&all, &old.conditions, generation, now),
            ..old.clone()
        }
    };
    let (accepted, fault) = match &peer.verdict {
        Ok(_) => (Verdict::yes(ACCEPTED, Code::Accepted), None),
        Err(problem) => (problem.clone().no(ACCEPTED), Some(problem)),
    };
    if let Some(problem) = fault.filter(|_| peer.served().is_none()) {
        return Some(MuxPeerStatus {
            carriers: None,
            ..with(&[accepted, problem.clone().no(READY)])
        });
    }
    let facts = match outcome {
        Outcome::Awaited | Outcome::Replanned => return None,
        Outcome::Observed(facts) => facts,
        Outcome::Hindered(hindrance) => {
            let Problem { code, detail } = hindrance.problem();
            let problem = Problem::new(code, format!("the exit: {detail}"));
            let mut new = with(&[accepted, problem.clone().no(PROGRAMMED), problem.no(READY)]);
            // The exit's spec is not applied, so what the gateways do is not known.
            new.conditions
                .extend(find(&old.conditions, CONNECTED).cloned());
            return Some(new);
        }
    };
    let security = facts
        .object
        .gateway(End::Exit)
        .map(|gateway| &gateway.security);
    if matches!(security, Some(ValidatedSecurity::None)) {
        let problem = Problem::new(Code::ExitHasNoKeys, "the exit has security mode None");
        return Some(with(&[problem.clone().no(ACCEPTED), problem.no(READY)]));
    }
    let programmed = programmed(facts);
    let name = peer.object.name_any();
    let reported = facts
        .seen
        .answers(End::Exit)
        .flat_map(|(_, status)| &status.peers);
    let own = reported.filter(|reported| reported.name.as_ref() == Some(&name));
    let own: Vec<_> = own.collect();
    let carriers = own.iter().map(|reported| reported.carriers);
    let carriers = carriers.fold(0, u32::saturating_add);
    let keys = credentials::keys(facts);
    let presented = own.iter().filter_map(|own| own.presented_key.as_deref());
    let generation = generation_in_use(&keys, presented);
    let connected = match carriers {
        0 => Verdict::no(CONNECTED, Code::Idle, ""),
        _ => Verdict::yes(CONNECTED, Code::Connected),
    };
    let ready = match fault {
        Some(problem) => {
            let rest = match undecoded::reason(&*peer.object) {
                Some(_) => "what the gateways have of the MuxPeer stays in effect",
                None => "the rest of the MuxPeer is in effect",
            };
            let detail = format!("{}; {rest}", problem.detail);
            Verdict::no(READY, problem.code, detail)
        }
        None => ready(peer, &programmed, &connected, now),
    };
    let was_connected = is_true(&old.conditions, CONNECTED);
    let last = old.last_seen_time.as_ref();
    let is_old = last.is_none_or(|last| now.0.as_second() - last.0.as_second() >= SEEN_SECONDS);
    let sees = carriers > 0 && (!was_connected || is_old) || carriers == 0 && was_connected;
    Some(MuxPeerStatus {
        carriers: Some(i32::try_from(carriers).unwrap_or(i32::MAX)),
        // Without a carrier, the generation of the last one stays.
        exit_key_generation: match keys.iter().any(|key| key.generation.is_some()) {
            true => generation.or(old.exit_key_generation),
            false => None,
        },
        last_seen_time: match sees {
            true => Some(now.clone()),
            false => old.last_seen_time.clone(),
        },
        ..with(&[accepted, programmed, connected, ready])
    })
}

/// Whether all gateways of the exit have the newest peers.
fn programmed(facts: &Observation) -> Verdict {
    if let Some(refusal) = &facts.applied.refusal {
        return refusal.clone().no(PROGRAMMED);
    }
    let unknown = |detail| Verdict::unknown(PROGRAMMED, Code::GatewaysNotReady, detail);
    if facts.seen.answers(End::Exit).next().is_none() {
        return unknown("no exit gateway answers yet".to_owned());
    }
    let mut answers = facts.seen.answers(End::Exit);
    if let Some((pod, _)) = answers.find(|(pod, status)| !is_newest(facts, pod, status)) {
        let detail = format!("pod {} does not have the newest peers yet", pod.name);
        return Verdict::no(PROGRAMMED, Code::ConfigPending, detail);
    }
    let mut pods = facts.seen.of(End::Exit);
    match pods.find(|pod| matches!(pod.answer, Some(Err(_)))) {
        Some(pod) => unknown(format!("pod {} does not answer", pod.name)),
        None => Verdict::yes(PROGRAMMED, Code::Programmed),
    }
}

/// The lowest generation of the exit's `keys` that gateways have `presented` to the peer: the oldest key
/// that the peer perhaps still needs. A presented key is text from the admin port, so it only selects a
/// generation that the exit has.
fn generation_in_use<'a>(
    keys: &[KeyStatus],
    presented: impl Iterator<Item = &'a str>,
) -> Option<i32> {
    let generation_of = |presented: &str| {
        let mut keys = keys.iter();
        let key = keys.find(|key| key.public_key.as_deref() == Some(presented));
        key?.generation
    };
    presented.filter_map(generation_of).min()
}

fn ready(peer: &JudgedPeer, programmed: &Verdict, connected: &Verdict, now: &Time) -> Verdict {
    let spec = &peer.object.spec;
    let end = spec.expiration_time;
    let has_expired = end.is_some_and(|end| end.seconds() <= now.0.as_second());
    let code = match connected.holds {
        _ if spec.suspend => Code::Suspended,
        _ if has_expired => Code::Expired,
        Some(true) => Code::Connected,
        _ => Code::Idle,
    };
    match programmed.holds {
        Some(true) => Verdict::yes(READY, code),
        _ => Verdict {
            type_: READY,
            ..programmed.clone()
        },
    }
}

#[cfg(test)]
mod tests {
    use muxtunnel_crds::KeyOrigin;

    use super::*;

    #[test]
    fn the_oldest_key_that_a_peer_still_needs_is_the_one_in_use() {
        let key = |generation: Option<i32>, public_key: &str| KeyStatus {
            secret_name: "far-exit-key".to_owned(),
            generation,
            public_key: Some(public_key.to_owned()),
            origin: KeyOrigin::Created,
        };
        let keys = [
            key(Some(1), "mtx1a"),
            key(Some(2), "mtx1b"),
            key(None, "mtx1c"),
        ];
        let in_use = |presented: &[&str]| generation_in_use(&keys, presented.iter().copied());
        assert_eq!(in_use(&["mtx1b", "mtx1a", "mtx1b"]), Some(1));
        assert_eq!(in_use(&["mtx1b"]), Some(2));
        // An own Secret has no generation, and the admin port can report any text.
        assert_eq!(in_use(&["mtx1c", "a word"]), None);
        assert_eq!(in_use(&[]), None);
    }
}
