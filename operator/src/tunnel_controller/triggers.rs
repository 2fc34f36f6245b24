//! The triggers of tunnels' reconciliations: changes of tunnels, of their children and targets, and
//! of grants.

use std::sync::Arc;

use futures::stream::{self, BoxStream, StreamExt};
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Service, ServiceAccount};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::runtime::reflector::ObjectRef;
use kube::{Client, Resource, ResourceExt};
use muxtunnel_crds::{MuxBenchmark, MuxPeer, MuxTunnel};

use super::{dereference, references};
use crate::caches::{self, Cache, Feed, Group};
use crate::controller::api;
use crate::grants::Grants;
use crate::watch_clock::WatchClock;
use crate::watches;

/// Tunnels to reconcile.
type Triggers = BoxStream<'static, ObjectRef<MuxTunnel>>;

/// The feeds of the caches.
pub struct Feeds {
    /// The MuxTunnel objects.
    pub tunnels: Feed<MuxTunnel>,
    /// The peers of exits.
    pub peers: Feed<MuxPeer>,
    /// Children.
    pub deployments: Feed<Deployment>,
    /// Objects that belong to children.
    pub replica_sets: Feed<ReplicaSet>,
    /// Children and targets.
    pub services: Feed<Service>,
    /// Endpoints of targets.
    pub endpoint_slices: Feed<EndpointSlice>,
    /// Children.
    pub config_maps: Feed<ConfigMap>,
    /// Children.
    pub service_accounts: Feed<ServiceAccount>,
    /// Objects that belong to children.
    pub pods: Feed<Pod>,
    /// Children of tunnels and of benchmarks.
    pub jobs: Feed<Job>,
    /// Children.
    pub network_policies: Feed<NetworkPolicy>,
    /// Children.
    pub pod_disruption_budgets: Feed<PodDisruptionBudget>,
    /// Children.
    pub autoscalers: Feed<HorizontalPodAutoscaler>,
}

impl Feeds {
    /// Splits the feeds into the feeds of tunnels and the feed of benchmarks.
    #[must_use]
    pub fn split(all: caches::Feeds) -> (Self, Feed<MuxBenchmark>) {
        let of_tunnels = Self {
            tunnels: all.tunnels,
            peers: all.peers,
            deployments: all.deployments,
            replica_sets: all.replica_sets,
            services: all.services,
            endpoint_slices: all.endpoint_slices,
            config_maps: all.config_maps,
            service_accounts: all.service_accounts,
            pods: all.pods,
            jobs: all.jobs,
            network_policies: all.network_policies,
            pod_disruption_budgets: all.pod_disruption_budgets,
            autoscalers: all.autoscalers,
        };
        (of_tunnels, all.benchmarks)
    }
}

/// Tunnels whose object, children or targets have changed.
pub(super) fn all(
    client: &Client,
    namespace: Option<&str>,
    feeds: Feeds,
    clock: &Arc<WatchClock>,
) -> Vec<Triggers> {
    let tunnels = feeds.tunnels.grouped(groups);
    let known = tunnels.cache();
    let behind = known.clone();
    let named_by = move |service: &Service| tunnels_naming(&known, &service.name_any(), service);
    let reached_by = move |slice: &EndpointSlice| {
        let service = caches::service_of(slice);
        service.map_or_else(Vec::new, |name| tunnels_naming(&behind, name, slice))
    };
    let (slices, peers) = (api(client, namespace), api(client, namespace));
    vec![
        watches::objects(api(client, namespace), tunnels, clock),
        watches::targets(peers, feeds.peers, clock, watches::is_asked_alike, exit_of),
        watches::named(api(client, namespace), feeds.services, clock, named_by),
        watches::targets(
            slices,
            feeds.endpoint_slices,
            clock,
            watches::is_alike,
            reached_by,
        ),
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

/// The exit that a peer names. The name cannot change.
fn exit_of(peer: &MuxPeer) -> Vec<ObjectRef<MuxTunnel>> {
    let namespace = peer.namespace().unwrap_or_default();
    let exit = ObjectRef::new(&peer.spec.exit_ref.name).within(&namespace);
    vec![exit]
}

/// The tunnels that a changed grant concerns.
pub(super) fn granted(grants: &Grants, known: Cache<MuxTunnel>) -> Triggers {
    let concerned = move |()| stream::iter(known.references_of(&Group::Granted));
    grants.changes().flat_map(concerned).boxed()
}

/// The tunnels with a forward to the Service `name` in the namespace of `object`.
pub(super) fn tunnels_naming<K: Resource>(
    known: &Cache<MuxTunnel>,
    name: &str,
    object: &K,
) -> Vec<ObjectRef<MuxTunnel>> {
    let namespace = object.namespace().unwrap_or_default();
    known.references_of(&Group::Service(namespace, name.to_owned()))
}

/// The Services that a tunnel names, and whether the tunnel depends on grants.
pub(super) fn groups(tunnel: &MuxTunnel) -> Vec<Group> {
    let own = tunnel.namespace().unwrap_or_default();
    let named = references::references(&tunnel.spec, &own);
    // If the operator does not apply the spec, the gateways may still have targets of an earlier
    // spec, which this spec does not show.
    let depends = dereference::spec(tunnel).is_err() || !named.foreign.is_empty();
    let services = named.services.into_iter();
    services
        .map(|service| Group::Service(service.namespace, service.name))
        .chain(depends.then_some(Group::Granted))
        .collect()
}
