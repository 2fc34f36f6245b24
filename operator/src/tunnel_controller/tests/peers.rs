//! The peers of an exit.

mod faults;
mod room;
mod watched;

use kube::runtime::reflector::ObjectRef;
use muxtunnel_gateway_config::{GatewayKey, Role};
use serde_json::{Value, json};

use super::bench::{Bench, MADE};
use super::{ENTRY_KEY, EXIT, OPEN, class_json, document, peer_json};
use crate::testing::tunnel::date;

const THIRD_KEY: &str = "mte1qywdhpdkagrh9tkaj8wxhts9me2whfd7gs6d59z7l2fjef4nhnk8sn6k2sr";
const OTHER_KEY: &str = "mte1q9503hlhl7dhlagz72halmawpml35gucsg95q5ym74fws0r59wa4ssld50k";

fn peer(name: &str, key: &str, more: Value) -> Value {
    peer_json(name, key, &more)
}

async fn exit(peers: &[Value]) -> Bench {
    exit_of(EXIT, peers).await
}

async fn exit_of(spec: &str, peers: &[Value]) -> Bench {
    let bench = Bench::new(spec);
    for peer in peers {
        let name = peer["metadata"]["name"].as_str().unwrap();
        bench.api.put(&format!("muxpeers/{name}"), peer.clone());
    }
    bench.run().await;
    bench
}

fn peers(bench: &Bench) -> Vec<Value> {
    let document: Value = serde_yaml::from_str(&document(&bench.api, "office-exit")).unwrap();
    let peers = document["security"]["peers"].as_array();
    peers.cloned().unwrap_or_default()
}

fn names(bench: &Bench) -> Vec<String> {
    let peers = peers(bench).into_iter();
    peers
        .map(|peer| peer["name"].as_str().unwrap().to_owned())
        .collect()
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
    let template = bench.api.get("deployments/office-exit").unwrap()["spec"]["template"].clone();
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
    let now = bench.api.get("deployments/office-exit").unwrap()["spec"]["template"].clone();
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
        match hindrance {
            "paused" => bench.pause(true),
            "invalid" => bench.change(|spec| spec["trustedProxies"] = json!(["0.0.0.0/0"])),
            _ => {
                bench.change(|spec| spec["key"] = json!({"generations": [1, 2]}));
                bench.api.deny("secrets", 403);
            }
        }
        bench.api.remove("muxpeers/near");
        let ended = bench.reconcile().await;
        assert_eq!(
            ended.is_ok(),
            hindrance != "without a new key",
            "{hindrance}"
        );
        assert_eq!(names(&bench), ["far"], "{hindrance}");
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
    bench.edit(&format!("{EXIT}{OPEN}"));
    bench.reconcile().await.unwrap();
    bench.api.remove("muxpeers/near");
    bench.reconcile().await.unwrap();
    let config_map = bench.api.get("configmaps/office-exit").unwrap();
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
    let status = bench.status();
    let own = status["publicKeys"][0]
        .as_str()
        .unwrap()
        .parse::<GatewayKey>();
    let own = GatewayKey::new(Role::Entry, *own.unwrap().bytes()).unwrap();
    bench
        .api
        .put("muxpeers/own", peer("own", &own.to_string(), json!({})));
    bench
        .api
        .put("muxpeers/mte1x", peer("mte1x", OTHER_KEY, json!({})));
    bench.run().await;
    assert_eq!(names(&bench), ["near"]);
    for (name, reason) in [("own", "KeyInvalid"), ("mte1x", "InvalidSpec")] {
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
    assert_eq!(names(&bench), ["z-older"]);
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
    let spec =
        format!("{EXIT}reversePorts: [{{name: back, port: 9000}}, {{name: other, port: 9001}}]\n");
    let bench = Bench::new(&spec);
    let rules = json!({"reversePorts": ["back"], "allow": [{"host": "shop", "port": 80}]});
    bench
        .api
        .put("muxpeers/near", peer("near", ENTRY_KEY, rules));
    bench
        .api
        .put("muxpeers/far", peer("far", OTHER_KEY, json!({})));
    bench.run().await;
    let document: Value = serde_yaml::from_str(&document(&bench.api, "office-exit")).unwrap();
    let listens = document["allowListen"].as_array().unwrap();
    assert_eq!(listens.len(), 1, "{listens:?}");
    assert!(
        listens[0].as_str().unwrap().ends_with(",peer=near"),
        "{listens:?}"
    );
    let near = peers(&bench)
        .into_iter()
        .find(|peer| peer["name"] == "near");
    assert_eq!(
        near.unwrap()["allow"],
        json!([{"host": "shop", "port": 80}])
    );
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
    let cached = bench.context.access.caches.peers.all().unwrap();
    assert_eq!(cached.len(), 1, "{:?}", cached[0].metadata.name);
}

/// Reconciles the object itself, as the controller of peers does.
async fn look(bench: &Bench, name: &str) {
    bench.watches.borrow_mut().deliver(&bench.api);
    let known = bench.context.access.caches.peers.store();
    let peer = known.get(&ObjectRef::new(name).within("site")).unwrap();
    let context = &bench.context;
    let served = (&context.outputs.cluster, &context.access.classes);
    let looked = crate::peer_controller::reconcile(served, &peer, bench.clock.now()).await;
    looked.unwrap();
}

/// Two operators would otherwise delete the peer, or write its status in turn.
#[tokio::test]
async fn the_peer_of_an_exit_of_another_operator_stays_as_it_is() {
    let expired = json!({"expirationTime": "2020-01-01T00:00:00Z", "ttlSecondsAfterExpiration": 0});
    let bench = exit(&[peer("near", ENTRY_KEY, expired)]).await;
    let mut foreign = class_json();
    foreign["metadata"]["name"] = json!("other");
    foreign["spec"] = json!({"controllerName": "example.com/operator"});
    bench.classes.borrow_mut().put(foreign);
    bench.change(|spec| spec["className"] = json!("other"));
    bench.reconcile().await.unwrap();
    bench.api.take_requests();
    look(&bench, "near").await;
    assert_eq!(bench.api.take_writes(), [""; 0]);
    bench.change(|spec| spec["className"] = Value::Null);
    look(&bench, "near").await;
    assert_eq!(bench.api.take_writes(), ["DELETE muxpeers/near"]);
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

/// Otherwise the exit would route the packets of one peer to another one.
#[tokio::test]
async fn of_two_peers_with_overlapping_networks_the_older_one_is_accepted() {
    let network = "kind: MuxExit\nnetwork: {peerCIDRs: [10.72.0.0/16], cidrs: [10.96.0.0/16]}\n";
    let of = |name, key, cidr: &str, day: u8| {
        let mut peer = peer(name, key, json!({"networkCIDRs": [cidr]}));
        peer["metadata"]["creationTimestamp"] = json!(format!("2030-01-0{day}T00:00:00Z"));
        peer
    };
    let bench = exit_of(
        network,
        &[
            of("wide", OTHER_KEY, "10.72.0.0/23", 2),
            of("first", ENTRY_KEY, "10.72.1.0/24", 1),
            of("outside", THIRD_KEY, "10.73.0.0/24", 3),
        ],
    )
    .await;
    let owners = || {
        let document: Value = serde_yaml::from_str(&document(&bench.api, "office-exit")).unwrap();
        let peers = document["network"]["peers"].as_array().unwrap().iter();
        peers
            .map(|peer| peer["identity"].clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(owners(), ["first"]);
    assert_eq!(
        condition(&bench, "wide", "Accepted"),
        (json!("False"), json!("NetworkConflict"))
    );
    assert_eq!(condition(&bench, "outside", "Accepted").0, "False");
    // The network is free again.
    bench.api.remove("muxpeers/first");
    bench.run().await;
    assert_eq!(owners(), ["wide"]);
    assert_eq!(condition(&bench, "wide", "Accepted").0, "True");
}

/// With certificates, a peer is a name, a URI or a prefix of URIs.
#[tokio::test]
async fn an_exit_with_certificates_accepts_the_names_of_its_peers() {
    let exit = format!(
        "{EXIT}security: {{mode: Certificates, certificates: {{secretRef: {{name: own}}}}}}\n"
    );
    let by_name = |name: &str, certificate: &str| {
        let mut peer = peer(name, ENTRY_KEY, json!({"certificateNames": [certificate]}));
        peer["spec"].as_object_mut().unwrap().remove("publicKeys");
        peer
    };
    let mut older = by_name("older", "entry.example.com");
    older["metadata"]["creationTimestamp"] = json!("2030-01-01T00:00:00Z");
    let mut newer = by_name("newer", "entry.example.com");
    newer["metadata"]["creationTimestamp"] = json!("2030-01-02T00:00:00Z");
    let mut team = by_name("team", "spiffe://example.org/team/*");
    team["metadata"]["creationTimestamp"] = json!("2030-01-03T00:00:00Z");
    let keyed = peer("keyed", OTHER_KEY, json!({}));
    let bench = exit_of(&exit, &[older, newer, team, keyed]).await;
    assert_eq!(names(&bench), ["older", "team"]);
    assert_eq!(condition(&bench, "older", "Accepted").0, "True");
    assert_eq!(
        condition(&bench, "newer", "Accepted"),
        (json!("False"), json!("KeyConflict"))
    );
    // The mode of the exit decides which of the fields counts.
    assert_eq!(condition(&bench, "keyed", "Accepted").0, "False");
    let text = document(&bench.api, "office-exit");
    assert!(text.contains("spiffe://example.org/team/*"), "{text}");
}

/// Every entry may use such an exit, so a peer would restrict nothing.
#[tokio::test]
async fn an_exit_without_security_accepts_no_peers() {
    let bench = exit_of(
        &format!("{EXIT}{OPEN}"),
        &[peer("near", ENTRY_KEY, json!({}))],
    )
    .await;
    assert_eq!(
        condition(&bench, "near", "Accepted"),
        (json!("False"), json!("ExitHasNoKeys"))
    );
}

/// A tunnel of the same name is no exit for peers.
#[tokio::test]
async fn a_peer_of_a_tunnel_finds_no_exit() {
    let bench = exit_of(super::MANAGED, &[peer("near", ENTRY_KEY, json!({}))]).await;
    look(&bench, "near").await;
    assert_eq!(
        condition(&bench, "near", "Ready"),
        (json!("False"), json!("ExitNotFound"))
    );
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
