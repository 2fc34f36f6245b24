//! The room of the peers in the ConfigMap of an exit: 256 MuxPeers with the most and the longest rules.

use super::*;

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
    bench.reconcile().await.unwrap();
    bench.reconcile().await.unwrap();
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
            "or delete older MuxPeers",
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
