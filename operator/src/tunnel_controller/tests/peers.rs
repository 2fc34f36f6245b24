//! The peers of an exit.

use muxtunnel_gateway_config::{GatewayKey, KeyRole};
use serde_json::{Value, json};

use super::reconcile::{Bench, MADE};
use super::{ENTRY_KEY, MANAGED, document};
use crate::clock::date;

const THIRD_KEY: &str = "mte1qywdhpdkagrh9tkaj8wxhts9me2whfd7gs6d59z7l2fjef4nhnk8sn6k2sr";
const OTHER_KEY: &str = "mte1q9503hlhl7dhlagz72halmawpml35gucsg95q5ym74fws0r59wa4ssld50k";

fn peer(name: &str, key: &str, more: Value) -> Value {
    let mut spec = json!({"exitRef": {"name": "office"}, "publicKeys": [key]});
    for (field, value) in more.as_object().unwrap() {
        spec[field] = value.clone();
    }
    json!({
        "apiVersion": "muxtunnel.dev/v1alpha1", "kind": "MuxPeer",
        "metadata": {"name": name, "namespace": "site", "uid": format!("uid-{name}"), "generation": 1},
        "spec": spec,
    })
}

async fn exit(peers: &[Value]) -> Bench {
    let bench = Bench::new(&format!("side: Exit\n{MANAGED}"));
    for peer in peers {
        let name = peer["metadata"]["name"].as_str().unwrap();
        bench.api.put(&format!("muxpeers/{name}"), peer.clone());
    }
    bench.run().await;
    bench
}

fn peers(bench: &Bench) -> Vec<Value> {
    let document: Value = serde_yaml::from_str(&document(&bench.api, "exit")).unwrap();
    let peers = document["security"]["peers"].as_array();
    peers.cloned().unwrap_or_default()
}

fn condition(bench: &Bench, peer: &str, type_: &str) -> (Value, Value) {
    let peer = bench.api.get(&format!("muxpeers/{peer}")).unwrap();
    let conditions = peer["status"]["conditions"].as_array().unwrap().iter();
    let found = conditions.into_iter().find(|one| one["type"] == type_);
    let found = found.unwrap_or_else(|| panic!("{type_} of {peer}"));
    (found["status"].clone(), found["reason"].clone())
}

#[tokio::test]
async fn an_exit_accepts_its_peers_and_no_others() {
    let mut elsewhere = peer("other", OTHER_KEY, json!({}));
    elsewhere["spec"]["exitRef"]["name"] = json!("another");
    let bench = exit(&[peer("near", ENTRY_KEY, json!({})), elsewhere]).await;
    let [near] = &peers(&bench)[..] else {
        panic!("{:?}", peers(&bench));
    };
    assert_eq!(
        (&near["name"], &near["publicKeys"]),
        (&json!("near"), &json!([ENTRY_KEY]))
    );
    assert_eq!(condition(&bench, "near", "Accepted").0, "True");
    assert_eq!(condition(&bench, "near", "Programmed").0, "True");
    assert_eq!(condition(&bench, "near", "Ready").0, "True");
}

#[tokio::test]
async fn a_deleted_or_suspended_peer_leaves_the_gateways_without_a_restart() {
    let bench = exit(&[
        peer("near", ENTRY_KEY, json!({})),
        peer("far", OTHER_KEY, json!({})),
    ])
    .await;
    let template = bench.api.get("deployments/office-tunnel-exit").unwrap()["spec"]["template"].clone();
    let mut suspended = bench.api.get("muxpeers/far").unwrap();
    suspended["spec"]["suspend"] = json!(true);
    bench.api.put("muxpeers/far", suspended);
    bench.api.remove("muxpeers/near");
    bench.run().await;
    let left = peers(&bench);
    assert_eq!(
        (left.len(), &left[0]["name"], &left[0]["suspend"]),
        (1, &json!("far"), &json!(true))
    );
    assert_eq!(
        condition(&bench, "far", "Ready"),
        (json!("True"), json!("Suspended"))
    );
    let now = bench.api.get("deployments/office-tunnel-exit").unwrap()["spec"]["template"].clone();
    assert_eq!(now, template);
}

/// Otherwise the owner of the exit could keep a peer that an administrator removed.
#[tokio::test]
async fn so_it_does_while_the_exit_is_paused_or_invalid() {
    for hindrance in ["paused", "invalid", "without a new key"] {
        let bench = exit(&[
            peer("near", ENTRY_KEY, json!({})),
            peer("far", OTHER_KEY, json!({})),
        ])
        .await;
        let mut tunnel = bench.api.get(super::reconcile::TUNNEL).unwrap();
        match hindrance {
            "paused" => tunnel["metadata"]["annotations"] = json!({"muxtunnel.dev/paused": "true"}),
            "invalid" => tunnel["spec"]["timeouts"] = json!({"idle": "9999h"}),
            _ => {
                tunnel["spec"]["key"] = json!({"generations": [1, 2]});
                bench.api.deny("secrets", 403);
            }
        }
        bench.api.put(super::reconcile::TUNNEL, tunnel);
        bench.api.remove("muxpeers/near");
        let ended = bench.reconcile().await;
        assert_eq!(
            ended.is_ok(),
            hindrance != "without a new key",
            "{hindrance}"
        );
        let names: Vec<_> = peers(&bench)
            .iter()
            .map(|peer| peer["name"].clone())
            .collect();
        assert_eq!(names, ["far"], "{hindrance}");
    }
}

/// The new pods of another mode may never start, and the former pods serve on.
#[tokio::test]
async fn so_it_does_for_pods_of_a_former_security_mode() {
    let bench = exit(&[
        peer("near", ENTRY_KEY, json!({})),
        peer("far", OTHER_KEY, json!({})),
    ])
    .await;
    let mode = "carrier: {protocol: JMUX}\nsecurity: {mode: None}";
    bench.edit(&format!(
        "side: Exit\n{}",
        MANAGED.replace("carrier: {protocol: JMUX}", mode)
    ));
    bench.reconcile().await.unwrap();
    bench.api.remove("muxpeers/near");
    bench.reconcile().await.unwrap();
    let config_map = bench.api.get("configmaps/office-tunnel-exit").unwrap();
    let documents = config_map["data"].as_object().unwrap().iter();
    let texts: Vec<_> = documents
        .filter(|(key, _)| !key.starts_with("whole-"))
        .filter_map(|(_, text)| text.as_str())
        .filter(|text| text.contains("PublicKeys"))
        .collect();
    assert_eq!(texts.len(), 1, "{texts:?}");
    assert!(
        texts[0].contains("name: far") && !texts[0].contains("name: near"),
        "{texts:?}"
    );
}

/// The gateway refuses a whole list with one wrong peer.
#[tokio::test]
async fn a_peer_that_a_gateway_refuses_stops_no_other_peer() {
    let bench = exit(&[peer("near", ENTRY_KEY, json!({}))]).await;
    let tunnel = bench.api.get(super::reconcile::TUNNEL).unwrap();
    let own = tunnel["status"]["publicKeys"][0]
        .as_str()
        .unwrap()
        .parse::<GatewayKey>();
    let own = GatewayKey::new(KeyRole::Entry, *own.unwrap().bytes()).unwrap();
    bench
        .api
        .put("muxpeers/own", peer("own", &own.to_string(), json!({})));
    bench
        .api
        .put("muxpeers/mte1x", peer("mte1x", OTHER_KEY, json!({})));
    let rule = |number| json!({"host": format!("{number}{}", ".a".repeat(100))});
    let rules: Vec<_> = (0..32).map(rule).collect();
    bench.api.put(
        "muxpeers/long",
        peer("long", THIRD_KEY, json!({"allow": rules})),
    );
    bench.run().await;
    let names: Vec<_> = peers(&bench)
        .iter()
        .map(|peer| peer["name"].clone())
        .collect();
    assert_eq!(names, ["near"]);
    for (name, reason) in [
        ("own", "KeyInvalid"),
        ("mte1x", "InvalidSpec"),
        ("long", "InvalidSpec"),
    ] {
        assert_eq!(
            condition(&bench, name, "Accepted"),
            (json!("False"), json!(reason)),
            "{name}"
        );
    }
}

/// Otherwise a second object would take over a peer.
#[tokio::test]
async fn of_two_peers_with_one_key_the_older_one_is_accepted() {
    let mut older = peer("z-older", ENTRY_KEY, json!({}));
    older["metadata"]["creationTimestamp"] = json!("2030-01-01T00:00:00Z");
    let mut newer = peer("a-newer", ENTRY_KEY, json!({}));
    newer["metadata"]["creationTimestamp"] = json!("2030-01-02T00:00:00Z");
    let bench = exit(&[newer, older]).await;
    let names: Vec<_> = peers(&bench)
        .iter()
        .map(|peer| peer["name"].clone())
        .collect();
    assert_eq!(names, ["z-older"]);
    assert_eq!(
        condition(&bench, "a-newer", "Accepted"),
        (json!("False"), json!("KeyConflict"))
    );
}

#[tokio::test]
async fn a_peer_with_an_invalid_key_is_named_and_keeps_no_other_out() {
    let mut wrong = ENTRY_KEY.to_owned();
    wrong.replace_range(10..11, if &wrong[10..11] == "q" { "p" } else { "q" });
    let bench = exit(&[
        peer("wrong", &wrong, json!({})),
        peer("near", ENTRY_KEY, json!({})),
    ])
    .await;
    assert_eq!(peers(&bench).len(), 1);
    assert_eq!(
        condition(&bench, "wrong", "Ready"),
        (json!("False"), json!("KeyInvalid"))
    );
}

#[tokio::test]
async fn a_peer_has_its_rules_and_the_reverse_ports_that_it_names() {
    let spec = format!(
        "side: Exit\n{}",
        MANAGED
            .replace("carrier: {protocol: JMUX}", "carrier: {protocol: Native}")
            .replace(
                "forwards:\n",
                "forwards:\n- name: back\n  direction: ExitToEntry\n  port: 9000\n  \
             targets: [{host: a.example, port: 1}]\n"
            )
    );
    let bench = Bench::new(&spec);
    let rules = json!({"reversePorts": ["back"], "allow": [{"host": "shop", "port": 80}]});
    bench
        .api
        .put("muxpeers/near", peer("near", ENTRY_KEY, rules));
    bench
        .api
        .put("muxpeers/far", peer("far", OTHER_KEY, json!({})));
    bench.run().await;
    let document: Value = serde_yaml::from_str(&document(&bench.api, "exit")).unwrap();
    let listens = document["allowListen"].as_array().unwrap();
    assert_eq!(listens.len(), 1, "{listens:?}");
    assert!(
        listens[0].as_str().unwrap().ends_with(",peer=near"),
        "{listens:?}"
    );
    let near = peers(&bench)
        .into_iter()
        .find(|peer| peer["name"] == "near");
    assert_eq!(near.unwrap()["allow"][0], "shop:80");
}

#[tokio::test]
async fn no_status_is_written_again_if_nothing_changed() {
    let bench = exit(&[peer("near", ENTRY_KEY, json!({}))]).await;
    bench.run().await;
    bench.api.take_requests();
    for _ in 0..20 {
        bench.reconcile().await.unwrap();
    }
    assert_eq!(bench.api.take_writes(), [""; 0]);
    let cached = bench.context.access.caches.peers.references();
    assert_eq!(cached.len(), 1, "{:?}", cached[0].name);
}

/// Reconciles the object itself, as the controller of peers does.
async fn look(bench: &Bench, name: &str) {
    bench.watches.borrow_mut().deliver(&bench.api);
    let peer = bench.api.get(&format!("muxpeers/{name}")).unwrap();
    let peer = serde_json::from_value(peer).unwrap();
    let cluster = &bench.context.outputs.cluster;
    let looked = crate::peer_controller::reconcile(cluster, &peer, bench.clock.now()).await;
    looked.unwrap();
}

#[tokio::test]
async fn a_peer_without_its_exit_says_so() {
    let bench = exit(&[]).await;
    let mut lost = peer("lost", ENTRY_KEY, json!({}));
    lost["spec"]["exitRef"]["name"] = json!("nowhere");
    bench.api.put("muxpeers/lost", lost);
    look(&bench, "lost").await;
    assert_eq!(
        condition(&bench, "lost", "Ready"),
        (json!("False"), json!("ExitNotFound"))
    );
    bench.api.take_requests();
    look(&bench, "lost").await;
    assert_eq!(bench.api.take_writes(), [""; 0]);
}

/// The exit refuses the peer from the expiration time on, and the object goes later.
#[tokio::test]
async fn an_expired_peer_is_deleted_after_its_time_to_live_and_no_other() {
    let time = |seconds: i64| json!(date(MADE + seconds));
    let short = |seconds| json!({"expirationTime": time(seconds), "ttlSecondsAfterExpiration": 60});
    let bench = exit(&[
        peer("gone", ENTRY_KEY, short(-60)),
        peer("expired", OTHER_KEY, short(-59)),
    ])
    .await;
    let kept = json!({"expirationTime": time(-3600)});
    bench
        .api
        .put("muxpeers/kept", peer("kept", THIRD_KEY, kept));
    bench.run().await;
    for name in ["gone", "expired", "kept"] {
        assert_eq!(
            condition(&bench, name, "Ready"),
            (json!("True"), json!("Expired")),
            "{name}"
        );
        look(&bench, name).await;
    }
    let left = |name: &str| bench.api.get(&format!("muxpeers/{name}")).is_some();
    assert_eq!(
        [left("gone"), left("expired"), left("kept")],
        [false, true, true]
    );
}
