//! Step 6: what follows from what was observed, besides the status: the figures of the metrics, what is remembered of nodes
//! that refuse ([`rollouts`]), the join bundle, whose address a Service says ([`join`]), and the next one from an exit
//! elsewhere ([`offer`]). Client required.
//!
//! In: what was observed, or what hindered the steps before. Out: the [`Outcome`]. What is kept here is read by the next
//! reconciliation.

mod join;
mod offer;
mod rollouts;

pub use join::address;
pub(super) use join::load_balancer;
pub use rollouts::refused_pods;

use muxtunnel_codes::Code;

use super::access::Access;
use super::apply::Applied;
use super::build::Certified;
use super::dereference::Dereferenced;
use super::error::CertifyError;
use super::hindrance::Hindrance;
use super::holder::Holder;
use super::observe::{Observed, Seen};
use super::validate::ValidatedTunnel;

/// How far a reconciliation came.
#[derive(Debug)]
pub enum Outcome {
    /// Children are as they were.
    Hindered(Hindrance, Box<Certified>),
    /// The children were applied, or not all of them, and the gateways have not answered yet.
    Awaited,
    /// All is applied, or as much as the API server takes, and this was seen.
    Observed(Box<ValidatedTunnel>, Applied, Seen, Box<Certified>),
}

/// Publishes what follows from `observed`.
pub async fn publish(
    access: &Access,
    holder: &Holder,
    named: &Dereferenced,
    observed: Result<Observed, Hindrance>,
    mut certified: Certified,
) -> Outcome {
    let (tunnel, applied, seen) = match observed {
        Ok((tunnel, applied, Some(seen))) => (tunnel, applied, seen),
        Ok((_, _, None)) => return Outcome::Awaited,
        Err(hindrance) => return Outcome::Hindered(hindrance, Box::new(certified)),
    };
    let (namespace, name) = (&holder.namespace, &holder.name);
    access.figures.seen(namespace, name, &seen.gateways());
    rollouts::learn(&access.rollouts, &tunnel, &seen, named.certificates.now);
    let facts = (&*tunnel, &applied, &seen);
    match certificates(access, holder, named, facts, &mut certified).await {
        Ok(()) => Outcome::Observed(tunnel, applied, seen, Box::new(certified)),
        Err(error) => Outcome::Hindered(Hindrance::from(error), Box::new(certified)),
    }
}

/// Keeps what the exit elsewhere offers, and publishes the bundle of one's own.
async fn certificates(
    access: &Access,
    holder: &Holder,
    named: &Dereferenced,
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
    if let Some(Ok(joined)) = &named.join {
        let heard = offer::hear(access, holder, joined, seen.offer.as_ref());
        certified.not_renewed = heard.await?;
    }
    join::publish(
        access,
        holder,
        (tunnel, applied),
        &named.certificates,
        certified,
    )
    .await
}
