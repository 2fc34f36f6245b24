//! The MuxPeers that accounts without the verb `permanent` can write, and those that the operator
//! can delete.

use super::*;

/// The API server sets this time at the creation, before it evaluates the policies.
const CREATED: &str = "2026-03-28T22:30:00Z";
/// A day later, to the second.
const A_DAY: &str = "2026-03-29T22:30:00Z";

fn peer() -> Value {
    json!({
        "apiVersion": "muxtunnel.dev/v1alpha1", "kind": "MuxPeer",
        "metadata": {"name": "laptop", "namespace": "one", "creationTimestamp": CREATED},
        "spec": {"exitRef": {"name": "hub"}, "publicKeys": ["mte1"]},
    })
}

fn until(time: &str) -> Value {
    with(&peer(), "/spec/expirationTime", json!(time))
}

/// The request of an account without the verb.
fn by_a_user<'a>(asked: Asked<'a>) -> Asked<'a> {
    Asked {
        username: "jane",
        ..asked
    }
}

/// The request of an account with the verb.
fn by_an_administrator<'a>(asked: Asked<'a>) -> Asked<'a> {
    Asked {
        username: "jane",
        groups: &[PERMANENT],
        ..asked
    }
}

fn is_refused(asked: &Asked<'_>) -> bool {
    let refused = refusals(&policies("all-values"), asked);
    let failed = refused.iter().any(|why| why.contains("evaluation error"));
    assert!(!failed, "{refused:?}");
    !refused.is_empty()
}

#[test]
fn without_the_verb_permanent_a_peer_ends_within_a_day_of_its_creation() {
    for good in [
        until(A_DAY),
        until("2026-03-28T23:00:00Z"),
        until("2026-03-29T23:30:00+01:00"),
        // The exit refuses this peer from the beginning.
        until("2020-01-01T00:00:00Z"),
    ] {
        assert!(!is_refused(&by_a_user(created(&good))), "{good}");
    }
    for bad in [
        peer(),
        until("2026-03-29T22:30:01Z"),
        until("2026-03-29T22:30:00-00:01"),
        until("2030-01-01T00:00:00Z"),
        with(&peer(), "/spec/ttlSecondsAfterExpiration", json!(1)),
    ] {
        assert!(is_refused(&by_a_user(created(&bad))), "{bad}");
        assert!(!is_refused(&by_an_administrator(created(&bad))), "{bad}");
    }
}

#[test]
fn without_the_verb_permanent_an_update_extends_no_peer() {
    let day = until(A_DAY);
    let shorter = until("2026-03-28T22:31:00Z");
    assert!(!is_refused(&by_a_user(updated(&day, &shorter))));
    assert!(!is_refused(&by_a_user(updated(&shorter, &day))));
    for longer in [peer(), until("2026-03-30T22:30:00Z")] {
        let asked = updated(&day, &longer);
        assert!(is_refused(&by_a_user(asked)), "{longer}");
        let asked = updated(&day, &longer);
        assert!(!is_refused(&by_an_administrator(asked)), "{longer}");
    }
}

#[test]
fn without_the_verb_permanent_peers_of_administrators_neither_change_nor_end() {
    for stored in [peer(), until("2026-06-01T00:00:00Z")] {
        // Among others, an owner that does not exist would delete the peer.
        let owner = json!([{"apiVersion": "v1", "kind": "Pod", "name": "a", "uid": "u"}]);
        for changed in [
            stored.clone(),
            until(A_DAY),
            with(&stored, "/spec/suspend", json!(true)),
            with(&stored, "/spec/publicKeys", json!(["mte2"])),
            with(&stored, "/metadata/ownerReferences", owner),
        ] {
            assert!(is_refused(&by_a_user(updated(&stored, &changed))));
            let asked = updated(&stored, &changed);
            assert!(!is_refused(&by_an_administrator(asked)));
        }
        assert!(is_refused(&by_a_user(deleted(&stored))));
        assert!(!is_refused(&by_an_administrator(deleted(&stored))));
    }
    assert!(!is_refused(&by_a_user(deleted(&until(A_DAY)))));
}

#[test]
fn the_operator_deletes_peers_with_a_time_to_live_and_writes_none() {
    let permanent = peer();
    let long = until("2026-06-01T00:00:00Z");
    let limited = with(&long, "/spec/ttlSecondsAfterExpiration", json!(0));
    assert!(!is_refused(&deleted(&limited)));
    for kept in [&permanent, &long] {
        assert!(is_refused(&deleted(kept)));
    }
    for peer in [&permanent, &limited, &until(A_DAY)] {
        assert!(is_refused(&created(peer)));
        assert!(is_refused(&updated(peer, peer)));
    }
}

/// The garbage collector and the controller of namespaces delete peers, and lack the verb.
#[test]
fn controllers_of_the_cluster_delete_every_peer() {
    let stored = peer();
    let service_account = Asked {
        username: "system:serviceaccount:kube-system:namespace-controller",
        groups: &[
            "system:serviceaccounts",
            "system:serviceaccounts:kube-system",
        ],
        ..deleted(&stored)
    };
    assert!(!is_refused(&service_account));
    let one_account = Asked {
        username: "system:kube-controller-manager",
        ..deleted(&stored)
    };
    assert!(!is_refused(&one_account));
    let other = Asked {
        username: "system:serviceaccount:one:kube-system",
        groups: &["system:serviceaccounts", "system:serviceaccounts:one"],
        ..deleted(&stored)
    };
    assert!(is_refused(&other));
}

/// Another release can serve the other namespaces. Its operator would lack the verb.
#[test]
fn peers_of_namespaces_that_the_release_does_not_serve_are_not_its_concern() {
    let elsewhere = with(&peer(), "/metadata/namespace", json!("three"));
    assert!(!is_refused(&by_a_user(created(&elsewhere))));
    let of_default = policies("default");
    let refused = refusals(&of_default, &by_a_user(created(&elsewhere)));
    assert!(!refused.is_empty());
}
