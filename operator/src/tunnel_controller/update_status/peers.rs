//! Writes the statuses of an exit's MuxPeers. This module requires a client. [`status`] is the pure
//! part. An unchanged status is not written.

use std::time::Duration;

use futures::stream::{self, StreamExt};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::ResourceExt;
use muxtunnel_codes::Code;
use muxtunnel_crds::condition::{ACCEPTED, CONNECTED, PROGRAMMED, READY};
use muxtunnel_crds::{KeyStatus, MuxPeerStatus};
use tracing::warn;

use super::credentials;
use super::progress::progress;
use super::verdicts::answers;
use super::{StatusDebounce, named, write};
use crate::caches::Cluster;
use crate::clock::Now;
use crate::conditions::{Verdict, conditions};
use crate::tunnel_controller::build::config_map::expected_hash;
use crate::tunnel_controller::end::End;
use crate::tunnel_controller::hindrance::Hindrance;
use crate::tunnel_controller::publish::Outcome;
use crate::tunnel_controller::validate::{JudgedPeer, ValidatedSecurity, ValidatedState};

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
    let changed = state.peers.iter().filter_map(|peer| {
        let mut new = status(peer, outcome, &now.whole_second())?;
        let old = peer.object.status.as_ref();
        let (old, seen) = (old.and_then(|old| old.carriers), new.carriers);
        let (old, seen) = (Vec::from_iter(old), Vec::from_iter(seen));
        let uid = peer.object.uid().unwrap_or_default();
        let settled = debounce.counts.settle(&uid, old, seen, now.instant);
        new.carriers = settled.first().copied();
        (peer.object.status.as_ref() != Some(&new)).then_some((&peer.object, new))
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
    let accepted = match &peer.verdict {
        Ok(_) => Verdict::yes(ACCEPTED, Code::Accepted),
        Err(problem) => Verdict::no(ACCEPTED, problem.code, problem.detail.clone()),
    };
    let refused = |code, detail: &str| {
        let ready = Verdict::no(READY, code, detail);
        MuxPeerStatus {
            carriers: None,
            ..with(&[accepted.clone(), ready])
        }
    };
    let fault = peer.verdict.as_ref().err();
    if let Some(problem) = fault.filter(|_| peer.served().is_none()) {
        return Some(refused(problem.code, &problem.detail));
    }
    let (exit, applied, seen, certified) = match outcome {
        Outcome::Awaited => return None,
        Outcome::Observed(exit, applied, seen, certified) => (exit, applied, seen, certified),
        Outcome::Hindered(hindrance) => return Some(hindered(hindrance, &accepted, &with, &old)),
    };
    let security = exit.gateway(End::Exit).map(|gateway| &gateway.security);
    if matches!(security, Some(ValidatedSecurity::None)) {
        let detail = "the exit has security mode None";
        let refusal = Verdict::no(ACCEPTED, Code::ExitHasNoKeys, detail);
        let ready = Verdict::no(READY, Code::ExitHasNoKeys, detail);
        return Some(with(&[refusal, ready]));
    }
    let name = peer.object.name_any();
    let gateways: Vec<_> = answers(seen, End::Exit).collect();
    let config_map = named(&applied.config_maps, &exit.child(End::Exit));
    let behind = gateways.iter().find(|(pod, status)| {
        let key = pod.config.as_deref();
        let expected = config_map.and_then(|config_map| expected_hash(config_map, key?));
        expected.as_ref() != Some(&status.config_hash)
    });
    let mut silent = seen.pods.iter().filter(|pod| pod.end == End::Exit);
    let silent = silent.find(|pod| matches!(pod.answer, Some(Err(_))));
    let programmed = match (gateways.is_empty(), behind) {
        _ if let Some(refusal) = &applied.refusal => {
            Verdict::no(PROGRAMMED, refusal.code, refusal.detail.clone())
        }
        (false, None) if let Some(pod) = silent => {
            let detail = format!("pod {} does not answer", pod.name);
            Verdict::unknown(PROGRAMMED, Code::GatewaysNotReady, detail)
        }
        (true, _) => {
            let detail = "no exit gateway answers yet";
            Verdict::unknown(PROGRAMMED, Code::GatewaysNotReady, detail)
        }
        (false, Some((pod, _))) => {
            let detail = format!("pod {} does not have the newest peers yet", pod.name);
            Verdict::no(PROGRAMMED, Code::ConfigPending, detail)
        }
        (false, None) => Verdict::yes(PROGRAMMED, Code::Programmed),
    };
    let reported = gateways.iter().flat_map(|(_, status)| &status.peers);
    let own = reported.filter(|reported| reported.name.as_ref() == Some(&name));
    let own: Vec<_> = own.collect();
    let carriers = own.iter().map(|reported| reported.carriers);
    let carriers = carriers.fold(0, u32::saturating_add);
    let keys = credentials::keys(exit, applied, &certified.keys, seen);
    let presented = own.iter().filter_map(|own| own.presented_key.as_deref());
    let generation = generation_in_use(&keys, presented);
    let connected = match carriers {
        0 => Verdict::no(CONNECTED, Code::Idle, ""),
        _ => Verdict::yes(CONNECTED, Code::Connected),
    };
    let ready = match fault {
        Some(problem) => {
            let detail = format!("{}; the rest of the MuxPeer is in effect", problem.detail);
            Verdict::no(READY, problem.code, detail)
        }
        None => ready(peer, &programmed, &connected, now),
    };
    let was_connected = holds(&old.conditions, CONNECTED);
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

/// The status while the exit's spec is not applied. What the gateways do is not known, so the other
/// conditions stay.
fn hindered(
    hindrance: &Hindrance,
    accepted: &Verdict,
    with: &impl Fn(&[Verdict]) -> MuxPeerStatus,
    old: &MuxPeerStatus,
) -> MuxPeerStatus {
    let problem = hindrance.problem();
    let detail = format!("the exit: {}", problem.detail);
    let not_programmed = Verdict::no(PROGRAMMED, problem.code, detail.clone());
    let ready = Verdict::no(READY, problem.code, detail);
    let mut new = with(&[accepted.clone(), not_programmed, ready]);
    let connected = old.conditions.iter().find(|one| one.type_ == CONNECTED);
    new.conditions.extend(connected.cloned());
    new
}

fn holds(conditions: &[Condition], type_: &str) -> bool {
    let mut found = conditions.iter().filter(|one| one.type_ == type_);
    found.any(|one| one.status == "True")
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
