//! The volume of a CSI driver that a node cannot mount.

use serde_json::json;

use super::bench::{Bench, MADE};
use super::*;
use crate::testing::tunnel::date;

const NOTE: &str = "MountVolume.SetUp failed for volume \"keys\" : driver name spiffe.csi.cert-manager.io not found in \
                    the list of registered CSI drivers";

/// A pod of the exit that waits for its volumes, or for its containers.
fn put_pod(bench: &Bench, has_sandbox: bool) {
    let deployment = bench.api.get("deployments/office-tunnel-exit").unwrap();
    let mut conditions = vec![json!({"type": "PodScheduled", "status": "True"})];
    if has_sandbox {
        conditions.push(json!({"type": "PodReadyToStartContainers", "status": "True"}));
    }
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": "stuck", "uid": "uid-stuck", "creationTimestamp": date(MADE),
            "labels": labels_of("exit"),
        },
        "spec": deployment["spec"]["template"]["spec"],
        "status": {"phase": "Pending", "conditions": conditions},
    });
    bench
        .api
        .put_pod_of("office-tunnel-exit", "pods/stuck", pod);
}

/// The Event of the kubelet about the pod.
fn put_event(bench: &Bench) {
    let event = json!({
        "apiVersion": "events.k8s.io/v1", "kind": "Event",
        "metadata": {"name": "stuck.1"}, "eventTime": null,
        "reason": "FailedMount", "note": NOTE,
        "regarding": {"kind": "Pod", "name": "stuck", "uid": "uid-stuck"},
    });
    bench.api.put("events/stuck.1", event);
}

/// Without sysctls, pods have no other reason for a read of Events.
const UNTUNED: &str = "tuning: {profile: None}\n";

fn reads_of_events(bench: &Bench) -> usize {
    let requests = bench.api.take_requests().into_iter();
    let reads = requests.filter(|request| request.method == "GET" && request.path == "events");
    reads.count()
}

#[tokio::test]
async fn a_volume_that_is_not_mounted_is_reported_with_the_words_of_the_kubelet() {
    let bench = Bench::new(&format!("{}{UNTUNED}", with_driver()));
    bench.reconcile().await.unwrap();
    put_pod(&bench, false);
    put_event(&bench);
    bench.api.take_requests();
    bench.reconcile().await.unwrap();
    assert_eq!(reads_of_events(&bench), 1);
    let ready = bench.condition("Ready");
    assert_eq!(ready["reason"], "VolumeNotMounted", "{ready}");
    let message = ready["message"].as_str().unwrap();
    let words = format!("exit: 0 of 1 gateways ready: pod stuck: {NOTE}");
    assert!(message.contains(&words), "{message}");
    assert!(message.contains("CSI driver"), "{message}");
    // A mounted volume is no cause.
    put_pod(&bench, true);
    bench.reconcile().await.unwrap();
    assert_eq!(reads_of_events(&bench), 0);
    assert_ne!(bench.condition("Ready")["reason"], "VolumeNotMounted");
}

#[tokio::test]
async fn no_event_is_read_for_pods_without_a_driver() {
    let bench = Bench::new(&format!("{MANAGED}{UNTUNED}"));
    bench.reconcile().await.unwrap();
    put_pod(&bench, false);
    put_event(&bench);
    bench.api.take_requests();
    bench.reconcile().await.unwrap();
    assert_eq!(reads_of_events(&bench), 0);
}
