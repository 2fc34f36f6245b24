//! Drift, pauses, and immutable fields.

use serde_json::json;

use super::reconcile::{Bench, SEED};
use super::*;
use crate::tunnel_controller::PAUSED;

const EXIT: &str = "deployments/office-exit";

#[tokio::test]
async fn a_hand_edited_deployment_comes_back_whole() {
    let bench = Bench::new(SMALLEST);
    bench.reconcile().await.unwrap();
    let reference = bench.api.snapshot();
    let mut deployment = bench.api.get(EXIT).unwrap();
    let pod = &mut deployment["spec"]["template"]["spec"];
    pod["containers"][0]["image"] = json!("evil.example/miner");
    pod["containers"][0]["args"] = json!(["mine"]);
    pod["securityContext"]["runAsNonRoot"] = json!(false);
    bench.api.put(EXIT, deployment);
    bench.reconcile().await.unwrap();
    assert_eq!(bench.api.snapshot(), reference);
}

#[tokio::test]
async fn a_paused_tunnel_can_be_deleted() {
    let bench = Bench::new(SMALLEST);
    bench.reconcile().await.unwrap();
    bench.annotate(PAUSED, "true");
    bench.reconcile().await.unwrap();
    bench.api.remove("muxtunnels/office");
    let left: Vec<_> = bench.api.snapshot().into_keys().collect();
    assert_eq!(left, ["endpointslices/shop-1", SEED, "services/shop"]);
}

#[tokio::test]
async fn a_deployment_whose_selector_has_to_change_is_made_anew() {
    let bench = Bench::new(SMALLEST);
    bench.reconcile().await.unwrap();
    let reference = bench.api.snapshot();
    let mut deployment = bench.api.get(EXIT).unwrap();
    let uid = deployment["metadata"]["uid"].clone();
    deployment["spec"]["selector"]["matchLabels"] = json!({"of": "an older version"});
    bench.api.put(EXIT, deployment);
    bench.api.take_requests();
    bench.reconcile().await.unwrap();
    let requests = bench.api.take_requests();
    let delete = requests
        .iter()
        .find(|request| request.method == "DELETE")
        .unwrap();
    assert_eq!(delete.body["preconditions"]["uid"], uid);
    assert_eq!(bench.api.snapshot(), reference);
    assert_ne!(bench.api.get(EXIT).unwrap()["metadata"]["uid"], uid);
    bench.reconcile().await.unwrap();
    assert!(bench.api.take_writes().is_empty());
}

#[tokio::test]
async fn a_service_is_made_anew_inside_the_cluster_and_never_where_it_is_reached_from_outside() {
    const NATIVE: &str = "carrier: {protocol: Native, security: {mode: None}}";
    let spec = SMALLEST.replace("carrier: {protocol: Jmux, security: {mode: None}}", NATIVE);
    let bench = Bench::new(&spec);
    bench.reconcile().await.unwrap();
    let path = "services/office-exit-headless";
    let mut service = bench.api.get(path).unwrap();
    assert_eq!(service["spec"]["clusterIP"], "None");
    service["spec"]["clusterIP"] = json!("10.96.7.7");
    bench.api.put(path, service.clone());
    bench.reconcile().await.unwrap();
    assert_eq!(bench.api.get(path).unwrap()["spec"]["clusterIP"], "None");

    service["spec"]["type"] = json!("NodePort");
    bench.api.put(path, service);
    bench.api.take_requests();
    bench.reconcile().await.unwrap();
    bench.reconcile().await.unwrap();
    let requests = bench.api.take_requests();
    assert!(requests.iter().all(|request| request.method != "DELETE"));
    let ready = bench.condition("Ready");
    assert_eq!(ready["reason"], "ImmutableField");
    let message = ready["message"].as_str().unwrap();
    assert!(
        message.starts_with("MT0340 Service office-exit-headless cannot be changed in place"),
        "{message}"
    );
    assert!(
        message.contains("delete Service office-exit-headless when an interruption is acceptable"),
        "{message}"
    );
    // A user deletes the Service.
    bench.api.remove(path);
    bench.reconcile().await.unwrap();
    assert_eq!(bench.condition("Ready")["reason"], "GatewaysNotReady");
}
