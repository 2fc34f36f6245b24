//! The Secrets that the operator's account can create: key pairs of gateways and tokens of
//! benchmarks.

use super::*;

/// A Secret with the key pair of one end. It has no owner.
fn key(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Secret", "type": "muxtunnel.dev/key", "immutable": true,
        "metadata": {
            "name": name, "namespace": "one",
            "labels": {"app.kubernetes.io/managed-by": "muxtunnel-operator"},
        },
    })
}

fn owner(kind: &str, version: &str) -> Value {
    json!([{"apiVersion": version, "kind": kind, "name": "office", "uid": "u"}])
}

/// A Secret with the key pairs of both ends.
fn pair(name: &str) -> Value {
    let owner = owner("MuxTunnel", "muxtunnel.dev/v1alpha1");
    with(&key(name), OWNERS, owner)
}

/// The token of a benchmark.
fn token() -> Value {
    let owner = owner("MuxBenchmark", "muxtunnel.dev/v1alpha1");
    let token = with(&key("probe-0a1b"), OWNERS, owner);
    with(&token, "/type", json!("Opaque"))
}

const OWNERS: &str = "/metadata/ownerReferences";

#[test]
fn the_operator_creates_key_pairs_and_tokens() {
    let policies = policies("all-values");
    for secret in [
        key("office-entry-key-1"),
        key("office-exit-key-1000000"),
        key("a-exit-key-2"),
        key("office-rendezvous-key-1"),
        pair("office-pair-x7k2p"),
        pair("office-pair-1-x7k2p"),
        token(),
    ] {
        let refused = refusals(&policies, &created(&secret));
        assert_eq!(refused, BTreeSet::new(), "{secret}");
    }
}

/// So the operator checks whether an own Secret of an object exists.
#[test]
fn a_dry_run_may_have_any_name_but_no_other_type_or_owner() {
    let policies = policies("all-values");
    let is_refused = |secret: &Value| {
        let asked = Asked {
            is_dry_run: true,
            ..created(secret)
        };
        !refusals(&policies, &asked).is_empty()
    };
    assert!(!is_refused(&key("sealed.example")));
    for other in [
        with(&key("sealed"), "/type", json!("Opaque")),
        with(&key("sealed"), OWNERS, owner("Deployment", "apps/v1")),
        with(&key("sealed"), "/metadata/labels", Value::Null),
    ] {
        assert!(is_refused(&other), "{other}");
    }
}

#[test]
fn the_operator_creates_no_other_secret() {
    let policies = policies("all-values");
    let mut others: Vec<_> = [
        "office",
        "office-tls",
        "office-entry-key",
        "office-entry-key-",
        "office-entry-key-0",
        "office-entry-key-01",
        "office-entry-key-1a",
        "office-entry-key-12345678",
        "office-key-1",
        "-entry-key-1",
        "office-entry-key-1.example",
        "x.office-entry-key-1",
    ]
    .map(key)
    .into();
    others.extend(
        [
            "office-pair",
            "office-pair-",
            "-pair-a",
            "office-entry-key-1",
        ]
        .map(pair),
    );
    // A pair without its tunnel.
    others.push(key("office-pair-x7k2p"));
    for own in [
        key("office-entry-key-1"),
        pair("office-pair-x7k2p"),
        token(),
    ] {
        let manager = "/metadata/labels/app.kubernetes.io~1managed-by";
        others.extend([
            with(&own, "/immutable", Value::Null),
            with(&own, "/immutable", json!(false)),
            with(&own, "/type", Value::Null),
            with(&own, "/type", json!("kubernetes.io/tls")),
            with(&own, "/type", json!("kubernetes.io/service-account-token")),
            with(&own, OWNERS, owner("Deployment", "apps/v1")),
            with(&own, OWNERS, owner("MuxTunnel", "example.com/v1")),
            with(&own, "/metadata/labels", Value::Null),
            with(&own, manager, json!("Helm")),
        ]);
    }
    // The types with the owner of the other one.
    others.push(with(&pair("office-pair-x7k2p"), "/type", json!("Opaque")));
    others.push(with(&token(), "/type", json!("muxtunnel.dev/key")));
    for secret in others {
        let refused = refusals(&policies, &created(&secret));
        assert!(
            refused
                .iter()
                .any(|why| why.starts_with("the operator may only create")),
            "{secret}: {refused:?}"
        );
        let by_a_person = Asked {
            username: "somebody",
            ..created(&secret)
        };
        assert_eq!(refusals(&policies, &by_a_person), BTreeSet::new());
    }
}
