//! Makes kubelets refresh the volumes of gateways whose configuration has changed.
//!
//! A kubelet refreshes the volumes of a pod once a minute, and at once if the pod's object changes.
//! The API server accepts changes of annotations through `pods/status`, and ignores the spec there.
//! The kubelet may read the ConfigMap from a cache that lags behind, so the operator repeats the
//! patch, with growing pauses, until the gateway reports the new configuration.

use std::collections::BTreeMap;
use std::sync::Once;
use std::time::Duration;

use futures::{StreamExt, stream};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client, ResourceExt};
use muxtunnel_gateway_config::status::Status;
use serde_json::json;
use tracing::{debug, warn};

use crate::labels::REFRESH;
use crate::tunnel_controller::build::config_map::expected_hash;
use crate::tunnel_controller::config_file::mounted_key;
use crate::tunnel_controller::dereference::Live;
use crate::tunnel_controller::holder::Holder;
use crate::tunnel_controller::observe::{Observed, PODS_MAX};
use crate::tunnel_controller::pods::end_of;

/// Maximum number of concurrent patches of an object's pods.
const CONCURRENCY: usize = 8;
/// Time limit of all patches of a reconciliation.
const TIME_MAX: Duration = Duration::from_secs(2);
/// Maximum number of repeated patches of a pod for one configuration. The pauses double from 1 s to
/// 128 s. Afterwards, the kubelet has read the ConfigMap in any case.
const REPEATS_MAX: u32 = 8;

/// Patches the annotation of each pod that does not run the configuration in its ConfigMap. With a
/// hindrance, gateways are not `observed`. `now`: seconds since 1970.
pub(super) async fn refresh(
    client: &Client,
    (holder, live): (&Holder, &Live),
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
        let running = seen.iter().flat_map(|seen| &seen.pods);
        let running = running.filter(|pod| pod.answer.is_some());
        reported.extend(running.map(|pod| (&*pod.name, pod.status())));
    }
    let running = live.pods.iter().flatten().filter(|pod| is_running(pod));
    let behind = running.take(PODS_MAX).filter_map(|pod| {
        let config_map = config_maps.get(&holder.child(end_of(pod)?))?;
        let key = mounted_key(pod.spec.as_ref()?, &config_map.name_any())?;
        let hash = expected_hash(config_map, key)?;
        let status = match observed {
            // A gateway that does not run reads its configuration when it starts.
            Some(_) => *reported.get(&*pod.name_any())?,
            None => None,
        };
        let mark = mark(pod, &hash, status, now)?;
        Some(patch(client, pod, mark))
    });
    let patches: Vec<_> = behind.collect();
    let all = stream::iter(patches).for_each_concurrent(CONCURRENCY, |patch| patch);
    // The next reconciliation patches the other pods.
    let _ = tokio::time::timeout(TIME_MAX, all).await;
}

fn is_running(pod: &Pod) -> bool {
    let phase = pod
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref());
    phase == Some("Running") && pod.metadata.deletion_timestamp.is_none()
}

/// The annotation `HASH-TIME-REPEATS` for a pod whose gateway should have the configuration `hash`.
/// `None` if the pod needs no patch now. `status`: the gateway's status, if it is known.
fn mark(pod: &Pod, hash: &str, status: Option<&Status>, now: i64) -> Option<String> {
    if status.is_some_and(|status| status.config_hash == hash) {
        return None;
    }
    let old = pod.annotations().get(REFRESH).and_then(|old| parsed(old));
    let old = old.filter(|(known, ..)| *known == hash);
    let Some((_, at, repeats)) = old else {
        return Some(format!("{hash}-{now}-0"));
    };
    // A gateway that refuses the configuration, and one whose state is not known, need one patch.
    let is_repeated = status.is_some_and(|status| status.config_error.is_none());
    let is_due = repeats < REPEATS_MAX && now >= at.saturating_add(1 << repeats);
    (is_repeated && is_due).then(|| format!("{hash}-{now}-{}", repeats + 1))
}

fn parsed(mark: &str) -> Option<(&str, i64, u32)> {
    let (rest, repeats) = mark.rsplit_once('-')?;
    let (hash, at) = rest.rsplit_once('-')?;
    Some((hash, at.parse().ok()?, repeats.parse().ok()?))
}

async fn patch(client: &Client, pod: &Pod, mark: String) {
    let (name, namespace) = (pod.name_any(), pod.namespace().unwrap_or_default());
    let pods: Api<Pod> = Api::namespaced(client.clone(), &namespace);
    let body = json!({"metadata": {"uid": pod.uid(), "annotations": {REFRESH: mark}}});
    let (params, patch) = (PatchParams::default(), Patch::Merge(body));
    match pods.patch_status(&name, &params, &patch).await {
        Ok(_) => {}
        Err(kube::Error::Api(status)) if status.code == 403 => {
            static WARNED: Once = Once::new();
            WARNED.call_once(|| {
                warn!(
                    "no permission to patch pods/status, so a changed configuration takes up to 90 s: {}",
                    status.message
                );
            });
        }
        // The kubelet refreshes the volumes later in any case.
        Err(error) => debug!(pod = name, "Cannot refresh the volumes: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(mark: Option<&str>) -> Pod {
        let annotations = mark.map(|mark| json!({REFRESH: mark}));
        let pod = json!({"metadata": {"name": "p", "annotations": annotations}});
        serde_json::from_value(pod).unwrap()
    }

    fn status(hash: &str, error: Option<&str>) -> Status {
        let status = json!({
            "version": "1", "role": "Entry", "protocol": "Native", "configHash": hash,
            "configError": error, "ready": true, "draining": false, "sysctls": {}, "files": [],
            "carriers": [],
            "streams": {"open": 0, "opened": 0, "bytesSent": 0, "bytesReceived": 0, "closed": {}, "refused": {}},
            "process": {"cpuSeconds": 0.0, "maxRssBytes": 0, "uptimeSeconds": 1.0},
        });
        serde_json::from_value(status).unwrap()
    }

    #[test]
    fn a_pod_is_patched_until_its_gateway_reports_the_configuration() {
        let cases = [
            (None, Some(("old", None)), Some("new-100-0")),
            (Some("old-99-3"), Some(("old", None)), Some("new-100-0")),
            (Some("new-99-0"), Some(("old", None)), Some("new-100-1")),
            // The pauses double, and the repeats end.
            (Some("new-100-0"), Some(("old", None)), None),
            (Some("new-97-2"), Some(("old", None)), None),
            (Some("new-96-2"), Some(("old", None)), Some("new-100-3")),
            (Some("new-1-8"), Some(("old", None)), None),
            // The gateway has the configuration, or has refused it.
            (Some("old-9-0"), Some(("new", None)), None),
            (None, Some(("new", None)), None),
            (None, Some(("old", Some("MT0231"))), Some("new-100-0")),
            (Some("new-9-0"), Some(("old", Some("MT0231"))), None),
            // The gateway is not asked.
            (None, None, Some("new-100-0")),
            (Some("old-9-0"), None, Some("new-100-0")),
            (Some("new-9-0"), None, None),
            (Some("a word"), None, Some("new-100-0")),
        ];
        for (old, reported, expected) in cases {
            let known = reported.map(|(hash, error)| status(hash, error));
            let mark = mark(&pod(old), "new", known.as_ref(), 100);
            assert_eq!(mark.as_deref(), expected, "{old:?} {reported:?}");
        }
    }

    #[test]
    fn only_pods_that_run_are_patched() {
        let mut pod = pod(None);
        assert!(!is_running(&pod));
        pod.status = serde_json::from_value(json!({"phase": "Running"})).unwrap();
        assert!(is_running(&pod));
        pod.metadata.deletion_timestamp =
            serde_json::from_value(json!("2030-01-01T00:00:00Z")).unwrap();
        assert!(!is_running(&pod));
    }
}
