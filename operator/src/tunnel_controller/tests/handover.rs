//! Tests that the operator hands over the number of pods to an autoscaler, and takes it back.

use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::json;

use super::bench::Bench;
use super::*;
use crate::testing::Failure;

const EXIT: &str = "deployments/office-tunnel-exit";
const TEMPLATE: &str =
    "template: {spec: {containers: [{name: gateway, resources: {requests: {cpu: 1}}}]}}";

/// `replicas` exits.
fn fixed(replicas: i32) -> String {
    format!("{SMALLEST}exit: {{replicas: {replicas}, {TEMPLATE}}}\n")
}

/// Exits with an autoscaler.
fn autoscaled() -> String {
    format!("{SMALLEST}exit: {{autoscaling: {{minReplicas: 2, maxReplicas: 20}}, {TEMPLATE}}}\n")
}

/// A tunnel with `replicas` exits. Then the spec requests an autoscaler for the exits.
async fn handed_over(replicas: i32) -> Bench {
    let bench = Bench::new(&fixed(replicas));
    bench.reconcile().await.unwrap();
    bench.api.take_requests();
    bench.edit(&autoscaled());
    bench.reconcile().await.unwrap();
    bench
}

fn replicas(bench: &Bench) -> Value {
    bench.api.get(EXIT).unwrap()["spec"]["replicas"].clone()
}

/// Scales as an autoscaler does.
async fn scale(bench: &Bench, replicas: i32) {
    let scale = json!({"metadata": {"name": "office-tunnel-exit"}, "spec": {"replicas": replicas}});
    let path = "/apis/apps/v1/namespaces/site/deployments/office-tunnel-exit/scale";
    let request = http::Request::put(path)
        .body(serde_json::to_vec(&scale).unwrap())
        .unwrap();
    let _: Value = bench.api.client().request(request).await.unwrap();
}

#[tokio::test]
async fn a_number_of_pods_that_is_handed_over_stays_as_it_is() {
    let bench = handed_over(10).await;
    assert_eq!(replicas(&bench), json!(10));
    let mut writes = bench.api.take_requests();
    writes.retain(|request| request.method == "PATCH" && request.path == EXIT);
    assert_eq!(writes.len(), 2);
    assert!(writes[0].query.contains("fieldManager=muxtunnel-handover"));
    assert!(
        !writes[0].query.contains("force=true"),
        "no manager is removed"
    );
    assert!(writes[1].query.contains("fieldManager=muxtunnel-operator"));
    // The operator no longer writes the number, regardless of which client scales.
    bench.reconcile().await.unwrap();
    scale(&bench, 4).await;
    bench.reconcile().await.unwrap();
    assert_eq!(replicas(&bench), json!(4));
    let mut writes = bench.api.take_writes();
    writes.retain(|write| write.contains("deployments/"));
    assert_eq!(writes, ["PUT deployments/office-tunnel-exit/scale"]);
}

#[tokio::test]
async fn an_operator_that_is_killed_in_between_costs_no_pod() {
    // The writes are the handover, the Deployment and the autoscaler.
    for number in 0..3 {
        let mut bench = Bench::new(&fixed(10));
        bench.reconcile().await.unwrap();
        bench.edit(&autoscaled());
        bench.api.fail_write(number, Failure::Killed);
        // A failure to publish the last Event does not fail the reconciliation.
        let _failed_or_not = bench.reconcile().await;
        bench.restart();
        bench.reconcile().await.unwrap();
        assert_eq!(replicas(&bench), json!(10), "after write {number}");
        let autoscaler = "horizontalpodautoscalers/office-tunnel-exit";
        assert!(bench.api.get(autoscaler).is_some(), "after write {number}");
    }
}

#[tokio::test]
async fn a_roll_out_does_not_change_what_an_autoscaler_decided() {
    let bench = handed_over(3).await;
    scale(&bench, 5).await;
    // Another client changes an owned field, so the operator applies the object again.
    let mut deployment = bench.api.get(EXIT).unwrap();
    deployment["spec"]["template"]["spec"]["containers"][0]["image"] = json!("other");
    bench.api.put(EXIT, deployment);
    bench.reconcile().await.unwrap();
    assert_eq!(replicas(&bench), json!(5));
    let image = "/spec/template/spec/containers/0/image";
    let image = bench.api.get(EXIT).unwrap().pointer(image).cloned();
    assert_eq!(image, Some(json!("example.com/gateway:1")));
}

#[tokio::test]
async fn an_autoscaler_that_is_faster_than_the_handover_wins() {
    let bench = Bench::new(&fixed(3));
    bench.reconcile().await.unwrap();
    scale(&bench, 8).await;
    // A late apply of an operator that read the number earlier.
    let deployments: Api<k8s_openapi::api::apps::v1::Deployment> =
        Api::namespaced(bench.api.client(), "site");
    let late = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "office-tunnel-exit"},
        "spec": {"replicas": 3},
    });
    let params = PatchParams::apply("muxtunnel-handover");
    let answer = deployments
        .patch("office-tunnel-exit", &params, &Patch::Apply(late))
        .await;
    assert!(answer.is_err(), "without force it is a conflict");
    bench.edit(&autoscaled());
    bench.reconcile().await.unwrap();
    assert_eq!(replicas(&bench), json!(8));
}

#[tokio::test]
async fn a_number_that_is_asked_for_again_is_taken_back() {
    let bench = handed_over(10).await;
    scale(&bench, 6).await;
    bench.edit(&fixed(2));
    bench.reconcile().await.unwrap();
    assert_eq!(replicas(&bench), json!(2));
    let autoscaler = "horizontalpodautoscalers/office-tunnel-exit";
    assert!(bench.api.get(autoscaler).is_none());
    // The operator keeps the number from now on.
    scale(&bench, 7).await;
    bench.reconcile().await.unwrap();
    assert_eq!(replicas(&bench), json!(2));
}

/// A user's own autoscaler, or a user with `kubectl scale`.
#[tokio::test]
async fn a_number_that_the_spec_does_not_set_is_left_to_the_user() {
    let bench = Bench::new(SMALLEST);
    bench.reconcile().await.unwrap();
    assert_eq!(replicas(&bench), json!(1));
    let budget = "poddisruptionbudgets/office-tunnel-exit";
    assert!(bench.api.get(budget).is_none());
    bench.api.take_writes();
    for number in [4, 2, 6] {
        scale(&bench, number).await;
        bench.reconcile().await.unwrap();
        bench.reconcile().await.unwrap();
        assert_eq!(replicas(&bench), json!(number));
        // What depends on the number follows it.
        assert!(bench.api.get(budget).is_some());
        let status = bench.api.get("muxtunnels/office").unwrap()["status"].clone();
        assert_eq!(status["exit"]["replicas"], json!(number));
    }
    let mut writes = bench.api.take_writes();
    writes.retain(|write| write.contains("deployments/"));
    assert_eq!(writes, ["PUT deployments/office-tunnel-exit/scale"; 3]);
    scale(&bench, 1).await;
    bench.reconcile().await.unwrap();
    assert!(bench.api.get(budget).is_none());
    // A roll-out keeps the number, too.
    scale(&bench, 3).await;
    bench.edit(&format!("{SMALLEST}exit: {{drainSeconds: 60}}\n"));
    bench.reconcile().await.unwrap();
    assert_eq!(replicas(&bench), json!(3));
}

#[tokio::test]
async fn a_number_that_is_no_longer_set_stays_as_it_is() {
    let bench = Bench::new(&fixed(5));
    bench.reconcile().await.unwrap();
    bench.edit(SMALLEST);
    bench.reconcile().await.unwrap();
    assert_eq!(replicas(&bench), json!(5));
    scale(&bench, 7).await;
    bench.reconcile().await.unwrap();
    assert_eq!(replicas(&bench), json!(7));
}

/// A change of the number of entries must not restart the exits.
#[tokio::test]
async fn scaling_one_end_rolls_out_no_other_end() {
    let limits = "template: {spec: {containers: [{name: gateway, resources: {limits: {cpu: 1, memory: 256Mi}}}]}}";
    let native = SMALLEST.replace("protocol: JMUX", "protocol: Native");
    let spec = format!("{native}entry: {{{limits}}}\nexit: {{{limits}}}\n");
    let bench = Bench::new(&spec);
    bench.reconcile().await.unwrap();
    let template = |bench: &Bench| bench.api.get(EXIT).unwrap()["spec"]["template"].clone();
    let before = template(&bench);
    let scale = json!({"metadata": {"name": "office-entry"}, "spec": {"replicas": 4}});
    let path = "/apis/apps/v1/namespaces/site/deployments/office-entry/scale";
    let request = http::Request::put(path);
    let request = request.body(serde_json::to_vec(&scale).unwrap()).unwrap();
    let _: Value = bench.api.client().request(request).await.unwrap();
    bench.reconcile().await.unwrap();
    assert_eq!(template(&bench), before);
}
