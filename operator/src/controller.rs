//! What all controllers have in common: the queue, leadership, back-off, and the time of each reconciliation.
//!
//! In: objects that may have changed. Out: reconciliations, one at a time for each object. Bounds: those at once, as
//! `Config` has it; one entry of the queue an object.

use std::future::Future;
use std::sync::Arc;

use futures::stream::{Stream, StreamExt};
use k8s_openapi::NamespaceResourceScope;
use kube::api::DynamicObject;
use kube::runtime::applier;
use kube::runtime::controller::{Action, Config, Error as ControllerError};
use kube::runtime::reflector::{ObjectRef, Store};
use kube::{Api, Client, Resource};
use tracing::warn;

use crate::backoff::Backoffs;
use crate::caches::{Cache, Cluster};
use crate::failure::{self, Coded};
use crate::leader::Leadership;
use crate::metrics::Metrics;
use crate::watches::Watched;

/// What brings the objects of one kind about.
pub(crate) trait Reconciler: 'static {
    /// The kind.
    type Object: Watched;
    /// Why a reconciliation ended early; it is tried again.
    type Error: Coded + std::error::Error + Send + Sync + 'static;

    /// What is known of the cluster.
    fn cluster(&self) -> &Cluster;

    /// What is known of the objects.
    fn cache(&self) -> &Cache<Self::Object>;

    /// The pauses after reconciliations that failed.
    fn backoffs(&self) -> &Backoffs;

    /// One reconciliation of `object`, which is as new as is known.
    fn reconcile(
        self: Arc<Self>,
        object: Arc<Self::Object>,
    ) -> impl Future<Output = Result<Action, Self::Error>>;

    /// The object is gone, or there never was one of this name.
    fn forget(&self, object: &ObjectRef<DynamicObject>) {
        self.backoffs().is_gone(object);
    }
}

/// Reconciles what `triggers` names, for as long as the process lives. Nothing is reconciled while another operator
/// leads.
pub(crate) async fn run<R: Reconciler>(
    reconciler: Arc<R>,
    store: Store<R::Object>,
    triggers: impl Stream<Item = ObjectRef<R::Object>> + Send + 'static,
    config: Config,
    leadership: Leadership,
    metrics: Metrics,
) {
    let queue = metrics.queue::<R::Object>();
    let (joined, missed) = (queue.clone(), queue.clone());
    applier(
        move |object, reconciler| {
            let (leadership, metrics) = (leadership.clone(), metrics.clone());
            queue.left(object.as_ref());
            Box::pin(async move {
                leadership
                    .if_held(reconcile_newest(object, reconciler, metrics))
                    .await
            })
        },
        |object, error, reconciler: Arc<R>| reconciler.backoffs().failed(object.as_ref(), error),
        reconciler.clone(),
        store,
        triggers
            .inspect(move |object| joined.joined(object))
            .map(Ok::<_, std::convert::Infallible>),
        config,
    )
    .for_each(|result| async {
        match result {
            Ok(_) => {}
            // It went; or a child outlived it for a moment, or carries the labels of none.
            Err(ControllerError::ObjectNotFound(object)) => {
                missed.missed(&object);
                reconciler.forget(&object);
            }
            Err(error) => warn!(error = %failure::chain(&error), "a reconciliation failed"),
        }
    })
    .await;
}

/// One reconciliation of the object as it is known by now, with its metrics.
async fn reconcile_newest<R: Reconciler>(
    object: Arc<R::Object>,
    reconciler: Arc<R>,
    metrics: Metrics,
) -> Result<Action, R::Error> {
    reconciler.cluster().caches.first_lists().await;
    let object = reconciler.cache().newest(object);
    let kind = R::Object::kind(&());
    let ended = metrics
        .timed(&kind, reconciler.clone().reconcile(object.clone()))
        .await;
    if ended.is_ok() {
        reconciler.backoffs().succeeded(object.as_ref());
    }
    ended
}

/// The objects of a kind, in `namespace` or in all.
pub(crate) fn api<K>(client: &Client, namespace: Option<&str>) -> Api<K>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
{
    match namespace {
        Some(namespace) => Api::namespaced(client.clone(), namespace),
        None => Api::all(client.clone()),
    }
}
