//! `peer`: what is written, what is refused before anything is written, and what is shown.

use muxtunnel_gateway_config::{KEY_BYTES, Role, key_text};
use serde_json::{Value, json};

use super::cluster::Cluster;

/// A key of an entry.
pub(crate) fn key(byte: u8) -> String {
    key_text(Role::Entry, &[byte; KEY_BYTES])
}

/// A cluster with an exit that has a reverse port.
fn with_exit() -> Cluster {
    let cluster = Cluster::start();
    cluster.object("exit.yaml", |exit| {
        exit["spec"]["reversePorts"] = json!([{"name": "hook", "port": 9000}]);
    });
    cluster
}

/// A status with the condition Ready.
pub(crate) fn ready(status: &str, reason: &str) -> Value {
    let condition = |type_: &str, status: &str| {
        json!({
            "type": type_, "status": status, "reason": reason, "message": "a cause",
            "observedGeneration": 1, "lastTransitionTime": "2030-01-01T00:00:00Z",
        })
    };
    json!({"conditions": [condition("Ready", status), condition("Connected", "False")]})
}

#[test]
fn a_peer_is_added_suspended_resumed_and_removed() {
    let cluster = with_exit();
    let (peer, key) = ("muxpeers/laptop@backend", key(7));
    let line = format!(
        "peer add laptop --exit web --key {key} --expires 2998-01-01T00:00:00Z --ttl 1h \
         --allow db.internal:5432 --allow 10.0.0.0/8 --reverse-port hook -n backend"
    );
    let ran = cluster.run(&line);
    assert_eq!((ran.status, ran.err.as_str()), (0, ""), "{ran:?}");
    assert!(
        ran.out.contains("laptop in namespace backend, created"),
        "{ran:?}"
    );
    let connect = "    - name: web\n      host: far.example.com\n      port: 31234\n      publicKeys: [mtx1q9x";
    assert!(ran.out.contains(connect), "{ran:?}");
    let made = cluster.get(peer).unwrap();
    assert_eq!(
        made["spec"],
        json!({
            "exitRef": {"name": "web"}, "publicKeys": [key],
            "expirationTime": "2998-01-01T00:00:00Z", "ttlSecondsAfterExpiration": 3600,
            "allow": [{"host": "db.internal", "port": 5432}, {"cidr": "10.0.0.0/8"}],
            "reversePorts": ["hook"],
        })
    );
    let writes = cluster.written();
    assert_eq!(writes.len(), 1, "{writes:?}");
    // The same command again changes nothing.
    let ran = cluster.run(&format!("{line} -o json"));
    assert_eq!(ran.json()["change"], "Unchanged", "{ran:?}");

    let ran = cluster.run("peer suspend laptop -n backend");
    assert_eq!(ran.status, 0, "{ran:?}");
    let suspended = cluster.get(peer).unwrap();
    assert_eq!(suspended["spec"]["suspend"], true);
    assert_eq!(suspended["spec"]["publicKeys"], made["spec"]["publicKeys"]);
    // A peer that is added again stays suspended.
    assert_eq!(cluster.run(&line).status, 0);
    assert_eq!(cluster.get(peer).unwrap()["spec"]["suspend"], true);
    let ran = cluster.run("peer resume laptop -n backend -o json");
    assert_eq!((ran.status, &ran.json()["action"]), (0, &json!("Resume")));
    assert_eq!(cluster.get(peer).unwrap()["spec"]["suspend"], false);

    let ran = cluster.run("peer remove laptop -n backend");
    assert_eq!(ran.status, 0, "{ran:?}");
    assert!(
        ran.out.contains("backend/laptop of the exit web: removed"),
        "{ran:?}"
    );
    assert!(cluster.get(peer).is_none());
}

#[test]
fn what_cannot_be_a_peer_is_refused_before_anything_is_written() {
    let cluster = with_exit();
    cluster.object("exit.yaml", |exit| {
        exit["metadata"]["namespace"] = json!("shop");
        exit["spec"]["security"] = json!({"mode": "None"});
    });
    cluster.put(
        "muxpeers/taken@backend",
        json!({"spec": {"exitRef": {"name": "another"}, "publicKeys": []}}),
    );
    let good = key(7);
    let exits = key_text(Role::Exit, &[7; KEY_BYTES]);
    let broken = good.replacen("mte1q", "mte1p", 1);
    for (line, status, said) in [
        (
            format!("a --exit web --key {exits}"),
            2,
            "the key of an exit",
        ),
        (
            format!("a --exit web --key {broken}"),
            2,
            "the checksum is wrong",
        ),
        (
            format!("a --exit web --key {good} --expires 0s"),
            2,
            "in the past",
        ),
        (
            format!("a --exit nothing --key {good}"),
            1,
            "cannot read the MuxExit nothing",
        ),
        (
            format!("a --exit web --key {good} -n shop"),
            1,
            "shop/web has the security mode None",
        ),
        (
            format!("a --exit web --key {good} --reverse-port x"),
            1,
            "hook (port 9000)",
        ),
        (
            format!("taken --exit web --key {good}"),
            1,
            "belongs to the exit another",
        ),
    ] {
        let ran = cluster.run(&format!("peer add {line} --context far"));
        assert_eq!(
            (ran.status, ran.out.as_str()),
            (status, ""),
            "{line}: {ran:?}"
        );
        assert!(ran.err.contains(said), "{line}: {ran:?}");
    }
    assert!(cluster.written().is_empty(), "{:?}", cluster.written());
}

/// Stores the peers of `tests/objects`.
fn peers(cluster: &Cluster) {
    let text = include_str!("../objects/peers.yaml");
    let peers: Vec<Value> = serde_yaml::from_str(text).unwrap();
    for peer in peers {
        let name = peer["metadata"]["name"].as_str().unwrap();
        cluster.put(&format!("muxpeers/{name}@backend"), peer.clone());
    }
}

#[test]
fn peers_are_listed_and_stand_in_the_status_of_their_exit() {
    let cluster = with_exit();
    peers(&cluster);
    let ran = cluster.run("peer list --exit web -n backend");
    assert_eq!((ran.status, ran.err.as_str()), (0, ""), "{ran:?}");
    let lines: Vec<_> = ran.out.lines().collect();
    let cells = |line: &str| -> Vec<String> {
        line.split("  ")
            .map(str::trim)
            .filter(|cell| !cell.is_empty())
            .map(str::to_owned)
            .collect()
    };
    assert_eq!(
        cells(lines[0]),
        [
            "NAME",
            "EXIT",
            "READY",
            "REASON",
            "CONNECTED",
            "EXPIRES",
            "KEY",
            "EXIT-KEY"
        ]
    );
    assert_eq!(
        cells(lines[1])[..4],
        ["laptop", "web", "False", "ConfigPending"]
    );
    assert_eq!(
        cells(lines[2]),
        [
            "near",
            "web",
            "True",
            "Connected",
            "True",
            "-",
            "mte1q9xentry...",
            "1"
        ]
    );
    assert_eq!(lines.len(), 3, "{ran:?}");
    let names = cluster.run("peer list -A -o name");
    assert_eq!(names.out.lines().count(), 3, "{names:?}");
    let none = cluster.run("peer list --exit nothing -n backend");
    assert_eq!(
        none.err,
        "there are no MuxPeers of the exit nothing in namespace backend\n"
    );

    let json = cluster.run("status exit/web -n backend -o json").json();
    let names: Vec<_> = json["object"]["peers"]
        .as_array()
        .unwrap()
        .iter()
        .map(|peer| &peer["name"])
        .collect();
    assert_eq!(names, ["laptop", "near"]);
    cluster.deny(
        "/apis/muxtunnel.dev/v1alpha1/namespaces/backend/muxpeers",
        403,
    );
    let ran = cluster.run("status exit/web -n backend");
    assert_eq!(ran.status, 0, "{ran:?}");
    assert!(
        ran.err
            .contains("Peers are not shown: told to refuse (403)"),
        "{ran:?}"
    );
}

#[test]
fn a_peer_that_is_not_ready_is_a_finding() {
    let cluster = with_exit();
    cluster.object("exit.yaml", |exit| {
        exit["metadata"]["generation"] = json!(3);
    });
    cluster.put(
        "muxpeers/laptop@backend",
        json!({
            "metadata": {"generation": 1}, "spec": {"exitRef": {"name": "web"}},
            "status": ready("False", "GatewaysNotReady"),
        }),
    );
    let check = || {
        let ran = cluster.run("check --only tunnels -n backend -o json");
        let checks = ran.json()["categories"][0]["checks"].clone();
        let checks = checks.as_array().unwrap();
        let of_peer = checks.iter().find(|one| {
            one["description"]
                .as_str()
                .unwrap()
                .starts_with("MuxPeer backend/laptop:")
        });
        (ran.status, of_peer.cloned())
    };
    let (status, found) = check();
    let found = found.unwrap();
    assert_eq!(
        (status, &found["result"]),
        (3, &json!("finding")),
        "{found}"
    );
    assert_eq!(found["reason"], "GatewaysNotReady");
    let mut peer = cluster.get("muxpeers/laptop@backend").unwrap();
    peer["metadata"]["generation"] = json!(1);
    peer["status"] = ready("True", "Suspended");
    cluster.put("muxpeers/laptop@backend", peer);
    assert_eq!(check().1.unwrap()["result"], "good");
}
