//! What there is of a tunnel's gateways, as the watches brought it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use muxtunnel_gateway_config::Config;

use crate::apply::is_owned;
use crate::caches::{Cache, Cached, NotKnown};
use crate::grants::{self, Grants};
use crate::tunnel_controller::access::Access;
use crate::tunnel_controller::config_file::config_in;
use crate::tunnel_controller::end::End;
use crate::tunnel_controller::holder::Holder;
use crate::tunnel_controller::pods::own_pods;
use crate::tunnel_controller::references::{ServiceName, services_of_config};

/// The children of a tunnel that others follow from.
#[derive(Debug, Default)]
pub struct Live {
    /// Those of this very tunnel.
    pub deployments: BTreeMap<End, Arc<Deployment>>,
    /// Those of this very tunnel.
    pub config_maps: BTreeMap<End, LiveConfig>,
    /// Of its Deployments; only where an end goes back to one.
    pub replica_sets: Vec<Arc<ReplicaSet>>,
    /// Those of its gateways; `None`: not known.
    pub pods: Option<Vec<Arc<Pod>>>,
    /// The Services that its ConfigMaps name and that do not permit it; `None`: that has not been heard yet.
    pub withdrawn: Option<BTreeSet<ServiceName>>,
}

/// A ConfigMap of gateways.
#[derive(Debug)]
pub struct LiveConfig {
    /// As it is.
    pub config_map: Arc<ConfigMap>,
    /// What is in it; `None`: no gateway takes that over.
    pub config: Option<Config>,
}

pub(super) fn live(access: &Access, holder: &Holder) -> Result<Live, NotKnown> {
    let caches = &access.cluster.caches;
    let config_maps: BTreeMap<_, _> = own(&caches.config_maps, holder)?
        .into_iter()
        .map(|(end, config_map)| {
            let config = config_in(&config_map);
            (end, LiveConfig { config_map, config })
        })
        .collect();
    let (namespace, name) = (&*holder.namespace, &*holder.name);
    Ok(Live {
        deployments: own(&caches.deployments, holder)?,
        withdrawn: withdrawn(&config_maps, &access.grants, namespace).ok(),
        config_maps,
        replica_sets: Vec::new(),
        // Whatever pods there are, children that do not depend on them are applied.
        pods: own_pods(&access.cluster, (namespace, name), &holder.owner).ok(),
    })
}

pub(super) fn replica_sets(
    access: &Access,
    holder: &Holder,
) -> Result<Vec<Arc<ReplicaSet>>, NotKnown> {
    let components = End::ALL.map(End::component);
    let sets = &access.cluster.caches.replica_sets;
    sets.children(&holder.namespace, &holder.name, &components)
}

/// The children of one kind, one an end.
fn own<K: Cached>(known: &Cache<K>, holder: &Holder) -> Result<BTreeMap<End, Arc<K>>, NotKnown> {
    let mut found = BTreeMap::new();
    for end in End::ALL {
        let live = known.get(&holder.namespace, &end.child_of(&holder.name))?;
        let ours = live.filter(|live| is_owned(live.as_ref(), &holder.owner));
        found.extend(ours.map(|live| (end, live)));
    }
    Ok(found)
}

fn withdrawn(
    config_maps: &BTreeMap<End, LiveConfig>,
    grants: &Grants,
    namespace: &str,
) -> Result<BTreeSet<ServiceName>, grants::NotKnown> {
    let configs = config_maps.values().filter_map(|live| live.config.as_ref());
    let mut withdrawn = BTreeSet::new();
    for service in configs.flat_map(|config| services_of_config(config, namespace)) {
        if !grants.permit(namespace, &service)? {
            withdrawn.insert(service);
        }
    }
    Ok(withdrawn)
}
