//! Step 6: publishes results other than the status. This module requires a client. The results are:
//! - the metrics
//! - the nodes that refuse pods ([`rollouts`])
//! - the annotation of pods that run an older configuration ([`refresh`])
//!
//! Input: the observation, or the hindrance of an earlier step. Output: the [`Outcome`]. The next
//! reconciliation reads the stored results.

mod refresh;
mod rollouts;

pub use rollouts::refused_pods;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Resource;

use super::access::Outputs;
use super::apply::Applied;
use super::build::Certified;
use super::end::End;
use super::hindrance::Hindrance;
use super::observe::{Observed, Seen};
use super::validate::{ValidatedObject, ValidatedState};
use crate::metrics::tunnels::Gateway;

/// The progress of a reconciliation.
#[derive(Debug)]
pub enum Outcome {
    /// Children stay unchanged.
    Hindered(Hindrance),
    /// Children were applied, fully or in part, and the gateways have not answered yet.
    Awaited,
    /// Children were applied, and the observation changes the plan. The next reconciliation follows
    /// at once.
    Replanned,
    /// Children were applied as far as the API server accepts them, and the gateways were observed.
    Observed(Box<Observation>),
}

/// The facts about an applied object, from which the status follows.
#[derive(Debug)]
pub struct Observation {
    /// The object.
    pub object: Box<ValidatedObject>,
    /// Its children.
    pub applied: Applied,
    /// Its pods and their gateways.
    pub seen: Seen,
    /// Its keys and certificates.
    pub certified: Certified,
    /// The paths of stale watches.
    pub stale: Vec<String>,
}

impl Observation {
    /// The Deployment of `end`.
    pub(super) fn deployment(&self, end: End) -> Option<&Deployment> {
        named(&self.applied.deployments, &self.object.child(end))
    }

    /// The ConfigMap of `end`.
    pub(super) fn config_map(&self, end: End) -> Option<&ConfigMap> {
        named(&self.applied.config_maps, &self.object.child(end))
    }
}

/// The object `name` of `all`.
pub(super) fn named<'a, K: Resource>(all: &'a [K], name: &str) -> Option<&'a K> {
    all.iter()
        .find(|one| one.meta().name.as_deref() == Some(name))
}

/// Publishes the results of `observed`.
pub async fn publish(
    outputs: &Outputs,
    state: &ValidatedState,
    observed: Result<Observed, Hindrance>,
    (certified, stale): (Certified, Vec<String>),
) -> Outcome {
    let has_failed = matches!(observed, Err(Hindrance::Failed(_)));
    if outputs.refreshes_volumes && !has_failed {
        let (client, now) = (&outputs.cluster.client, state.now);
        let known = (&state.holder, &state.live);
        refresh::refresh(client, known, observed.as_ref().ok(), now).await;
    }
    let (object, applied, seen) = match observed {
        Ok((object, applied, Some(seen))) => (object, applied, seen),
        Ok((_, _, None)) => return Outcome::Awaited,
        Err(hindrance) => return Outcome::Hindered(hindrance),
    };
    let gateways = seen.pods.iter().map(|pod| Gateway {
        end: pod.end.component(),
        pod: &pod.name,
        status: pod.status(),
    });
    outputs.figures.seen(state.holder.id(), gateways);
    let observed = (&state.live, &applied, &seen);
    if rollouts::learn(&outputs.memory.rollouts, &object, observed, state.now) {
        return Outcome::Replanned;
    }
    Outcome::Observed(Box::new(Observation {
        object,
        applied,
        seen,
        certified,
        stale,
    }))
}
