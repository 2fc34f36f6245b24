//! The controllers of `MuxTunnel`, `MuxExit` and `MuxRendezvous`.
//!
//! The three kinds have one pipeline, which takes an [`Object`], and one [`Context`]. Each kind has a
//! queue of its own. [`reconcile`] handles one object in one pass: dereference (read everything) -> validate (pure)
//! -> build (pure) -> apply -> observe (pods and gateways) -> publish -> update_status. Each step
//! has its own file, takes the result of the previous step, and uses only earlier steps. The types
//! of [`access`] limit what a step can reach. The pass reads the clock once. An obstacle is a
//! [`Hindrance`], which passes through the same steps. With a hindrance, the steps do two things
//! only: they remove unpermitted targets from the gateways, and write the reason to the status. Builders of children read only the
//! [`validate::ValidatedObject`] and the [`validate::ValidatedState`].

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

use std::marker::PhantomData;
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{self, BoxStream};
use kube::runtime::controller::Action;
use kube::runtime::reflector::ObjectRef;
use muxtunnel_codes::Code;
use muxtunnel_crds::condition;
use tokio::sync::mpsc;
use tracing::{Instrument, info_span};

use crate::backoff::{Backoffs, LONGEST_FOR_PERSONS};
use crate::caches::{Cached, Caches, Feeds};
use crate::class::Class;
use crate::clock::{Clock, Now};
use crate::conditions::find;
use crate::controller::{self, Reconciler};
use crate::events::Events;
use crate::failure::{self, Coded};
use crate::leader::Leadership;
use crate::metrics::Metrics;
use crate::watches::{self, ObjectId};
use access::{Access, Outputs, pure};
pub use error::Error;
use hindrance::Hindrance;
use holder::Holder;
use object::Object;
use publish::Outcome;
pub(crate) use sandbox::not_created;
use triggers::{Routes, groups};
use update_status::Status;
pub(crate) use update_status::write;

/// First pause before an object that is not ready is reconciled again, without the jitter of up to
/// 100 %. The operator polls, because gateways send no notifications of their state.
const PENDING_FIRST: Duration = Duration::from_secs(1);
/// The longest pause before an object that is not ready is reconciled again, without the jitter of
/// up to 100 %, if no user action is required.
const PENDING_LONGEST: Duration = Duration::from_secs(5);
/// Pause before an object whose gateways have not answered is reconciled again. An answer triggers
/// the reconciliation earlier.
const REQUEUE_AWAITED: Duration = Duration::from_secs(20);
/// The pause before the next plan, if an observation changes the plan.
const REQUEUE_REPLANNED: Duration = Duration::from_secs(1);
/// Pause before a ready object is reconciled again.
const REQUEUE_STEADY: Duration = Duration::from_secs(30);
/// Maximum number of concurrent reconciliations of a kind.
const CONCURRENCY: u16 = 16;

/// The shared state of all reconciliations.
pub struct Context<G = observe::HttpGateways> {
    access: Access,
    outputs: Outputs,
    clock: Clock,
    events: Events,
    prober: observe::Prober<G>,
    debounce: update_status::StatusDebounce,
    unknown_keys: update_status::UnknownKeys,
    backoffs: Backoffs,
    /// Back-offs of objects that are not ready.
    pending: Backoffs,
}

impl<G: observe::Gateways> Context<G> {
    /// The context of the controllers of a scope.
    pub fn new(
        (access, outputs): (Access, Outputs),
        gateways: G,
        events: Events,
        clock: Clock,
    ) -> Self {
        outputs.figures.follow(access.caches.clone());
        let backoffs = Backoffs::default();
        Self {
            access,
            outputs,
            events,
            prober: observe::Prober::new(gateways, clock.clone()),
            clock,
            debounce: update_status::StatusDebounce::default(),
            unknown_keys: update_status::UnknownKeys::default(),
            pending: backoffs.sibling(PENDING_FIRST),
            backoffs,
        }
    }
}

/// Runs the controllers for `namespace`, or for all namespaces, until the process ends. `peers`
/// gets each changed MuxPeer for the controller of MuxPeers, which has no watch of its own.
pub async fn run<G: observe::Gateways>(
    context: Context<G>,
    namespace: Option<String>,
    (mut feeds, peers): (Feeds, mpsc::Sender<ObjectId>),
    leadership: Leadership,
    metrics: Metrics,
) {
    let (access, client) = (&context.access, context.outputs.cluster.client.clone());
    let (namespace, clock) = (namespace.as_deref(), access.watches.clone());
    let tunnels = mem::take(&mut feeds.tunnels).grouped(groups);
    let exits = mem::take(&mut feeds.exits).grouped(groups);
    let rendezvous = mem::take(&mut feeds.rendezvous);
    let mut others = triggers::others(&client, namespace, (tunnels.cache(), feeds), &clock);
    let tunnels = watches::objects(controller::api(&client, namespace), tunnels, &clock);
    let exits = watches::objects(controller::api(&client, namespace), exits, &clock);
    let rendezvous = watches::objects(controller::api(&client, namespace), rendezvous, &clock);
    others.push(context.prober.wakes());
    others.push(triggers::granted(&access.grants, &access.caches));
    others.push(triggers::classed(&access.classes, &access.caches));
    others.push(access.turns.wakes());
    let (routes, [of_tunnels, of_exits, of_rendezvous]) = Routes::new(peers);
    let context = Arc::new(context);
    let shared = (&context, &leadership, &metrics);
    // Each of these futures ends only if its watches end.
    tokio::select! {
        () = routes.pass_on(stream::select_all(others)) => {}
        () = run_kind(shared, tunnels, of_tunnels) => {}
        () = run_kind(shared, exits, of_exits) => {}
        () = run_kind(shared, rendezvous, of_rendezvous) => {}
    }
}

/// Runs the controller of one kind. `objects`: the watch of the objects. `others`: objects that have
/// changed in another way.
async fn run_kind<K: Cached, G: observe::Gateways>(
    (context, leadership, metrics): (&Arc<Context<G>>, &Leadership, &Metrics),
    objects: BoxStream<'static, ObjectRef<K>>,
    others: mpsc::Receiver<ObjectId>,
) where
    Object: From<Arc<K>>,
{
    let store = K::of(&context.access.caches).store();
    metrics.judge(store, |object| {
        Object::from(object.clone()).conditions().to_vec()
    });
    let (context, kind) = (context.clone(), PhantomData);
    controller::run(
        Arc::new(OfKind { context, kind }),
        [objects, watches::queued(others)],
        CONCURRENCY,
        leadership.clone(),
        metrics.clone(),
    )
    .await;
}

/// The controller of the kind `K`.
struct OfKind<K, G> {
    context: Arc<Context<G>>,
    kind: PhantomData<fn() -> K>,
}

impl<K: Cached, G: observe::Gateways> Reconciler for OfKind<K, G>
where
    Object: From<Arc<K>>,
{
    type Object = K;
    type Error = Error;

    fn caches(&self) -> &Caches {
        &self.context.access.caches
    }

    fn backoffs(&self) -> &Backoffs {
        &self.context.backoffs
    }

    async fn reconcile(self: Arc<Self>, object: Arc<K>) -> Result<Action, Error> {
        reconcile(object.into(), self.context.clone()).await
    }

    fn forget(&self, object: &ObjectId) {
        drop(self.context.access.turns.change());
        self.context.backoffs.forget(object);
        self.context.pending.forget(object);
    }
}

/// Reconciles one object, and writes its status.
///
/// # Errors
/// [`Error`]. A retry is safe.
pub async fn reconcile<G: observe::Gateways>(
    object: Object,
    context: Arc<Context<G>>,
) -> Result<Action, Error> {
    // The children have changed, or this reconciliation changes them.
    let _change = context.access.turns.change();
    let span = info_span!(
        "object",
        kind = object.kind().name(),
        namespace = object.namespace().unwrap_or_default(),
        name = object.name_any()
    );
    reconcile_in_span(object, &context).instrument(span).await
}

async fn reconcile_in_span<G: observe::Gateways>(
    mut object: Object,
    context: &Context<G>,
) -> Result<Action, Error> {
    if object.is_deleted() {
        // The garbage collector removes the children. Creating children again would delay the
        // deletion.
        return Ok(Action::await_change());
    }
    if object.undecoded().is_some() {
        let found = dereference::decodable(&context.access, &object).await?;
        let Some(found) = found.filter(|found| found.uid() == object.uid()) else {
            return Ok(Action::await_change());
        };
        object = found;
    }
    let class = match dereference::class(&context.access, &object).await {
        Ok(Some(class)) => Ok(class),
        // Another operator serves the object.
        Ok(None) => return Ok(Action::await_change()),
        Err(hindrance) => Err(hindrance),
    };
    let (holder, now) = (Holder::of(&object)?, context.clock.now());
    let (outcome, state) = pass((&object, class), &holder, context, now).await;
    let is_told = match &outcome {
        // No status is written, because the verdicts need the answers of all gateways, and a plan
        // that is about to change would show a fault that nobody has to remove.
        Outcome::Awaited | Outcome::Replanned => false,
        // The status reports an error only if a retry is not likely to resolve it.
        Outcome::Hindered(Hindrance::Failed(error)) => {
            let failures = context.backoffs.failures(&object.id());
            error.code() == Code::UnknownValue || failure::is_reported(error, failures)
        }
        _ => true,
    };
    let mut told = None;
    if is_told {
        let (cluster, debounce) = (&context.outputs.cluster, &context.debounce);
        update_status::update_peers(cluster, (&state, &outcome), debounce, now).await;
        told = Some(report(&object, context, &outcome, now).await?);
    }
    match (outcome, told) {
        (Outcome::Hindered(Hindrance::Failed(error)), _) => Err(error),
        (outcome, Some(status)) => Ok(requeue_after(&object, context, (&outcome, &status), now)),
        (Outcome::Replanned, None) => Ok(Action::requeue(REQUEUE_REPLANNED)),
        (_, None) => Ok(Action::requeue(REQUEUE_AWAITED)),
    }
}

/// Runs all steps for one object but the last.
async fn pass<G: observe::Gateways>(
    (object, class): (&Object, Result<Class, Hindrance>),
    holder: &Holder,
    context: &Context<G>,
    now: Now,
) -> (Outcome, validate::ValidatedState) {
    let (access, outputs) = (&context.access, &context.outputs);
    let (caches, settings) = (&access.caches, &*access.settings);
    let found = dereference::dereference(access, (object, class), holder, now).await;
    let named = found.named;
    let plan = found.class.and_then(|class| {
        pure(|| {
            let valid = validate::validate(object, &named, class)?;
            // A configuration that a gateway would refuse is a fault of the spec, which neither the
            // schema nor the validation found.
            let built = build::build(&valid, settings);
            let resources = built.map_err(|error| Hindrance::Invalid(error.to_string()))?;
            Ok((valid, resources))
        })
    });
    let valid = plan.as_ref().ok().map(|(valid, _)| &**valid);
    let peers = valid.map(|valid| valid.peers.clone());
    let time = now.seconds();
    let state = pure(move || validate::state((object, holder), named, peers, time));
    let built = pure(|| build::build_others(valid, &state));
    let failures = context.backoffs.failures(&object.id());
    let reached = apply::apply(outputs, holder, (plan, built), failures).await;
    let observed = observe::observe(caches, &context.prober, reached.children, &state).await;
    let facts = (reached.certified, found.stale);
    let outcome = publish::publish(outputs, &state, observed, facts).await;
    (outcome, state)
}

/// Writes the status, and Events for its changes.
async fn report<G: observe::Gateways>(
    object: &Object,
    context: &Context<G>,
    outcome: &Outcome,
    now: Now,
) -> Result<Status, Error> {
    let (cluster, debounce) = (&context.outputs.cluster, &context.debounce);
    let written = update_status::update_status(cluster, object, outcome, debounce, now).await;
    let status = written.map_err(Error::UpdateStatus)?;
    let (reference, old) = (object.object_ref(), object.conditions());
    let events = context
        .events
        .publish_transitions(&reference, old, status.conditions());
    events.await;
    let (unknown_keys, time) = (&context.unknown_keys, now.seconds());
    if let (Outcome::Observed(facts), Some(uid)) = (outcome, object.uid())
        && let Some(happened) = unknown_keys.happened((&uid, object.kind()), &facts.seen, time)
    {
        context.events.publish_once(&reference, &happened).await;
    }
    Ok(status)
}

/// When the object is reconciled again, unless a change triggers the reconciliation earlier.
fn requeue_after<G: observe::Gateways>(
    object: &Object,
    context: &Context<G>,
    (outcome, status): (&Outcome, &Status),
    now: Now,
) -> Action {
    if matches!(outcome, Outcome::Hindered(Hindrance::Paused)) {
        return Action::requeue(REQUEUE_STEADY);
    }
    let pause = match find(status.conditions(), condition::READY) {
        Some(ready) if ready.status != "True" => context.pause(&object.id(), &ready.reason),
        _ => {
            context.pending.forget(&object.id());
            REQUEUE_STEADY
        }
    };
    let Outcome::Observed(facts) = outcome else {
        return Action::requeue(pause);
    };
    let (object, rollouts) = (&facts.object, &context.outputs.memory.rollouts);
    let uid = &object.holder.owner.uid;
    let due = rollouts.due(uid, &object.pods.rollouts, now.seconds());
    let due = due.map(|seconds| Duration::from_secs(seconds.max(1)));
    Action::requeue(due.map_or(pause, |due| due.min(pause)))
}

impl<G> Context<G> {
    /// The pause before an object whose condition `Ready` has `reason` is reconciled again.
    fn pause(&self, object: &ObjectId, reason: &str) -> Duration {
        let pending = &self.pending;
        let longest = match Code::from_reason(reason) {
            // A quota, a policy, an object of another owner, or an object that the operator has no
            // permission to watch. With several watched namespaces, also a Service of another one.
            Some(
                Code::NameTaken
                | Code::ImmutableField
                | Code::ApiRefused
                | Code::PodSecurityTooStrict
                | Code::TargetServiceNotFound
                | Code::CertificateSecretTaken
                | Code::IssuerMissing,
            ) => return pending.pause_unwatched(object, reason),
            Some(
                Code::InvalidSpec
                | Code::TargetNotPermitted
                | Code::SysctlForbidden
                | Code::SandboxFailed
                | Code::ClassNotFound
                | Code::ClassAmbiguous
                | Code::ClassNotPermitted
                | Code::WanUnsupported
                | Code::UnknownValue,
            ) => LONGEST_FOR_PERSONS,
            _ => PENDING_LONGEST,
        };
        pending.pause(object, reason, longest)
    }
}

#[cfg(test)]
pub(crate) mod tests;
