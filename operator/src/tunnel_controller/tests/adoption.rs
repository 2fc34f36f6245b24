//! Children that nobody owns, and objects in the way.

use http::Method;
use serde_json::json;

use super::bench::{Bench, TUNNEL};
use super::*;

/// All children of the specs below have one of these kinds.
const KINDS: [&str; 7] = [
    "serviceaccounts",
    "networkpolicies",
    "configmaps",
    "services",
    "deployments",
    "poddisruptionbudgets",
    "horizontalpodautoscalers",
];

fn children(bench: &Bench) -> Vec<(String, Value)> {
    let all = bench.api.snapshot().into_keys();
    all.filter(|path| KINDS.contains(&path.split('/').next().unwrap()))
        .map(|path| (path.clone(), bench.api.get(&path).unwrap()))
        .filter(|(_, object)| object["metadata"]["ownerReferences"][0]["kind"] == "MuxTunnel")
        .collect()
}

/// Deletes the tunnel but not its children, and creates the tunnel again.
fn orphan(bench: &mut Bench, spec: &str) {
    for (path, mut object) in children(bench) {
        let metadata = object["metadata"].as_object_mut().unwrap();
        metadata.remove("ownerReferences");
        bench.api.put(&path, object);
    }
    bench.api.remove(TUNNEL);
    let mut tunnel = object_json(spec);
    tunnel["metadata"]["uid"] = json!("uid-again");
    tunnel["metadata"]["creationTimestamp"] = json!("2030-01-01T12:00:00Z");
    bench.api.put(TUNNEL, tunnel);
    bench.restart();
}

#[tokio::test]
async fn what_the_operator_wrote_and_nobody_owns_is_adopted() {
    let scaled = "entry: {autoscaling: {minReplicas: 2, maxReplicas: 8}, \
                  template: {spec: {containers: [{name: gateway, resources: {requests: {cpu: '0.5'}}}]}}}\nexit: {replicas: 3}\n";
    for spec in [SMALLEST.to_owned(), format!("{MANAGED}{scaled}")] {
        let mut bench = Bench::new(&spec);
        bench.run().await;
        let before = children(&bench);
        let uids = |children: &[(String, Value)]| -> Vec<_> {
            let uid = |(path, object): &(String, Value)| {
                (path.clone(), object["metadata"]["uid"].clone())
            };
            children.iter().map(uid).collect()
        };
        let replicas =
            bench.api.get("deployments/office-entry").unwrap()["spec"]["replicas"].clone();
        orphan(&mut bench, &spec);
        assert_eq!(children(&bench), []);
        bench.api.take_requests();
        bench.run().await;
        let requests = bench.api.take_requests();
        assert!(
            requests
                .iter()
                .all(|request| request.method != Method::DELETE),
            "nothing is deleted"
        );
        let after = children(&bench);
        assert_eq!(uids(&after), uids(&before));
        // The pods keep their keys, so no gateway restarts.
        let secrets = bench.api.snapshot().into_keys();
        let secrets = secrets.filter(|path| path.starts_with("secrets/"));
        assert!(secrets.count() <= 1);
        for (path, object) in &after {
            let owners = &object["metadata"]["ownerReferences"];
            assert_eq!(owners.as_array().unwrap().len(), 1, "{path}");
            assert_eq!(owners[0]["uid"], "uid-again", "{path}");
            assert_eq!(owners[0]["controller"], true, "{path}");
        }
        let entry = bench.api.get("deployments/office-entry").unwrap();
        assert_eq!(entry["spec"]["replicas"], replicas);
        let ready = bench.condition("Ready");
        assert_eq!(ready["status"], "True", "{ready}");
        // Nothing is written twice.
        bench.api.take_requests();
        bench.reconcile().await.unwrap();
        assert_eq!(bench.api.take_writes(), [""; 0]);
    }
}

/// A Job that tests sysctls is not repeated.
#[tokio::test]
async fn a_job_that_nobody_owns_is_adopted_with_its_result() {
    let mut bench = Bench::new(&tuned());
    bench.run().await;
    let jobs = || -> Vec<_> {
        let all = bench.api.snapshot().into_keys();
        let jobs = all.filter(|path| path.starts_with("jobs/"));
        jobs.map(|path| {
            (
                path.clone(),
                bench.api.get(&path).unwrap()["metadata"]["uid"].clone(),
            )
        })
        .collect()
    };
    let before = jobs();
    assert_eq!(before.len(), 1);
    let path = before[0].0.clone();
    let mut job = bench.api.get(&path).unwrap();
    job["metadata"]
        .as_object_mut()
        .unwrap()
        .remove("ownerReferences");
    bench.api.put(&path, job);
    orphan(&mut bench, &tuned());
    bench.run().await;
    let job = bench.api.get(&path).unwrap();
    assert_eq!(job["metadata"]["uid"], before[0].1);
    assert_eq!(job["metadata"]["ownerReferences"][0]["uid"], "uid-again");
    assert_eq!(bench.condition("Ready")["status"], "True");
}

#[tokio::test]
async fn what_is_of_others_or_was_written_by_others_is_not_adopted() {
    type Change = fn(&mut Value);
    let changes: [(&str, Change); 6] = [
        ("another tunnel's", |metadata| {
            metadata["labels"]["muxtunnel.dev/name"] = json!("other");
        }),
        ("another kind's", |metadata| {
            metadata["labels"]["muxtunnel.dev/kind"] = json!("MuxExit");
        }),
        ("of the other end", |metadata| {
            metadata["labels"]["app.kubernetes.io/component"] = json!("exit");
        }),
        ("without labels", |metadata| metadata["labels"] = json!({})),
        ("owned", |metadata| {
            metadata["ownerReferences"] = json!([{
                "apiVersion": "v1", "kind": "ConfigMap", "name": "theirs", "uid": "uid-theirs",
            }]);
        }),
        ("being deleted", |metadata| {
            metadata["deletionTimestamp"] = json!("2030-01-01T00:00:00Z");
        }),
    ];
    for path in ["configmaps/office-entry", "deployments/office-entry"] {
        for (case, change) in changes {
            let mut bench = Bench::new(SMALLEST);
            bench.run().await;
            orphan(&mut bench, SMALLEST);
            let mut object = bench.api.get(path).unwrap();
            change(&mut object["metadata"]);
            bench.api.put(path, object);
            let before = bench.api.get(path).unwrap();
            bench.reconcile().await.unwrap();
            assert_eq!(bench.api.get(path).unwrap(), before, "{case}");
            assert_eq!(bench.condition("Ready")["reason"], "NameTaken", "{case}");
        }
        // The same object, which another field manager wrote.
        let mut bench = Bench::new(SMALLEST);
        bench.run().await;
        orphan(&mut bench, SMALLEST);
        let object = bench.api.get(path).unwrap();
        bench.api.remove(path);
        bench.api.put(path, object.clone());
        let before = bench.api.get(path).unwrap();
        bench.reconcile().await.unwrap();
        assert_eq!(bench.api.get(path).unwrap(), before);
        assert_eq!(bench.condition("Ready")["reason"], "NameTaken");
    }
}

#[tokio::test]
async fn all_objects_in_the_way_are_named_at_once() {
    let bench = Bench::new(MANAGED);
    let in_the_way = [
        ("ServiceAccount", "serviceaccounts/office-tunnel-exit"),
        ("ConfigMap", "configmaps/office-entry"),
        ("Service", "services/office-tunnel-exit"),
        ("Deployment", "deployments/office-entry"),
        ("Deployment", "deployments/office-tunnel-exit"),
    ];
    for (kind, path) in in_the_way {
        let (version, spec) = match kind {
            "Deployment" => ("apps/v1", json!({"selector": {}, "template": {}})),
            _ => ("v1", json!({})),
        };
        let object = json!({"apiVersion": version, "kind": kind, "metadata": {}, "spec": spec});
        bench.api.put(path, object);
    }
    bench.reconcile().await.unwrap();
    let message = |type_: &str| {
        let condition = bench.condition(type_);
        condition["message"].as_str().unwrap().to_owned()
    };
    let ready = message("Ready");
    for (kind, path) in in_the_way {
        let name = path.split_once('/').unwrap().1;
        let text = format!("{kind} {name} exists and belongs to no");
        assert!(ready.contains(&text), "{text}: {ready}");
    }
}
