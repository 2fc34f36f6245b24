//! The controller of `MuxTunnel`.
//!
//! [`reconcile`] is the way of one object, in one pass: dereference (read everything) -> validate (pure) -> build (pure)
//! -> apply -> observe (pods and gateways) -> publish -> update_status. Each step is a file, takes what the one before
//! gave, and uses itself and those before it. What hinders children is a [`Hindrance`] that goes the same way: the
//! certificates of gateways that run are renewed, what is no longer permitted is taken from them, and the status says why.
//! Builders of children see only the [`validate::ValidatedTunnel`].

pub mod access;
pub mod apply;
pub mod build;
mod cert_manager;
pub mod certifier;
mod config_file;
pub mod dereference;
pub mod end;
pub mod error;
pub mod hindrance;
pub mod holder;
mod issuer;
pub mod observe;
pub mod pods;
pub mod problem;
pub mod publish;
mod records;
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
use muxtunnel_crds::{MuxTunnel, MuxTunnelStatus, tunnel_condition};
use tracing::{Instrument, info_span};

use crate::api_server::ApiServer;
use crate::backoff::{Backoffs, LONGEST_FOR_PERSONS};
use crate::caches::{Cache, Cluster, Targets};
use crate::controller::{self, Reconciler};
use crate::events::Events;
use crate::failure;
use crate::grants::Grants;
use crate::leader::Leadership;
use crate::metrics::Metrics;
use crate::metrics::tunnels::Tunnels;
use crate::settings::Settings;
use crate::watch_clock::WatchClock;
use crate::watches;
use access::Access;
pub use dereference::PAUSED;
pub use error::Error;
use hindrance::Hindrance;
use holder::Holder;
use publish::Outcome;
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

/// What every reconciliation has at hand.
pub struct Context<G = observe::HttpGateways> {
    access: Access,
    events: Events,
    prober: observe::Prober<G>,
    debounce: update_status::StatusDebounce,
    backoffs: Backoffs,
    /// Of tunnels that are not ready.
    pending: Backoffs,
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
            access: Access {
                certifier: certifier::Certifier::new(cluster.client.clone(), &settings),
                cluster,
                targets,
                grants,
                api_server,
                rollouts: rollouts::Rollouts::default(),
                figures,
                watches: Arc::default(),
                settings,
            },
            events,
            prober: observe::Prober::new(gateways),
            debounce: update_status::StatusDebounce::default(),
            backoffs: Backoffs::default(),
            pending: Backoffs::beginning_with(PENDING_FIRST),
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
    context.access.watches = clock.clone();
    let store = feeds.tunnels.cache().store();
    metrics.say_tunnels(store.clone());
    let client = context.access.cluster.client.clone();
    let objects = triggers::all(&client, namespace.as_deref(), feeds, &clock);
    let others = [
        leadership.requeues(&store),
        context.prober.wakes(),
        triggers::granted(&context.access.grants, &store),
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
        &self.access.cluster
    }

    fn cache(&self) -> &Cache<MuxTunnel> {
        &self.access.cluster.caches.tunnels
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
    let holder = Holder::of(tunnel)?;
    let failures = context.backoffs.failures(tunnel);
    let (outcome, stale) = pass(tunnel, &holder, context, failures).await;
    let is_told = match &outcome {
        // What is said of the tunnel follows from all answers.
        Outcome::Awaited => false,
        // It may be over soon.
        Outcome::Hindered(Hindrance::Failed(error), _) => failure::is_refusal(error, failures),
        _ => true,
    };
    let told = match is_told {
        true => Some(report(tunnel, context, (&outcome, &stale[..])).await?),
        false => None,
    };
    match (outcome, told) {
        (Outcome::Hindered(Hindrance::Failed(error), _), _) => Err(error),
        (outcome, Some(status)) => Ok(requeue_after(tunnel, context, &outcome, &status)),
        (_, None) => Ok(Action::requeue(REQUEUE_AWAITED)),
    }
}

/// The way of one tunnel. What it comes to, and the watches that bring nothing.
async fn pass<G: observe::Gateways>(
    tunnel: &MuxTunnel,
    holder: &Holder,
    context: &Context<G>,
    failures: u32,
) -> (Outcome, Vec<String>) {
    let access = &context.access;
    let (cluster, certifier, settings) = (&access.cluster, &access.certifier, &access.settings);
    let found = dereference::dereference(access, tunnel, holder).await;
    let named = &found.named;
    let plan = match found.hindrance {
        Some(hindrance) => Err(hindrance),
        None => validate::validate(tunnel, named, settings),
    };
    let built = build::build_all((tunnel, holder), plan, named, settings);
    let reached = apply::apply((cluster, certifier), holder, built, failures).await;
    let asks = named.certificates.asks;
    let observed = observe::observe_all(cluster, &context.prober, reached.children, asks).await;
    let certified = reached.certified;
    let outcome = publish::publish(access, holder, named, observed, certified).await;
    (outcome, found.stale)
}

/// Writes the status, and the Events of what it changes.
async fn report<G: observe::Gateways>(
    tunnel: &MuxTunnel,
    context: &Context<G>,
    told: (&Outcome, &[String]),
) -> Result<MuxTunnelStatus, Error> {
    let (cluster, debounce) = (&context.access.cluster, &context.debounce);
    let status = update_status::update_status(cluster, tunnel, told, debounce).await?;
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
    outcome: &Outcome,
    status: &MuxTunnelStatus,
) -> Action {
    if matches!(outcome, Outcome::Hindered(Hindrance::Paused, _)) {
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
        Outcome::Observed(valid, ..) => {
            let (access, uid) = (&context.access, &valid.owner.uid);
            let now = access.certifier.now();
            access.rollouts.due(uid, &valid.rollouts, now)
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

#[cfg(test)]
pub(crate) mod tests;
