//! Objects that are invalid, and requests that the API server refuses.

use http::Method;
use serde_json::json;

use super::bench::Bench;
use super::*;

#[tokio::test]
async fn an_object_that_belongs_to_something_else_is_never_touched() {
    let bench = Bench::new(SMALLEST);
    let foreign = json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "office-entry", "uid": "uid-foreign"},
        "data": {"own": "data"},
    });
    bench.api.put("configmaps/office-entry", foreign);
    bench.reconcile().await.unwrap();
    let found = bench.api.get("configmaps/office-entry").unwrap();
    assert_eq!(found["data"], json!({"own": "data"}));
    let ready = bench.condition("Ready");
    assert_eq!(ready["reason"], "NameTaken");
    let message = ready["message"].as_str().unwrap();
    let begin = "MT0310 ConfigMap office-entry exists and belongs to no object of muxtunnel.dev. What to do: ";
    assert!(message.starts_with(begin), "{message}");
}

#[tokio::test]
async fn an_invalid_object_is_said_to_be_so_and_nothing_is_built() {
    let bench = Bench::new(&SMALLEST.replace("443", "8080"));
    bench.reconcile().await.unwrap();
    assert_eq!(bench.api.take_writes(), ["PATCH muxtunnels/office/status"]);
    assert_eq!(bench.condition("Ready")["reason"], "InvalidSpec");
    assert_eq!(bench.condition("Available")["status"], "Unknown");
}

fn reasons_of_events(api: &FakeApi) -> Vec<String> {
    api.take_requests()
        .iter()
        .filter(|request| request.method == Method::POST && request.path == "events")
        .map(|request| request.body["reason"].as_str().unwrap().to_owned())
        .collect()
}

const BANANA: &str = "exit: {template: {spec: {containers: [{name: gateway, resources: {limits: {cpu: banana}}}]}}}\n";

#[tokio::test]
async fn what_the_api_server_refuses_is_in_the_status_and_what_runs_is_judged_all_the_same() {
    for is_new in [true, false] {
        let bench = Bench::new(&match is_new {
            true => format!("{SMALLEST}{BANANA}"),
            false => SMALLEST.to_owned(),
        });
        if !is_new {
            bench.run().await;
            bench.edit(&format!("{SMALLEST}{BANANA}"));
        }
        bench.api.take_requests();
        bench.reconcile().await.unwrap();
        let ready = bench.condition("Ready");
        assert_eq!(ready["status"], "False");
        assert_eq!(ready["reason"], "ApiRefused");
        assert_eq!(ready["observedGeneration"], if is_new { 1 } else { 2 });
        let message = ready["message"].as_str().unwrap();
        assert!(
            message.starts_with("MT0336 cannot apply Deployment office-tunnel-exit: ")
                && message.contains("banana"),
            "{message}"
        );
        let available = if is_new { "False" } else { "True" };
        assert_eq!(bench.condition("Available")["status"], available);
        let events = reasons_of_events(&bench.api);
        assert!(events.contains(&"ApiRefused".to_owned()), "{events:?}");
        bench.reconcile().await.unwrap();
        assert!(reasons_of_events(&bench.api).is_empty());
        bench.edit(SMALLEST);
        bench.run().await;
        assert_eq!(bench.condition("Ready")["status"], "True");
    }
}

#[tokio::test]
async fn what_fails_again_and_again_is_in_the_status_too() {
    let bench = Bench::new(SMALLEST);
    bench.run().await;
    bench.edit(&SMALLEST.replace("443", "444"));
    bench
        .api
        .trouble("configmaps", Some(crate::testing::Trouble::Status(500)));
    for _ in 0..3 {
        let error = bench.reconcile().await.unwrap_err();
        assert_eq!(
            bench.condition("Ready")["status"],
            "True",
            "a single failure is not reported"
        );
        let _later = bench.context.backoffs.failed(
            &crate::tunnel_controller::object::Object::from(bench.tunnel()).id(),
            &error,
        );
    }
    bench.reconcile().await.unwrap();
    let ready = bench.condition("Ready");
    assert_eq!(
        (&ready["status"], &ready["reason"]),
        (&json!("False"), &json!("ApiUnavailable"))
    );
    assert_eq!(ready["observedGeneration"], 2);
}

#[tokio::test]
async fn so_is_what_is_refused_before_anything_is_applied() {
    let bench = Bench::new(MANAGED);
    bench.run().await;
    let available = bench.condition("Available");
    // A key pair of another generation has to be created.
    bench.edit(&format!("{MANAGED}key: {{generations: [2]}}\n"));
    bench.api.deny("secrets", 400);
    bench.reconcile().await.unwrap_err();
    let ready = bench.condition("Ready");
    assert_eq!(
        (&ready["status"], &ready["reason"]),
        (&json!("False"), &json!("ApiRefused"))
    );
    assert_eq!(bench.condition("Available"), available);
}
