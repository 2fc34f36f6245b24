//! The room of the peers in the ConfigMap of an exit: 256 MuxPeers with the most and the longest rules.

use super::*;
use crate::tunnel_controller::validate::size_of_peer;

/// The greatest number of MuxPeers of an exit.
const PEERS: usize = 256;
/// The data that the ConfigMap may have, in bytes.
const BYTES_MAX: usize = 900 << 10;

fn name(number: usize) -> String {
    format!("p{number:03}")
}

/// `count` rules in `allow` and in `deny`, with hosts of about `length` characters.
fn rules(count: usize, length: usize) -> Value {
    let rule = |rule: usize| {
        let host = format!("r{rule:02}{}", ".a".repeat(length.saturating_sub(3) / 2));
        json!({"host": host, "port": 443, "endPort": 65535})
    };
    let rules: Vec<_> = (0..count).map(rule).collect();
    json!({"allow": rules, "deny": rules})
}

/// The MuxPeer `number`, which is younger than those with lower numbers.
fn numbered(number: usize, more: Value) -> Value {
    let mut bytes = [9; 32];
    bytes[0] = u8::try_from(number % 256).unwrap();
    let key = GatewayKey::new(Role::Entry, bytes).unwrap();
    let mut peer = peer(&name(number), &key.to_string(), more);
    peer["metadata"]["creationTimestamp"] = json!(date(MADE + i64::try_from(number).unwrap()));
    peer
}

fn put(bench: &Bench, peer: Value) {
    let name = peer["metadata"]["name"].as_str().unwrap().to_owned();
    bench.api.put(&format!("muxpeers/{name}"), peer);
}

/// Gives the MuxPeer other fields.
fn edit(bench: &Bench, number: usize, fields: &Value) {
    let mut peer = bench
        .api
        .get(&format!("muxpeers/{}", name(number)))
        .unwrap();
    for (field, value) in fields.as_object().unwrap() {
        peer["spec"][field] = value.clone();
    }
    let generation = peer["metadata"]["generation"].as_i64().unwrap();
    peer["metadata"]["generation"] = json!(generation + 1);
    put(bench, peer);
}

async fn settle(bench: &Bench) {
    bench.reconcile().await.unwrap();
    bench.reconcile().await.unwrap();
}

/// An exit with the longest lists of its own, and MuxPeers with these rules.
async fn full(rules_of: impl Fn(usize) -> Value) -> Bench {
    let bench = Bench::new(EXIT);
    let own = rules(64, 253);
    let network = |number: usize| format!("fd00:1111:2222:3333:4444:5555:6666:{number:x}/128");
    let networks: Vec<_> = (0..64).map(network).collect();
    bench.change(|spec| {
        spec["allow"] = own["allow"].clone();
        spec["deny"] = own["deny"].clone();
        spec["trustedProxies"] = json!(networks);
    });
    bench.run().await;
    for number in 0..PEERS {
        put(&bench, numbered(number, rules_of(number)));
    }
    settle(&bench).await;
    bench
}

fn documents(bench: &Bench) -> Vec<(String, String)> {
    let config_map = bench.api.get("configmaps/office-exit").unwrap();
    let data = config_map["data"].as_object().unwrap().iter();
    data.map(|(key, text)| (key.clone(), text.as_str().unwrap().to_owned()))
        .collect()
}

/// Fails unless the ConfigMap fits into a request of the API server and into its store.
fn assert_fits(bench: &Bench) {
    let bytes: usize = documents(bench).iter().map(|(_, text)| text.len()).sum();
    assert!(bytes <= BYTES_MAX, "{bytes}");
    let object = bench.api.get("configmaps/office-exit").unwrap();
    let bytes = object.to_string().len();
    assert!(bytes < 1 << 20, "{bytes}");
}

/// The numbers of peers in the documents of pods of the images, the own one first.
fn peers_of_documents(bench: &Bench) -> Vec<usize> {
    let own = document(&bench.api, "office-exit");
    let mut documents = documents(bench);
    documents.retain(|(key, _)| crate::tunnel_controller::config_file::is_key(key));
    documents.sort_by_key(|(_, text)| *text != own);
    let count = |text: &str| {
        let document: Value = serde_yaml::from_str(text).unwrap();
        document["security"]["peers"].as_array().map_or(0, Vec::len)
    };
    documents.iter().map(|(_, text)| count(text)).collect()
}

fn accepted(bench: &Bench, number: usize) -> Value {
    let peer = bench
        .api
        .get(&format!("muxpeers/{}", name(number)))
        .unwrap();
    let conditions = peer["status"]["conditions"].as_array().unwrap().iter();
    let mut found = conditions.filter(|one| one["type"] == "Accepted");
    found.next().unwrap().clone()
}

#[tokio::test]
async fn the_oldest_peers_have_the_room_and_the_others_say_what_is_missing() {
    for length in [30, 253] {
        let youngest = PEERS - 1;
        let of = |number| rules(if number == youngest { 1 } else { 32 }, length);
        let bench = full(of).await;
        assert_eq!(bench.condition("Accepted")["status"], "True", "{length}");
        assert_eq!(bench.condition("Ready")["status"], "True", "{length}");
        assert_fits(&bench);
        let mut served = names(&bench);
        // The part of its own is there for the youngest one, too.
        assert_eq!(served.pop(), Some(name(youngest)), "{length}");
        let oldest: Vec<_> = (0..served.len()).map(name).collect();
        assert_eq!(served, oldest, "{length}");
        assert!((1..youngest).contains(&served.len()), "{length}");
        assert_eq!(accepted(&bench, served.len() - 1)["status"], "True");
        let refused = accepted(&bench, served.len());
        let found = (&refused["status"], &refused["reason"]);
        assert_eq!(found, (&json!("False"), &json!("ExitFull")), "{length}");
        let message = refused["message"].as_str().unwrap();
        for words in [
            "bytes in the gateways' configuration",
            "or delete other MuxPeers",
        ] {
            assert!(message.contains(words), "{message}");
        }
        // The next one uses the room that an older one leaves.
        bench.api.remove(&format!("muxpeers/{}", name(0)));
        bench.reconcile().await.unwrap();
        assert_eq!(accepted(&bench, served.len())["status"], "True", "{length}");
    }
}

/// Otherwise the carriers of all peers would end at the begin of a roll-out.
#[tokio::test]
async fn earlier_pods_keep_the_peers_of_a_full_exit() {
    // The first ones share the additional room, and the others fill the parts of their own.
    let of = |number| {
        if number < 6 {
            rules(32, 253)
        } else {
            rules(5, 29)
        }
    };
    let bench = full(of).await;
    assert_eq!(names(&bench).len(), PEERS);
    let own = document(&bench.api, "office-exit").len();
    assert!((350 << 10..450 << 10).contains(&own), "{own}");
    bench.classify(|spec| spec["images"] = json!({"gateway": "example.com/gateway:2"}));
    bench.reconcile().await.unwrap();
    bench.reconcile().await.unwrap();
    assert_eq!(peers_of_documents(&bench), [PEERS, PEERS]);
    assert_fits(&bench);
    // A withdrawn peer goes from the earlier pods, too, and no other one does.
    bench.api.remove(&format!("muxpeers/{}", name(PEERS - 1)));
    bench.reconcile().await.unwrap();
    assert_eq!(peers_of_documents(&bench), [PEERS - 1, PEERS - 1]);
    assert_fits(&bench);
}

/// Otherwise the owner of old MuxPeers could end the carriers of all younger ones.
#[tokio::test]
async fn an_older_peer_that_grows_takes_no_room_of_a_running_younger_one() {
    // Each one with all rules has about 19 KiB, so eight of them need more than all peers share.
    let young = 8;
    let bench = Bench::new(EXIT);
    for number in 0..=young {
        let count = if number == young { 32 } else { 1 };
        put(&bench, numbered(number, rules(count, 253)));
    }
    bench.run().await;
    let before = peers(&bench);
    assert!(before[young].to_string().len() > 18 << 10);
    for number in 0..young {
        edit(&bench, number, &rules(32, 253));
    }
    settle(&bench).await;
    let after = peers(&bench);
    assert_eq!(names(&bench), (0..=young).map(name).collect::<Vec<_>>());
    assert_eq!(after[young], before[young]);
    assert_eq!(condition(&bench, &name(young), "Accepted").0, "True");
    // The oldest ones grow first.
    for number in 0..young {
        let (expected, rules) = match number {
            0..6 => ((json!("True"), json!("Accepted")), &before[young]["deny"]),
            _ => ((json!("False"), json!("ExitFull")), &before[number]["deny"]),
        };
        let found = condition(&bench, &name(number), "Accepted");
        assert_eq!(found, expected, "{number}");
        assert_eq!(&after[number]["deny"], rules, "{number}");
    }
}

#[tokio::test]
async fn a_peer_without_room_to_grow_keeps_what_it_had_and_can_be_reduced() {
    let mut spec: Value = serde_yaml::from_str(EXIT).unwrap();
    spec["network"] = json!({"peerCIDRs": ["10.72.0.0/16"], "cidrs": ["10.96.0.0/16"]});
    spec["reversePorts"] = json!([{"name": "back", "port": 9000}, {"name": "other", "port": 9001}]);
    let bench = Bench::new(&spec.to_string());
    // Beside it, the others leave less than it asks for.
    let young = 7;
    for number in 0..young {
        let count = if number == 0 { 16 } else { 32 };
        put(&bench, numbered(number, rules(count, 253)));
    }
    let mut more = rules(16, 253);
    more["networkCIDRs"] = json!(["10.72.1.0/24"]);
    more["reversePorts"] = json!(["back"]);
    put(&bench, numbered(young, more));
    bench.run().await;
    assert_eq!(condition(&bench, &name(young), "Accepted").0, "True");
    let before = peers(&bench)[young].clone();
    let mut more = rules(32, 253);
    more["networkCIDRs"] = json!(["10.72.1.0/24", "10.72.2.0/24"]);
    more["reversePorts"] = json!(["back", "other"]);
    more["suspend"] = json!(true);
    edit(&bench, young, &more);
    settle(&bench).await;
    let config: Value = serde_yaml::from_str(&document(&bench.api, "office-exit")).unwrap();
    let after = &config["security"]["peers"][young];
    assert_eq!(after["suspend"], true);
    assert_eq!(
        (&after["allow"], &after["deny"]),
        (&before["allow"], &before["deny"])
    );
    let networks = json!([{"identity": name(young), "CIDRs": ["10.72.1.0/24"]}]);
    assert_eq!(config["network"]["peers"], networks);
    let listens = config["allowListen"].as_array().unwrap();
    assert_eq!(listens.len(), 1, "{listens:?}");
    let found = condition(&bench, &name(young), "Accepted");
    assert_eq!(found, (json!("False"), json!("ExitFull")));
    // No listed key is left.
    edit(&bench, young, &json!({"publicKeys": [OTHER_KEY]}));
    settle(&bench).await;
    assert!(!names(&bench).contains(&name(young)));
}

/// Otherwise a change of the configuration's layout could let the ConfigMap grow beyond its bound.
#[tokio::test]
async fn the_size_of_a_peer_is_at_least_what_the_configuration_grows_by() {
    let mut spec: Value = serde_yaml::from_str(EXIT).unwrap();
    spec["network"] = json!({"peerCIDRs": ["fd00::/16", "10.0.0.0/8"], "cidrs": ["10.96.0.0/16"]});
    let ports = (0..4).map(|port| json!({"name": format!("port{port}"), "port": 60_000 + port}));
    spec["reversePorts"] = ports.collect();
    let bench = Bench::new(&spec.to_string());
    // So each list has an item already.
    let first = json!({"networkCIDRs": ["10.1.0.0/16"], "reversePorts": ["port0"]});
    put(&bench, numbered(0, first));
    bench.run().await;
    let before = document(&bench.api, "office-exit").len();
    let mut more = rules(5, 40);
    let networks = ["fd00:1111:2222:3333:4444:5555:6666:0/112", "10.2.0.0/16"];
    more["networkCIDRs"] = json!(networks);
    more["reversePorts"] = json!(["port1", "port2", "port3"]);
    more["limits"] = json!({"streams": 7});
    more["expirationTime"] = json!("2099-01-01T00:00:00Z");
    put(&bench, numbered(1, more));
    settle(&bench).await;
    let config = document(&bench.api, "office-exit");
    let grown = config.len() - before;
    let config: Value = serde_yaml::from_str(&config).unwrap();
    assert_eq!(config["allowListen"].as_array().unwrap().len(), 4);
    assert_eq!(config["network"]["peers"][1]["CIDRs"], json!(networks));
    let peer = serde_json::from_value(config["security"]["peers"][1].clone()).unwrap();
    let networks = networks.map(|network| network.parse().unwrap());
    let ports = ["port1", "port2", "port3"].map(str::to_owned);
    let size = size_of_peer(&peer, &networks, &ports);
    assert!((grown..grown + 64).contains(&size), "{size} for {grown}");
}
