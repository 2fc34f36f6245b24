//! The keys of gateways: their Secrets, their loss and their rotation.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use serde_json::{Value, json};

use super::bench::{Bench, MADE, clock};
use super::{ELSEWHERE, EXIT, EXIT_KEY, MANAGED, RENDEZVOUS, child, document, labels_of};
use crate::grants::tests::known;
use crate::testing::tunnel::date;

fn mounted(bench: &Bench, end: &str) -> Value {
    mounted_by(bench, &child(end))
}

fn mounted_by(bench: &Bench, name: &str) -> Value {
    let deployment = bench.api.get(&format!("deployments/{name}")).unwrap();
    deployment["spec"]["template"]["spec"]["volumes"][1].clone()
}

fn secrets(bench: &Bench) -> Vec<String> {
    let all = bench.api.snapshot().into_keys();
    all.filter(|path| path.starts_with("secrets/")).collect()
}

/// As in a restore from a dump without statuses.
fn forget_status(bench: &Bench) {
    let mut object = bench.object();
    object["status"] = json!({});
    bench.api.put(&bench.path(), object);
}

/// A bench, and a function that lets a minute pass.
fn bench_with_time(spec: &str) -> (Bench, impl Fn() + use<>) {
    let time = Arc::new(AtomicI64::new(MADE));
    let read = time.clone();
    let now = clock(move || read.load(Ordering::Relaxed));
    let bench = Bench::with(spec, known([]), now);
    let later = move || {
        time.fetch_add(60, Ordering::Relaxed);
    };
    (bench, later)
}

/// Adds a pod of `end` whose containers have not started.
fn waiting_pod(bench: &Bench, end: &str) {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": "p", "labels": labels_of(end),
            "creationTimestamp": date(MADE - 60),
        },
        "spec": {"containers": []},
        "status": {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "True"}]},
    });
    bench.api.put_pod_of(&child(end), "pods/p", pod);
}

#[tokio::test]
async fn both_ends_of_an_object_share_one_secret_that_only_this_object_has() {
    let bench = Bench::new(MANAGED);
    bench.run().await;
    let [secret] = &secrets(&bench)[..] else {
        panic!("{:?}", secrets(&bench));
    };
    let name = secret.strip_prefix("secrets/").unwrap();
    assert!(name.starts_with("office-pair-1-"), "{name}");
    for end in ["entry", "exit"] {
        assert_eq!(mounted(&bench, end)["secret"]["secretName"], name);
    }
    let stored = bench.api.get(secret).unwrap();
    assert_eq!(
        stored["metadata"]["ownerReferences"][0]["uid"],
        "uid-office"
    );
    assert_eq!(
        (&stored["type"], &stored["immutable"]),
        (&json!("muxtunnel.dev/key"), &json!(true))
    );
    assert!(bench.status()["publicKeys"].is_null() && bench.status()["keys"].is_null());
    assert_eq!(bench.condition("CredentialsValid")["status"], "True");
}

/// The Deployments have the name, so neither the memory nor the status is needed.
#[tokio::test]
async fn another_operator_keeps_the_keys_of_both_ends() {
    let mut bench = Bench::new(MANAGED);
    bench.run().await;
    let before = (secrets(&bench), mounted(&bench, "entry"));
    forget_status(&bench);
    bench.restart();
    bench.run().await;
    assert_eq!((secrets(&bench), mounted(&bench, "entry")), before);
}

#[tokio::test]
async fn lost_keys_of_both_ends_are_created_again() {
    let (mut bench, later) = bench_with_time(MANAGED);
    bench.run().await;
    let [secret] = &secrets(&bench)[..] else {
        panic!("{:?}", secrets(&bench));
    };
    bench.api.remove(secret);
    bench.restart();
    bench.reconcile().await.unwrap();
    assert_eq!(secrets(&bench), [""; 0], "running gateways need no Secret");
    waiting_pod(&bench, "exit");
    later();
    bench.api.take_requests();
    bench.run().await;
    // The chart's admission policy requires the owner, also of a dry run.
    let requests = bench.api.take_requests();
    let mut created = requests
        .iter()
        .filter(|request| request.path.starts_with("secrets"));
    assert!(
        created
            .all(|request| request.body["metadata"]["ownerReferences"][0]["uid"] == "uid-office")
    );
    let [new] = &secrets(&bench)[..] else {
        panic!("{:?}", secrets(&bench));
    };
    assert_ne!(new, secret);
    for end in ["entry", "exit"] {
        let name = &mounted(&bench, end)["secret"]["secretName"];
        assert_eq!(format!("secrets/{}", name.as_str().unwrap()), *new);
    }
}

#[tokio::test]
async fn an_end_alone_has_a_key_that_outlives_the_object() {
    let all = [
        ("entry", ELSEWHERE, "mte1"),
        ("exit", EXIT, "mtx1"),
        ("rendezvous", RENDEZVOUS, "mtr1"),
    ];
    for (end, spec, prefix) in all.into_iter() {
        let mut bench = Bench::new(spec);
        bench.run().await;
        let path = format!("secrets/office-{end}-key-1");
        assert_eq!(secrets(&bench), std::slice::from_ref(&path));
        let stored = bench.api.get(&path).unwrap();
        assert!(stored["metadata"]["ownerReferences"].is_null(), "{stored}");
        let key = bench.status()["publicKeys"][0].clone();
        assert!(key.as_str().unwrap().starts_with(prefix), "{key}");
        assert_eq!(bench.status()["keys"][0]["origin"], "Created");
        let labels = stored["metadata"]["labels"].as_object().unwrap();
        assert_eq!(labels["muxtunnel.dev/name"], "office");
        assert!(
            !labels.contains_key("app.kubernetes.io/instance"),
            "{stored}"
        );
        let pins = document(&bench.api, &format!("office-{end}")).contains(EXIT_KEY);
        assert_eq!(pins, end != "exit");

        // A restore has the Secret, and no status.
        forget_status(&bench);
        bench.restart();
        bench.run().await;
        assert_eq!(bench.api.get(&path).unwrap(), stored);
        assert_eq!(bench.status()["keys"][0]["origin"], "Found");
    }
}

#[tokio::test]
async fn a_rotation_has_both_keys_and_then_the_newer_one() {
    let spec = ELSEWHERE;
    let bench = Bench::new(spec);
    bench.run().await;
    let old = bench.status()["publicKeys"].clone();
    bench.edit(&format!("{spec}key: {{generations: [1, 2]}}\n"));
    bench.run().await;
    let both = bench.status()["publicKeys"].clone();
    assert_eq!((both.as_array().unwrap().len(), &both[1]), (2, &old[0]));
    let sources = mounted(&bench, "entry")["projected"]["sources"].clone();
    let names = sources.as_array().unwrap().iter();
    let names: Vec<_> = names
        .map(|source| source["secret"]["name"].clone())
        .collect();
    assert_eq!(names, ["office-entry-key-1", "office-entry-key-2"]);
    bench.edit(&format!("{spec}key: {{generations: [2]}}\n"));
    bench.run().await;
    assert_eq!(bench.status()["publicKeys"], json!([both[0]]));
}

/// A new key would be unknown to the other side, so a person has to act.
#[tokio::test]
async fn a_lost_key_of_an_end_alone_is_a_condition_and_not_replaced() {
    let (bench, later) = bench_with_time(ELSEWHERE);
    bench.run().await;
    bench.api.remove("secrets/office-entry-key-1");
    waiting_pod(&bench, "entry");
    later();
    bench.reconcile().await.unwrap();
    let condition = bench.condition("CredentialsValid");
    assert_eq!(condition["reason"], "KeyLost");
    assert_eq!(bench.condition("Stalled")["reason"], "KeyLost");
    assert_eq!(secrets(&bench), [""; 0]);
}

#[tokio::test]
async fn own_secrets_are_mounted_and_the_operator_creates_none() {
    for (end, spec) in [
        ("entry", ELSEWHERE),
        ("exit", EXIT),
        ("rendezvous", RENDEZVOUS),
    ] {
        let spec = format!("{spec}key: {{secretRefs: [{{name: old}}, {{name: new}}]}}\n");
        let bench = Bench::new(&spec);
        let secret = |name: &str| {
            let metadata = json!({"name": name, "namespace": "site"});
            json!({"apiVersion": "v1", "kind": "Secret", "metadata": metadata})
        };
        bench.api.put("secrets/old", secret("old"));
        bench.run().await;
        let sources = mounted_by(&bench, &format!("office-{end}"))["projected"]["sources"].clone();
        let [old, new] = [0, 1].map(|at| sources[at]["secret"].clone());
        assert_eq!((&old["name"], &new["name"]), (&json!("old"), &json!("new")));
        assert_eq!(new["items"], json!([{"key": "key", "path": "new"}]));
        let condition = bench.condition("CredentialsValid");
        assert_eq!(condition["reason"], "KeySecretMissing", "{end}");
        assert!(
            condition["message"]
                .as_str()
                .unwrap()
                .contains("Secret new of")
        );
        assert_eq!(secrets(&bench), ["secrets/old"]);

        bench.api.put("secrets/new", secret("new"));
        bench.run().await;
        let condition = bench.condition("CredentialsValid");
        assert_ne!(condition["status"], "False", "{condition}");
        assert_eq!(secrets(&bench), ["secrets/new", "secrets/old"]);
    }
}
