//! Which objects of a cache belong together, so that no reconciliation and no change searches all
//! objects of a kind. Bounds: one entry per group and object of the cache.

use std::any::Any;
use std::collections::BTreeSet;

use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::{Resource, ResourceExt};
use muxtunnel_crds::MuxPeer;

use super::Key;
use crate::labels;

/// Label of an EndpointSlice with the name of its Service.
pub(super) const SERVICE_NAME: &str = "kubernetes.io/service-name";

/// What the objects of a group have in common.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Group {
    /// Children of the owner with this namespace, kind and name.
    Children(String, String, String),
    /// Objects that name the Service with this namespace and name, or belong to it.
    Service(String, String),
    /// Peers that name the exit with this namespace and name.
    Exit(String, String),
    /// Objects that depend on grants.
    Granted,
}

impl Group {
    pub(super) fn children(namespace: &str, (kind, name): (&str, &str)) -> Self {
        Self::Children(namespace.to_owned(), kind.to_owned(), name.to_owned())
    }
}

/// The groups and their objects. One table for all groups needs less memory than a set per group.
pub(super) type Groups = BTreeSet<(Group, Key)>;

/// The objects of a group.
pub(super) fn of<'a>(groups: &'a Groups, group: &'a Group) -> impl Iterator<Item = &'a Key> {
    let first = (group.clone(), Key::default());
    let own = groups.range(first..).take_while(move |(of, _)| of == group);
    own.map(|(_, key)| key)
}

/// The groups of a child, of an EndpointSlice, and of a MuxPeer.
pub(super) fn groups<K: Resource + Any>(object: &K) -> Vec<Group> {
    let Some(namespace) = object.namespace() else {
        return Vec::new();
    };
    if let Some(slice) = (object as &dyn Any).downcast_ref::<EndpointSlice>() {
        let service = service_of(slice).map(str::to_owned);
        return Vec::from_iter(service.map(|name| Group::Service(namespace, name)));
    }
    if let Some(peer) = (object as &dyn Any).downcast_ref::<MuxPeer>() {
        return vec![Group::Exit(namespace, peer.spec.exit_ref.name.clone())];
    }
    let owner = labels::owner(object.labels());
    Vec::from_iter(owner.map(|owner| Group::children(&namespace, owner)))
}

/// The name of the Service that a slice belongs to.
pub(crate) fn service_of(slice: &EndpointSlice) -> Option<&str> {
    slice.labels().get(SERVICE_NAME).map(String::as_str)
}

pub(super) fn insert(groups: &mut Groups, of: Vec<Group>, key: &Key) {
    groups.extend(of.into_iter().map(|group| (group, key.clone())));
}

pub(super) fn remove(groups: &mut Groups, of: Vec<Group>, key: &Key) {
    for group in of {
        groups.remove(&(group, key.clone()));
    }
}
