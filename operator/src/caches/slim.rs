//! Removes the fields of watched objects that the operator does not read.

use std::any::Any;

use k8s_openapi::api::apps::v1::ReplicaSet;
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointSlice};
use kube::Resource;
use kube::ResourceExt;
use kube::core::ObjectMeta;
use muxtunnel_crds::MuxTunnel;

use super::groups::SERVICE_NAME;
use crate::labels;
use crate::undecoded;
use crate::watches::Watched;

/// Removes fields that the operator does not read. Managed fields alone make up half of many
/// objects.
pub(super) fn slim<K: Watched>(object: &mut K) {
    let is_child = labels::is_child(object.labels());
    let meta: &mut ObjectMeta = object.meta_mut();
    meta.managed_fields = None;
    if undecoded::reason(object).is_some() {
        return;
    }
    if let Some(slice) = (object as &mut dyn Any).downcast_mut::<EndpointSlice>() {
        return slim_slice(slice);
    }
    let meta: &mut ObjectMeta = object.meta_mut();
    // The operator reads only names, ports and owners of objects that it does not manage.
    if !is_child && K::group(&()) != MuxTunnel::group(&()) {
        meta.annotations = None;
        meta.labels = None;
    }
    // The operator reads only the owner of a ReplicaSet without pods.
    if let Some(set) = (object as &mut dyn Any).downcast_mut::<ReplicaSet>()
        && let Some(spec) = &mut set.spec
        && spec.replicas == Some(0)
    {
        spec.template = None;
    }
}

/// Keeps at most one ready endpoint, because the operator only needs to know whether an endpoint is
/// ready.
fn slim_slice(slice: &mut EndpointSlice) {
    let meta = &mut slice.metadata;
    meta.annotations = None;
    meta.owner_references = None;
    if let Some(labels) = &mut meta.labels {
        labels.retain(|key, _| key == SERVICE_NAME);
    }
    slice.endpoints.retain(|endpoint| {
        let conditions = endpoint.conditions.as_ref();
        conditions
            .and_then(|conditions| conditions.ready)
            .unwrap_or(true)
    });
    slice.endpoints.truncate(1);
    for endpoint in &mut slice.endpoints {
        *endpoint = Endpoint::default();
    }
}
