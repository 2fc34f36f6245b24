//! The triggers of reconciliations: changes of objects, of their children and targets, and of
//! grants.
//!
//! The objects of a kind have a controller of their own. A watch of children yields objects of all
//! kinds, so [`Routes`] passes each trigger to the controller of its kind. MuxPeers have one watch,
//! for the controller of their exit and for their own controller. [`watches::queue`] bounds the
//! queues.

use std::sync::Arc;

use futures::stream::{self, BoxStream, StreamExt};
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::runtime::reflector::ObjectRef;
use kube::{Client, Resource, ResourceExt};
use muxtunnel_crds::{MuxExit, MuxPeer, MuxRendezvous, MuxTunnel};
use tokio::sync::mpsc;

use super::object::{Kind, Object};
use super::references;
use crate::caches::{self, Cache, Cached, Caches, Feeds, Group};
use crate::classes::{Change, Classes};
use crate::controller::api;
use crate::grants::Grants;
use crate::watch_clock::WatchClock;
use crate::watches::{self, ObjectId, owner_of};

/// Objects to reconcile.
pub(super) type Triggers = BoxStream<'static, ObjectId>;

/// The triggers of each kind.
pub(super) struct Routes {
    queues: [mpsc::Sender<ObjectId>; Kind::ALL.len()],
    /// The queue of the controller of MuxPeers.
    peers: mpsc::Sender<ObjectId>,
}

impl Routes {
    /// The routes, and the triggers of each kind in the order of [`Kind::ALL`].
    pub(super) fn new(
        peers: mpsc::Sender<ObjectId>,
    ) -> (Self, [mpsc::Receiver<ObjectId>; Kind::ALL.len()]) {
        let [tunnels, exits, rendezvous] = Kind::ALL.map(|_| watches::queue());
        let queues = [tunnels.0, exits.0, rendezvous.0];
        let routes = Self { queues, peers };
        (routes, [tunnels.1, exits.1, rendezvous.1])
    }

    /// Passes each trigger to its kind. Triggers of other kinds, such as benchmarks, are dropped.
    pub(super) async fn pass_on(self, mut triggers: impl stream::Stream<Item = ObjectId> + Unpin) {
        while let Some(trigger) = triggers.next().await {
            let kinds = Kind::ALL.map(Kind::name).into_iter().zip(&self.queues);
            let peers = MuxPeer::kind(&());
            let mut queues = kinds.chain([(&*peers, &self.peers)]);
            if let Some((_, queue)) = queues.find(|(kind, _)| *kind == trigger.kind) {
                // A queue is closed only after its controller, which ends the process.
                let _closed = queue.send(trigger).await;
            }
        }
    }
}

/// Watches all but the objects. Yields the objects whose children, targets or peers have changed.
/// `known`: the tunnels.
pub(super) fn others(
    client: &Client,
    namespace: Option<&str>,
    (known, feeds): (Cache<MuxTunnel>, Feeds),
    clock: &Arc<WatchClock>,
) -> Vec<Triggers> {
    let behind = known.clone();
    let named_by = move |service: &Service| {
        let naming = naming(&known, &service.name_any(), service);
        owner_of(service).into_iter().chain(naming).collect()
    };
    let reached_by = move |slice: &EndpointSlice| {
        let service = caches::service_of(slice);
        service.map_or_else(Vec::new, |name| naming(&behind, name, slice))
    };
    let (services, slices) = (api(client, namespace), api(client, namespace));
    let (clusters, endpoints) = (feeds.services, feeds.endpoint_slices);
    let (peers, asked_alike) = (api(client, namespace), watches::is_asked_alike);
    vec![
        watches::targets(peers, feeds.peers, clock, asked_alike, concerned_by),
        watches::targets(services, clusters, clock, |_, _| false, named_by),
        watches::targets(slices, endpoints, clock, watches::is_alike, reached_by),
        watches::children(api(client, namespace), feeds.deployments, clock),
        watches::children(api(client, namespace), feeds.replica_sets, clock),
        watches::children(api(client, namespace), feeds.service_accounts, clock),
        watches::children(api(client, namespace), feeds.network_policies, clock),
        watches::children(api(client, namespace), feeds.config_maps, clock),
        watches::children(api(client, namespace), feeds.pods, clock),
        watches::children(api(client, namespace), feeds.pod_disruption_budgets, clock),
        watches::children(api(client, namespace), feeds.autoscalers, clock),
        watches::children(api(client, namespace), feeds.jobs, clock),
    ]
}

/// The peer, and the exit that it names. The name cannot change.
fn concerned_by(peer: &MuxPeer) -> Vec<ObjectId> {
    let namespace = peer.namespace().unwrap_or_default();
    let exit = ObjectRef::<MuxExit>::new(&peer.spec.exit_ref.name).within(&namespace);
    vec![exit.into(), ObjectRef::from_obj(peer).into()]
}

/// The objects that a changed grant concerns.
pub(super) fn granted(grants: &Grants, caches: &Caches) -> Triggers {
    let (tunnels, exits) = (caches.tunnels.clone(), caches.exits.clone());
    let concerned = move |()| {
        let tunnels = tunnels.references_of(&Group::Granted).into_iter();
        let exits = exits.references_of(&Group::Granted).into_iter();
        stream::iter(tunnels.map(ObjectId::from).chain(exits.map(ObjectId::from)))
    };
    grants.changes().flat_map(concerned).boxed()
}

/// The objects that a changed class concerns, or changed labels of a namespace.
pub(super) fn classed(classes: &Classes, caches: &Caches) -> Triggers {
    let caches = caches.clone();
    let concerned = move |change: Change| {
        let mut all = concerned::<MuxTunnel>(&caches, &change);
        all.extend(concerned::<MuxExit>(&caches, &change));
        all.extend(concerned::<MuxRendezvous>(&caches, &change));
        stream::iter(all)
    };
    classes.changes().flat_map(concerned).boxed()
}

pub(super) fn concerned<K: Cached>(caches: &Caches, change: &Change) -> Vec<ObjectId>
where
    Object: From<Arc<K>>,
{
    let objects = K::of(caches).store().state().into_iter().map(Object::from);
    let concerned = objects.filter(|object| {
        let namespace = object.namespace().unwrap_or_default();
        change.concerns(&namespace, object.class_name())
    });
    concerned.map(|object| object.id()).collect()
}

/// The tunnels with a forward to the Service `name` in the namespace of `object`.
pub(super) fn naming<K: Resource>(
    known: &Cache<MuxTunnel>,
    name: &str,
    object: &K,
) -> Vec<ObjectId> {
    let namespace = object.namespace().unwrap_or_default();
    let tunnels = known.references_of(&Group::Service(namespace, name.to_owned()));
    tunnels.into_iter().map(ObjectId::from).collect()
}

/// The Services that an object names, and whether the object depends on grants.
pub(super) fn groups<K: Clone>(object: &K) -> Vec<Group>
where
    Object: From<Arc<K>>,
{
    let object = Object::from(Arc::new(object.clone()));
    let own = object.namespace().unwrap_or_default();
    let named = references::references(&object, &own);
    // If the operator does not apply the spec, the gateways may still have targets of an earlier
    // spec, which this spec does not show.
    let is_applied = !object.is_paused() && object.undecoded().is_none();
    let depends = !is_applied || !named.foreign.is_empty();
    let services = named.services.into_iter();
    services
        .map(|service| Group::Service(service.namespace, service.name))
        .chain(depends.then_some(Group::Granted))
        .collect()
}
