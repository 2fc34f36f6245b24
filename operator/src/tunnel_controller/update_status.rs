//! Step 7: writes the status of the tunnel. This module requires a client.
//!
//! Input: the [`Outcome`] of the earlier steps. Output: the written status. `status` is the pure
//! part. An unchanged status is not written. The figures in the status are rounded and rarely
//! written, because every write is delivered to all watchers.

pub mod bottleneck;
mod certificates;
mod dials;
pub mod facts;
mod files;
mod foremost;
mod telemetry;
pub mod verdicts;

pub use bottleneck::BottleneckHold;
pub use telemetry::TelemetryClock;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{Patch, PatchParams};
use kube::core::DeserializeGuard;
use kube::{Api, Resource, ResourceExt};
use muxtunnel_codes::Code;
use muxtunnel_crds::{
    CertificatesStatus, MuxTunnel, MuxTunnelStatus, tunnel_condition as condition,
};
use serde_json::json;

use super::build::Certified;
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
        Outcome::Hindered(hindrance, certified) => {
            let before = MuxTunnelStatus {
                certificates: certificates_of(certified, old),
                ..old.clone()
            };
            let problem = hindrance.problem();
            match hindrance {
                Hindrance::Paused => return paused(&before, certified, now),
                Hindrance::Failed(_) => return refused(&problem, &before, generation, now),
                _ => (hindered(hindrance, &problem, certified), before),
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

/// The verdicts for a tunnel whose spec is not applied until a user acts. `CertificatesValid`
/// reports a failed renewal of the certificates of running gateways.
fn hindered(hindrance: &Hindrance, problem: &Problem, certified: &Certified) -> Vec<Verdict> {
    let mut verdicts = blocked(problem.code, &problem.detail);
    let certificates = verdicts
        .iter_mut()
        .filter(|verdict| verdict.type_ == condition::CERTIFICATES_VALID);
    for verdict in certificates {
        if let Some(problem) = not_renewed(certified) {
            *verdict = problem;
        } else if matches!(hindrance, Hindrance::Unjoined(_)) {
            verdict.holds = Some(false);
        }
    }
    verdicts
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

/// The current certificates, or `None` if no certificate was issued.
fn certificates_of(renewed: &Certified, old: &MuxTunnelStatus) -> Option<CertificatesStatus> {
    let is_there = old.certificates.is_some() || renewed.status != CertificatesStatus::default();
    is_there.then(|| renewed.status.clone())
}

fn not_renewed(renewed: &Certified) -> Option<Verdict> {
    let problem = renewed.problem.as_ref()?;
    let (code, detail) = (problem.code, problem.detail.as_str());
    Some(Verdict::no(condition::CERTIFICATES_VALID, code, detail))
}

/// The old status with a new condition `Ready` and the renewed certificates. There is no
/// observation, so the generation and the other conditions stay unchanged, except
/// `CertificatesValid` after a failed renewal.
fn paused(old: &MuxTunnelStatus, certified: &Certified, now: &Time) -> MuxTunnelStatus {
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
    if let Some(problem) = not_renewed(certified) {
        let new = conditions(&[problem], &old.conditions, generation, now);
        status
            .conditions
            .retain(|old| old.type_ != condition::CERTIFICATES_VALID);
        status.conditions.extend(new);
    }
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
        unknown(condition::CERTIFICATES_VALID),
        unknown(condition::TUNING_APPLIED),
        unknown(condition::WAN_EMULATED),
        unknown(condition::NETWORK_READY),
    ]
}
