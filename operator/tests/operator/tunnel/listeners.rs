//! Proxies, their users, and PROXY headers.

use muxtunnel_gateway_config::{Config, ProxyListen};
use serde_json::json;

use super::build::{config, pod};
use super::*;

const DYNAMIC: &str = "
forwards:
- name: plain
  port: 8081
  targets: [{serviceRef: {name: shop}, port: 80}]
  proxyProtocol: {accept: Required, send: V2}
proxies:
- name: socks
  port: 1080
  protocol: SOCKS5
  usersSecretRef: {name: people}
  acceptProxyProtocol: Required
- name: http
  port: 3128
  protocol: HTTP
  usersSecretRef: {name: people, key: more}
- name: again
  port: 3129
  protocol: HTTP
  usersSecretRef: {name: people, key: more}
- name: auto
  port: 8080
  protocol: Auto
  fallbackTargets: [{serviceRef: {name: shop}, port: 80}]
allow: [{host: '*.internal'}]
security: {mode: None}
";

fn protocols(config: &Config) -> Vec<ProxyListen> {
    config.proxies.iter().map(|proxy| proxy.protocol).collect()
}

#[test]
fn clients_that_name_their_target_are_led_by_the_policy_alone() {
    let tunnel = built(DYNAMIC);
    let entry = config(&tunnel, "office-entry");
    use ProxyListen::{Auto, Http, Socks5};
    assert_eq!(protocols(&entry), [Socks5, Http, Http, Auto]);
    assert!(
        entry.proxies[..3]
            .iter()
            .all(|proxy| proxy.fallback_targets.is_empty())
    );
    assert_eq!(
        entry.proxies[3].fallback_targets[0].to_string(),
        "shop.site.svc:80"
    );
    let allow = config(&tunnel, "office-tunnel-exit").allow;
    let allow: Vec<_> = allow.iter().map(ToString::to_string).collect();
    assert_eq!(allow, ["*.internal.", "shop.site.svc:80"]);
    let service = child(&tunnel.services, "office-entry");
    assert_eq!(service["spec"]["ports"].as_array().map(Vec::len), Some(5));
}

/// The largest spec of the schema: a rule for each target, and the rules of the spec.
#[test]
fn every_list_of_the_spec_fits_the_file() {
    let numbers = |count: usize| 1..=count;
    let targets = |list: &str, number: usize| {
        let targets =
            numbers(8).map(|target| format!("{{host: {list}-{number}-{target}, port: 80}}"));
        targets.collect::<Vec<_>>().join(", ")
    };
    let forwards = |list: &'static str, from: usize| {
        numbers(64).map(move |number| {
            let (port, targets) = (from + number, targets(list, number));
            format!("- {{name: {list}{number}, port: {port}, targets: [{targets}]}}\n")
        })
    };
    let proxies = numbers(16).map(|number| {
        let (port, targets) = (3000 + number, targets("p", number));
        format!(
            "- {{name: p{number}, protocol: Auto, port: {port}, fallbackTargets: [{targets}]}}\n"
        )
    });
    let rules = |list: &str| {
        let rules = numbers(64).map(|number| format!("{{host: {list}-{number}, port: 80}}"));
        rules.collect::<Vec<_>>().join(", ")
    };
    let spec = format!(
        "forwards:\n{}reverseForwards:\n{}proxies:\n{}allow: [{}]\ndeny: [{}]\n",
        forwards("f", 1000).collect::<String>(),
        forwards("r", 2000).collect::<String>(),
        proxies.collect::<String>(),
        rules("allow"),
        rules("deny"),
    );
    let tunnel = built(&spec);
    let exit = config(&tunnel, "office-tunnel-exit");
    assert_eq!(
        (exit.allow.len(), exit.deny.len()),
        (64 + (64 + 16) * 8, 64)
    );
    assert_eq!(exit.allow_listen.len(), 64);
    let entry = config(&tunnel, "office-entry");
    assert_eq!(
        (entry.forwards.len(), entry.reverse_forwards.len()),
        (64, 64)
    );
}

#[test]
fn users_are_files_of_the_entry_that_each_key_is_mounted_as_once() {
    let tunnel = built(DYNAMIC);
    let spec = &pod(&tunnel, "office-entry")["spec"];
    let source = |key| json!({"secret": {"name": "people", "items": [{"key": key, "path": format!("people/{key}")}]}});
    let volume = json!({"name": "users", "projected": {
        "sources": [source("more"), source("users")],
    }});
    assert_eq!(spec["volumes"][1], volume);
    let mount = json!({"name": "users", "mountPath": "/etc/muxgate-users", "readOnly": true});
    assert_eq!(spec["containers"][0]["volumeMounts"][1], mount);
    let files: Vec<_> = config(&tunnel, "office-entry")
        .proxies
        .into_iter()
        .map(|proxy| proxy.users_file)
        .collect();
    let file = |key| Some(format!("/etc/muxgate-users/people/{key}"));
    assert_eq!(files, [file("users"), file("more"), file("more"), None]);

    let exit = &pod(&tunnel, "office-tunnel-exit")["spec"];
    assert_eq!(exit["volumes"].as_array().map(Vec::len), Some(1));
}

#[test]
fn only_a_new_file_of_users_needs_new_pods() {
    let before = pod(&built(DYNAMIC), "office-entry");
    let fewer = DYNAMIC.replace("key: more", "key: users");
    assert_ne!(before, pod(&built(&fewer), "office-entry"));
    let other = DYNAMIC
        .replace("protocol: SOCKS5", "protocol: Auto")
        .replace("port: 3129", "port: 3130")
        .replace(", send: V2", "");
    assert_eq!(before, pod(&built(&other), "office-entry"));
}

#[test]
fn headers_that_say_where_a_client_is_are_a_matter_of_each_forward() {
    let entry = config(&built(DYNAMIC), "office-entry");
    let header = entry.forwards[0].proxy_protocol;
    assert!(header.accepts() && header.sends());
    assert!(entry.proxies[0].accept_proxy_protocol.is_some());
    assert!(entry.proxies[3].accept_proxy_protocol.is_none());
}

#[test]
fn what_does_not_go_together_is_refused() {
    assert_refused(
        [
            (
                "security:",
                "carrier: {protocol: JMUX}\nsecurity:",
                "cannot render the configuration of the entry: forwards[0].proxyProtocol",
            ),
            (
                "port: 3128",
                "port: 1080",
                "proxy http: port 1080 of the entry gateways is in use: choose another port",
            ),
            (
                "port: 3128",
                "port: 8081",
                "proxy http: port 8081 of the entry gateways is in use: choose another port",
            ),
        ]
        .map(|(from, to, sentence)| (DYNAMIC.replace(from, to), sentence)),
    );
}
