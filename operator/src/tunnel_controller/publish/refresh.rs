//! Makes kubelets refresh the volumes of gateways whose configuration has changed.
//!
//! A kubelet refreshes the volumes of a pod once a minute, and at once if the pod's object changes.
//! The API server accepts changes of annotations through `pods/status`, and ignores the spec there.
//! The kubelet may read the ConfigMap from a cache that lags behind, so the operator repeats the
//! patch until the gateway reports the new configuration.

use std::collections::BTreeMap;

use futures::{StreamExt, stream};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client, ResourceExt};
use serde_json::json;
use tracing::debug;

use crate::labels::REFRESH;
use crate::tunnel_controller::build::config_map::expected_hash;
use crate::tunnel_controller::config_file::mounted_key;
use crate::tunnel_controller::dereference::Live;
use crate::tunnel_controller::observe::Observed;
use crate::tunnel_controller::pods::end_of;

/// Maximum number of concurrent patches of a tunnel's pods.
const CONCURRENCY: usize = 8;

/// Patches the annotation of each pod that does not run the configuration in its ConfigMap. With a
/// hindrance, gateways are not `observed`. `now`: seconds since 1970.
pub(super) async fn refresh(
    client: &Client,
    (name, live): (&str, &Live),
    observed: Option<&Observed>,
    now: i64,
) {
    let (mut config_maps, mut reported) = (BTreeMap::new(), BTreeMap::new());
    for known in live.config_maps.values() {
        config_maps.insert(known.config_map.name_any(), &*known.config_map);
    }
    if let Some((_, applied, seen)) = observed {
        let applied = applied.config_maps.iter();
        config_maps.extend(applied.map(|config_map| (config_map.name_any(), config_map)));
        for pod in seen.iter().flat_map(|seen| &seen.pods) {
            let status = pod.answer.as_ref().map(Result::as_ref);
            reported.extend(status.map(|status| (&*pod.name, status.ok())));
        }
    }
    let behind = live.pods.iter().flatten().filter_map(|pod| {
        let config_map = config_maps.get(&end_of(pod)?.child_of(name))?;
        let key = mounted_key(pod.spec.as_ref()?, &config_map.name_any())?;
        let hash = expected_hash(config_map, key)?;
        let status = match observed {
            // A gateway that does not run reads its configuration when it starts.
            Some(_) => *reported.get(&*pod.name_any())?,
            None => None,
        };
        let reported = status.map(|status| &*status.config_hash);
        let mark = mark(pod, &hash, reported, now)?;
        Some(patch(client, pod, mark))
    });
    let patches: Vec<_> = behind.collect();
    stream::iter(patches)
        .for_each_concurrent(CONCURRENCY, |patch| patch)
        .await;
}

/// The annotation for a pod whose gateway should have the configuration `hash`. `None` if the pod
/// needs no refresh, or if it was patched in this second.
fn mark(pod: &Pod, hash: &str, reported: Option<&str>, now: i64) -> Option<String> {
    let old = pod.annotations().get(REFRESH);
    let is_behind = match reported {
        Some(reported) => reported != hash,
        // The state of the gateway is not known. One patch for each configuration is enough.
        None => old
            .and_then(|old| old.split_once('-'))
            .is_none_or(|(old, _)| old != hash),
    };
    let mark = format!("{hash}-{now}");
    (is_behind && pod.metadata.deletion_timestamp.is_none() && old != Some(&mark)).then_some(mark)
}

async fn patch(client: &Client, pod: &Pod, mark: String) {
    let (name, namespace) = (pod.name_any(), pod.namespace().unwrap_or_default());
    let pods: Api<Pod> = Api::namespaced(client.clone(), &namespace);
    let body = json!({"metadata": {"uid": pod.uid(), "annotations": {REFRESH: mark}}});
    let patched = pods
        .patch_status(&name, &PatchParams::default(), &Patch::Merge(body))
        .await;
    // The kubelet refreshes the volumes later in any case.
    if let Err(error) = patched {
        debug!(pod = name, "Cannot refresh the volumes: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(mark: Option<&str>) -> Pod {
        let annotations = mark.map(|mark| json!({REFRESH: mark}));
        serde_json::from_value(json!({"metadata": {"name": "p", "annotations": annotations}}))
            .unwrap()
    }

    #[test]
    fn a_pod_is_patched_until_its_gateway_reports_the_configuration() {
        let cases = [
            (None, Some("old"), Some("new-7")),
            (Some("new-6"), Some("old"), Some("new-7")),
            (Some("new-7"), Some("old"), None),
            (Some("old-6"), Some("new"), None),
            (None, Some("new"), None),
            (None, None, Some("new-7")),
            (Some("old-6"), None, Some("new-7")),
            (Some("new-6"), None, None),
        ];
        for (old, reported, expected) in cases {
            let mark = mark(&pod(old), "new", reported, 7);
            assert_eq!(mark.as_deref(), expected, "{old:?} {reported:?}");
        }
    }

    #[test]
    fn a_pod_that_is_being_deleted_is_not_patched() {
        let mut pod = pod(None);
        pod.metadata.deletion_timestamp =
            serde_json::from_value(json!("2030-01-01T00:00:00Z")).unwrap();
        assert_eq!(mark(&pod, "new", Some("old"), 7), None);
    }
}
