//! Tests of whole reconciliations: the requests to the API server, their order, and the objects
//! that remain.

use http::Method;
use serde_json::json;

use super::bench::{Bench, slice_json};
use super::*;

const CHILDREN: [&str; 10] = [
    "PATCH serviceaccounts/office-tunnel-exit",
    "PATCH serviceaccounts/office-entry",
    "PATCH networkpolicies/office-tunnel-exit",
    "PATCH networkpolicies/office-entry",
    "PATCH configmaps/office-tunnel-exit",
    "PATCH configmaps/office-entry",
    "PATCH services/office-entry",
    "PATCH services/office-tunnel-exit",
    "PATCH deployments/office-tunnel-exit",
    "PATCH deployments/office-entry",
];

#[tokio::test]
async fn children_are_applied_in_the_order_in_which_they_need_each_other() {
    let bench = Bench::new(SMALLEST);
    bench.reconcile().await.unwrap();
    let requests = bench.api.take_requests();
    let writes: Vec<_> = requests
        .iter()
        .filter(|request| request.method != Method::GET && !request.path.starts_with("events"))
        .collect();
    let order: Vec<_> = writes
        .iter()
        .map(|request| format!("{} {}", request.method, request.path))
        .collect();
    assert_eq!(order[..CHILDREN.len()], CHILDREN);
    assert_eq!(order[CHILDREN.len()..], ["PATCH muxtunnels/office/status"]);
    for write in writes {
        assert_eq!(write.content_type, "application/apply-patch+yaml");
        assert!(write.query.contains("fieldManager=muxtunnel-operator"));
        assert!(write.query.contains("force=true"));
        if !write.path.ends_with("/status") {
            let owner = &write.body["metadata"]["ownerReferences"][0];
            assert_eq!(owner["uid"], "uid-office");
            // The chart's admission policies know this key.
            let annotations = &write.body["metadata"]["annotations"];
            assert!(annotations["muxtunnel.dev/applied-hash"].is_string());
        }
    }
}

/// A spec with a name, and the reads without a watch that every reconciliation of this spec
/// repeats.
struct Steady {
    name: &'static str,
    spec: String,
    reads: &'static [&'static str],
}

fn steady() -> Vec<Steady> {
    let steady = |name, spec: String| Steady {
        name,
        spec,
        reads: &[],
    };
    let managed = |extra: &str| format!("{MANAGED}{extra}");
    let issuer = "carrier: {protocol: JMUX}\nsecurity: {mode: Certificates, \
                  certificates: {entry: {issuerRef: {name: ca}}, exit: {issuerRef: {name: ca}}}}";
    vec![
        steady(
            "amounts that the API server spells in its own way, and a profile",
            format!(
                "{SMALLEST}{}",
                "entry: {template: {spec: {containers: [{name: gateway, resources: {limits: {memory: 1024Mi, cpu: 1000m}}}]}}}\n\
                 exit: {template: {spec: {containers: [{name: gateway, resources: {requests: {memory: 0.5Gi, cpu: '0.1'}}}]}}}\n\
                 tuning: {profile: WAN}\n"
            ),
        ),
        steady("keys of both ends", managed("")),
        steady(
            "several gateways, and an autoscaler",
            managed(
                "entry: {autoscaling: {minReplicas: 2, maxReplicas: 8}, \
                 template: {spec: {containers: [{name: gateway, resources: {requests: {cpu: '0.50'}}}]}}}\nexit: {replicas: 3}\n",
            ),
        ),
        steady(
            "sysctls that are tried",
            managed(
                "tuning: {allowUnsafe: true, sysctls: [{name: net.a, value: '1'}]}\n\
                 exit: {template: {spec: {nodeSelector: {zone: a}}}}\n",
            ),
        ),
        steady("an exit with a key of its own", EXIT.to_owned()),
        steady("an entry with a key of its own", ELSEWHERE.to_owned()),
        steady("a rendezvous", RENDEZVOUS.to_owned()),
        Steady {
            name: "certificates of cert-manager",
            spec: MANAGED.replace("carrier: {protocol: JMUX}", issuer),
            reads: &[
                "certificates/office-tunnel-exit",
                "certificates/office-entry",
            ],
        },
    ]
}

#[tokio::test]
async fn nothing_is_written_in_a_hundred_looks_when_nothing_changed() {
    let all = steady().into_iter();
    for Steady { name, spec, reads } in all {
        let mut bench = Bench::new(&spec);
        bench.run().await;
        if name.contains("cert-manager") {
            for path in reads {
                let mut certificate = bench.api.get(path).unwrap();
                certificate["status"] =
                    json!({"conditions": [{"type": "Ready", "status": "True"}]});
                bench.api.put(path, certificate);
            }
        }
        bench.run().await;
        let ready = bench.condition("Ready");
        assert_eq!(ready["status"], "True", "{name}: {ready}");
        // The second pass is by another process of the operator, which has no memory.
        for _ in 0..2 {
            let begin = bench.api.newest();
            bench.api.take_requests();
            for _ in 0..100 {
                bench.reconcile().await.unwrap();
            }
            assert_eq!(bench.api.newest(), begin, "{name}");
            for request in bench.api.take_requests() {
                assert_eq!(request.method, Method::GET, "{name}: {}", request.path);
                assert!(
                    reads.contains(&request.path.as_str()),
                    "{name}: {}",
                    request.path
                );
            }
            bench.restart();
        }
    }
}

#[tokio::test]
async fn amounts_are_stored_in_the_api_servers_own_spelling() {
    let bench = Bench::new(&steady()[0].spec);
    bench.reconcile().await.unwrap();
    let deployment = bench.api.get("deployments/office-entry").unwrap();
    let limits = "/spec/template/spec/containers/0/resources/limits/memory";
    assert_eq!(deployment.pointer(limits), Some(&json!("1Gi")));
}

#[tokio::test]
async fn what_a_webhook_makes_of_a_child_is_written_once_and_drift_still_comes_back() {
    let bench = Bench::new(&format!("{SMALLEST}exit: {{replicas: 1}}\n"));
    bench
        .api
        .always_sets("deployments", "/spec/minReadySeconds", json!(7));
    bench
        .api
        .always_sets("deployments", "/spec/strategy/type", json!("Recreate"));
    bench.reconcile().await.unwrap();
    bench.api.take_writes();
    for _ in 0..10 {
        bench.reconcile().await.unwrap();
    }
    assert_eq!(bench.api.take_writes(), [""; 0]);
    let mut deployment = bench.api.get("deployments/office-tunnel-exit").unwrap();
    deployment["spec"]["replicas"] = json!(7);
    bench.api.put("deployments/office-tunnel-exit", deployment);
    bench.reconcile().await.unwrap();
    assert_eq!(
        bench.api.take_writes(),
        ["PATCH deployments/office-tunnel-exit"]
    );
}

#[tokio::test]
async fn a_changed_forward_writes_configurations_and_who_reaches_the_entry_alone() {
    let bench = Bench::new(SMALLEST);
    bench.reconcile().await.unwrap();
    bench.api.take_requests();
    bench.edit(&SMALLEST.replace("port: 443", "port: 444"));
    bench.reconcile().await.unwrap();
    assert_eq!(
        bench.api.take_writes(),
        [
            "PATCH networkpolicies/office-entry",
            "PATCH configmaps/office-entry",
            "PATCH services/office-entry",
            "PATCH muxtunnels/office/status",
        ]
    );
}

#[tokio::test]
async fn what_somebody_else_changed_is_put_back() {
    let bench = Bench::new(&format!("{SMALLEST}exit: {{replicas: 1}}\n"));
    bench.reconcile().await.unwrap();
    let mut deployment = bench.api.get("deployments/office-tunnel-exit").unwrap();
    deployment["spec"]["replicas"] = json!(7);
    bench.api.put("deployments/office-tunnel-exit", deployment);
    bench.api.take_requests();
    bench.reconcile().await.unwrap();
    assert_eq!(
        bench.api.take_writes(),
        ["PATCH deployments/office-tunnel-exit"]
    );
}

#[tokio::test]
async fn children_no_longer_asked_for_are_deleted_by_uid() {
    let bench = Bench::new(ELSEWHERE);
    let stale = json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": "office-tunnel-exit",
            "labels": labels_of("exit"),
            "uid": "uid-stale",
            "ownerReferences": [{
                "apiVersion": "muxtunnel.dev/v1alpha1", "kind": "MuxTunnel",
                "name": "office", "uid": "uid-office", "controller": true,
            }],
        },
    });
    bench.api.put("services/office-tunnel-exit", stale);
    bench.reconcile().await.unwrap();
    let requests = bench.api.take_requests();
    let delete = requests
        .iter()
        .find(|request| request.method == Method::DELETE)
        .unwrap();
    assert_eq!(delete.path, "services/office-tunnel-exit");
    assert_eq!(delete.body["preconditions"]["uid"], "uid-stale");
    assert!(bench.api.get("services/office-tunnel-exit").is_none());
    assert!(bench.api.get("services/shop").is_some());
}

#[tokio::test]
async fn a_tunnel_that_is_being_deleted_is_left_to_the_garbage_collector() {
    let bench = Bench::new(SMALLEST);
    let mut object = bench.object();
    object["metadata"]["deletionTimestamp"] = json!("2030-01-01T00:00:00Z");
    bench.api.put(&bench.path(), object);
    bench.reconcile().await.unwrap();
    assert!(bench.api.take_requests().is_empty());
}

#[tokio::test]
async fn the_status_says_what_is_missing_and_for_which_generation() {
    let bench = Bench::new(&SMALLEST.replace("name: shop", "name: shed"));
    bench.reconcile().await.unwrap();
    let ready = bench.condition("Ready");
    assert_eq!(ready["status"], "False");
    assert_eq!(ready["reason"], "TargetServiceNotFound");
    let message = ready["message"].as_str().unwrap();
    let begin = "MT0105 forward web: Service shed does not exist. What to do: Create the Service";
    assert!(message.starts_with(begin), "{message}");
    assert_eq!(ready["observedGeneration"], 1);
    let status = bench.status();
    assert_eq!(status["observedGeneration"], 1);
    assert_eq!(status["services"][0]["host"], "office-entry.site.svc");
}

#[tokio::test]
async fn an_event_is_published_on_a_transition_and_not_again() {
    let bench = Bench::new(SMALLEST);
    bench.reconcile().await.unwrap();
    let events = |api: &FakeApi| {
        api.take_requests()
            .iter()
            .filter(|request| request.path.starts_with("events"))
            .map(|request| request.body["reason"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    let first = events(&bench.api);
    assert!(first.contains(&"GatewaysNotReady".to_owned()), "{first:?}");
    bench.reconcile().await.unwrap();
    assert!(events(&bench.api).is_empty());
}

#[tokio::test]
async fn a_tunnel_is_available_where_a_connection_reaches_a_target() {
    let one = SMALLEST.replace(
        "- name: db
  port: 443
  targets: [{host: DB.example.com, port: 5432}]
",
        "",
    );
    let bench = Bench::new(&one);
    bench.run().await;
    let available = || {
        let condition = bench.condition("Available");
        let texts = ["status", "reason", "message"];
        texts.map(|field| condition[field].as_str().unwrap().to_owned())
    };
    assert_eq!(available()[..2], ["True", "Reconciled"]);
    // There are pods, and no pod is ready.
    bench.api.put("endpointslices/shop-1", slice_json(false));
    bench.reconcile().await.unwrap();
    let [status, reason, message] = available();
    assert_eq!([status, reason], ["False", "TargetNotReady"]);
    assert!(
        message.contains("forward web: Service shop has no ready endpoints"),
        "{message}"
    );
    assert_eq!(bench.condition("Ready")["reason"], "TargetNotReady");
    assert_eq!(
        bench.condition("Programmed")["status"],
        "True",
        "the tunnel itself matches its spec"
    );
    // The Service does not exist.
    bench.api.remove("services/shop");
    bench.reconcile().await.unwrap();
    assert_eq!(available()[..2], ["False", "TargetServiceNotFound"]);
    // Another forward reaches its target.
    bench.edit(SMALLEST);
    bench.run().await;
    let [status, _, message] = available();
    assert_eq!(status, "True");
    assert!(
        message.contains("forward web: Service shop does not exist"),
        "{message}"
    );
}

#[tokio::test]
async fn a_pod_that_only_has_the_labels_of_a_gateway_is_none() {
    let bench = Bench::new(SMALLEST);
    bench.run().await;
    let before = bench.status();
    let mut stranger = bench.api.get("pods/office-tunnel-exit-0").unwrap();
    stranger["metadata"] = json!({
        "name": "stranger", "labels": stranger["metadata"]["labels"],
        "ownerReferences": [{
            "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "office-tunnel-exit-x", "uid": "own",
            "controller": true,
        }],
    });
    stranger["status"] = json!({
        "phase": "Failed", "reason": "SysctlForbidden", "message": "forbidden sysctl",
    });
    bench.api.put("pods/stranger", stranger);
    for _ in 0..3 {
        bench.reconcile().await.unwrap();
    }
    assert_eq!(bench.status(), before);
    assert!(bench.api.get("deployments/office-tunnel-exit").is_some());
}
