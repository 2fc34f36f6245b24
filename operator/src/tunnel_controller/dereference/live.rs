//! The existing objects of a tunnel's gateways, from the caches.

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

/// The existing children of a tunnel that the build depends on.
#[derive(Debug, Default)]
pub struct Live {
    /// The tunnel's own Deployments.
    pub deployments: BTreeMap<End, Arc<Deployment>>,
    /// The tunnel's own ConfigMaps.
    pub config_maps: BTreeMap<End, LiveConfig>,
    /// The ReplicaSets of the tunnel's Deployments. Empty unless an end returns to the template of
    /// such a ReplicaSet.
    pub replica_sets: Vec<Arc<ReplicaSet>>,
    /// The pods of the tunnel's gateways. `None` if the pods are not known.
    pub pods: Option<Vec<Arc<Pod>>>,
    /// The Services that the tunnel's ConfigMaps name, and whose namespaces do not permit the
    /// tunnel to use them. `None` if the grants are not known yet. If a grant cannot be decoded, it
    /// withdraws no Service, and no other grant's revocation waits for it.
    pub withdrawn: Option<BTreeSet<ServiceName>>,
}

/// The ConfigMap of an end's gateways.
#[derive(Debug)]
pub struct LiveConfig {
    /// The object.
    pub config_map: Arc<ConfigMap>,
    /// The parsed configuration. `None` if gateways reject the configuration.
    pub config: Option<Config>,
}

pub(super) fn live(access: &Access, holder: &Holder) -> Result<Live, NotKnown> {
    let caches = &access.caches;
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
        // Children that do not depend on the pods are applied even if the pods are not known.
        pods: own_pods(caches, (namespace, name), &holder.owner).ok(),
    })
}

pub(super) fn replica_sets(
    access: &Access,
    holder: &Holder,
) -> Result<Vec<Arc<ReplicaSet>>, NotKnown> {
    let components = End::ALL.map(End::component);
    let sets = &access.caches.replica_sets;
    sets.children(&holder.namespace, &holder.name, &components)
}

/// The children of one kind, by end.
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
        match grants.permit(namespace, &service) {
            Ok(false) => drop(withdrawn.insert(service)),
            Ok(true) | Err(grants::NotKnown::Undecoded) => {}
            Err(error @ grants::NotKnown::Unlisted) => return Err(error),
        }
    }
    Ok(withdrawn)
}
