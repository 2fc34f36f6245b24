//! The existing objects of an object's gateways, from the caches.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use serde_yaml::Value;

use crate::apply::is_owned;
use crate::caches::{Cache, Cached, NotKnown};
use crate::grants::{self, Grants};
use crate::tunnel_controller::access::Access;
use crate::tunnel_controller::config_file::{REVERSE_PORTS, is_key};
use crate::tunnel_controller::document::parsed;
use crate::tunnel_controller::end::End;
use crate::tunnel_controller::holder::Holder;
use crate::tunnel_controller::pods::own_pods;
use crate::tunnel_controller::references::{ServiceName, services_of_document};

/// The existing children of an object that the build depends on.
#[derive(Debug, Default)]
pub struct Live {
    /// The object's own Deployments.
    pub deployments: BTreeMap<End, Arc<Deployment>>,
    /// The object's own ConfigMaps.
    pub config_maps: BTreeMap<End, LiveConfig>,
    /// The ReplicaSets of these Deployments. `None` if they are not known.
    pub replica_sets: Option<Vec<Arc<ReplicaSet>>>,
    /// The pods of the object's gateways. `None` if the pods are not known.
    pub pods: Option<Vec<Arc<Pod>>>,
    /// The Services that the ConfigMaps name, and whose namespaces do not permit the object
    /// to use them. `None` if the grants are not known yet. If a grant cannot be decoded, it
    /// withdraws no Service, and no other grant's revocation waits for it.
    pub withdrawn: Option<BTreeSet<ServiceName>>,
}

/// The ConfigMap of an end's gateways.
#[derive(Debug)]
pub struct LiveConfig {
    /// The object.
    pub config_map: Arc<ConfigMap>,
    /// The configurations of the gateways that mount the ConfigMap, by key. A text that is not YAML
    /// is missing, because no gateway can read it.
    pub documents: BTreeMap<String, Value>,
    /// The ports of an exit that MuxPeers name, by name.
    pub reverse_ports: BTreeMap<String, u16>,
}

pub(super) fn live(access: &Access, holder: &Holder) -> Result<Live, NotKnown> {
    let caches = &access.caches;
    let config_maps: BTreeMap<_, _> = own(&caches.config_maps, holder)?
        .into_iter()
        .map(|(end, config_map)| {
            let ports = config_map.data.as_ref();
            let ports = ports.and_then(|data| serde_yaml::from_str(data.get(REVERSE_PORTS)?).ok());
            let own = LiveConfig {
                documents: documents(&config_map),
                reverse_ports: ports.unwrap_or_default(),
                config_map,
            };
            (end, own)
        })
        .collect();
    Ok(Live {
        deployments: own(&caches.deployments, holder)?,
        withdrawn: withdrawn(&config_maps, &access.grants, holder).ok(),
        config_maps,
        replica_sets: None,
        // Children that do not depend on the pods are applied even if the pods are not known.
        pods: own_pods(caches, holder).ok(),
    })
}

pub(super) fn replica_sets(
    access: &Access,
    holder: &Holder,
) -> Result<Vec<Arc<ReplicaSet>>, NotKnown> {
    let components = End::ALL.map(End::component);
    let sets = &access.caches.replica_sets;
    sets.children(&holder.namespace, holder.labelled(), &components)
}

/// The children of one kind, by end.
pub fn own<K: Cached>(
    known: &Cache<K>,
    holder: &Holder,
) -> Result<BTreeMap<End, Arc<K>>, NotKnown> {
    let mut found = BTreeMap::new();
    for end in holder.kind.ends() {
        let live = known.get(&holder.namespace, &holder.child(*end))?;
        let ours = live.filter(|live| is_owned(live.as_ref(), &holder.owner));
        found.extend(ours.map(|live| (*end, live)));
    }
    Ok(found)
}

fn documents(config_map: &ConfigMap) -> BTreeMap<String, Value> {
    let texts = config_map.data.iter().flatten();
    let texts = texts.filter(|(key, _)| is_key(key));
    texts
        .filter_map(|(key, text)| Some((key.clone(), parsed(text)?)))
        .collect()
}

fn withdrawn(
    config_maps: &BTreeMap<End, LiveConfig>,
    grants: &Grants,
    holder: &Holder,
) -> Result<BTreeSet<ServiceName>, grants::NotKnown> {
    let documents = config_maps
        .values()
        .flat_map(|live| live.documents.values());
    let owner = (holder.kind.name(), &*holder.namespace);
    let named = |document| services_of_document(document, &holder.namespace);
    let named: BTreeSet<_> = documents.flat_map(named).collect();
    let mut withdrawn = BTreeSet::new();
    for service in named {
        match grants.permit(owner, &service) {
            Ok(false) => drop(withdrawn.insert(service)),
            Ok(true) | Err(grants::NotKnown::Undecoded) => {}
            Err(error @ grants::NotKnown::Unlisted) => return Err(error),
        }
    }
    Ok(withdrawn)
}
