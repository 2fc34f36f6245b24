//! Protocols on the ports of forwards, their users, and PROXY headers.

use muxtunnel_gateway_config::{Auth, Config, ListenProtocol, ProxyProtocol};
use serde_json::json;

use super::build::{config, pod};
use super::*;

const DYNAMIC: &str = "
forwards:
- name: socks
  port: 1080
  protocol: Socks5
  auth: {usersSecret: {name: people}}
  proxyProtocol: {accept: true, send: true}
- name: http
  port: 3128
  protocol: HttpConnect
  auth: {usersSecret: {name: people, key: more}}
- name: again
  port: 3129
  protocol: HttpConnect
  auth: {usersSecret: {name: people, key: more}}
- name: auto
  port: 8080
  protocol: Auto
  targets: [{serviceRef: {name: shop}, port: 80}]
allow: [{host: '*.internal'}]
security: {mode: None}
";

fn protocols(config: &Config) -> Vec<ListenProtocol> {
    config.forwards.iter().map(|f| f.protocol).collect()
}

#[test]
fn clients_that_name_their_target_are_led_by_the_policy_alone() {
    let tunnel = built(DYNAMIC);
    let entry = config(&tunnel, "office-entry");
    use ListenProtocol::{Auto, HttpConnect, Socks5};
    assert_eq!(protocols(&entry), [Socks5, HttpConnect, HttpConnect, Auto]);
    assert!(entry.forwards[..3].iter().all(|f| f.target.is_none()));
    let allow = config(&tunnel, "office-tunnel-exit").policy.allow;
    let allow: Vec<_> = allow.iter().map(ToString::to_string).collect();
    assert_eq!(allow, ["*.internal.", "shop.site.svc:80"]);
    let service = child(&tunnel.services, "office-entry");
    assert_eq!(service["spec"]["ports"].as_array().map(Vec::len), Some(4));
}

#[test]
fn users_are_files_of_the_entry_that_each_key_is_mounted_as_once() {
    let tunnel = built(DYNAMIC);
    let spec = &pod(&tunnel, "office-entry")["spec"];
    let source = |key| json!({"secret": {"name": "people", "items": [{"key": key, "path": format!("people/{key}")}]}});
    let volume = json!({"name": "users", "projected": {
        "defaultMode": 0o440, "sources": [source("more"), source("users")],
    }});
    assert_eq!(spec["volumes"][1], volume);
    let mount = json!({"name": "users", "mountPath": "/etc/muxgate-users", "readOnly": true});
    assert_eq!(spec["containers"][0]["volumeMounts"][1], mount);
    assert_eq!(spec["securityContext"]["fsGroup"], 65532);
    let auth: Vec<_> = config(&tunnel, "office-entry")
        .forwards
        .into_iter()
        .map(|forward| forward.auth)
        .collect();
    let file = |key| Some(Auth::UsersFile(format!("/etc/muxgate-users/people/{key}")));
    assert_eq!(auth, [file("users"), file("more"), file("more"), None]);

    let exit = &pod(&tunnel, "office-tunnel-exit")["spec"];
    assert_eq!(exit["volumes"].as_array().map(Vec::len), Some(1));
    assert!(exit["securityContext"]["fsGroup"].is_null());
}

#[test]
fn only_a_new_file_of_users_needs_new_pods() {
    let before = pod(&built(DYNAMIC), "office-entry");
    let fewer = DYNAMIC.replace("key: more", "key: users");
    assert_ne!(before, pod(&built(&fewer), "office-entry"));
    let other = DYNAMIC
        .replace("protocol: Socks5", "protocol: Auto")
        .replace("port: 3129", "port: 3130")
        .replace("send: true", "send: false");
    assert_eq!(before, pod(&built(&other), "office-entry"));
}

#[test]
fn headers_that_say_where_a_client_is_are_a_matter_of_each_forward() {
    let forwards = config(&built(DYNAMIC), "office-entry").forwards;
    let both = ProxyProtocol {
        accept: true,
        send: true,
    };
    assert_eq!(forwards[0].proxy_protocol, both);
    assert_eq!(forwards[3].proxy_protocol, ProxyProtocol::default());
}

#[test]
fn what_does_not_go_together_and_an_older_schema_let_through_is_refused() {
    for (from, to, sentence) in [
        (
            "protocol: Socks5",
            "protocol: Tcp",
            "forward socks: listen.protocol Tcp needs a target: set target, or use Socks5, HttpConnect or Auto, whose clients name \
             their targets",
        ),
        (
            "protocol: Auto",
            "protocol: Socks5",
            "forward auto: each client names its target: remove target, and allow the targets in policy",
        ),
        (
            "name: auto",
            "name: auto\n  auth: {usersSecret: {name: people}}",
            "forward auto: gateways do not authenticate clients of a forward with a target: remove auth, or use Socks5, HttpConnect, or \
             Auto without a target",
        ),
        (
            "carrier: {",
            "carrier: {protocol: JMUX, ",
            "forward socks: proxyProtocol.send needs carrier.protocol Native",
        ),
        (
            "name: http",
            "name: http\n  direction: ExitToEntry",
            "forward http: direction ExitToEntry needs listen.protocol Tcp, and no proxyProtocol",
        ),
    ] {
        let spec = DYNAMIC.replace(from, to);
        let judged = validate(&tunnel(&spec), &shop(), &settings());
        let Err(Hindrance::Invalid(problem)) = judged else {
            panic!("accepted: {sentence}");
        };
        assert_eq!(problem, sentence);
    }
}
