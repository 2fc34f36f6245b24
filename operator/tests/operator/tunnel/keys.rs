//! The keys and certificates of gateways.

use muxtunnel_gateway_config::Security;
use serde_json::json;

use super::build::{config, pod};
use super::*;

#[test]
fn certificates_come_from_the_secret_of_each_end() {
    let tunnel = built(&SMALLEST.replace(
        "{mode: None}",
        "{mode: Certificates, certificates: {entry: {secretRef: {name: near}}, exit: {secretRef: {name: far}}, \
         entryNames: ['spiffe://example.org/entry'], exitNames: [exit.example.com]}}",
    ));
    for (name, secret, peer) in [
        ("office-entry", "near", "exit.example.com"),
        ("office-tunnel-exit", "far", "spiffe://example.org/entry"),
    ] {
        let spec = &pod(&tunnel, name)["spec"];
        let volume = json!({"name": "keys", "secret": {"secretName": secret}});
        assert_eq!(spec["volumes"][1], volume);
        let mount = json!({"name": "keys", "mountPath": "/etc/muxgate-keys", "readOnly": true});
        assert_eq!(spec["containers"][0]["volumeMounts"][1], mount);
        let Security::Certificates(tls) = config(&tunnel, name).security else {
            panic!("no TLS");
        };
        assert_eq!(tls.key, std::path::Path::new("/etc/muxgate-keys/tls.key"));
        let names = match name {
            "office-entry" => config(&tunnel, name).connect[0].certificate_names.clone(),
            _ => tls.peers[0].certificate_names.clone(),
        };
        assert_eq!(names, [peer]);
    }
    let plain = pod(&built(SMALLEST), "office-entry");
    assert_eq!(plain["spec"]["volumes"].as_array().map(Vec::len), Some(1));
}

/// Each pod has its own private key and the public key of the other end, and no other end's private
/// key.
#[test]
fn keys_of_both_ends_come_from_one_secret() {
    let tunnel = built(MANAGED);
    for (name, own, other) in [
        ("office-entry", "entry-key", "exit-publicKey"),
        ("office-tunnel-exit", "exit-key", "entry-publicKey"),
    ] {
        let spec = &pod(&tunnel, name)["spec"];
        let items = json!([{"key": own, "path": "key"}, {"key": other, "path": "peers"}]);
        let secret = json!({"secretName": "office-pair-1-bcdfg", "items": items});
        assert_eq!(
            spec["volumes"][1],
            json!({"name": "keys", "secret": secret})
        );
        let Security::PublicKeys(keys) = config(&tunnel, name).security else {
            panic!("no keys");
        };
        let peers = keys.peers_file.unwrap();
        assert_eq!(peers, std::path::Path::new("/etc/muxgate-keys/peers"));
        assert!(keys.peers.is_empty());
    }
}

#[test]
fn an_entry_pins_the_keys_of_its_exit_and_one_that_is_none_is_named() {
    let Security::PublicKeys(keys) = config(&built(ELSEWHERE), "office-entry").security else {
        panic!("no keys");
    };
    assert!(
        keys.peers.is_empty() && keys.peers_file.is_none(),
        "{keys:?}"
    );
    let connect = &config(&built(ELSEWHERE), "office-entry").connect[0];
    assert_eq!(connect.public_keys[0].to_string(), EXIT_KEY);
    let wrong = ELSEWHERE.replace(EXIT_KEY, ENTRY_KEY);
    let expected = "connect[0].publicKeys[0]: the key of an entry (mte1...), but an exit (mtx1...) is expected here";
    assert!(refusal(&wrong).ends_with(expected), "{}", refusal(&wrong));
    let wrong = ELSEWHERE.replace(EXIT_KEY, &EXIT_KEY.replace("mtx1q", "mtx1p"));
    let error = try_decoded(object_json(&wrong)).unwrap_err().to_string();
    assert!(error.starts_with("the checksum is wrong"), "{error}");
}

/// Each kind alone has a Secret for each generation of its keys.
#[test]
fn a_gateway_of_one_end_mounts_the_keys_of_its_object() {
    let all = [
        (ELSEWHERE, "office-entry"),
        (EXIT, "office-exit"),
        (RENDEZVOUS, "office-rendezvous"),
    ];
    for (spec, name) in all.into_iter() {
        let volumes = pod(&built(spec), name)["spec"]["volumes"].clone();
        assert!(
            volumes.to_string().contains("office-key-1"),
            "{name}: {volumes}"
        );
    }
}

#[test]
fn an_entry_names_the_certificates_of_each_exit() {
    let spec = ELSEWHERE.replace(
        &format!("publicKeys: [{EXIT_KEY}]"),
        "certificateNames: [exit.example.com, 'spiffe://example.org/exit']",
    );
    let spec = format!(
        "{spec}security: {{mode: Certificates, certificates: {{entry: {{secretRef: {{name: near}}}}}}}}\n"
    );
    let entry = config(&built(&spec), "office-entry");
    let names = &entry.connect[0].certificate_names;
    assert_eq!(*names, ["exit.example.com", "spiffe://example.org/exit"]);
}
