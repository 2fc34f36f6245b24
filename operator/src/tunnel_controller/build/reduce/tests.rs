//! Reductions of documents of other versions.

use super::*;

/// The document of a gateway of another version: this version refuses the field `further`.
const EXIT: &str = "
role: Exit
further: {kept: 1}
security:
  mode: MutualTls
  certificate: /etc/muxgate-keys/tls.crt
  key: /etc/muxgate-keys/tls.key
  ca: /etc/muxgate-keys/ca.crt
  peers: [a, b]
listen: '[::]:64000'
trustedProxies: [10.0.0.0/8, 192.0.2.0/24]
policy:
  allow: ['one.example.com.:443', 'two.example.com.:443,peer=b', '*.example.org:443']
  deny: [10.1.0.0/16]
  protected: [10.96.0.1]
allowListen: ['[::]:8443', '[::]:9443']
offer: old
";

fn value(text: &str) -> Value {
    serde_yaml::from_str(text).unwrap()
}

/// The document, and the present configuration after the changes.
fn after(document: &str, change: impl Fn(&mut Value)) -> Value {
    let mut document = value(document);
    let mut present = document.clone();
    present.as_mapping_mut().unwrap().remove("further");
    change(&mut present);
    reduce(&mut document, &present);
    let once = document.clone();
    reduce(&mut document, &present);
    assert_eq!(document, once, "a second reduction changes the document");
    document
}

fn list(document: &Value, path: &[&str]) -> Vec<String> {
    let items = items(document, path).iter();
    items
        .map(|item| item.as_str().unwrap().to_owned())
        .collect()
}

#[test]
fn what_is_still_permitted_stays_with_fields_that_this_version_does_not_know() {
    assert_eq!(after(EXIT, |_| ()), value(EXIT));
}

#[test]
fn removed_rules_peers_networks_and_listeners_go() {
    let rest = after(EXIT, |present| {
        present["policy"]["allow"] = value("['*.example.org:443', 'new.example.com:443']");
        present["security"]["peers"] = value("[b, c]");
        present["trustedProxies"] = value("[192.0.2.0/24]");
        present["allowListen"] = value("['[::]:9443', '[::]:7443']");
    });
    assert_eq!(list(&rest, &["policy", "allow"]), ["*.example.org:443"]);
    assert_eq!(list(&rest, &["security", "peers"]), ["b"]);
    assert_eq!(list(&rest, &["trustedProxies"]), ["192.0.2.0/24"]);
    assert_eq!(list(&rest, &["allowListen"]), ["[::]:9443"]);
    assert_eq!(rest["further"], value(EXIT)["further"]);

    let rest = after(EXIT, |present| {
        let present = present.as_mapping_mut().unwrap();
        for name in ["policy", "trustedProxies", "allowListen"] {
            present.remove(name);
        }
    });
    for name in ["trustedProxies", "allowListen"] {
        assert!(rest.get(name).is_none(), "{name}");
    }
    assert!(rest["policy"].get("allow").is_none());
}

#[test]
fn denials_are_added_if_the_document_knows_their_keys() {
    let rest = after(EXIT, |present| {
        present["policy"]["deny"] = value(
            "['one.example.com:443', '10.2.0.0/16,peer=a', '10.3.0.0/16,zone=b', {host: new}]",
        );
        present["policy"]["protected"] = value("[10.96.0.1, 10.97.0.1]");
        present["policy"]["nat64Prefixes"] = value("['2001:db8::/96']");
    });
    assert_eq!(
        list(&rest, &["policy", "deny"]),
        ["10.1.0.0/16", "one.example.com:443", "10.2.0.0/16,peer=a"]
    );
    assert_eq!(
        list(&rest, &["policy", "protected"]),
        ["10.96.0.1", "10.97.0.1"]
    );
    assert!(rest["policy"].get("nat64Prefixes").is_none(), "not known");

    let knows = EXIT.replace("*.example.org:443", "*.example.org:443,zone=a");
    let rest = after(&knows, |present| {
        present["policy"]["deny"] = value("['10.3.0.0/16,zone=b']");
    });
    assert_eq!(
        list(&rest, &["policy", "deny"]),
        ["10.1.0.0/16", "10.3.0.0/16,zone=b"]
    );
}

/// A gateway refuses a longer list, and with it the whole document.
#[test]
fn no_list_grows_beyond_its_bound() {
    let rules = |network: u8| {
        let rules = (0..=255).map(|number| Value::from(format!("10.{network}.{number}.0/24")));
        Value::Sequence(rules.collect())
    };
    let mut full = value(EXIT);
    full["policy"]["deny"] = rules(1);
    let text = serde_yaml::to_string(&full).unwrap();
    let rest = after(&text, |present| present["policy"]["deny"] = rules(2));
    assert_eq!(rest["policy"]["deny"], rules(2));

    withdraw(&mut full, |host| host == "one.example.com.");
    assert_eq!(full["policy"]["deny"], rules(1));
    assert_eq!(
        list(&full, &["policy", "allow"]),
        ["two.example.com.:443,peer=b", "*.example.org:443"]
    );
}

#[test]
fn without_a_common_peer_an_identity_counts_that_nobody_has() {
    let rest = after(EXIT, |present| {
        present["security"]["peers"] = value("[c]");
    });
    assert_eq!(list(&rest, &["security", "peers"]), [NO_NAME]);

    let key = |byte: u8| {
        GatewayKey::new(KeyRole::Entry, [byte; KEY_BYTES])
            .unwrap()
            .to_string()
    };
    let keys = |peers: &str| {
        format!(
            "{{role: Exit, security: {{mode: PublicKeys, privateKeyFiles: [/k], peers: {peers}}}, listen: '[::]:64000'}}"
        )
    };
    let rest = after(
        &keys(&format!("[{{name: a, publicKeys: [{}]}}]", key(1))),
        |present| {
            present["security"]["peers"] =
                value(&format!("[{{name: b, publicKeys: [{}]}}]", key(2)));
        },
    );
    let nobody = GatewayKey::new(KeyRole::Entry, *NO_KEY).unwrap();
    assert_eq!(list(&rest, &["security", "peers"]), [nobody.to_string()]);
    let text = serde_yaml::to_string(&rest).unwrap();
    Config::from_yaml(&text).unwrap();

    // A peer of the same name gets its present rules.
    let now = value(&format!(
        "[{{name: a, publicKeys: [{}], suspend: true}}]",
        key(3)
    ));
    let rest = after(
        &keys(&format!("[{{name: a, publicKeys: [{}]}}]", key(1))),
        |present| {
            present["security"]["peers"] = now.clone();
        },
    );
    assert_eq!(rest["security"]["peers"], now);

    // With another mode, both ends need new pods.
    let rest = after(EXIT, |present| {
        present["security"] = value("{mode: None}");
    });
    assert_eq!(list(&rest, &["security", "peers"]), ["a", "b"]);
}

const ENTRY: &str = "
role: Entry
security: {mode: None}
connect: exit:64000
forwards:
- {name: web, listen: '[::]:8080', further: 1, target: {host: shop.site.svc, port: 80}}
- {name: socks, listen: '[::]:1080', protocol: Socks5}
- {name: back, listen: '[::]:443', target: {host: db.site.svc, port: 5432}, direction: ExitToEntry}
";

#[test]
fn a_forward_goes_that_is_removed_or_that_reaches_others() {
    let names = |document: &Value| -> Vec<String> {
        let forwards = items(document, &["forwards"]).iter();
        let names = forwards.map(|forward| forward["name"].as_str().unwrap().to_owned());
        names.collect()
    };
    let all = ["web", "socks", "back"];
    let at = |index: usize, name: &'static str, to: &'static str| {
        after(ENTRY, move |present| {
            present["forwards"][index][name] = value(to);
        })
    };
    let without = |gone: &str| {
        all.into_iter()
            .filter(|name| *name != gone)
            .collect::<Vec<_>>()
    };
    let harmless = [
        at(0, "limits", "{streams: 1}"),
        at(0, "priority", "Bulk"),
        at(0, "proxyProtocol", "{send: true}"),
    ];
    for rest in harmless {
        assert_eq!(names(&rest), all);
        assert_eq!(rest["forwards"][0]["further"], 1);
    }
    for (index, name, to) in [
        (0, "target", "{host: other.site.svc, port: 80}"),
        (0, "listen", "'[::]:8081'"),
        (0, "proxyProtocol", "{accept: true}"),
        (0, "name", "other"),
        (1, "auth", "{usersFile: /users}"),
        (1, "protocol", "HttpConnect"),
        (2, "direction", "EntryToExit"),
    ] {
        assert_eq!(names(&at(index, name, to)), without(all[index]), "{name}");
    }
}

#[test]
fn a_withdrawn_target_is_denied_where_it_was_dialled() {
    let mut entry = value(ENTRY);
    withdraw(&mut entry, |host| host.ends_with(".svc"));
    assert_eq!(entry["forwards"].as_sequence().unwrap().len(), 1);
    assert_eq!(list(&entry, &["policy", "deny"]), ["db.site.svc:5432"]);

    let mut exit = value(EXIT);
    withdraw(&mut exit, |host| {
        host.contains("example.org") || host.starts_with("two")
    });
    assert_eq!(list(&exit, &["policy", "allow"]), ["one.example.com.:443"]);
    assert_eq!(
        list(&exit, &["policy", "deny"]),
        ["10.1.0.0/16", "two.example.com.:443,peer=b"]
    );
}

#[test]
fn a_text_that_is_no_document_stays() {
    let present = Config::from_yaml(ENTRY.replace("further: 1, ", "").as_str()).unwrap();
    for text in ["", "- a", "a: [", "5"] {
        assert_eq!(reduced(text, &present), text);
    }
}
