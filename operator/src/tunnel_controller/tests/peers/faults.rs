//! Faults of one field of a MuxPeer, of other MuxPeers, and of the exit.

use super::*;
use crate::tunnel_controller::tests::RENDEZVOUS;

const NETWORK: &str =
    "kind: MuxExit\nnetwork: {peerCIDRs: [10.72.0.0/16], cidrs: [10.96.0.0/16]}\n";
const PORTS: &str = "reversePorts: [{name: back, port: 9000}, {name: other, port: 9001}]\n";

/// The text of a key with a wrong checksum.
fn misspelt(key: &str) -> String {
    let other = if key.ends_with('q') { 'p' } else { 'q' };
    format!("{}{other}", &key[..key.len() - 1])
}

/// Changes a MuxPeer, as a person does.
fn change(bench: &Bench, name: &str, change: impl FnOnce(&mut Value)) {
    let path = format!("muxpeers/{name}");
    let mut peer = bench.api.get(&path).unwrap();
    change(&mut peer["spec"]);
    let generation = peer["metadata"]["generation"].as_i64().unwrap();
    peer["metadata"]["generation"] = json!(generation + 1);
    bench.api.put(&path, peer);
}

fn config(bench: &Bench) -> Value {
    serde_yaml::from_str(&document(&bench.api, "office-exit")).unwrap()
}

fn keys(bench: &Bench, name: &str) -> Value {
    let peers = peers(bench).into_iter();
    let mut found = peers.filter(|peer| peer["name"] == name);
    found
        .next()
        .map_or(Value::Null, |peer| peer["publicKeys"].clone())
}

fn networks(bench: &Bench) -> Value {
    config(bench)["network"]["peers"].clone()
}

fn listens(bench: &Bench) -> Value {
    config(bench)["allowListen"].clone()
}

fn refusal(reason: &str) -> (Value, Value) {
    (json!("False"), json!(reason))
}

/// The peer `name`, `days` days younger than the oldest one.
fn aged(mut peer: Value, days: u32) -> Value {
    peer["metadata"]["creationTimestamp"] = json!(date(MADE + i64::from(days) * 86_400));
    peer
}

#[tokio::test]
async fn a_fault_in_one_key_ends_no_carrier_and_a_removed_key_goes() {
    let bench = exit(&[peer("near", ENTRY_KEY, json!({"deny": [{"host": "old"}]}))]).await;
    change(&bench, "near", |spec| {
        spec["publicKeys"] = json!([ENTRY_KEY, misspelt(OTHER_KEY)]);
    });
    bench.run().await;
    assert_eq!(keys(&bench, "near"), json!([ENTRY_KEY]));
    assert_eq!(condition(&bench, "near", "Accepted"), refusal("KeyInvalid"));
    assert_eq!(condition(&bench, "near", "Ready"), refusal("KeyInvalid"));
    assert_eq!(condition(&bench, "near", "Programmed").0, "True");
    // The rest of the spec takes effect.
    change(&bench, "near", |spec| {
        spec["suspend"] = json!(true);
        spec["deny"] = json!([{"host": "new"}]);
    });
    bench.run().await;
    let near = &peers(&bench)[0];
    assert_eq!(
        (&near["suspend"], &near["deny"]),
        (&json!(true), &json!([{"host": "new"}]))
    );
    // A key is new, and another one is removed.
    change(&bench, "near", |spec| {
        spec["publicKeys"] = json!([ENTRY_KEY, OTHER_KEY]);
    });
    bench.run().await;
    assert_eq!(keys(&bench, "near"), json!([ENTRY_KEY, OTHER_KEY]));
    change(&bench, "near", |spec| {
        spec["publicKeys"] = json!([OTHER_KEY, THIRD_KEY, misspelt(ENTRY_KEY)]);
    });
    bench.run().await;
    assert_eq!(keys(&bench, "near"), json!([OTHER_KEY]));
    // No listed key is left.
    change(&bench, "near", |spec| {
        spec["publicKeys"] = json!([misspelt(ENTRY_KEY)]);
    });
    bench.run().await;
    assert_eq!(names(&bench), [""; 0]);
}

#[tokio::test]
async fn a_wrong_reverse_port_or_network_is_left_out_alone() {
    let asks = json!({"reversePorts": ["back"], "networkCIDRs": ["10.72.1.0/24"]});
    let bench = exit_of(
        &format!("{NETWORK}{PORTS}"),
        &[peer("near", ENTRY_KEY, asks)],
    )
    .await;
    let before = (peers(&bench), listens(&bench), networks(&bench));
    for (field, value) in [
        ("reversePorts", json!(["back", "misspelt"])),
        ("networkCIDRs", json!(["10.72.1.0/24", "10.73.0.0/24"])),
    ] {
        change(&bench, "near", |spec| spec[field] = value.clone());
        bench.run().await;
        let now = (peers(&bench), listens(&bench), networks(&bench));
        assert_eq!(now, before, "{field} {value}");
        assert_eq!(
            condition(&bench, "near", "Accepted"),
            refusal("InvalidSpec")
        );
        change(&bench, "near", |spec| {
            spec["reversePorts"] = json!(["back"]);
            spec["networkCIDRs"] = json!(["10.72.1.0/24"]);
        });
    }
}

/// The owner of an exit edits a field that MuxPeers refer to.
#[tokio::test]
async fn an_edit_of_the_exit_ends_no_carrier() {
    let asks = json!({"reversePorts": ["back"], "networkCIDRs": ["10.72.1.0/24"]});
    for (edit, is_valid) in [
        ("{peerCIDRs: [10.72.0.0/16], cidrs: [10.96.0.0/16]}", true),
        ("{peerCIDRs: [10.73.0.0/16], cidrs: [10.96.0.0/16]}", true),
        (
            "{peerCIDRs: ['::ffff:0:0/96'], cidrs: [10.96.0.0/16]}",
            false,
        ),
        ("null", true),
    ] {
        let spec = format!("{NETWORK}{PORTS}");
        let bench = exit_of(&spec, &[peer("near", ENTRY_KEY, asks.clone())]).await;
        let before = config(&bench);
        bench.change(|spec| {
            spec["network"] = serde_yaml::from_str(edit).unwrap();
            spec["reversePorts"] = json!([{"name": "other", "port": 9001}]);
        });
        bench.run().await;
        assert_eq!(names(&bench), ["near"], "{edit}");
        let (accepted, _) = condition(&bench, "near", "Accepted");
        assert_eq!(accepted == "False", is_valid, "{edit}");
        if !is_valid {
            assert_eq!(config(&bench), before, "{edit}");
        }
    }
}

#[tokio::test]
async fn a_spec_that_is_not_applied_judges_no_peer() {
    let asks = json!({"reversePorts": ["back"], "networkCIDRs": ["10.72.1.0/24"]});
    for hindrance in ["paused", "invalid", "refused by the gateway"] {
        let spec = format!("{NETWORK}{PORTS}");
        let near = aged(peer("near", ENTRY_KEY, asks.clone()), 1);
        // The exit leaves out this network, so it belongs to no older peer.
        let wide = json!({"networkCIDRs": ["10.0.0.0/8"]});
        let wide = aged(peer("wide", OTHER_KEY, wide), 0);
        let bench = exit_of(&spec, &[near, wide]).await;
        let before = config(&bench);
        bench.change(|spec| {
            spec["network"] = Value::Null;
            spec["reversePorts"] = json!([]);
            match hindrance {
                "paused" => spec["paused"] = json!(true),
                "invalid" => spec["trustedProxies"] = json!(["0.0.0.0/0"]),
                _ => {
                    spec["network"] =
                        json!({"peerCIDRs": ["127.0.0.0/8"], "cidrs": ["10.96.0.0/16"]});
                }
            }
        });
        bench.reconcile().await.unwrap();
        assert_eq!(config(&bench), before, "{hindrance}");
        assert_eq!(
            condition(&bench, "near", "Accepted").0,
            "True",
            "{hindrance}"
        );
    }
}

/// DNS ignores the case of letters, and TLS libraries ignore a final dot.
#[tokio::test]
async fn no_other_spelling_of_a_name_takes_over_a_peer() {
    let exit = format!(
        "{EXIT}security: {{mode: Certificates, certificates: {{secretRef: {{name: own}}}}}}\n"
    );
    let by_name = |name: &str, certificate: &str, days| {
        let mut peer = peer(name, ENTRY_KEY, json!({"certificateNames": [certificate]}));
        peer["spec"].as_object_mut().unwrap().remove("publicKeys");
        aged(peer, days)
    };
    let mut all = vec![
        by_name("older", "entry.example.com", 0),
        by_name("address", "fd00::1", 0),
    ];
    let others = [
        "Entry.example.com",
        "entry.example.com.",
        "FD00::1",
        "fd00:0::1",
    ];
    for (days, spelling) in (1..).zip(others) {
        all.push(by_name(&format!("newer-{days}"), spelling, days));
    }
    let bench = exit_of(&exit, &all).await;
    assert_eq!(names(&bench), ["address", "older"]);
    for days in 1..=others.len() {
        let (accepted, _) = condition(&bench, &format!("newer-{days}"), "Accepted");
        assert_eq!(accepted, "False", "{}", others[days - 1]);
    }
}

/// Otherwise anyone who may create MuxPeers could keep the operator busy.
#[tokio::test(start_paused = true)]
async fn the_peers_beyond_the_limit_are_not_even_read() {
    let key = |number: u32| {
        let mut bytes = [7; 32];
        bytes[..4].copy_from_slice(&number.to_le_bytes());
        GatewayKey::new(Role::Entry, bytes).unwrap().to_string()
    };
    let all =
        (0..256).map(|number| aged(peer(&format!("p{number}"), &key(number), json!({})), number));
    let mut all: Vec<_> = all.collect();
    all.push(aged(peer("last", &misspelt(ENTRY_KEY), json!({})), 300));
    let bench = exit(&[]).await;
    for peer in &all {
        let name = peer["metadata"]["name"].as_str().unwrap();
        bench.api.put(&format!("muxpeers/{name}"), peer.clone());
    }
    bench.reconcile().await.unwrap();
    assert_eq!(names(&bench).len(), 256);
    assert_eq!(condition(&bench, "last", "Accepted"), refusal("ExitFull"));
}

#[tokio::test]
async fn a_network_leaves_the_address_pool_to_the_other_peers() {
    let exit = "kind: MuxExit\nnetwork: {peerCIDRs: [10.72.0.0/16], cidrs: [10.96.0.0/16], addressPools: [10.72.5.0/24]}\n";
    let of = |name, key, cidr: &str| peer(name, key, json!({"networkCIDRs": [cidr]}));
    let bench = exit_of(
        exit,
        &[
            of("wide", ENTRY_KEY, "10.72.4.0/23"),
            of("part", OTHER_KEY, "10.72.5.0/25"),
            of("zone", THIRD_KEY, "10.72.5.9"),
        ],
    )
    .await;
    let only = json!([{"identity": "zone", "CIDRs": ["10.72.5.9/32"]}]);
    assert_eq!(networks(&bench), only);
    assert_eq!(
        condition(&bench, "wide", "Accepted"),
        refusal("NetworkConflict")
    );
    assert_eq!(
        condition(&bench, "part", "Accepted"),
        refusal("NetworkConflict")
    );
    assert_eq!(condition(&bench, "zone", "Accepted").0, "True");
}

/// Otherwise one peer could keep the whole spec from being applied.
#[tokio::test]
async fn a_network_that_gateways_refuse_is_refused_for_its_peer_alone() {
    let exit = "kind: MuxExit\nnetwork: {peerCIDRs: [0.0.0.0/1], cidrs: [10.96.0.0/16]}\n";
    let of = |name, key, cidr: &str| peer(name, key, json!({"networkCIDRs": [cidr]}));
    let all = [
        of("loop", ENTRY_KEY, "127.0.0.0/8"),
        of("near", OTHER_KEY, "10.72.5.0/25"),
    ];
    let bench = exit_of(exit, &all).await;
    let only = json!([{"identity": "near", "CIDRs": ["10.72.5.0/25"]}]);
    assert_eq!(networks(&bench), only);
    assert_eq!(
        condition(&bench, "loop", "Accepted"),
        refusal("InvalidSpec")
    );
    assert_eq!(condition(&bench, "near", "Ready").0, "True");
}

#[tokio::test]
async fn a_peer_of_another_mode_takes_no_network() {
    let asks = json!({"networkCIDRs": ["10.72.1.0/24"]});
    let mut other = peer("other", ENTRY_KEY, asks.clone());
    other["spec"]["certificateNames"] = json!(["entry.example.com"]);
    other["spec"].as_object_mut().unwrap().remove("publicKeys");
    let near = aged(peer("near", ENTRY_KEY, asks), 1);
    let bench = exit_of(NETWORK, &[aged(other, 0), near]).await;
    assert_eq!(condition(&bench, "near", "Accepted").0, "True");
    let only = json!([{"identity": "near", "CIDRs": ["10.72.1.0/24"]}]);
    assert_eq!(networks(&bench), only);
}

/// Otherwise each of both peers would get the connections of some pods of the exit.
#[tokio::test]
async fn a_reverse_port_belongs_to_the_oldest_peer_that_names_it() {
    let of = |name, key, ports: &[&str], days| {
        let asks = json!({"reversePorts": ports});
        aged(peer(name, key, asks), days)
    };
    let all = [
        of("first", ENTRY_KEY, &["back"], 0),
        of("later", OTHER_KEY, &["back"], 2),
        of("mixed", THIRD_KEY, &["back", "other"], 1),
    ];
    let bench = exit_of(&format!("{EXIT}{PORTS}"), &all).await;
    assert_eq!(names(&bench), ["first", "mixed", "later"]);
    assert_eq!(
        listens(&bench),
        json!(["[::]:9000,peer=first", "[::]:9001,peer=mixed"])
    );
    let accepted = |name| condition(&bench, name, "Accepted");
    assert_eq!(accepted("first").0, "True");
    for name in ["mixed", "later"] {
        assert_eq!(accepted(name), refusal("PortConflict"), "{name}");
    }
    // The port is free again.
    bench.api.remove("muxpeers/first");
    bench.run().await;
    assert_eq!(
        listens(&bench),
        json!(["[::]:9000,peer=mixed", "[::]:9001,peer=mixed"])
    );
    assert_eq!(accepted("mixed").0, "True");
    assert_eq!(accepted("later"), refusal("PortConflict"));
}

/// Otherwise the owner of the exit could keep what an administrator took from a peer.
#[tokio::test]
async fn what_a_peer_no_longer_names_goes_while_the_exit_is_paused_or_invalid() {
    for hindrance in ["paused", "invalid"] {
        let asks = json!({"reversePorts": ["back", "other"], "networkCIDRs": ["10.72.1.0/24", "10.72.2.0/24"]});
        let spec = format!("{NETWORK}{PORTS}");
        let bench = exit_of(&spec, &[peer("near", ENTRY_KEY, asks)]).await;
        bench.change(|spec| {
            spec["reversePorts"][0]["port"] = json!(9005);
            match hindrance {
                "paused" => spec["paused"] = json!(true),
                _ => spec["trustedProxies"] = json!(["0.0.0.0/0"]),
            }
        });
        change(&bench, "near", |spec| {
            spec["reversePorts"] = json!(["back"]);
            spec["networkCIDRs"] = json!(["10.72.1.128/25"]);
        });
        bench.reconcile().await.unwrap();
        assert_eq!(
            listens(&bench),
            json!(["[::]:9000,peer=near"]),
            "{hindrance}"
        );
        let only = json!([{"identity": "near", "CIDRs": ["10.72.1.128/25"]}]);
        assert_eq!(networks(&bench), only, "{hindrance}");
        // Without peers and pools, the first entry would have all networks.
        bench.api.remove("muxpeers/near");
        bench.reconcile().await.unwrap();
        assert_eq!(listens(&bench), Value::Null, "{hindrance}");
        let nobody = json!([{"identity": "-", "CIDRs": ["10.72.0.0/16"]}]);
        assert_eq!(networks(&bench), nobody, "{hindrance}");
    }
}

#[tokio::test]
async fn a_removed_member_goes_while_the_rendezvous_is_paused_or_invalid() {
    for hindrance in ["paused", "invalid", "undecoded", "misspelt"] {
        let bench = Bench::new(RENDEZVOUS);
        bench.change(|spec| {
            spec["members"] = json!([
                {"name": "near", "publicKeys": [ENTRY_KEY, OTHER_KEY]},
                {"name": "far", "publicKeys": [THIRD_KEY]},
            ]);
        });
        bench.run().await;
        bench.change(|spec| {
            spec["members"] = json!([{"name": "near", "publicKeys": [OTHER_KEY], "suspend": true}]);
            match hindrance {
                "misspelt" => {
                    let keys = json!([misspelt(ENTRY_KEY), OTHER_KEY]);
                    spec["members"][0]["publicKeys"] = keys;
                    let far = json!({"name": "far", "publicKeys": [misspelt(THIRD_KEY)]});
                    spec["members"].as_array_mut().unwrap().push(far);
                }
                "paused" => spec["paused"] = json!(true),
                "undecoded" => spec["trustedProxies"] = json!(["nowhere"]),
                _ => spec["trustedProxies"] = json!(["0.0.0.0/0"]),
            }
        });
        bench.reconcile().await.unwrap();
        let config: Value =
            serde_yaml::from_str(&document(&bench.api, "office-rendezvous")).unwrap();
        let only = json!([{"name": "near", "publicKeys": [OTHER_KEY], "suspend": true}]);
        assert_eq!(config["members"], only, "{hindrance}");
    }
}

#[tokio::test]
async fn a_rendezvous_without_a_readable_member_has_none() {
    let bench = Bench::new(RENDEZVOUS);
    bench.change(|spec| {
        spec["members"] = json!([{"name": "near", "publicKeys": [ENTRY_KEY]}]);
    });
    bench.run().await;
    bench.change(|spec| {
        spec["members"] = json!([{"name": "near", "publicKeys": [misspelt(ENTRY_KEY)]}]);
    });
    bench.reconcile().await.unwrap();
    let config: Value = serde_yaml::from_str(&document(&bench.api, "office-rendezvous")).unwrap();
    assert_eq!(config["members"], Value::Null);
}

/// The pods go on with the networks of the MuxPeers.
#[tokio::test]
async fn a_network_of_a_peer_restarts_no_gateway() {
    let bench = exit_of(NETWORK, &[peer("near", ENTRY_KEY, json!({}))]).await;
    let template = || bench.api.get("deployments/office-exit").unwrap()["spec"]["template"].clone();
    let before = template();
    change(&bench, "near", |spec| {
        spec["networkCIDRs"] = json!(["10.72.1.0/24"]);
    });
    bench.run().await;
    let only = json!([{"identity": "near", "CIDRs": ["10.72.1.0/24"]}]);
    assert_eq!(networks(&bench), only);
    assert_eq!(template(), before);
}

/// A fault that makes the whole object undecodable.
fn unreadable(spec: &mut Value) {
    spec["deny"] = json!([{"host": "a..b"}]);
}

#[tokio::test]
async fn a_peer_that_cannot_be_decoded_keeps_less_and_gains_nothing() {
    let asks = json!({
        "publicKeys": [ENTRY_KEY, OTHER_KEY],
        "reversePorts": ["back", "other"],
        "networkCIDRs": ["10.72.1.0/24", "10.72.2.0/24"],
        "allow": [{"host": "shop"}], "deny": [{"host": "old"}],
        "limits": {"carriers": 3},
    });
    let mut near = peer("near", ENTRY_KEY, asks);
    near["spec"]["publicKeys"] = json!([ENTRY_KEY, OTHER_KEY]);
    let bench = exit_of(&format!("{NETWORK}{PORTS}"), &[aged(near, 0)]).await;
    let before = config(&bench);
    change(&bench, "near", unreadable);
    bench.run().await;
    assert_eq!(config(&bench), before);
    for type_ in ["Accepted", "Ready"] {
        assert_eq!(condition(&bench, "near", type_), refusal("UnknownValue"));
    }
    assert_eq!(condition(&bench, "near", "Programmed").0, "True");
    // No status is written again.
    bench.api.take_requests();
    for _ in 0..3 {
        bench.reconcile().await.unwrap();
        look(&bench, "near").await;
    }
    assert_eq!(bench.api.take_writes(), [""; 0]);
    // A younger MuxPeer gets nothing of it.
    let asks = json!({"reversePorts": ["back"]});
    let young = aged(peer("young", ENTRY_KEY, json!({})), 1);
    bench.api.put("muxpeers/young", young);
    let other = aged(peer("port", THIRD_KEY, asks), 2);
    bench.api.put("muxpeers/port", other);
    bench.run().await;
    assert_eq!(names(&bench), ["near", "port"]);
    assert_eq!(
        condition(&bench, "young", "Accepted"),
        refusal("KeyConflict")
    );
    assert_eq!(
        condition(&bench, "port", "Accepted"),
        refusal("PortConflict")
    );
    change(&bench, "port", |spec| {
        spec["networkCIDRs"] = json!(["10.72.1.0/24"]);
        spec["reversePorts"] = json!([]);
    });
    bench.run().await;
    assert_eq!(
        condition(&bench, "port", "Accepted"),
        refusal("NetworkConflict")
    );
    bench.api.remove("muxpeers/young");
    bench.api.remove("muxpeers/port");
    // What is removed goes, and what is new waits.
    change(&bench, "near", |spec| {
        spec["publicKeys"] = json!([OTHER_KEY, THIRD_KEY]);
        spec["reversePorts"] = json!(["other"]);
        spec["networkCIDRs"] = json!(["10.72.2.0/24", "10.72.3.0/24"]);
        spec["suspend"] = json!(true);
        spec["expirationTime"] = json!("2031-01-01T00:00:00Z");
        spec["allow"] = json!([]);
    });
    bench.run().await;
    let near = &peers(&bench)[0];
    let rules = (&near["allow"], &near["deny"], &near["limits"]);
    let old = &before["security"]["peers"][0];
    assert_eq!(rules, (&old["allow"], &old["deny"], &old["limits"]));
    assert_eq!(near["publicKeys"], json!([OTHER_KEY]));
    assert_eq!(near["suspend"], true);
    assert_eq!(near["expirationTime"], "2031-01-01T00:00:00Z");
    assert_eq!(listens(&bench), json!(["[::]:9001,peer=near"]));
    let only = json!([{"identity": "near", "CIDRs": ["10.72.2.0/24"]}]);
    assert_eq!(networks(&bench), only);
    // A reduction stays until the object is readable.
    change(&bench, "near", |spec| {
        spec["suspend"] = json!(false);
        spec["expirationTime"] = json!("2032-01-01T00:00:00Z");
    });
    bench.run().await;
    let near = &peers(&bench)[0];
    assert_eq!(near["suspend"], true);
    assert_eq!(near["expirationTime"], "2031-01-01T00:00:00Z");
    change(&bench, "near", |spec| spec["deny"] = json!([]));
    bench.run().await;
    let near = &peers(&bench)[0];
    assert_eq!(near["publicKeys"], json!([OTHER_KEY, THIRD_KEY]));
    assert_eq!(near["expirationTime"], "2032-01-01T00:00:00Z");
    assert_eq!(condition(&bench, "near", "Accepted").0, "True");
}

#[tokio::test]
async fn so_it_does_while_the_exit_is_paused_or_invalid_or_has_another_mode() {
    for hindrance in ["paused", "invalid", "undecoded", "open"] {
        let mut near = peer("near", ENTRY_KEY, json!({"deny": [{"host": "old"}]}));
        near["spec"]["publicKeys"] = json!([ENTRY_KEY, OTHER_KEY]);
        let bench = exit(&[near]).await;
        bench.change(|spec| match hindrance {
            "paused" => spec["paused"] = json!(true),
            "undecoded" => spec["trustedProxies"] = json!(["nowhere"]),
            "open" => spec["security"] = json!({"mode": "None"}),
            _ => spec["trustedProxies"] = json!(["0.0.0.0/0"]),
        });
        change(&bench, "near", |spec| {
            unreadable(spec);
            spec["publicKeys"] = json!([OTHER_KEY]);
        });
        bench.reconcile().await.unwrap();
        let reason = condition(&bench, "near", "Accepted");
        assert_eq!(reason, refusal("UnknownValue"), "{hindrance}");
        if hindrance != "open" {
            let left = peers(&bench);
            assert_eq!(left[0]["publicKeys"], json!([OTHER_KEY]), "{hindrance}");
            assert_eq!(left[0]["deny"], json!([{"host": "old"}]), "{hindrance}");
        }
    }
}

#[tokio::test]
async fn a_new_peer_that_cannot_be_decoded_is_not_accepted() {
    let mut near = peer("near", ENTRY_KEY, json!({}));
    unreadable(&mut near["spec"]);
    let young = aged(peer("young", ENTRY_KEY, json!({})), 1);
    let bench = exit(&[aged(near, 0), young]).await;
    assert_eq!(names(&bench), ["young"]);
    assert_eq!(
        condition(&bench, "near", "Accepted"),
        refusal("UnknownValue")
    );
    // Its exit is gone.
    bench.api.remove("muxexits/office");
    look(&bench, "near").await;
    assert_eq!(
        condition(&bench, "near", "Accepted"),
        refusal("UnknownValue")
    );
}

#[tokio::test]
async fn an_expired_peer_is_deleted_though_it_or_its_exit_cannot_be_decoded() {
    let expired = json!({"expirationTime": "2020-01-01T00:00:00Z", "ttlSecondsAfterExpiration": 0});
    for of_exit in [true, false] {
        let bench = exit(&[peer("near", ENTRY_KEY, expired.clone())]).await;
        match of_exit {
            true => bench.change(|spec| spec["trustedProxies"] = json!(["nowhere"])),
            false => change(&bench, "near", unreadable),
        }
        bench.api.take_requests();
        look(&bench, "near").await;
        assert_eq!(
            bench.api.take_writes(),
            ["DELETE muxpeers/near"],
            "{of_exit}"
        );
    }
}
