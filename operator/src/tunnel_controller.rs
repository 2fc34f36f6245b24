//! The controller of `MuxTunnel`.
//!
//! [`reconcile`] handles one object in one pass: dereference (read everything) -> validate (pure)
//! -> build (pure) -> apply -> observe (pods and gateways) -> publish -> update_status. Each step
//! has its own file, takes the result of the previous step, and uses only earlier steps. The types
//! of [`access`] limit what a step can reach. The pass reads the clock once. An obstacle is a
//! [`Hindrance`], which passes through the same steps. With a hindrance, the steps do two things
//! only: they remove unpermitted targets from the gateways, and write the reason to the status. Builders of children read only the
//! [`validate::ValidatedTunnel`] and the [`validate::ValidatedState`].

pub mod access;
pub mod apply;
pub mod build;
mod cert_manager;
mod config_file;
pub mod dereference;
mod document;
pub mod end;
pub mod error;
pub mod hindrance;
pub mod holder;
mod issuer;
pub mod keyring;
pub mod object;
pub mod observe;
pub mod pods;
pub mod problem;
pub mod publish;
pub mod references;
pub mod rollouts;
mod sandbox;
mod triggers;
pub mod update_status;
pub mod validate;

use std::sync::Arc;
use std::time::Duration;

use futures::stream;
use kube::api::DynamicObject;
use kube::runtime::controller::{Action, Config};
use kube::runtime::reflector::ObjectRef;
use kube::{Resource, ResourceExt};
use muxtunnel_codes::Code;
use muxtunnel_crds::{MuxTunnel, MuxTunnelStatus, Side, tunnel_condition};
use tracing::{Instrument, info_span};

use crate::api_server::ApiServer;
use crate::backoff::{Backoffs, LONGEST_FOR_PERSONS};
use crate::caches::{Cache, Caches, Cluster, Targets};
use crate::clock::{Clock, Now};
use crate::controller::{self, Reconciler};
use crate::events::Events;
use crate::failure::{self, Coded};
use crate::grants::Grants;
use crate::leader::Leadership;
use crate::metrics::Metrics;
use crate::metrics::tunnels::Tunnels;
use crate::settings::Settings;
use crate::undecoded;
use crate::watch_clock::WatchClock;
use crate::watches;
use access::{Access, Memory, Outputs, pure};
pub use dereference::PAUSED;
pub use error::Error;
use hindrance::Hindrance;
use holder::Holder;
use publish::Outcome;
pub(crate) use sandbox::not_created;
pub use triggers::Feeds;
pub(crate) use update_status::write_peer;

/// First pause before a tunnel that is not ready is reconciled again, without the jitter of up to
/// 100 %. The operator polls, because gateways send no notifications of their state.
const PENDING_FIRST: Duration = Duration::from_secs(1);
/// The longest pause before a tunnel that is not ready is reconciled again, without the jitter of
/// up to 100 %, if no user action is required.
const PENDING_LONGEST: Duration = Duration::from_secs(5);
/// Pause before a tunnel whose gateways have not answered is reconciled again. An answer triggers
/// the reconciliation earlier.
const REQUEUE_AWAITED: Duration = Duration::from_secs(20);
/// Pause before a ready tunnel is reconciled again.
const REQUEUE_STEADY: Duration = Duration::from_secs(30);
/// Maximum number of concurrent reconciliations.
const CONCURRENCY: u16 = 16;

/// The parts of a [`Context`].
pub struct Parts<G> {
    /// The API server and the caches.
    pub cluster: Cluster,
    /// The Services that forwards target.
    pub targets: Targets,
    /// The settings of the installation.
    pub settings: Arc<Settings>,
    /// Publishes Events.
    pub events: Events,
    /// The grants of other namespaces.
    pub grants: Grants,
    /// The API server's addresses.
    pub api_server: ApiServer,
    /// Queries gateways.
    pub gateways: G,
    /// The sums of the gateways' figures.
    pub figures: Tunnels,
    /// The age of each watch.
    pub watches: Arc<WatchClock>,
    /// The operator's clock.
    pub clock: Clock,
}

/// The shared state of all reconciliations.
pub struct Context<G = observe::HttpGateways> {
    access: Access,
    outputs: Outputs,
    clock: Clock,
    events: Events,
    prober: observe::Prober<G>,
    debounce: update_status::StatusDebounce,
    backoffs: Backoffs,
    /// Back-offs of tunnels that are not ready.
    pending: Backoffs,
}

impl<G: observe::Gateways> Context<G> {
    /// The context of one controller.
    #[must_use]
    pub fn new(parts: Parts<G>) -> Self {
        let (cluster, figures) = (parts.cluster, parts.figures);
        figures.follow(cluster.caches.tunnels.clone());
        let memory = Arc::new(Memory {
            keyring: keyring::Keyring::new(cluster.client.clone()),
            rollouts: rollouts::Rollouts::default(),
        });
        let backoffs = Backoffs::default();
        Self {
            access: Access {
                caches: cluster.caches.clone(),
                reader: cluster.reader(),
                targets: parts.targets,
                grants: parts.grants,
                api_server: parts.api_server,
                memory: memory.clone(),
                watches: parts.watches,
                settings: parts.settings.clone(),
            },
            outputs: Outputs {
                cluster,
                memory,
                figures,
                refreshes_volumes: parts.settings.refresh_volumes,
            },
            events: parts.events,
            prober: observe::Prober::new(parts.gateways, parts.clock.clone()),
            clock: parts.clock,
            debounce: update_status::StatusDebounce::default(),
            pending: backoffs.sibling(PENDING_FIRST),
            backoffs,
        }
    }
}

/// Runs the controller for `namespace`, or for all namespaces, until the process ends.
pub async fn run<G: observe::Gateways>(
    context: Context<G>,
    namespace: Option<String>,
    feeds: Feeds,
    leadership: Leadership,
    metrics: Metrics,
) {
    let store = feeds.tunnels.cache().store();
    metrics.say_tunnels(store.clone());
    let (client, watched) = (&context.outputs.cluster.client, &context.access.watches);
    let objects = triggers::all(client, namespace.as_deref(), feeds, watched);
    let others = [
        leadership.requeues(&store),
        context.prober.wakes(),
        triggers::granted(&context.access.grants, context.cache().clone()),
    ];
    let triggers = stream::select_all(objects.into_iter().chain(others));
    let config = Config::default().concurrency(CONCURRENCY);
    let (context, triggers) = (Arc::new(context), watches::batched(triggers));
    controller::run(context, store, triggers, config, leadership, metrics).await;
}

impl<G: observe::Gateways + 'static> Reconciler for Context<G> {
    type Object = MuxTunnel;
    type Error = Error;

    fn caches(&self) -> &Caches {
        &self.access.caches
    }

    fn cache(&self) -> &Cache<MuxTunnel> {
        &self.access.caches.tunnels
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

/// Reconciles one tunnel, and writes its status.
///
/// # Errors
/// [`Error`]. A retry is safe.
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
    mut tunnel: &MuxTunnel,
    context: &Context<G>,
) -> Result<Action, Error> {
    if tunnel.meta().deletion_timestamp.is_some() {
        // The garbage collector removes the children. Creating children again would delay the
        // deletion.
        return Ok(Action::await_change());
    }
    let decodable;
    if undecoded::reason(tunnel).is_some() {
        let found = dereference::decodable(&context.access, tunnel).await?;
        let Some(found) = found.filter(|found| found.meta().uid == tunnel.meta().uid) else {
            return Ok(Action::await_change());
        };
        decodable = found;
        tunnel = &decodable;
    }
    let (holder, now) = (Holder::of(tunnel)?, context.clock.now());
    let (outcome, state, stale) = pass(tunnel, &holder, context, now).await;
    let is_told = match &outcome {
        // No status is written, because the verdicts need the answers of all gateways.
        Outcome::Awaited => false,
        // The status reports an error only if a retry is not likely to resolve it.
        Outcome::Hindered(Hindrance::Failed(error)) => {
            let failures = context.backoffs.failures(tunnel);
            error.code() == Code::UnknownValue || failure::is_reported(error, failures)
        }
        _ => true,
    };
    // The controller of peers reports a peer whose exit is a tunnel of another side.
    if is_told && (undecoded::reason(tunnel).is_some() || tunnel.spec.side == Side::Exit) {
        update_status::update_peers(&context.outputs.cluster, &state, &outcome, now).await;
    }
    let told = match is_told {
        true => Some(report(tunnel, context, (&outcome, &stale[..]), now).await?),
        false => None,
    };
    match (outcome, told) {
        (Outcome::Hindered(Hindrance::Failed(error)), _) => Err(error),
        (outcome, Some(status)) => Ok(requeue_after(tunnel, context, (&outcome, &status), now)),
        (_, None) => Ok(Action::requeue(REQUEUE_AWAITED)),
    }
}

/// Runs all steps for one tunnel but the last. Returns the outcome, the state, and the paths of
/// stale watches.
async fn pass<G: observe::Gateways>(
    tunnel: &MuxTunnel,
    holder: &Holder,
    context: &Context<G>,
    now: Now,
) -> (Outcome, validate::ValidatedState, Vec<String>) {
    let (access, outputs) = (&context.access, &context.outputs);
    let (caches, settings) = (&access.caches, &*access.settings);
    let found = dereference::dereference(access, tunnel, holder, now).await;
    let named = found.named;
    let plan = match found.hindrance {
        Some(hindrance) => Err(hindrance),
        None => pure(|| validate::validate(tunnel, &named, settings)),
    };
    let peers = plan.as_ref().ok().map(|valid| valid.peers.clone());
    let time = now.seconds();
    let state = pure(move || validate::state(holder, named, peers, time));
    let (children, built) = match plan {
        Ok(valid) => {
            let (built, others) = pure(|| build::build_all(&valid, &state, settings));
            let children = built.map(|resources| (valid, resources));
            (children.map_err(Hindrance::from), others)
        }
        Err(hindrance) => {
            let others = pure(|| build::build_withdrawals(&state));
            (Err(hindrance), others)
        }
    };
    let failures = context.backoffs.failures(tunnel);
    let reached = apply::apply(outputs, holder, (children, built), failures).await;
    let observed = observe::observe_all(caches, &context.prober, reached.children, &state).await;
    let outcome = publish::publish(outputs, &state, observed, reached.certified).await;
    (outcome, state, found.stale)
}

/// Writes the status, and Events for its changes.
async fn report<G: observe::Gateways>(
    tunnel: &MuxTunnel,
    context: &Context<G>,
    told: (&Outcome, &[String]),
    now: Now,
) -> Result<MuxTunnelStatus, Error> {
    let (cluster, debounce) = (&context.outputs.cluster, &context.debounce);
    let status = update_status::update_status(cluster, tunnel, told, debounce, now).await?;
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

/// When the tunnel is reconciled again, unless a change triggers the reconciliation earlier.
fn requeue_after<G: observe::Gateways>(
    tunnel: &MuxTunnel,
    context: &Context<G>,
    (outcome, status): (&Outcome, &MuxTunnelStatus),
    now: Now,
) -> Action {
    if matches!(outcome, Outcome::Hindered(Hindrance::Paused)) {
        return Action::requeue(REQUEUE_STEADY);
    }
    let conditions = &status.conditions;
    let mut ready = conditions.iter();
    let ready = ready.find(|condition| condition.type_ == tunnel_condition::READY);
    let pause = match ready {
        Some(ready) if ready.status != "True" => pause(&context.pending, tunnel, &ready.reason),
        _ => {
            context.pending.succeeded(tunnel);
            REQUEUE_STEADY
        }
    };
    let due = match outcome {
        Outcome::Observed(valid, ..) => {
            let rollouts = &context.outputs.memory.rollouts;
            rollouts.due(&valid.owner.uid, &valid.rollouts, now.seconds())
        }
        _ => None,
    };
    let due = due.map(|seconds| Duration::from_secs(seconds.max(1)));
    Action::requeue(due.map_or(pause, |due| due.min(pause)))
}

/// The pause before a tunnel whose condition `Ready` has `reason` is reconciled again.
fn pause(pending: &Backoffs, tunnel: &MuxTunnel, reason: &str) -> Duration {
    let longest = match Code::from_reason(reason) {
        // A quota, a policy, an object of another owner, or an object that the operator has no
        // permission to watch. With several watched namespaces, also a Service of another one.
        Some(
            Code::OwnedByOther
            | Code::ImmutableField
            | Code::ApiRefused
            | Code::PodSecurityTooStrict
            | Code::TargetServiceNotFound
            | Code::CertificateSecretTaken
            | Code::IssuerMissing,
        ) => return pending.pause_unwatched(tunnel, reason),
        Some(
            Code::InvalidSpec
            | Code::TargetNotPermitted
            | Code::SysctlForbidden
            | Code::SandboxFailed
            | Code::WanDisabled
            | Code::WanUnsupported
            | Code::UnknownValue,
        ) => LONGEST_FOR_PERSONS,
        _ => PENDING_LONGEST,
    };
    pending.pause(tunnel, reason, longest)
}

#[cfg(test)]
pub(crate) mod tests;
