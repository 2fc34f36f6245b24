//! The configurations of running gateways while the spec cannot be applied: targets without
//! permission are removed, and peers and members that were removed, with what they no longer name. Pure.
//!
//! A revoked permission takes effect at once in every state of the object. The object's owner
//! controls this state (a pause, an invalid spec, a Secret of another owner), so an exception for a
//! state would let the owner keep a revoked permission. Input: the existing ConfigMaps. Output: the
//! same ConfigMaps with fewer targets.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt;
use kube::api::ObjectMeta;
use serde_yaml::Value;

use super::config_map::BYTES_MAX;
use super::reduce::{self, Asked};
use crate::grants::NotKnown;
use crate::tunnel_controller::config_file::whole_key;
use crate::tunnel_controller::dereference::{Live, LiveConfig};
use crate::tunnel_controller::object::Kind;
use crate::tunnel_controller::references::{foreign, services_of_document};
use crate::tunnel_controller::validate::{JudgedPeer, ValidatedState};

/// A ConfigMap, unchanged or with fewer targets.
#[derive(Debug)]
pub struct Kept {
    /// The resource version of the original.
    pub version: Option<String>,
    /// The ConfigMap to apply.
    pub config_map: ConfigMap,
}

/// The ConfigMaps of an object without targets that are no longer permitted. The list
/// is empty if no target has to be removed.
///
/// # Errors
/// [`NotKnown`]. An unreadable configuration is not an error, because no gateway can reload it.
pub(super) fn withdrawn(state: &ValidatedState) -> Result<Vec<Kept>, NotKnown> {
    let (live, namespace) = (&state.live, &*state.holder.namespace);
    let peers = peers(state);
    let members = state.members.as_deref();
    let (mut kept, mut is_less) = (Vec::new(), false);
    for config in live.config_maps.values() {
        let less = lessened(live, config, namespace, |document| {
            if let Some(peers) = &peers {
                reduce::withdraw_peers(document, peers);
                reduce::withdraw_of_peers(document, &asked(&state.peers, config));
            }
            if let Some(members) = members {
                reduce::withdraw_members(document, members);
            }
        })?;
        is_less |= less.is_some();
        kept.push(Kept {
            version: config.config_map.resource_version(),
            config_map: less.unwrap_or_else(|| bare(&config.config_map)),
        });
    }
    kept.truncate(if is_less { kept.len() } else { 0 });
    Ok(kept)
}

/// The peers of a MuxExit, as a document lists them.
fn peers(state: &ValidatedState) -> Option<Vec<Value>> {
    let known = state.peers.iter().filter_map(JudgedPeer::of_any_mode);
    let known = known.filter_map(|peer| serde_yaml::to_value(peer).ok());
    (state.holder.kind == Kind::Exit).then(|| known.collect())
}

/// What the peers name, by name.
fn asked<'a>(peers: &'a [JudgedPeer], live: &LiveConfig) -> BTreeMap<&'a str, Asked> {
    let served = peers.iter().filter_map(|peer| {
        let name = peer.of_any_mode()?.name.as_deref()?;
        let ports = peer.reverse_ports.iter();
        let ports = ports.filter_map(|port| live.reverse_ports.get(port).copied());
        let asked = Asked {
            ports: ports.collect(),
            networks: peer.networks.clone(),
        };
        Some((name, asked))
    });
    served.collect()
}

/// The ConfigMap without unpermitted targets, and after `withdraw`. `None` if nothing is removed.
fn lessened(
    live: &Live,
    own: &LiveConfig,
    namespace: &str,
    withdraw: impl Fn(&mut Value),
) -> Result<Option<ConfigMap>, NotKnown> {
    let mut less = BTreeMap::new();
    for (key, document) in &own.documents {
        let mut rest = document.clone();
        if !services_of_document(document, namespace).is_empty() {
            let refused = live.withdrawn.as_ref().ok_or(NotKnown::Unlisted)?;
            reduce::withdraw(&mut rest, |host| {
                !foreign(host, namespace).is_disjoint(refused)
            });
        }
        withdraw(&mut rest);
        if rest != *document {
            less.extend(serde_yaml::to_string(&rest).map(|text| (key.clone(), text)));
        }
    }
    if less.is_empty() {
        return Ok(None);
    }
    let mut config_map = bare(&own.config_map);
    let data = config_map.data.get_or_insert_default();
    for (key, text) in less {
        let bytes: usize = data.values().map(String::len).sum();
        let whole = data.insert(key.clone(), text).unwrap_or_default();
        // What is permitted again returns to the pods.
        if bytes + whole.len() <= BYTES_MAX {
            data.entry(whole_key(&key)).or_insert(whole);
        }
    }
    Ok(Some(config_map))
}

/// The fields that the operator owns.
pub(in crate::tunnel_controller) fn bare(live: &ConfigMap) -> ConfigMap {
    let meta = &live.metadata;
    ConfigMap {
        metadata: ObjectMeta {
            name: meta.name.clone(),
            namespace: meta.namespace.clone(),
            labels: meta.labels.clone(),
            owner_references: meta.owner_references.clone(),
            ..ObjectMeta::default()
        },
        data: live.data.clone(),
        ..ConfigMap::default()
    }
}
