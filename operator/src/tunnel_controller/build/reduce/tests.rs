//! Reductions of documents of other versions.

use muxtunnel_gateway_config::{GatewayKey, Role};

use super::*;

/// The document of a gateway of another version: this version refuses the field `further`.
const EXIT: &str = "
role: Exit
further: {kept: 1}
security:
  mode: Certificates
  certificate: /etc/muxgate-keys/tls.crt
  key: /etc/muxgate-keys/tls.key
  ca: /etc/muxgate-keys/ca.crt
  peers: [{name: a, certificateNames: [a.example]}, {name: b, certificateNames: [b.example]}]
listen: '[::]:64000'
trustedProxies: [10.0.0.0/8, 192.0.2.0/24]
allow: [{host: one.example.com., port: 443}, {host: two.example.com., port: 443, peer: b}, {host: '*.example.org', port: 443}]
deny: [{cidr: 10.1.0.0/16}]
protectedCIDRs: [10.96.0.1]
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

/// The hosts and networks of the rules of a list.
fn rules(document: &Value, list: &str) -> Vec<String> {
    let rules = items(document, &[list]).iter();
    let place = |rule: &Value| rule.get("host").or_else(|| rule.get("cidr")).cloned();
    rules
        .map(|rule| place(rule).unwrap().as_str().unwrap().to_owned())
        .collect()
}

fn names(document: &Value, path: &[&str]) -> Vec<String> {
    let items = items(document, path).iter();
    items
        .map(|item| item["name"].as_str().unwrap().to_owned())
        .collect()
}

#[test]
fn what_is_still_permitted_stays_with_fields_that_this_version_does_not_know() {
    assert_eq!(after(EXIT, |_| ()), value(EXIT));
}

#[test]
fn removed_rules_peers_networks_and_listeners_go() {
    let rest = after(EXIT, |present| {
        present["allow"] =
            value("[{host: '*.example.org', port: 443}, {host: new.example.com, port: 443}]");
        present["security"]["peers"] = value(
            "[{name: b, certificateNames: [b.example]}, {name: c, certificateNames: [c.example]}]",
        );
        present["trustedProxies"] = value("[192.0.2.0/24]");
        present["allowListen"] = value("['[::]:9443', '[::]:7443']");
    });
    assert_eq!(rules(&rest, "allow"), ["*.example.org"]);
    assert_eq!(names(&rest, &PEERS), ["b"]);
    assert_eq!(list(&rest, &["trustedProxies"]), ["192.0.2.0/24"]);
    assert_eq!(list(&rest, &["allowListen"]), ["[::]:9443"]);
    assert_eq!(rest["further"], value(EXIT)["further"]);

    let rest = after(EXIT, |present| {
        let present = present.as_mapping_mut().unwrap();
        for name in ["allow", "trustedProxies", "allowListen"] {
            present.remove(name);
        }
    });
    for name in ["allow", "trustedProxies", "allowListen"] {
        assert!(rest.get(name).is_none(), "{name}");
    }
}

#[test]
fn denials_are_added_if_the_document_knows_their_fields() {
    let rest = after(EXIT, |present| {
        present["deny"] = value(
            "[{host: one.example.com., port: 443}, {cidr: 10.2.0.0/16, peer: a}, {cidr: 10.3.0.0/16, zone: b}]",
        );
        present["protectedCIDRs"] = value("[10.96.0.1, 10.97.0.1]");
        present["nat64Prefixes"] = value("['2001:db8::/96']");
    });
    assert_eq!(
        rules(&rest, "deny"),
        ["10.1.0.0/16", "one.example.com.", "10.2.0.0/16"]
    );
    assert_eq!(list(&rest, &["protectedCIDRs"]), ["10.96.0.1", "10.97.0.1"]);
    assert!(rest.get("nat64Prefixes").is_none(), "not known");

    let knows = EXIT.replace("'*.example.org', port", "'*.example.org', zone: a, port");
    let rest = after(&knows, |present| {
        present["deny"] = value("[{cidr: 10.3.0.0/16, zone: b}]");
    });
    assert_eq!(rules(&rest, "deny"), ["10.1.0.0/16", "10.3.0.0/16"]);
}

/// A gateway refuses a longer list, and with it the whole document.
#[test]
fn no_list_grows_beyond_its_bound() {
    let denied = |network: u8| {
        let rule = |number: u16| {
            let [high, low] = number.to_be_bytes();
            value(&format!("{{cidr: {network}.{high}.{low}.0/24}}"))
        };
        Value::Sequence((0..u16::try_from(RULES_MAX).unwrap()).map(rule).collect())
    };
    let mut full = value(EXIT);
    full["deny"] = denied(1);
    let text = serde_yaml::to_string(&full).unwrap();
    let rest = after(&text, |present| present["deny"] = denied(2));
    assert_eq!(rest["deny"], denied(2));

    withdraw(&mut full, |host| host == "one.example.com.");
    assert_eq!(full["deny"], denied(1));
    assert_eq!(rules(&full, "allow"), ["two.example.com.", "*.example.org"]);
}

fn key(role: Role, byte: u8) -> String {
    GatewayKey::new(role, [byte; 32]).unwrap().to_string()
}

#[test]
fn without_a_common_peer_a_document_has_none() {
    let rest = after(EXIT, |present| {
        present["security"]["peers"] = value("[{name: c, certificateNames: [c.example]}]");
    });
    assert_eq!(names(&rest, &PEERS), [""; 0]);

    let keys = |peers: &str| {
        format!(
            "{{role: Exit, security: {{mode: PublicKeys, privateKeyFiles: [/k], peers: {peers}}}, listen: '[::]:64000'}}"
        )
    };
    let peer = |name: &str, byte: u8| {
        let key = key(Role::Entry, byte);
        format!("{{name: {name}, publicKeys: [{key}]}}")
    };
    let rest = after(&keys(&format!("[{}]", peer("a", 1))), |present| {
        present["security"]["peers"] = value(&format!("[{}]", peer("b", 2)));
    });
    assert_eq!(names(&rest, &PEERS), [""; 0]);
    let text = serde_yaml::to_string(&rest).unwrap();
    Config::from_yaml(&text).unwrap();

    // A peer of the same name gets its present rules.
    let now = value(&format!(
        "[{{name: a, publicKeys: [{}], suspend: true}}]",
        key(Role::Entry, 3)
    ));
    let rest = after(&keys(&format!("[{}]", peer("a", 1))), |present| {
        present["security"]["peers"] = now.clone();
    });
    assert_eq!(rest["security"]["peers"], now);

    // With another mode, both ends need new pods.
    let rest = after(EXIT, |present| {
        present["security"] = value("{mode: None}");
    });
    assert_eq!(names(&rest, &PEERS), ["a", "b"]);
}

/// The entry trusts no identity of an exit that the present configuration does not have.
#[test]
fn an_exit_has_its_present_identities() {
    let entry = |byte: u8, address: &str| {
        format!(
            "{{role: Entry, further: 1, security: {{mode: PublicKeys, privateKeyFiles: [/k]}}, \
             connect: [{{name: far, address: '{address}', publicKeys: [{}]}}]}}",
            key(Role::Exit, byte)
        )
    };
    let now = value(&entry(2, "new:443"));
    let rest = after(&entry(1, "old:443"), |present| {
        present["connect"] = now["connect"].clone();
    });
    let exit = &rest["connect"][0];
    assert_eq!(exit["publicKeys"], now["connect"][0]["publicKeys"]);
    assert_eq!(exit["address"], "old:443", "another address needs new pods");
}

const ENTRY: &str = "
role: Entry
security: {mode: None}
connect: [{name: exit, address: 'exit:64000'}]
forwards:
- {name: web, listen: '[::]:8080', further: 1, targets: [{host: shop.site.svc, port: 80}]}
proxies:
- {name: socks, listen: '[::]:1080', protocol: SOCKS5}
reverseForwards:
- {name: back, listen: '[::]:443', targets: [{host: db.site.svc, port: 5432}]}
";

#[test]
fn a_port_goes_that_is_removed_or_that_reaches_others() {
    let all = |document: &Value| -> Vec<String> {
        let lists = PORTS.into_iter();
        lists.flat_map(|list| names(document, &[list])).collect()
    };
    let at = |list: &'static str, name: &'static str, to: &'static str| {
        after(ENTRY, move |present| {
            present[list][0][name] = value(to);
        })
    };
    let harmless = [
        at("forwards", "limits", "{streams: 1}"),
        at("forwards", "priority", "Bulk"),
        at("forwards", "proxyProtocol", "{send: V2}"),
    ];
    for rest in harmless {
        assert_eq!(all(&rest), ["web", "back", "socks"]);
        assert_eq!(rest["forwards"][0]["further"], 1);
    }
    let (web, socks, back) = ("forwards", "proxies", "reverseForwards");
    for (list, name, to) in [
        (web, "targets", "[{host: other.site.svc, port: 80}]"),
        (web, "listen", "'[::]:8081'"),
        (web, "proxyProtocol", "{accept: Required}"),
        (web, "name", "other"),
        (socks, "usersFile", "/users"),
        (socks, "protocol", "HTTP"),
        (socks, "acceptProxyProtocol", "Required"),
        (
            socks,
            "fallbackTargets",
            "[{host: other.site.svc, port: 80}]",
        ),
        (back, "targets", "[{host: other.site.svc, port: 80}]"),
    ] {
        let rest = at(list, name, to);
        assert_eq!(names(&rest, &[list]), [""; 0], "{list}: {name}");
        assert_eq!(all(&rest).len(), 2, "{list}: {name}");
    }
}

#[test]
fn a_withdrawn_target_is_denied_where_it_was_dialled() {
    let mut entry = value(ENTRY);
    withdraw(&mut entry, |host| host.ends_with(".svc"));
    assert!(entry.get("forwards").is_none() && entry.get("reverseForwards").is_none());
    assert_eq!(names(&entry, &["proxies"]), ["socks"]);
    assert_eq!(rules(&entry, "deny"), ["db.site.svc"]);

    let mut exit = value(EXIT);
    withdraw(&mut exit, |host| {
        host.contains("example.org") || host.starts_with("two")
    });
    assert_eq!(rules(&exit, "allow"), ["one.example.com."]);
    assert_eq!(rules(&exit, "deny"), ["10.1.0.0/16", "two.example.com."]);
}

#[test]
fn a_text_that_is_no_document_stays() {
    let present = Config::from_yaml(ENTRY.replace("further: 1, ", "").as_str()).unwrap();
    for text in ["", "- a", "a: [", "5"] {
        assert_eq!(reduced(text, &present), text);
    }
}
