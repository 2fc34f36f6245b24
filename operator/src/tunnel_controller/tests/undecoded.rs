//! Objects that this version of the operator cannot decode, such as an object with an enum value of
//! a newer version: the object has a condition, and all other objects go on.

use std::time::Duration;

use kube::Api;
use kube::api::{ApiResource, DynamicObject, Patch, PatchParams};
use muxtunnel_crds::MuxTunnel;
use serde_json::json;
use tokio::time::sleep;

use super::bench::{Bench, MADE, TUNNEL};
use super::running::{Process, is_ready, put_tunnel, server, until};
use super::*;
use crate::grants::tests::{grant, known};
use crate::labels::MANAGER;
use crate::testing::FakeApi;
use crate::undecoded;

/// Changes the tunnel `name` like a newer operator's user.
fn edit(api: &FakeApi, name: &str, pointer: &str, value: Value) {
    let path = format!("muxtunnels/{name}");
    let mut tunnel = api.get(&path).unwrap();
    *tunnel.pointer_mut(pointer).unwrap() = value;
    let generation = tunnel["metadata"]["generation"].as_i64().unwrap();
    tunnel["metadata"]["generation"] = json!(generation + 1);
    api.put(&path, tunnel);
}

fn says(api: &FakeApi, name: &str, words: &str) -> bool {
    condition(api, &format!("muxtunnels/{name}"), "Ready").is_some_and(|ready| {
        let message = ready["message"].as_str().unwrap();
        ready["status"] == "False" && ready["reason"] == "UnknownValue" && message.contains(words)
    })
}

#[tokio::test(start_paused = true)]
async fn one_tunnel_that_cannot_be_decoded_says_so_and_the_others_go_on() {
    let api = server();
    put_tunnel(&api, "newer");
    edit(&api, "newer", "/spec/carrier/protocol", json!("Quantum"));
    let process = Process::alone(&api);
    put_tunnel(&api, "office");
    until("the children of the other tunnel", || {
        api.get("deployments/office-entry").is_some()
    })
    .await;
    api.run_pods();
    until("the other tunnel", || is_ready(&api, "office")).await;
    let why = "spec.carrier: unknown variant `Quantum`";
    until("its condition", || says(&api, "newer", why)).await;
    assert!(api.get("deployments/newer-entry").is_none());
    // The chart's alert reads this metric.
    let page = process.metrics.render().unwrap();
    let newer = page.lines().find(|line| line.contains("name=\"newer\""));
    let newer = newer.unwrap();
    assert!(newer.contains("MT0430") && newer.ends_with(" 0"), "{newer}");

    // The value comes while the tunnel runs: its gateways stay as they are.
    let before = api.get("deployments/office-entry").unwrap();
    let config = api.get("configmaps/office-entry").unwrap();
    edit(&api, "office", "/spec/forwards/0/port", json!("all"));
    until("its condition", || {
        says(&api, "office", "spec.forwards[0]: ")
    })
    .await;
    put_tunnel(&api, "branch");
    until("a new tunnel", || {
        api.get("deployments/branch-tunnel-exit").is_some()
    })
    .await;
    sleep(Duration::from_mins(3)).await;
    assert_eq!(api.get("deployments/office-entry").unwrap(), before);
    assert_eq!(api.get("configmaps/office-entry").unwrap(), config);

    // A value that this version knows ends the state.
    edit(&api, "office", "/spec/forwards/0/port", json!(8081));
    edit(&api, "newer", "/spec/carrier/protocol", json!("JMUX"));
    let port = || api.get("services/office-entry").unwrap()["spec"]["ports"].to_string();
    until("the edit", || port().contains("8081")).await;
    until("its children", || {
        api.get("deployments/newer-entry").is_some()
    })
    .await;
}

/// Objects of all other watched kinds, each of which only some tunnels depend on.
#[tokio::test(start_paused = true)]
async fn no_object_of_another_kind_stops_a_tunnel_that_does_not_need_it() {
    let api = server();
    let labels = crate::labels::child("MuxTunnel", "other", "entry");
    for (resource, body) in [
        ("services", json!({"spec": {"ports": "many"}})),
        ("endpointslices", json!({"endpoints": {"no": "list"}})),
        (
            "deployments",
            json!({"spec": {"replicas": 0, "selector": "all"}}),
        ),
        ("replicasets", json!({"spec": {"replicas": "two"}})),
        ("pods", json!({"spec": {"containers": "many"}})),
        ("configmaps", json!({"data": "text"})),
        ("serviceaccounts", json!({"secrets": "many"})),
        ("jobs", json!({"spec": {"template": "none"}})),
        ("networkpolicies", json!({"spec": {"egress": "all"}})),
        ("poddisruptionbudgets", json!({"spec": {"selector": "all"}})),
        (
            "horizontalpodautoscalers",
            json!({"spec": {"maxReplicas": "two"}}),
        ),
    ] {
        let mut object = body;
        object["metadata"] = json!({"name": "other-entry", "labels": labels});
        api.put(&format!("{resource}/other-entry"), object);
    }
    let _process = Process::alone(&api);
    put_tunnel(&api, "office");
    until("children", || api.get("deployments/office-entry").is_some()).await;
    api.run_pods();
    until("the tunnel", || is_ready(&api, "office")).await;
    // The tunnel of such children says which of them it is.
    put_tunnel(&api, "other");
    until("its condition", || {
        says(&api, "other", "other-entry cannot be decoded")
    })
    .await;
    assert_eq!(
        api.get("services/other-entry").unwrap()["spec"]["ports"],
        "many"
    );
}

/// Such a target is no missing target: it is not withdrawn from running gateways.
#[tokio::test]
async fn a_target_that_cannot_be_decoded_is_unknown() {
    let bench = Bench::new(SMALLEST);
    bench.run().await;
    let config = bench.api.get("configmaps/office-entry").unwrap();
    let mut shop = bench.api.get("services/shop").unwrap();
    shop["spec"]["ports"] = json!("many");
    bench.api.put("services/shop", shop);
    bench.reconcile().await.unwrap_err();
    assert!(says(&bench.api, "office", "Service shop cannot be decoded"));
    assert_eq!(bench.api.get("configmaps/office-entry").unwrap(), config);
}

/// The operator does not apply such a spec, but it keeps running gateways alive and honest.
#[tokio::test]
async fn its_running_gateways_lose_what_is_revoked() {
    let now = super::bench::clock(|| MADE);
    let spec = FAR.replace("security: {mode: None}\n", "");
    let permitted = known([grant("shops", "site", "shop")]);
    let mut bench = Bench::with(&spec, permitted.clone(), now);
    let mut shop = shop_json();
    shop["metadata"]["namespace"] = json!("shops");
    bench.api.put("services/shop@shops", shop);
    bench.run().await;
    let config = |bench: &Bench| {
        bench
            .api
            .get("configmaps/office-tunnel-exit")
            .unwrap()
            .to_string()
    };
    assert!(config(&bench).contains("shop.shops"), "{}", config(&bench));
    edit(
        &bench.api,
        "office",
        "/spec/carrier/protocol",
        json!("Quantum"),
    );
    // The operator of another version has no memory.
    bench.restart();
    bench.reconcile().await.unwrap();
    assert!(says(&bench.api, "office", "Quantum"));
    let ready = bench.condition("Ready");
    assert_eq!(ready["observedGeneration"], 2);
    bench.api.take_requests();
    for _ in 0..100 {
        bench.reconcile().await.unwrap();
    }
    assert_eq!(bench.api.take_writes(), [""; 0]);
    permitted.handle(
        0,
        kube::runtime::watcher::Event::Delete(grant("shops", "site", "shop")),
    );
    bench.reconcile().await.unwrap();
    assert!(says(&bench.api, "office", "Quantum"));
    let left = config(&bench);
    assert!(!left.contains("name: web"), "{left}");
}

/// A grant that cannot be decoded neither permits nor withdraws, and delays no revocation.
#[tokio::test]
async fn a_grant_that_cannot_be_decoded_is_named_and_changes_no_gateway() {
    let permitted = known([grant("shops", "site", "shop")]);
    let bench = Bench::with(FAR, permitted.clone(), super::bench::clock(|| MADE));
    let mut shop = shop_json();
    shop["metadata"]["namespace"] = json!("shops");
    bench.api.put("services/shop@shops", shop);
    bench.run().await;
    let config = |end: &str| {
        bench
            .api
            .get(&format!("configmaps/{}", child(end)))
            .unwrap()
    };
    let before = config("exit");
    let mut newer = grant("shops", "site", "shop");
    newer.data["spec"]["to"][0]["name"] = json!(["shop", "till"]);
    permitted.handle(0, kube::runtime::watcher::Event::Apply(newer.clone()));
    for _ in 0..3 {
        bench.reconcile().await.unwrap();
        assert!(says(
            &bench.api,
            "office",
            "a grant in namespace shops cannot be decoded"
        ));
        assert_eq!(config("exit"), before);
    }
    permitted.handle(0, kube::runtime::watcher::Event::Delete(newer));
    bench.reconcile().await.unwrap();
    let ready = bench.condition("Ready");
    assert_eq!(ready["reason"], "TargetNotPermitted");
    assert_ne!(config("exit"), before);
}

#[tokio::test]
async fn an_unknown_value_of_the_status_is_replaced() {
    let bench = Bench::new(MANAGED);
    bench.run().await;
    let secrets = || {
        let mut all = bench.api.snapshot();
        all.retain(|path, _| path.starts_with("secrets/"));
        all
    };
    let created = secrets();
    // The operator of another version writes as the same field manager.
    let mut status = bench.api.get(TUNNEL).unwrap()["status"].clone();
    status["bottleneck"] = json!({"direction": "Sideways", "reason": "CPU"});
    let body = json!({
        "apiVersion": "muxtunnel.dev/v1alpha1", "kind": "MuxTunnel", "status": status,
    });
    let resource = ApiResource::erase::<MuxTunnel>(&());
    let tunnels: Api<DynamicObject> = Api::namespaced_with(bench.api.client(), "site", &resource);
    let params = PatchParams::apply(MANAGER).force();
    let written = tunnels
        .patch_status("office", &params, &Patch::Apply(body))
        .await;
    written.unwrap();
    bench.watches.borrow_mut().deliver(&bench.api);
    assert!(undecoded::reason(&*bench.tunnel()).is_some());
    bench.reconcile().await.unwrap();
    bench.reconcile().await.unwrap();
    assert_eq!(undecoded::reason(&*bench.tunnel()), None);
    assert_eq!(bench.condition("Ready")["status"], "True");
    assert_eq!(secrets(), created);
}

#[tokio::test]
async fn a_tunnel_that_is_gone_stays_so() {
    let bench = Bench::new(SMALLEST);
    bench.run().await;
    edit(
        &bench.api,
        "office",
        "/spec/carrier/protocol",
        json!("Quantum"),
    );
    bench.reconcile().await.unwrap();
    assert!(says(&bench.api, "office", "Quantum"));
    bench.api.remove(TUNNEL);
    bench.reconcile_known().await.unwrap();
    assert!(bench.api.get(TUNNEL).is_none());
}
