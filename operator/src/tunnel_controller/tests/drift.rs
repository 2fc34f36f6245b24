//! Drift, pauses, and immutable fields.

use serde_json::json;

use super::bench::Bench;
use super::*;

const EXIT: &str = "deployments/office-tunnel-exit";

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
    bench.pause(true);
    bench.reconcile().await.unwrap();
    bench.api.remove("muxtunnels/office");
    let left: Vec<_> = bench.api.snapshot().into_keys().collect();
    assert_eq!(left, ["endpointslices/shop-1", "services/shop"]);
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
    let writes = requests.iter().filter(|request| request.method != "GET");
    let writes: Vec<_> = writes
        .map(|request| (request.method.as_str(), request.path.as_str()))
        .collect();
    // A dry run, the deletion and the creation follow the refused change.
    let change = ("PATCH", EXIT);
    let replacement = [change, ("POST", "deployments"), ("DELETE", EXIT), change];
    assert_eq!(writes[..4], replacement);
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
    let spec = SMALLEST.replace("JMUX", "Native");
    let bench = Bench::new(&spec);
    bench.reconcile().await.unwrap();
    let path = "services/office-tunnel-exit-headless";
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
        message
            .starts_with("MT0340 Service office-tunnel-exit-headless cannot be changed in place"),
        "{message}"
    );
    assert!(
        message.contains(
            "delete Service office-tunnel-exit-headless when an interruption is acceptable"
        ),
        "{message}"
    );
    // A user deletes the Service.
    bench.api.remove(path);
    bench.reconcile().await.unwrap();
    assert_eq!(bench.condition("Ready")["reason"], "GatewaysNotReady");
}

/// A policy of the cluster refuses changes in the words of the API server.
fn refuse_changes(bench: &Bench, resource: &str) {
    bench.api.refuses(resource, |old, new| {
        let is_changed = old.is_some_and(|old| old["spec"] != new["spec"]);
        let words = "policy one denied the request: spec.selector: field is immutable, may not change once set";
        is_changed.then(|| (422, words.to_owned()))
    });
}

fn deletes(bench: &Bench) -> usize {
    let requests = bench.api.take_requests();
    let deletes = requests.iter().filter(|request| request.method == "DELETE");
    deletes.count()
}

#[tokio::test]
async fn a_refusal_in_the_words_of_an_immutable_field_deletes_nothing() {
    for resource in ["deployments", "services"] {
        let bench = Bench::new(SMALLEST);
        bench.run().await;
        let path = format!("{resource}/office-tunnel-exit");
        let uid = bench.api.get(&path).unwrap()["metadata"]["uid"].clone();
        refuse_changes(&bench, resource);
        let mut object = bench.api.get(&path).unwrap();
        match resource {
            "deployments" => {
                object["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = json!(1);
            }
            _ => object["spec"]["ports"][0]["port"] = json!(1),
        }
        bench.api.put(&path, object);
        bench.api.take_requests();
        for _ in 0..3 {
            bench.reconcile().await.unwrap();
        }
        assert_eq!(deletes(&bench), 0, "{resource}");
        assert_eq!(bench.api.get(&path).unwrap()["metadata"]["uid"], uid);
        let ready = bench.condition("Ready");
        assert_eq!(ready["reason"], "ApiRefused", "{ready}");
        let message = ready["message"].as_str().unwrap();
        for part in [
            "the operator does not delete it, because no immutable field differs",
            "policy one denied the request",
        ] {
            assert!(message.contains(part), "{message}");
        }
    }
}

#[tokio::test]
async fn a_deployment_that_the_api_server_would_not_create_again_stays() {
    let bench = Bench::new(SMALLEST);
    bench.run().await;
    let mut deployment = bench.api.get(EXIT).unwrap();
    deployment["spec"]["selector"]["matchLabels"] = json!({"of": "an older version"});
    bench.api.put(EXIT, deployment.clone());
    bench.api.refuses("deployments", |old, _| {
        let words = "exceeded quota: deployments";
        old.is_none().then(|| (403, words.to_owned()))
    });
    bench.api.take_requests();
    bench.reconcile().await.unwrap();
    assert_eq!(deletes(&bench), 0);
    let kept = bench.api.get(EXIT).unwrap();
    assert_eq!(kept["metadata"]["uid"], deployment["metadata"]["uid"]);
    let ready = bench.condition("Ready");
    assert_eq!(ready["reason"], "ApiRefused", "{ready}");
    let message = ready["message"].as_str().unwrap();
    for part in ["spec.selector differs", "exceeded quota: deployments"] {
        assert!(message.contains(part), "{message}");
    }
}

/// The condition names the fields that other managers set, because such a field may be the cause.
#[tokio::test]
async fn a_refused_change_names_the_fields_of_other_managers() {
    let bench = Bench::new(SMALLEST);
    bench.run().await;
    let mut deployment = bench.api.get(EXIT).unwrap();
    deployment["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = json!(1);
    let container = &mut deployment["spec"]["template"]["spec"]["containers"][0];
    container["securityContext"]["seLinuxOptions"] = json!({"type": "spc_t"});
    bench.api.put(EXIT, deployment);
    bench.api.refuses("deployments", |old, _| {
        old.map(|_| (403, "containers must be unprivileged".to_owned()))
    });
    bench.reconcile().await.unwrap();
    let ready = bench.condition("Ready");
    assert_eq!(ready["reason"], "ApiRefused", "{ready}");
    let message = ready["message"].as_str().unwrap();
    let field =
        "spec.template.spec.containers[gateway].securityContext.seLinuxOptions.type (somebody)";
    for part in [field, "containers must be unprivileged"] {
        assert!(message.contains(part), "{message}");
    }
}
