//! The controller of `MuxTunnel`.
//!
//! [`reconcile`] is the way of one object: dereference (what the spec names) -> validate (pure) -> build (pure) -> apply
//! -> observe (pods and gateways) -> update_status. What is read comes from [`crate::caches`].
//! Each step is a file; builders see only the [`validate::ValidatedTunnel`].

pub mod apply;
pub mod build;
pub mod certify;
mod config_file;
pub mod dereference;
pub mod end;
pub mod error;
pub mod observe;
pub mod pods;
pub mod problem;
pub mod references;
pub mod rollouts;
mod sandbox;
mod triggers;
pub mod update_status;
pub mod validate;
pub mod withdraw;

use std::sync::Arc;
use std::time::Duration;

use futures::stream;
use kube::api::DynamicObject;
use kube::runtime::controller::{Action, Config};
use kube::runtime::reflector::ObjectRef;
use kube::{Resource, ResourceExt};
use muxtunnel_codes::Code;
use muxtunnel_crds::{MuxTunnel, MuxTunnelStatus, tunnel_condition};
use tracing::{Instrument, info_span};

use crate::api_server::ApiServer;
use crate::backoff::{Backoffs, LONGEST_FOR_PERSONS};
use crate::caches::{Cache, Cluster, Targets};
use crate::controller::{self, Reconciler};
use crate::events::Events;
use crate::failure::{self, Coded};
use crate::grants::Grants;
use crate::leader::Leadership;
use crate::metrics::Metrics;
use crate::metrics::tunnels::Tunnels;
use crate::settings::Settings;
use crate::watch_clock::WatchClock;
use crate::watches;
pub use error::Error;
pub use triggers::Feeds;

/// How soon a tunnel that is not as asked is reconciled again first, and up to as much more by chance; its gateways are
/// only seen by polling.
const PENDING_FIRST: Duration = Duration::from_secs(1);
/// The longest pause, and up to as much more by chance, for what comes right by itself.
const PENDING_LONGEST: Duration = Duration::from_secs(5);
/// The same, for what a person ends by a Secret, of which no watch tells.
const PENDING_SECRETS_LONGEST: Duration = Duration::from_secs(30);
/// How soon a tunnel is reconciled again whose gateways have not answered yet, where nothing wakes it before.
const REQUEUE_AWAITED: Duration = Duration::from_secs(20);
/// How soon a tunnel that is as asked is reconciled again.
const REQUEUE_STEADY: Duration = Duration::from_secs(30);
/// Tunnels that are reconciled at once.
const CONCURRENCY: u16 = 16;

/// Annotation: `"true"` leaves everything as it is, whatever the spec says; but what another namespace permits no more
/// goes, and certificates are renewed.
pub const PAUSED: &str = "muxtunnel.dev/paused";

/// What every reconciliation has at hand.
pub struct Context<G = observe::HttpGateways> {
    cluster: Cluster,
    targets: Targets,
    settings: Arc<Settings>,
    grants: Grants,
    api_server: ApiServer,
    events: Events,
    prober: observe::Prober<G>,
    debounce: update_status::StatusDebounce,
    certifier: certify::Certifier,
    rollouts: rollouts::Rollouts,
    backoffs: Backoffs,
    /// Of tunnels that are not ready.
    pending: Backoffs,
    figures: Tunnels,
    watches: Arc<WatchClock>,
}

impl<G: observe::Gateways> Context<G> {
    /// A context of its own for one controller, which asks gateways by `gateways`, and adds up in `figures` what they say.
    #[must_use]
    pub fn new(
        (cluster, targets): (Cluster, Targets),
        settings: Arc<Settings>,
        events: Events,
        grants: Grants,
        api_server: ApiServer,
        gateways: G,
        figures: Tunnels,
    ) -> Self {
        figures.follow(cluster.caches.tunnels.clone());
        Self {
            certifier: certify::Certifier::new(cluster.client.clone(), &settings),
            cluster,
            targets,
            settings,
            grants,
            api_server,
            events,
            prober: observe::Prober::new(gateways),
            debounce: update_status::StatusDebounce::default(),
            rollouts: rollouts::Rollouts::default(),
            backoffs: Backoffs::default(),
            pending: Backoffs::beginning_with(PENDING_FIRST),
            figures,
            watches: Arc::default(),
        }
    }
}

/// Runs the controller, in `namespace` or in all, for as long as the process lives.
pub async fn run<G: observe::Gateways>(
    mut context: Context<G>,
    namespace: Option<String>,
    feeds: Feeds,
    leadership: Leadership,
    metrics: Metrics,
    clock: Arc<WatchClock>,
) {
    context.watches = clock.clone();
    let store = feeds.tunnels.cache().store();
    metrics.say_tunnels(store.clone());
    let client = context.cluster.client.clone();
    let objects = triggers::all(&client, namespace.as_deref(), feeds, &clock);
    let others = [
        leadership.requeues(&store),
        context.prober.wakes(),
        triggers::granted(&context.grants, &store),
    ];
    let triggers = stream::select_all(objects.into_iter().chain(others));
    let config = Config::default().concurrency(CONCURRENCY);
    let (context, triggers) = (Arc::new(context), watches::batched(triggers));
    controller::run(context, store, triggers, config, leadership, metrics).await;
}

impl<G: observe::Gateways + 'static> Reconciler for Context<G> {
    type Object = MuxTunnel;
    type Error = Error;

    fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    fn cache(&self) -> &Cache<MuxTunnel> {
        &self.cluster.caches.tunnels
    }

    fn backoffs(&self) -> &Backoffs {
        &self.backoffs
    }

    async fn reconcile(self: Arc<Self>, tunnel: Arc<MuxTunnel>) -> Result<Action, Error> {
        reconcile(tunnel, self).await
    }

    fn forget(&self, tunnel: &ObjectRef<DynamicObject>) {
        self.backoffs.is_gone(tunnel);
        self.pending.is_gone(tunnel);
    }
}

/// Brings one tunnel nearer to what its spec asks for, and says in its status how near it is.
///
/// # Errors
/// [`Error`]; nothing is lost by trying again.
pub async fn reconcile<G: observe::Gateways>(
    tunnel: Arc<MuxTunnel>,
    context: Arc<Context<G>>,
) -> Result<Action, Error> {
    let span = info_span!(
        "tunnel",
        namespace = tunnel.namespace().unwrap_or_default(),
        name = tunnel.name_any()
    );
    reconcile_in_span(&tunnel, &context).instrument(span).await
}

async fn reconcile_in_span<G: observe::Gateways>(
    tunnel: &MuxTunnel,
    context: &Context<G>,
) -> Result<Action, Error> {
    if tunnel.meta().deletion_timestamp.is_some() {
        // The garbage collector removes the children; making them again would hold it up.
        return Ok(Action::await_change());
    }
    let outcome = if is_paused(tunnel) {
        Ok(update_status::Outcome::Paused)
    } else {
        bring_about(tunnel, context).await
    };
    let mut renewed = None;
    if !matches!(
        outcome,
        Ok(update_status::Outcome::Observed(..) | update_status::Outcome::Awaited(_))
    ) {
        // The gateways run on, whatever the spec says.
        let (cluster, settings) = (&context.cluster, &context.settings);
        renewed = match context.certifier.renew(cluster, tunnel, settings).await {
            Err(error) if outcome.is_ok() => return Err(error),
            certified => certified.ok(),
        };
    }
    let renewed = renewed.as_ref();
    let outcome = match outcome {
        Ok(outcome) => outcome,
        Err(error) => {
            if failure::is_refusal(&error, context.backoffs.failures(tunnel)) {
                let refused = update_status::Outcome::Refused(problem::Problem {
                    code: error.code(),
                    detail: failure::chain(&error),
                });
                report(tunnel, context, (&refused, renewed)).await?;
            }
            return Err(error);
        }
    };
    if !outcome.is_applied() {
        withdraw::withdraw(&context.cluster, &context.grants, tunnel).await?;
    }
    if matches!(outcome, update_status::Outcome::Awaited(_)) {
        // What is said of the tunnel follows from all answers.
        return Ok(Action::requeue(REQUEUE_AWAITED));
    }
    let status = report(tunnel, context, (&outcome, renewed)).await?;
    Ok(requeue_after(tunnel, context, &outcome, &status))
}

/// Writes the status, and the Events of what it changes.
async fn report<G: observe::Gateways>(
    tunnel: &MuxTunnel,
    context: &Context<G>,
    (outcome, renewed): (&update_status::Outcome, Option<&certify::Certified>),
) -> Result<MuxTunnelStatus, Error> {
    let namespace = tunnel.namespace().unwrap_or_default();
    let stale = context.watches.stale(&namespace);
    let found = (outcome, renewed, &stale[..]);
    let status =
        update_status::update_status(&context.cluster, tunnel, found, &context.debounce).await?;
    let old = tunnel.status.as_ref().map(|status| &status.conditions[..]);
    context
        .events
        .publish_transitions(
            &tunnel.object_ref(&()),
            old.unwrap_or_default(),
            &status.conditions,
        )
        .await;
    Ok(status)
}

/// When the tunnel is reconciled again, if nothing changes before.
fn requeue_after<G: observe::Gateways>(
    tunnel: &MuxTunnel,
    context: &Context<G>,
    outcome: &update_status::Outcome,
    status: &MuxTunnelStatus,
) -> Action {
    if matches!(outcome, update_status::Outcome::Paused) {
        // Certificates are renewed all the same.
        return Action::requeue(REQUEUE_STEADY);
    }
    let conditions = &status.conditions;
    let mut ready = conditions.iter();
    let ready = ready.find(|condition| condition.type_ == tunnel_condition::READY);
    let pause = match ready {
        Some(ready) if ready.status != "True" => {
            let longest = longest_pause(&ready.reason);
            context.pending.pause(tunnel, &ready.reason, longest)
        }
        _ => {
            context.pending.succeeded(tunnel);
            REQUEUE_STEADY
        }
    };
    let due = match outcome {
        update_status::Outcome::Observed(valid, ..) => {
            context.rollouts.due(valid, context.certifier.now())
        }
        _ => None,
    };
    let due = due.map(|seconds| Duration::from_secs(seconds.max(1)));
    Action::requeue(due.map_or(pause, |due| due.min(pause)))
}

/// How long a tunnel with that reason waits at most before it is reconciled again.
fn longest_pause(reason: &str) -> Duration {
    match Code::from_reason(reason) {
        Some(
            Code::InvalidSpec
            | Code::OwnedByOther
            | Code::ImmutableField
            | Code::ApiRefused
            | Code::TargetServiceNotFound
            | Code::TargetNotPermitted
            | Code::SysctlForbidden
            | Code::SandboxFailed
            | Code::PodSecurityTooStrict
            | Code::WanDisabled
            | Code::WanUnsupported,
        ) => LONGEST_FOR_PERSONS,
        Some(
            Code::CertificateSecretTaken
            | Code::IssuerMissing
            | Code::JoinBundleMissing
            | Code::JoinBundleForbidden
            | Code::JoinBundleInvalid
            | Code::JoinBundleExpired,
        ) => PENDING_SECRETS_LONGEST,
        _ => PENDING_LONGEST,
    }
}

fn is_paused(tunnel: &MuxTunnel) -> bool {
    let paused = tunnel.annotations().get(PAUSED);
    paused.is_some_and(|paused| paused == "true")
}

/// Finds out what the spec asks for, and does it where it is possible.
async fn bring_about<G: observe::Gateways>(
    tunnel: &MuxTunnel,
    context: &Context<G>,
) -> Result<update_status::Outcome, Error> {
    let (cluster, client) = (&context.cluster, &context.cluster.client);
    let known = (&context.targets, &context.grants);
    let mut named = dereference::dereference(cluster, known, tunnel).await?;
    named.api_server = context.api_server.addresses();
    if let Some(copy) = dereference::join::join(client, tunnel, &context.settings).await? {
        let newest = context.certifier.newest(cluster, tunnel, copy).await?;
        named.join = Some(newest);
    }
    Ok(
        match validate::validate(tunnel, &named, &context.settings)? {
            validate::Validation::Valid(valid) => converge(tunnel, &named, valid, context).await?,
            validate::Validation::Invalid(problem) => {
                update_status::Outcome::Blocked(Code::InvalidSpec, problem)
            }
            validate::Validation::Unjoined(problem) => update_status::Outcome::Uncertified(problem),
        },
    )
}

/// Makes the cluster what a valid tunnel asks for, and observes the result.
async fn converge<G: observe::Gateways>(
    tunnel: &MuxTunnel,
    named: &dereference::Dereferenced,
    mut valid: Box<validate::ValidatedTunnel>,
    context: &Context<G>,
) -> Result<update_status::Outcome, Error> {
    let (cluster, certifier) = (&context.cluster, &context.certifier);
    let joined = named.join.as_ref().and_then(|join| join.as_ref().ok());
    valid.offer = certifier.offer(tunnel, &valid).await?;
    valid.rollouts = context.rollouts.plan(cluster, &valid, certifier.now())?;
    let mut built = build::build(&valid, &context.settings)?;
    if built.is_held {
        withdraw::hold(cluster, &context.grants, tunnel, &mut built.config_maps)?;
    }
    let certified = certifier.issue(tunnel, &valid, joined).await?;
    let generation = tunnel.metadata.generation;
    let failures = context.backoffs.failures(tunnel);
    let built = (built, &certified.taken);
    let applied = match apply::apply(cluster, &valid, generation, failures, built).await? {
        apply::Outcome::Applied(applied) => applied,
        apply::Outcome::Blocked(code, sentence) => {
            return Ok(update_status::Outcome::Blocked(code, sentence));
        }
    };
    let asks = certifier.asks(&valid, joined);
    let Some(seen) = observe::observe(cluster, &context.prober, &valid, asks).await? else {
        return Ok(update_status::Outcome::Awaited(applied.refusal.is_none()));
    };
    let gateways = seen.gateways();
    context
        .figures
        .seen(&valid.namespace, &valid.name, &gateways);
    context.rollouts.learn(&valid, &seen, certifier.now());
    let facts = (&applied, &seen);
    let certified = certifier
        .settle(cluster, &valid, joined, facts, certified)
        .await?;
    Ok(update_status::Outcome::Observed(
        valid,
        applied,
        seen,
        Box::new(certified),
    ))
}

#[cfg(test)]
pub(crate) mod tests;
