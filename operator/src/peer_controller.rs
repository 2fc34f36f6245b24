//! The controller of `MuxPeer`: peers without an exit, and the deletion of expired peers.
//!
//! The reconciliation of a MuxExit judges and serves its peers, and writes their statuses
//! ([`crate::tunnel_controller`]). This controller has the rest, which belongs to no exit.

use std::sync::Arc;
use std::time::Duration;

use kube::api::{DeleteParams, Preconditions};
use kube::runtime::controller::Action;
use kube::runtime::reflector::ObjectRef;
use kube::{Api, Resource, ResourceExt};
use muxtunnel_codes::Code;
use muxtunnel_crds::condition::{ACCEPTED, READY, STALLED};
use muxtunnel_crds::{MuxPeer, MuxPeerStatus};
use tokio::sync::mpsc;
use tracing::info;

use crate::backoff::Backoffs;
use crate::caches::{Caches, Cluster, NotKnown};
use crate::classes::{Classes, NoClass};
use crate::clock::{Clock, Now};
use crate::conditions::{Verdict, conditions};
use crate::controller::{self, Reconciler};
use crate::failure::{self, Coded};
use crate::leader::Leadership;
use crate::metrics::Metrics;
use crate::tunnel_controller::write;
use crate::undecoded;
use crate::watches::{self, ObjectId};

/// Pause between two looks at a peer. Nothing triggers a look when the exit is deleted.
const LOOKED_AT: Duration = Duration::from_secs(60);
/// Pause after a deletion that perhaps met a newer version of the object.
const DELETED_AFTER: Duration = Duration::from_secs(5);
/// Maximum number of concurrent reconciliations.
const CONCURRENCY: u16 = 4;

/// The shared state of all reconciliations.
pub struct Context {
    cluster: Cluster,
    classes: Classes,
    backoffs: Backoffs,
    clock: Clock,
}

/// Why a reconciliation failed. The controller retries.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A cache is not filled yet.
    #[error(transparent)]
    NotKnown(#[from] NotKnown),
    /// The peer could not be deleted, or its status could not be written.
    #[error("cannot delete the peer, or cannot write its status: {0}")]
    Write(#[from] kube::Error),
}

impl Coded for Error {
    fn code(&self) -> Code {
        match self {
            Self::NotKnown(error) => error.code(),
            Self::Write(_) => failure::code(self),
        }
    }
}

/// Runs the controller until the process ends. `changed`: the MuxPeers that are new or changed, from
/// the watch that fills their cache ([`crate::tunnel_controller::run`]).
pub async fn run(
    (cluster, classes): (Cluster, Classes),
    clock: Clock,
    changed: mpsc::Receiver<ObjectId>,
    leadership: Leadership,
    metrics: Metrics,
) {
    let context = Arc::new(Context {
        cluster,
        classes,
        backoffs: Backoffs::default(),
        clock,
    });
    let triggers = [watches::queued(changed)];
    controller::run(context, triggers, CONCURRENCY, leadership, metrics).await;
}

impl Reconciler for Context {
    type Object = MuxPeer;
    type Error = Error;

    fn caches(&self) -> &Caches {
        &self.cluster.caches
    }

    fn backoffs(&self) -> &Backoffs {
        &self.backoffs
    }

    async fn reconcile(self: Arc<Self>, peer: Arc<MuxPeer>) -> Result<Action, Error> {
        self.classes.first_list().await;
        reconcile((&self.cluster, &self.classes), &peer, self.clock.now()).await
    }
}

/// Deletes an expired peer, or writes that its exit is missing. The peer of an exit that another
/// operator serves stays unchanged.
///
/// # Errors
/// [`Error`]. A retry is safe.
pub async fn reconcile(
    (cluster, classes): (&Cluster, &Classes),
    peer: &MuxPeer,
    now: Now,
) -> Result<Action, Error> {
    if peer.meta().deletion_timestamp.is_some() {
        return Ok(Action::await_change());
    }
    let namespace = peer.namespace().unwrap_or_default();
    let exit = &peer.spec.exit_ref.name;
    let found = match cluster.caches.exits.get(&namespace, exit) {
        // The placeholder has the class. The reconciliation of the exit reports the rest.
        Err(NotKnown::Undecoded { .. }) => {
            let store = cluster.caches.exits.store();
            let Some(found) = store.get(&ObjectRef::new(exit).within(&namespace)) else {
                return Ok(Action::requeue(LOOKED_AT));
            };
            Some(found)
        }
        found => found?,
    };
    if let Some(exit) = &found {
        match classes.find(&namespace, exit.spec.class_name.as_deref()) {
            Err(NoClass::Foreign) => return Ok(Action::requeue(LOOKED_AT)),
            Err(NoClass::NotKnown(error)) => return Err(error.into()),
            Ok(_) | Err(NoClass::Refused(..)) => {}
        }
    }
    let rest = life(peer).map(|end| end - now.seconds());
    if rest.is_some_and(|rest| rest <= 0) {
        delete(cluster, peer).await?;
        // A deleted object is not found, and has no further reconciliation.
        return Ok(Action::requeue(DELETED_AFTER));
    }
    if found.is_none() {
        let missing = || format!("no MuxExit {exit} exists in this namespace");
        let (code, detail) = match undecoded::reason(peer) {
            Some(reason) => {
                let detail = format!("the object cannot be decoded: {reason}");
                (Code::UnknownValue, detail)
            }
            None => (Code::ExitNotFound, missing()),
        };
        refuse(cluster, peer, (code, &detail), now).await?;
    }
    let rest = rest.and_then(|rest| u64::try_from(rest).ok());
    let rest = rest.map_or(LOOKED_AT, Duration::from_secs);
    Ok(Action::requeue(rest.min(LOOKED_AT)))
}

/// When the operator deletes the peer, in seconds since 1970.
fn life(peer: &MuxPeer) -> Option<i64> {
    let ttl = peer.spec.ttl_seconds_after_expiration?;
    let end = peer.spec.expiration_time?.seconds();
    Some(end.saturating_add(ttl.into()))
}

async fn delete(cluster: &Cluster, peer: &MuxPeer) -> Result<(), kube::Error> {
    let namespace = peer.namespace().unwrap_or_default();
    let api: Api<MuxPeer> = Api::namespaced(cluster.client.clone(), &namespace);
    let name = peer.name_any();
    info!(namespace, name, "deleting an expired MuxPeer");
    // A peer that was prolonged meanwhile stays.
    let params = DeleteParams::default().preconditions(Preconditions {
        uid: peer.uid(),
        resource_version: peer.resource_version(),
    });
    match api.delete(&name, &params).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Writes that no exit accepts the peer.
async fn refuse(
    cluster: &Cluster,
    peer: &MuxPeer,
    (code, detail): (Code, &str),
    now: Now,
) -> Result<(), kube::Error> {
    let old = peer.status.clone().unwrap_or_default();
    let generation = peer.metadata.generation;
    let stalled = Verdict {
        holds: Some(true),
        ..Verdict::no(STALLED, code, detail)
    };
    let [accepted, ready] = [ACCEPTED, READY].map(|type_| Verdict::no(type_, code, detail));
    let verdicts = [accepted, ready, stalled];
    let status = MuxPeerStatus {
        observed_generation: generation,
        conditions: conditions(&verdicts, &old.conditions, generation, &now.whole_second()),
        carriers: None,
        ..old
    };
    if peer.status.as_ref() == Some(&status) {
        return Ok(());
    }
    write(cluster, peer, &status).await
}
