//! Objects of several kinds of one name, and tunnels that get and lose `connect`.

use serde_json::json;

use super::bench::Bench;
use super::running::{Process, is_ready_at, server, until};
use super::*;

const ALL: [(&str, &str, &str); 3] = [
    ("muxtunnels/office", "uid-of-tunnel", MANAGED),
    ("muxexits/office", "uid-of-exit", EXIT),
    ("muxrendezvous/office", "uid-of-rendezvous", RENDEZVOUS),
];

fn objects() -> impl Iterator<Item = (&'static str, &'static str, &'static str)> {
    ALL.into_iter()
}

#[tokio::test(start_paused = true)]
async fn objects_of_one_name_have_gateways_of_their_own() {
    let api = server();
    for (path, uid, spec) in objects() {
        let mut object = object_json(spec);
        object["metadata"]["uid"] = json!(uid);
        api.put(path, object);
    }
    let _process = Process::alone(&api);
    let deployments = ["office-entry", "office-tunnel-exit", "office-exit"];
    let exists = |name: &str| api.get(&format!("deployments/{name}")).is_some();
    until("children", || deployments.into_iter().all(exists)).await;
    api.run_pods();
    until("readiness", || {
        objects().all(|(path, ..)| is_ready_at(&api, path))
    })
    .await;
    let before = api.get("deployments/office-tunnel-exit").unwrap();
    // The objects of the other kinds keep their children.
    api.remove("muxexits/office");
    tokio::time::sleep(std::time::Duration::from_mins(1)).await;
    assert!(!exists("office-exit"));
    assert_eq!(api.get("deployments/office-tunnel-exit").unwrap(), before);
    for (path, ..) in objects().filter(|(path, ..)| *path != "muxexits/office") {
        assert!(is_ready_at(&api, path), "{path}");
    }
}

fn children(bench: &Bench, end: &str) -> Vec<String> {
    let all = bench.api.snapshot().into_iter();
    let is_child = |object: &Value| {
        let labels = &object["metadata"]["labels"];
        labels["muxtunnel.dev/name"] == "office" && labels["app.kubernetes.io/component"] == end
    };
    let of_end = all.filter(|(path, object)| {
        let resource = path.split('/').next().unwrap();
        is_child(object) && !["pods", "replicasets", "secrets"].contains(&resource)
    });
    of_end.map(|(path, _)| path).collect()
}

#[tokio::test]
async fn a_tunnel_that_gets_connect_loses_its_own_exit_and_rolls_its_entry() {
    let bench = Bench::new(MANAGED);
    bench.run().await;
    let template = |bench: &Bench| {
        let entry = bench.api.get("deployments/office-entry").unwrap();
        entry["spec"]["template"].clone()
    };
    let own = template(&bench);
    assert!(!children(&bench, "exit").is_empty());
    bench.edit(ELSEWHERE);
    bench.run().await;
    assert_eq!(children(&bench, "exit"), [""; 0]);
    assert_ne!(template(&bench), own);
    let ready = bench.condition("Ready");
    assert_eq!(ready["status"], "True", "{ready}");
    assert!(document(&bench.api, "office-entry").contains(EXIT_KEY));
    let key = bench.status()["publicKeys"][0].clone();
    assert!(key.as_str().unwrap().starts_with("mte1"), "{key}");

    bench.edit(MANAGED);
    bench.run().await;
    assert!(!children(&bench, "exit").is_empty());
    assert!(!document(&bench.api, "office-entry").contains(EXIT_KEY));
    assert!(bench.status()["publicKeys"].is_null());
    let ready = bench.condition("Ready");
    assert_eq!(ready["status"], "True", "{ready}");
}

/// The operator applies defaults in memory. A client-side and a server-side diff of a synced object
/// are empty.
#[tokio::test]
async fn an_object_reads_back_as_it_was_written() {
    let all = [SMALLEST, MANAGED, ELSEWHERE, EXIT, RENDEZVOUS];
    for spec in all.into_iter() {
        let bench = Bench::new(spec);
        let written = bench.object();
        bench.run().await;
        let stored = bench.object();
        assert_eq!(stored["spec"], written["spec"]);
        for field in ["labels", "annotations", "finalizers", "ownerReferences"] {
            assert_eq!(
                stored["metadata"][field], written["metadata"][field],
                "{field}"
            );
        }
        let writes = bench.api.take_writes();
        let own: Vec<_> = writes
            .iter()
            .filter(|write| write.contains(&bench.path()))
            .collect();
        let status = format!("PATCH {}/status", bench.path());
        assert!(own.iter().all(|write| **write == status), "{own:?}");
    }
}
