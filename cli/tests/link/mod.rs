//! `link`, with an operator of the test that writes statuses.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use muxtunnel_gateway_config::{KEY_BYTES, Role, key_text};
use serde_json::{Value, json};

use super::cluster::{Cluster, Ran};
use super::peer::{key, ready};

const EXIT: &str = "muxexits/web@backend";
const ENTRY: &str = "muxtunnels/web@shop";
const PEER: &str = "muxpeers/web-here@backend";

fn exit_key() -> String {
    key_text(Role::Exit, &[9; KEY_BYTES])
}

/// A cluster with the Service web.
fn with_service() -> Cluster {
    let cluster = Cluster::start();
    cluster.put(
        "services/web@backend",
        json!({"spec": {"ports": [{"name": "http", "port": 80}, {"name": "https", "port": 443}]}}),
    );
    cluster
}

fn conditions(object: &Value, available: &str) -> Value {
    let condition = |type_: &str| {
        json!({
            "type": type_, "status": available, "reason": "CarrierConnecting",
            "message": "MT0201 no carrier", "observedGeneration": object["metadata"]["generation"],
            "lastTransitionTime": "2030-01-01T00:00:00Z",
        })
    };
    json!([condition("Ready"), condition("Available")])
}

/// Writes the status of an object if it exists without one.
fn report(cluster: &Cluster, path: &str, status: impl FnOnce(&Value) -> Value) {
    if let Some(mut object) = cluster
        .get(path)
        .filter(|object| object["status"].is_null())
    {
        object["status"] = status(&object);
        cluster.put(path, object);
    }
}

/// Runs the program, while the test acts as both operators.
fn run(cluster: &Cluster, line: &str, available: &str) -> Ran {
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                report(cluster, EXIT, |exit| {
                    json!({
                        "publicKeys": [exit_key()],
                        "endpoints": [{"host": "192.0.2.1", "port": 443, "protocol": "TCP"}],
                        "conditions": conditions(exit, "True"),
                    })
                });
                report(cluster, ENTRY, |entry| {
                    json!({
                        "publicKeys": [key(7)],
                        "services": [{"name": "web-entry", "host": "web-entry.shop.svc", "ports": [{"name": "https", "port": 8443}, {"name": "http", "port": 80}]}],
                        "conditions": conditions(entry, available),
                    })
                });
                report(cluster, PEER, |_| ready("True", "Idle"));
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        let ran = cluster.run(line);
        is_over.store(true, Ordering::Relaxed);
        ran
    })
}

#[test]
fn a_link_is_an_exit_an_entry_and_a_peer_and_is_made_once() {
    let cluster = with_service();
    let line = "link svc/web:https --from here --to far --port 8443";
    let ran = run(&cluster, line, "True");
    assert_eq!(ran.status, 0, "{ran:?}");
    assert!(ran.out.contains("web-entry.shop.svc:8443"), "{ran:?}");
    let rule = json!({"host": "web.backend.svc", "port": 443});
    let exit = cluster.get(EXIT).unwrap();
    assert_eq!(
        exit["spec"],
        json!({
            "service": {"type": "LoadBalancer"}, "allow": [rule, {"host": "web", "port": 443}],
        })
    );
    let entry = cluster.get(ENTRY).unwrap();
    assert_eq!(
        entry["spec"],
        json!({
            "connect": [{
                "name": "web", "host": "192.0.2.1", "port": 443, "publicKeys": [exit_key()],
            }],
            "forwards": [{"name": "https", "port": 8443, "targets": [rule]}],
        })
    );
    let peer = cluster.get(PEER).unwrap();
    let wanted = json!({"exitRef": {"name": "web"}, "publicKeys": [key(7)], "allow": [rule]});
    assert_eq!(peer["spec"], wanted);
    // Run again, the command writes nothing.
    cluster.take_requests();
    let again = run(&cluster, &format!("{line} -o json"), "True");
    let json = again.json();
    assert_eq!(again.status, 0, "{again:?}");
    for object in ["exit", "entry", "peer"] {
        assert_eq!(json[object]["change"], "Unchanged", "{again:?}");
    }
    assert!(cluster.written().is_empty(), "{:?}", cluster.written());
}

#[test]
fn a_new_key_of_the_exit_reaches_the_entry() {
    let cluster = with_service();
    let line = "link svc/web:80 --from here --to far";
    assert_eq!(run(&cluster, line, "True").status, 0);
    let newer = key_text(Role::Exit, &[8; KEY_BYTES]);
    let mut exit = cluster.get(EXIT).unwrap();
    exit["status"]["publicKeys"] = json!([newer, exit_key()]);
    cluster.put(EXIT, exit);
    // The operator of the test reports on the new generation of the entry.
    let mut entry = cluster.get(ENTRY).unwrap();
    entry["status"]["conditions"][1]["observedGeneration"] = json!(2);
    cluster.put(ENTRY, entry);
    let ran = run(&cluster, &format!("{line} -o json --timeout 20s"), "True");
    let entry = cluster.get(ENTRY).unwrap();
    let keys = &entry["spec"]["connect"][0]["publicKeys"];
    assert_eq!(*keys, json!([newer, exit_key()]), "{ran:?}");
}

#[test]
fn a_link_that_does_not_come_up_shows_the_conditions_and_deletes_nothing() {
    let cluster = with_service();
    let line = "link svc/web:80 --from here --to far --timeout 10s";
    let ran = run(&cluster, line, "False");
    assert_eq!((ran.status, ran.out.as_str()), (4, ""), "{ran:?}");
    for said in [
        "the entry shop/web (context here) is not ready after 10s: Available=False: MT0201",
        "exit backend/web (context far): Ready=True",
        "peer backend/web-here (context far): Ready=True",
        "Nothing was deleted",
        "waiting for the entry shop/web (context here): Available=False",
    ] {
        assert!(ran.err.contains(said), "{said}: {ran:?}");
    }
    for path in [EXIT, ENTRY, PEER] {
        assert!(cluster.get(path).is_some(), "{path}");
    }
    assert!(
        cluster
            .written()
            .iter()
            .all(|(write, _)| !write.starts_with("DELETE"))
    );
}

#[test]
fn what_another_made_is_not_changed() {
    let cluster = with_service();
    cluster.object("exit.yaml", |exit| {
        exit["spec"]["allow"] = json!([{"host": "db.backend.svc"}]);
    });
    cluster.object("both.yaml", |_| {});
    for (line, status, said) in [
        (
            "svc/web --from here --to far",
            1,
            "several ports: 80 (http), 443 (https)",
        ),
        (
            "svc/nothing --from here --to far",
            1,
            "cannot read the Service nothing",
        ),
        (
            "svc/web:80 --from here --to far",
            1,
            "Add {host: web.backend.svc, port: 80}",
        ),
        (
            "svc/web:80 --from here --to far --context far",
            2,
            "--from and --to",
        ),
        ("svc/web:80 --from here --to elsewhere", 1, "elsewhere"),
        (
            "svc/web:80 --from here --to far --service-type NodePort --address a",
            2,
            "--address HOST:PORT",
        ),
    ] {
        let ran = cluster.run(&format!("link {line}"));
        assert_eq!(
            (ran.status, ran.out.as_str()),
            (status, ""),
            "{line}: {ran:?}"
        );
        assert!(ran.err.contains(said), "{line}: {ran:?}");
    }
    cluster.object("exit.yaml", |_| {});
    let ran = cluster.run("link svc/web:80 --from here --to far");
    assert_eq!(ran.status, 1, "{ran:?}");
    assert!(
        ran.err
            .contains("shop/web exists, and has exits of its own"),
        "{ran:?}"
    );
    assert!(cluster.written().is_empty(), "{:?}", cluster.written());
}
