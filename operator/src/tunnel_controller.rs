//! The controller of `MuxTunnel`.
//!
//! [`reconcile`] is the way of one object: dereference (client: what the spec names) -> validate (pure)
//! -> build (pure) -> apply (client) -> observe (client: pods and gateways) -> update_status (client).
//! Each step is a file; builders see only the [`validate::ValidatedTunnel`].

pub mod apply;
pub mod build;
pub mod certify;
pub mod dereference;
pub mod observe;
pub mod references;
mod sandbox;
pub mod update_status;
pub mod validate;

use std::sync::Arc;
use std::time::Duration;

use futures::stream::{self, StreamExt};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Service};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::runtime::applier;
use kube::runtime::controller::{Action, Config, Error as ControllerError};
use kube::runtime::reflector::{ObjectRef, Store};
use kube::{Api, Client, Resource, ResourceExt};
use muxtunnel_codes::Code;
use muxtunnel_crds::{MuxTunnel, tunnel_condition};
use tracing::{Instrument, info_span, warn};

use crate::api_server::ApiServer;
use crate::conditions::is_true;
use crate::events::Events;
use crate::failure::{self, Coded};
use crate::grants::Grants;
use crate::health::WatchClock;
use crate::leader::Leadership;
use crate::metrics::Metrics;
use crate::settings::Settings;
use crate::watches;

/// How soon a tunnel that is not as asked is looked at again; its gateways are only seen by polling.
const REQUEUE_PENDING: Duration = Duration::from_secs(2);
/// How soon a tunnel that is as asked is looked at again.
const REQUEUE_STEADY: Duration = Duration::from_secs(30);
/// How soon after a failed request.
const REQUEUE_FAILED: Duration = Duration::from_secs(5);
/// Tunnels that are reconciled at once.
const CONCURRENCY: u16 = 16;

/// Annotation: `"true"` leaves everything as it is, whatever the spec says.
pub const PAUSED: &str = "muxtunnel.dev/paused";

/// What every reconciliation has at hand.
pub struct Context {
    client: Client,
    settings: Arc<Settings>,
    grants: Grants,
    api_server: ApiServer,
    events: Events,
    gateways: observe::GatewayClient,
    calm: update_status::Calm,
    certifier: certify::Certifier,
}

impl Context {
    /// A context of its own for one controller.
    #[must_use]
    pub fn new(
        client: Client,
        settings: Arc<Settings>,
        events: Events,
        grants: Grants,
        api_server: ApiServer,
    ) -> Self {
        Self {
            certifier: certify::Certifier::new(client.clone(), &settings),
            client,
            settings,
            grants,
            api_server,
            events,
            gateways: observe::GatewayClient::default(),
            calm: update_status::Calm::default(),
        }
    }
}

/// Why one reconciliation ended early; it is tried again.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The object has no namespace or UID, which no object from an API server lacks.
    #[error("the object has no {0}")]
    Incomplete(&'static str),
    /// What the spec names could not be read.
    #[error(transparent)]
    Dereference(#[from] dereference::DereferenceError),
    /// The bundle that it joins by could not be read.
    #[error(transparent)]
    Join(#[from] dereference::join::JoinError),
    /// The certificates could not be seen to.
    #[error(transparent)]
    Certify(#[from] certify::CertifyError),
    /// The children could not be rendered.
    #[error(transparent)]
    Build(#[from] build::BuildError),
    /// The children could not be applied.
    #[error(transparent)]
    Apply(#[from] crate::apply::ApplyError),
    /// The pods could not be listed.
    #[error(transparent)]
    Observe(#[from] observe::ObserveError),
    /// The status could not be written.
    #[error(transparent)]
    UpdateStatus(#[from] update_status::UpdateStatusError),
}

impl Coded for Error {
    fn code(&self) -> Code {
        failure::code(self)
    }
}

/// Runs the controller, in `namespace` or in all, for as long as the process lives. Nothing is looked at while another
/// operator leads.
pub async fn run(
    context: Context,
    namespace: Option<String>,
    leadership: Leadership,
    metrics: Metrics,
    clock: Arc<WatchClock>,
) {
    let (namespace, clock) = (namespace.as_deref(), &clock);
    let client = context.client.clone();
    let (store, tunnels) = watches::objects(api::<MuxTunnel>(&client, namespace), clock);
    let (naming, foreign) = (store.clone(), store.clone());
    let grants = context.grants.changes();
    let triggers = stream::select_all([
        tunnels,
        leadership.looks(&store),
        watches::children(api::<Deployment>(&client, namespace), clock),
        watches::named(api::<Service>(&client, namespace), clock, move |service| {
            tunnels_naming(&naming, service)
        }),
        grants
            .flat_map(move |()| stream::iter(tunnels_into_other_namespaces(&foreign)))
            .boxed(),
        watches::children(api::<NetworkPolicy>(&client, namespace), clock),
        watches::children(api::<ConfigMap>(&client, namespace), clock),
        watches::children(api::<Pod>(&client, namespace), clock),
        watches::children(api::<PodDisruptionBudget>(&client, namespace), clock),
        watches::children(api::<HorizontalPodAutoscaler>(&client, namespace), clock),
        watches::children(api::<Job>(&client, namespace), clock),
    ]);
    applier(
        move |tunnel, context| {
            let (leadership, metrics) = (leadership.clone(), metrics.clone());
            Box::pin(async move {
                let kind = MuxTunnel::kind(&());
                let look = metrics.look(&kind, reconcile(tunnel, context));
                leadership.if_held(look).await
            })
        },
        |_, _, _| Action::requeue(REQUEUE_FAILED),
        Arc::new(context),
        store,
        watches::batched(triggers).map(Ok::<_, std::convert::Infallible>),
        Config::default().concurrency(CONCURRENCY),
    )
    .for_each(|result| async {
        match result {
            // A child outlived its tunnel for a moment, or carries the labels of none.
            Ok(_) | Err(ControllerError::ObjectNotFound(_)) => {}
            Err(error) => warn!(error = %chain(&error), "a reconciliation failed"),
        }
    })
    .await;
}

/// The tunnels of which a forward leads to the Service.
fn tunnels_naming(known: &Store<MuxTunnel>, service: &Service) -> Vec<ObjectRef<MuxTunnel>> {
    let service = references::ServiceName {
        namespace: service.namespace().unwrap_or_default(),
        name: service.name_any(),
    };
    references_to(known, |tunnel| {
        let own = tunnel.namespace().unwrap_or_default();
        references::references(&tunnel.spec, &own)
            .services
            .contains(&service)
    })
}

/// Those that a grant is a matter for.
fn tunnels_into_other_namespaces(known: &Store<MuxTunnel>) -> Vec<ObjectRef<MuxTunnel>> {
    references_to(known, |tunnel| {
        let own = tunnel.namespace().unwrap_or_default();
        !references::references(&tunnel.spec, &own)
            .foreign
            .is_empty()
    })
}

fn references_to(
    known: &Store<MuxTunnel>,
    is_meant: impl Fn(&MuxTunnel) -> bool,
) -> Vec<ObjectRef<MuxTunnel>> {
    let tunnels = known.state().into_iter();
    let meant = tunnels.filter(|tunnel| is_meant(tunnel));
    meant
        .map(|tunnel| ObjectRef::from_obj(tunnel.as_ref()))
        .collect()
}

fn api<K>(client: &Client, namespace: Option<&str>) -> Api<K>
where
    K: Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>,
{
    match namespace {
        Some(namespace) => Api::namespaced(client.clone(), namespace),
        None => Api::all(client.clone()),
    }
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let part = error.to_string();
        if !text.ends_with(&part) {
            text.push_str(": ");
            text.push_str(&part);
        }
        source = error.source();
    }
    text
}

/// Brings one tunnel nearer to what its spec asks for, and says in its status how near it is.
///
/// # Errors
/// [`Error`]; nothing is lost by trying again.
pub async fn reconcile(tunnel: Arc<MuxTunnel>, context: Arc<Context>) -> Result<Action, Error> {
    let span = info_span!(
        "tunnel",
        namespace = tunnel.namespace().unwrap_or_default(),
        name = tunnel.name_any()
    );
    reconcile_in_span(&tunnel, &context).instrument(span).await
}

async fn reconcile_in_span(tunnel: &MuxTunnel, context: &Context) -> Result<Action, Error> {
    if tunnel.meta().deletion_timestamp.is_some() {
        // The garbage collector removes the children; making them again would hold it up.
        return Ok(Action::await_change());
    }
    let outcome = if is_paused(tunnel) {
        update_status::Outcome::Paused
    } else {
        bring_about(tunnel, context).await?
    };
    let status =
        update_status::update_status(&context.client, tunnel, &outcome, &context.calm).await?;
    let old = tunnel.status.as_ref().map(|status| &status.conditions[..]);
    context
        .events
        .publish_transitions(
            &tunnel.object_ref(&()),
            old.unwrap_or_default(),
            &status.conditions,
        )
        .await;
    Ok(match outcome {
        update_status::Outcome::Paused => Action::await_change(),
        _ if is_true(&status.conditions, tunnel_condition::READY) => {
            Action::requeue(REQUEUE_STEADY)
        }
        _ => Action::requeue(REQUEUE_PENDING),
    })
}

fn is_paused(tunnel: &MuxTunnel) -> bool {
    let paused = tunnel.annotations().get(PAUSED);
    paused.is_some_and(|paused| paused == "true")
}

/// Finds out what the spec asks for, and does it where it is possible.
async fn bring_about(
    tunnel: &MuxTunnel,
    context: &Context,
) -> Result<update_status::Outcome, Error> {
    let (client, certifier) = (&context.client, &context.certifier);
    let mut named = dereference::dereference(client, &context.grants, tunnel).await?;
    named.api_server = context.api_server.addresses();
    let now = certifier.now();
    named.join = dereference::join::join(client, tunnel, &context.settings, now).await?;
    Ok(
        match validate::validate(tunnel, &named, &context.settings)? {
            validate::Validation::Valid(valid) => converge(tunnel, &named, valid, context).await?,
            validate::Validation::Invalid(problem) => update_status::Outcome::Invalid(problem),
            validate::Validation::Unjoined(problem) => update_status::Outcome::Uncertified(problem),
        },
    )
}

/// Makes the cluster what a valid tunnel asks for, and looks what has come of it.
async fn converge(
    tunnel: &MuxTunnel,
    named: &dereference::Dereferenced,
    valid: Box<validate::ValidatedTunnel>,
    context: &Context,
) -> Result<update_status::Outcome, Error> {
    let (client, certifier) = (&context.client, &context.certifier);
    let bundle = named.join.as_ref().and_then(|join| join.as_ref().ok());
    let built = build::build(&valid, &context.settings)?;
    let certified = certifier.issue(tunnel, &valid, bundle).await?;
    if let Some(problem) = certified.foreign() {
        return Ok(update_status::Outcome::Uncertified(problem.clone()));
    }
    let applied = match apply::apply(client, &valid, built).await? {
        apply::Outcome::Applied(applied) => applied,
        apply::Outcome::OwnedByOther(message) => {
            return Ok(update_status::Outcome::OwnedByOther(message));
        }
    };
    let seen = observe::observe(client, &context.gateways, &valid).await?;
    let facts = (&applied, &seen);
    let certified = certifier.settle(&valid, bundle, facts, certified).await?;
    Ok(update_status::Outcome::Observed(
        valid,
        applied,
        seen,
        Box::new(certified),
    ))
}

#[cfg(test)]
mod tests;
