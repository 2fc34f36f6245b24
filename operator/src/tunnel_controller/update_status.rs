//! Step 7: writes the status of the tunnel. This module requires a client.
//!
//! Input: the [`Outcome`] of the earlier steps. Output: the written status. `status` is the pure
//! part. An unchanged status is not written. The figures in the status are rounded and rarely
//! written, because every write is delivered to all watchers.

pub mod bottleneck;
mod credentials;
mod dials;
pub mod facts;
mod files;
mod foremost;
mod peers;
mod telemetry;
pub mod verdicts;

pub use bottleneck::BottleneckHold;
pub use peers::update_peers;
pub(crate) use peers::write as write_peer;
pub use telemetry::TelemetryClock;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{Patch, PatchParams};
use kube::core::DeserializeGuard;
use kube::{Api, Resource, ResourceExt};
use muxtunnel_codes::Code;
use muxtunnel_crds::{MuxTunnel, MuxTunnelStatus, tunnel_condition as condition};
use serde_json::json;

pub use super::error::UpdateStatusError;
use super::hindrance::Hindrance;
use super::problem::Problem;
use super::publish::Outcome;
use crate::caches::Cluster;
use crate::clock::Now;
use crate::conditions::{Verdict, conditions};
use crate::labels::MANAGER;

/// Delays writes of figures that change continuously.
#[derive(Debug, Default)]
pub struct StatusDebounce {
    telemetry: TelemetryClock,
    bottlenecks: BottleneckHold,
}

/// Returns the status for `outcome`, and writes this status if it differs from the stored status.
/// `stale`: the paths of the stale watches.
///
/// # Errors
/// [`UpdateStatusError`] if the API server refuses the write or does not answer.
pub async fn update_status(
    cluster: &Cluster,
    tunnel: &MuxTunnel,
    (outcome, stale): (&Outcome, &[String]),
    debounce: &StatusDebounce,
    now: Now,
) -> Result<MuxTunnelStatus, UpdateStatusError> {
    let old = tunnel.status.clone().unwrap_or_default();
    let mut new = status(tunnel, (outcome, stale), &old, &now.whole_second());
    let uid = tunnel.uid().unwrap_or_default();
    if let Some(carriers) = &mut new.carriers {
        let old_rtt = old.carriers.and_then(|carriers| carriers.rtt_milliseconds);
        let rtt = carriers.rtt_milliseconds;
        carriers.rtt_milliseconds = debounce.telemetry.settle(&uid, old_rtt, rtt, now.instant);
    }
    if let Outcome::Observed(_, _, seen, _) = outcome {
        let shown = old.bottleneck.as_ref().map(|old| old.direction);
        let said = bottleneck::bottleneck(seen, shown);
        let hold = &debounce.bottlenecks;
        new.bottleneck = hold.settle(&uid, old.bottleneck, said, now.instant);
    }
    if tunnel.status.as_ref() == Some(&new) {
        return Ok(new);
    }
    let namespace = tunnel.namespace().unwrap_or_default();
    // The answer contains the spec, which this version perhaps cannot decode.
    let api: Api<DeserializeGuard<MuxTunnel>> = Api::namespaced(cluster.client.clone(), &namespace);
    let body = json!({
        "apiVersion": MuxTunnel::api_version(&()),
        "kind": MuxTunnel::kind(&()),
        "status": new,
    });
    let params = PatchParams::apply(MANAGER).force();
    let written = api
        .patch_status(&tunnel.name_any(), &params, &Patch::Apply(body))
        .await?;
    if let Ok(written) = &written.0 {
        cluster.caches.tunnels.wrote(written);
    }
    Ok(new)
}

/// The status for `outcome`. Pure.
fn status(
    tunnel: &MuxTunnel,
    (outcome, stale): (&Outcome, &[String]),
    old: &MuxTunnelStatus,
    now: &Time,
) -> MuxTunnelStatus {
    let generation = tunnel.metadata.generation;
    let (mut verdicts, mut status) = match outcome {
        // There is no new observation, so the status stays.
        Outcome::Awaited => return old.clone(),
        Outcome::Hindered(hindrance) => {
            let problem = hindrance.problem();
            match hindrance {
                Hindrance::Paused => return paused(old, now),
                Hindrance::Failed(_) => return refused(&problem, old, generation, now),
                _ => (blocked(problem.code, &problem.detail), old.clone()),
            }
        }
        Outcome::Observed(valid, applied, seen, certified) => (
            verdicts::verdicts(valid, applied, seen, certified),
            facts::facts(valid, applied, seen, certified),
        ),
    };
    verdicts.extend(watches_current(stale));
    status.observed_generation = generation;
    status.conditions = conditions(&verdicts, &old.conditions, generation, now);
    status
}

/// The verdict that a watch is stale. `None` if all watches are current.
fn watches_current(stale: &[String]) -> Option<Verdict> {
    (!stale.is_empty()).then(|| {
        let detail = format!(
            "the API server has not answered these watches for three minutes: {}",
            stale.join(", ")
        );
        Verdict::no(condition::WATCHES_CURRENT, Code::WatchUnanswered, detail)
    })
}

/// The old status with a new condition `Ready`. There is no observation, so the generation and the
/// other conditions stay unchanged.
fn paused(old: &MuxTunnelStatus, now: &Time) -> MuxTunnelStatus {
    let mut status = old.clone();
    let place = |type_| old.conditions.iter().position(|old| old.type_ == type_);
    let ready = place(condition::READY);
    let before = ready.map(|index| &old.conditions[index]);
    let verdict = Verdict {
        type_: condition::READY,
        holds: match before.map(|before| before.status.as_str()) {
            Some("True") => Some(true),
            Some("False") => Some(false),
            _ => None,
        },
        code: Code::Paused,
        detail: String::new(),
    };
    let generation = before.and_then(|before| before.observed_generation);
    let new = conditions(&[verdict], &old.conditions, generation, now);
    let replaced = ready.map_or(0..0, |index| index..index + 1);
    status.conditions.splice(replaced, new);
    status
}

/// The old status with a condition `Ready` that states the API server's refusal for this
/// generation.
fn refused(
    problem: &Problem,
    old: &MuxTunnelStatus,
    generation: Option<i64>,
    now: &Time,
) -> MuxTunnelStatus {
    let verdicts = blocked(problem.code, &problem.detail);
    let mut new = conditions(&verdicts, &old.conditions, generation, now);
    for new in new.iter_mut().filter(|new| new.type_ != condition::READY) {
        let known = old.conditions.iter().find(|old| old.type_ == new.type_);
        if let Some(known) = known {
            *new = known.clone();
        }
    }
    MuxTunnelStatus {
        observed_generation: generation,
        conditions: new,
        ..old.clone()
    }
}

/// The verdicts if the operator has neither applied the spec nor observed the gateways.
fn blocked(code: Code, sentence: &str) -> Vec<Verdict> {
    let unknown = |type_| Verdict::unknown(type_, code, sentence);
    vec![
        Verdict::no(condition::READY, code, sentence),
        unknown(condition::AVAILABLE),
        unknown(condition::CARRIER_CONNECTED),
        unknown(condition::CREDENTIALS_VALID),
        unknown(condition::TUNING_APPLIED),
        unknown(condition::WAN_EMULATED),
        unknown(condition::NETWORK_READY),
    ]
}
