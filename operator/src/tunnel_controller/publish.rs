//! Step 6: publishes results other than the status. This module requires a client. The results are:
//! - the metrics
//! - the nodes that refuse pods ([`rollouts`])
//! - the annotation of pods that run an older configuration ([`refresh`])
//! - the join bundle, with the address at which remote entries dial the exits ([`join`])
//! - the next bundle from a remote exit ([`offer`])
//!
//! Input: the observation, or the hindrance of an earlier step. Output: the [`Outcome`]. The next
//! reconciliation reads the stored results.

mod join;
mod offer;
mod refresh;
mod rollouts;

pub use join::address;
pub(super) use join::{is_balanced, load_balancer};
pub use rollouts::refused_pods;

use muxtunnel_codes::Code;

use super::access::Outputs;
use super::apply::Applied;
use super::build::Certified;
use super::error::CertifyError;
use super::hindrance::Hindrance;
use super::observe::{Observed, Seen};
use super::validate::{ValidatedState, ValidatedTunnel};

/// The progress of a reconciliation.
#[derive(Debug)]
pub enum Outcome {
    /// Children stay unchanged.
    Hindered(Hindrance, Box<Certified>),
    /// Children were applied, fully or in part, and the gateways have not answered yet.
    Awaited,
    /// Children were applied as far as the API server accepts them, and the gateways were observed.
    Observed(Box<ValidatedTunnel>, Applied, Seen, Box<Certified>),
}

/// Publishes the results of `observed`.
pub async fn publish(
    outputs: &Outputs,
    state: &ValidatedState,
    observed: Result<Observed, Hindrance>,
    mut certified: Certified,
) -> Outcome {
    let has_failed = matches!(observed, Err(Hindrance::Failed(_)));
    if outputs.refreshes_volumes && !has_failed {
        let (client, now) = (&outputs.cluster.client, state.certificates.now);
        let known = (&*state.holder.name, &state.live);
        refresh::refresh(client, known, observed.as_ref().ok(), now).await;
    }
    let (tunnel, applied, seen) = match observed {
        Ok((tunnel, applied, Some(seen))) => (tunnel, applied, seen),
        Ok((_, _, None)) => return Outcome::Awaited,
        Err(hindrance) => return Outcome::Hindered(hindrance, Box::new(certified)),
    };
    let (holder, memory) = (&state.holder, &outputs.memory);
    let gateways = &seen.gateways();
    outputs
        .figures
        .seen(&holder.namespace, &holder.name, gateways);
    rollouts::learn(&memory.rollouts, &tunnel, &seen, state.certificates.now);
    let facts = (&*tunnel, &applied, &seen);
    match certificates(outputs, state, facts, &mut certified).await {
        Ok(()) => Outcome::Observed(tunnel, applied, seen, Box::new(certified)),
        Err(error) => Outcome::Hindered(Hindrance::from(error), Box::new(certified)),
    }
}

/// Keeps a remote exit's offer, and publishes the tunnel's own bundle.
async fn certificates(
    outputs: &Outputs,
    state: &ValidatedState,
    (tunnel, applied, seen): (&ValidatedTunnel, &Applied, &Seen),
    certified: &mut Certified,
) -> Result<(), CertifyError> {
    let problem = certified.problem.as_ref().map(|problem| problem.code);
    if matches!(
        problem,
        Some(Code::AuthorityUnavailable | Code::IssuerMissing)
    ) {
        return Ok(());
    }
    if let Some(joined) = state.joined() {
        let heard = offer::hear(outputs, state, joined, seen.offer.as_ref());
        certified.not_renewed = heard.await?;
    }
    join::publish(outputs, state, (tunnel, applied), certified).await
}
