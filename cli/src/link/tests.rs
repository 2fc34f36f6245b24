//! The names and the manifests of a link, and what it does with existing objects.

use serde_json::{Value, json};

use super::entry::{self, dials};
use super::exit::{self, host, peer_permits, reach};
use super::*;
use crate::args::Exposure;
use crate::object::Peer;
use crate::target::address;

const HOST: &str = "web.backend.svc";

fn target() -> Target {
    Target {
        service: "web".into(),
        namespace: "backend".into(),
        port: 80,
        port_name: Some("http".into()),
    }
}

fn object<T: serde::de::DeserializeOwned>(spec: &Value, status: &Value) -> T {
    serde_json::from_value(json!({
        "metadata": {"name": "web", "namespace": "backend", "generation": 1},
        "spec": spec, "status": status,
    }))
    .unwrap()
}

fn of_spec(spec: &Value) -> Gateways {
    object(spec, &json!({}))
}

fn wanted(target: &Target, port: Option<u16>) -> entry::Wanted<'_> {
    entry::Wanted {
        name: "web",
        namespace: "shop",
        host: HOST,
        target,
        port,
    }
}

#[test]
fn the_name_of_a_peer_has_the_context() {
    for (context, wanted) in [
        ("near", "web-near"),
        ("kind-near", "web-kind-near"),
        (
            "arn:aws:eks:eu-west-1:123456789012:cluster/Prod_A",
            "web-prod-a",
        ),
        ("ann@near.example.com", "web-near-example-com"),
        ("...", "web"),
    ] {
        assert_eq!(peer_name("web", context), wanted);
    }
    assert_eq!(peer_name("web", &"x".repeat(90)).len(), PEER_NAME_MAX);
}

#[test]
fn a_new_exit_permits_only_the_target() {
    let allow = json!([{"host": HOST, "port": 80}, {"host": "web", "port": 80}]);
    for (exposure, given, wanted) in [
        (
            Exposure::LoadBalancer,
            None,
            json!({"service": {"type": "LoadBalancer"}, "allow": allow}),
        ),
        (
            Exposure::LoadBalancer,
            Some("far.example.com"),
            json!({
                "service": {"type": "LoadBalancer"}, "allow": allow,
                "advertisedEndpoint": {"host": "far.example.com", "port": 443},
            }),
        ),
        (
            Exposure::NodePort,
            Some("far.example.com:31234"),
            json!({
                "service": {"type": "NodePort", "nodePort": 31234}, "allow": allow,
                "advertisedEndpoint": {"host": "far.example.com", "port": 31234},
            }),
        ),
    ] {
        let given = given.map(|text| address(text).unwrap());
        let made = exit::manifest("backend", "web", &target(), exposure, given.as_ref());
        assert_eq!((&made["kind"], &made["spec"]), (&json!("MuxExit"), &wanted));
        assert_eq!(host(&of_spec(&made["spec"]), &target()).unwrap(), HOST);
    }
}

#[test]
fn an_existing_exit_is_used_if_it_permits_the_target() {
    for (spec, wanted) in [
        (json!({"allow": [{"host": "web"}]}), "web"),
        (
            json!({"allow": [{"host": "*", "port": 1, "endPort": 1000}]}),
            HOST,
        ),
        (
            json!({"allow": [{"host": "*.backend.svc", "port": 80}]}),
            HOST,
        ),
        (
            json!({"allow": [{"host": "*"}], "deny": [{"host": "*.svc"}]}),
            "web",
        ),
    ] {
        assert_eq!(host(&of_spec(&spec), &target()).unwrap(), wanted);
    }
    let missing = "Add {host: web.backend.svc, port: 80} to spec.allow";
    for (spec, said) in [
        (json!({}), missing),
        (json!({"allow": [{"host": "web", "port": 81}]}), missing),
        (json!({"allow": [{"cidr": "10.0.0.0/8"}]}), missing),
        (
            json!({"allow": [{"host": "web"}], "deny": [{"host": "*"}]}),
            missing,
        ),
        (json!({"security": {"mode": "None"}}), "security mode None"),
        (json!({"rendezvous": []}), "rendezvous"),
    ] {
        let error = host(&of_spec(&spec), &target()).unwrap_err();
        assert!(error.contains(said), "{spec}: {error}");
    }
}

#[test]
fn an_existing_peer_may_be_too_narrow() {
    for (spec, wanted) in [
        (json!({}), true),
        (json!({"allow": [{"host": HOST, "port": 80}]}), true),
        (json!({"allow": [{"host": HOST, "port": 81}]}), false),
        (json!({"deny": [{"host": "*"}]}), false),
    ] {
        let peer: Peer = object(&spec, &json!({}));
        assert_eq!(peer_permits(&peer, HOST, 80), wanted, "{spec}");
    }
}

#[test]
fn an_exit_is_reached_by_its_keys_and_an_address_outside_of_its_cluster() {
    let of = |hosts: &[&str]| -> Gateways {
        let endpoint = |host: &&str| json!({"host": host, "port": 443, "protocol": "TCP"});
        let endpoints: Vec<_> = hosts.iter().map(endpoint).collect();
        object(
            &json!({}),
            &json!({"publicKeys": ["mtx1"], "endpoints": endpoints}),
        )
    };
    let wanted = |host: &str, port| {
        Ok(Reach {
            host: host.into(),
            port,
            public_keys: vec!["mtx1".into()],
        })
    };
    let (inside, outside) = ("web-exit.backend.svc", "192.0.2.1");
    assert_eq!(
        reach(&of(&[inside, outside]), None, false),
        wanted(outside, 443)
    );
    assert_eq!(reach(&of(&[inside]), None, true), wanted(inside, 443));
    for (given, port) in [("a:1", 1), ("a", 443)] {
        let given = address(given).unwrap();
        assert_eq!(
            reach(&of(&[inside]), Some(&given), false),
            wanted("a", port)
        );
    }
    let error = reach(&of(&[inside]), None, false).unwrap_err();
    assert!(
        error.contains("only valid inside of its cluster"),
        "{error}"
    );
    let error = reach(&of_spec(&json!({})), None, false).unwrap_err();
    assert!(error.starts_with("status.publicKeys is empty; "), "{error}");
}

#[test]
fn an_entry_dials_its_exit_in_the_exits_protocol() {
    let (target, keys) = (target(), |keys: &[&str]| Reach {
        host: "far".into(),
        port: 443,
        public_keys: keys.iter().map(|key| (*key).to_owned()).collect(),
    });
    let exit = of_spec(&json!({"carrier": {"transport": "KCP", "livenessSeconds": 5}}));
    let made = wanted(&target, Some(8080)).manifest(None, &exit, &keys(&["mtx1a"]));
    assert_eq!(
        made["spec"],
        json!({
            "connect": [{"name": "web", "host": "far", "port": 443, "publicKeys": ["mtx1a"]}],
            "carrier": {"transport": "KCP"},
            "forwards": [{
                "name": "http", "port": 8080, "targets": [{"host": HOST, "port": 80}],
            }],
        })
    );
    // The entry that was made is used again, and follows the keys of the exit.
    let mut spec = made["spec"].clone();
    spec["connect"][0]["name"] = json!("site");
    let made = of_spec(&spec);
    assert_eq!(wanted(&target, None).problem_of(&made), None);
    assert_eq!(wanted(&target, None).clients(&made), "web:8080");
    assert!(dials(&made, &keys(&["mtx1a"])));
    let rotated = keys(&["mtx1b", "mtx1a"]);
    assert!(!dials(&made, &rotated));
    let again = wanted(&target, None).manifest(Some(&made), &exit, &rotated);
    spec["connect"][0]["publicKeys"] = json!(["mtx1b", "mtx1a"]);
    assert_eq!(again["spec"], spec);
}

#[test]
fn another_tunnel_of_the_name_is_not_changed() {
    let target = target();
    let forward = json!([{"name": "x", "port": 80, "targets": [{"host": "db", "port": 80}]}]);
    for (spec, said) in [
        (json!({"forwards": forward}), "exits of its own"),
        (
            json!({"connect": [{"name": "far"}], "forwards": forward}),
            "no forward to web.backend.svc:80",
        ),
    ] {
        let problem = wanted(&target, None).problem_of(&of_spec(&spec)).unwrap();
        assert!(
            problem.contains(said) && problem.contains("--name"),
            "{problem}"
        );
    }
}
