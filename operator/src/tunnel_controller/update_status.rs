//! Step 7: writes the status of the object. This module requires a client.
//!
//! Input: the [`Outcome`] of the earlier steps. Output: the written status. `status` is the pure
//! part. An unchanged status is not written. Figures that change all the time are metrics, and
//! counts in the status are rarely written, because every write is delivered to all watchers.

mod addresses;
pub mod bottleneck;
mod counts;
mod credentials;
mod dials;
pub mod facts;
mod files;
mod foremost;
mod peers;
mod progress;
mod status;
mod unknown_keys;
pub mod verdicts;

pub use bottleneck::BottleneckHold;
pub use counts::CountClock;
pub use peers::update_peers;
pub use status::Status;
pub use unknown_keys::UnknownKeys;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{Api, Resource, ResourceExt};
use muxtunnel_codes::Code;
use muxtunnel_crds::condition;
use serde::Serialize;

use super::hindrance::Hindrance;
use super::object::{Object, of_each};
use super::publish::Outcome;
use crate::caches::{Cached, Cluster};
use crate::clock::Now;
use crate::conditions::{Verdict, conditions, find};
use crate::status_patch::write_status;

/// The conditions that depend on what the gateways do, in their order in the status.
const OBSERVED: [&str; 6] = [
    condition::CONNECTED,
    condition::AVAILABLE,
    condition::CREDENTIALS_VALID,
    condition::TUNING_APPLIED,
    condition::WAN_EMULATED,
    condition::NETWORK_READY,
];

/// The place of a condition in the status. `None`: the operator does not write it.
fn place(type_: &str) -> Option<usize> {
    let first = [condition::READY, condition::ACCEPTED, condition::PROGRAMMED];
    let last = [condition::RECONCILING, condition::STALLED];
    let mut order = first.into_iter().chain(OBSERVED).chain(last);
    order.position(|one| one == type_)
}

/// Delays writes of figures that change continuously.
#[derive(Debug, Default)]
pub struct StatusDebounce {
    counts: CountClock,
    bottlenecks: BottleneckHold,
}

/// Returns the status for `outcome`, and writes this status if it differs from the stored status.
///
/// # Errors
/// The client's error if the API server refuses the write or does not answer.
pub async fn update_status(
    cluster: &Cluster,
    object: &Object,
    outcome: &Outcome,
    debounce: &StatusDebounce,
    now: Now,
) -> Result<Status, kube::Error> {
    let mut old = Status::of(object);
    let mut new = status(object, outcome, &now.whole_second());
    let uid = object.uid().unwrap_or_default();
    if let (Outcome::Observed(facts), Some(new)) = (outcome, new.bottleneck()) {
        let old = old.bottleneck().and_then(|old| old.clone());
        let shown = old.as_ref().map(|old| old.direction);
        let said = bottleneck::bottleneck(&facts.seen, shown);
        *new = debounce.bottlenecks.settle(&uid, old, said, now.instant);
    }
    let (change, counts) = ((Some(&old), &new), &debounce.counts);
    if counts.writes(&uid, change, Status::still, now.instant) {
        of_each!(object, object => write(cluster, &**object, &new).await?);
    }
    Ok(new)
}

/// Writes the status of `object`. If the object was deleted meanwhile, does nothing.
pub(crate) async fn write<K>(
    cluster: &Cluster,
    object: &K,
    status: &(impl Serialize + Sync),
) -> Result<(), kube::Error>
where
    K: Cached + Resource<Scope = NamespaceResourceScope>,
{
    let namespace = object.namespace().unwrap_or_default();
    let api = Api::namespaced(cluster.client.clone(), &namespace);
    write_status(&api, K::of(&cluster.caches), &object.name_any(), status).await
}

/// The status for `outcome`. Pure.
fn status(object: &Object, outcome: &Outcome, now: &Time) -> Status {
    let (old, generation) = (object.conditions(), object.meta().generation);
    let mut status = Status::of(object);
    let mut new = match outcome {
        // There is no new observation, so the status stays.
        Outcome::Awaited | Outcome::Replanned => return status,
        Outcome::Hindered(hindrance) => {
            let verdicts = hindered(hindrance, old);
            let mut new = conditions(&verdicts, old, generation, now);
            new.extend(kept(&new, old));
            new
        }
        Outcome::Observed(observation) => {
            status = facts::facts(observation);
            conditions(&verdicts::verdicts(observation), old, generation, now)
        }
    };
    new.sort_by_key(|one| place(&one.type_));
    status.judge(new, generation);
    status
}

/// The conditions of `old` that `new` does not replace. There is no observation, so they stay.
fn kept(new: &[Condition], old: &[Condition]) -> Vec<Condition> {
    let of_progress = [condition::RECONCILING, condition::STALLED];
    let stays = |old: &&Condition| {
        place(&old.type_).is_some()
            && !of_progress.contains(&&*old.type_)
            && find(new, &old.type_).is_none()
    };
    old.iter().filter(stays).cloned().collect()
}

/// The verdicts if the operator has neither applied the spec nor observed the gateways.
fn hindered(hindrance: &Hindrance, old: &[Condition]) -> Vec<Verdict> {
    let problem = hindrance.problem();
    let no = |type_| Verdict::no(type_, problem.code, &*problem.detail);
    let unknown = |type_| Verdict::unknown(type_, problem.code, &*problem.detail);
    let mut verdicts = vec![no(condition::READY), no(condition::PROGRAMMED)];
    verdicts.extend(progress::progress(&verdicts[0], false));
    // What the gateways did before a pause or a failure still counts.
    let stays = matches!(hindrance, Hindrance::Paused | Hindrance::Failed(_));
    if !stays && problem.code != Code::ImmutableField {
        verdicts.push(no(condition::ACCEPTED));
    }
    let lost = OBSERVED.into_iter().filter(|type_| match find(old, type_) {
        Some(_) => !stays,
        None => *type_ == condition::AVAILABLE,
    });
    verdicts.extend(lost.map(unknown));
    verdicts
}
