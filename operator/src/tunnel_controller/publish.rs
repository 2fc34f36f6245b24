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

use super::access::Outputs;
use super::apply::Applied;
use super::build::Certified;
use super::hindrance::Hindrance;
use super::observe::{Observed, Seen};
use super::validate::{ValidatedObject, ValidatedState};

/// The progress of a reconciliation.
#[derive(Debug)]
pub enum Outcome {
    /// Children stay unchanged.
    Hindered(Hindrance),
    /// Children were applied, fully or in part, and the gateways have not answered yet.
    Awaited,
    /// Children were applied as far as the API server accepts them, and the gateways were observed.
    Observed(Box<ValidatedObject>, Applied, Seen, Box<Certified>),
}

/// Publishes the results of `observed`.
pub async fn publish(
    outputs: &Outputs,
    state: &ValidatedState,
    observed: Result<Observed, Hindrance>,
    certified: Certified,
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
    let (holder, memory) = (&state.holder, &outputs.memory);
    let gateways = &seen.gateways();
    let place = [holder.kind.name(), &holder.namespace, &holder.name];
    outputs.figures.seen(place, gateways);
    rollouts::learn(&memory.rollouts, &object, &seen, state.now);
    Outcome::Observed(object, applied, seen, Box::new(certified))
}
