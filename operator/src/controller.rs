//! The common part of all controllers: the queue, leadership, back-off, and the time of each
//! reconciliation.
//!
//! Input: objects that may have changed. Output: reconciliations, one at a time per object. Bounds:
//! the number of concurrent reconciliations, and one queue entry per object.

use std::sync::Arc;

use futures::stream::{self, BoxStream, StreamExt};
use k8s_openapi::NamespaceResourceScope;
use kube::runtime::applier;
use kube::runtime::controller::{Action, Config, Error as ControllerError};
use kube::runtime::reflector::ObjectRef;
use kube::{Api, Client, Resource};
use tracing::warn;

use crate::backoff::Backoffs;
use crate::caches::{Cached, Caches};
use crate::failure::{self, Coded};
use crate::leader::Leadership;
use crate::metrics::Metrics;
use crate::watches::{self, ObjectId, Watched};

/// Reconciles the objects of one kind.
pub(crate) trait Reconciler: 'static {
    /// The kind.
    type Object: Cached;
    /// Why a reconciliation failed. The controller retries.
    type Error: Coded + std::error::Error + Send + Sync + 'static;

    /// The caches of the cluster.
    fn caches(&self) -> &Caches;

    /// The back-offs of failed reconciliations.
    fn backoffs(&self) -> &Backoffs;

    /// Reconciles `object`, the newest known version.
    fn reconcile(
        self: Arc<Self>,
        object: Arc<Self::Object>,
    ) -> impl Future<Output = Result<Action, Self::Error>>;

    /// Called if the object was deleted or never existed.
    fn forget(&self, object: &ObjectId) {
        self.backoffs().forget(object);
    }
}

/// Reconciles the objects in `triggers` while this operator leads, until the process ends. At most
/// `concurrency` reconciliations run at the same time.
pub(crate) async fn run<R: Reconciler>(
    reconciler: Arc<R>,
    triggers: impl IntoIterator<Item = BoxStream<'static, ObjectRef<R::Object>>>,
    concurrency: u16,
    leadership: Leadership,
    metrics: Metrics,
) {
    let store = R::Object::of(reconciler.caches()).store();
    let requeues = leadership.requeues(&store);
    let triggers = watches::batched(stream::select_all(triggers.into_iter().chain([requeues])));
    let queue = metrics.queue::<R::Object>();
    let (joined, missed) = (queue.clone(), queue.clone());
    applier(
        move |object, reconciler| {
            let (leadership, metrics) = (leadership.clone(), metrics.clone());
            queue.left(&id(&*object));
            Box::pin(async move {
                leadership
                    .if_held(reconcile_newest(object, reconciler, metrics))
                    .await
            })
        },
        |object, error, reconciler: Arc<R>| reconciler.backoffs().failed(&id(&*object), error),
        reconciler.clone(),
        store,
        triggers
            .inspect(move |object| joined.joined(object.clone().into()))
            .map(Ok::<_, std::convert::Infallible>),
        Config::default().concurrency(concurrency),
    )
    .for_each(|result| async {
        match result {
            Ok(_) => {}
            // The object was deleted, a child still exists although its owner was deleted, or a
            // child has the labels of an object that never existed.
            Err(ControllerError::ObjectNotFound(object)) => {
                let object = ObjectId {
                    namespace: object.namespace.unwrap_or_default(),
                    kind: object.dyntype.kind,
                    name: object.name,
                };
                missed.left(&object);
                reconciler.forget(&object);
            }
            Err(error) => warn!(error = %failure::chain(&error), "a reconciliation failed"),
        }
    })
    .await;
}

/// Reconciles the newest known version of the object, and records metrics.
async fn reconcile_newest<R: Reconciler>(
    object: Arc<R::Object>,
    reconciler: Arc<R>,
    metrics: Metrics,
) -> Result<Action, R::Error> {
    reconciler.caches().first_lists().await;
    let object = R::Object::of(reconciler.caches()).newest(object);
    let kind = R::Object::kind(&());
    let ended = metrics
        .timed(&kind, reconciler.clone().reconcile(object.clone()))
        .await;
    if ended.is_ok() {
        reconciler.backoffs().forget(&id(&*object));
    }
    ended
}

fn id<K: Watched>(object: &K) -> ObjectId {
    ObjectRef::from_obj(object).into()
}

/// The API of a kind in `namespace`, or in all namespaces.
pub(crate) fn api<K>(client: &Client, namespace: Option<&str>) -> Api<K>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
{
    match namespace {
        Some(namespace) => Api::namespaced(client.clone(), namespace),
        None => Api::all(client.clone()),
    }
}
