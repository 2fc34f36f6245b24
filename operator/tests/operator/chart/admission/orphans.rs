//! Stored objects of the operator that nobody owns: the operator may adopt them, and nothing else.

use super::*;

const LABELS: [&str; 5] = [
    "app.kubernetes.io~1name",
    "app.kubernetes.io~1managed-by",
    "muxtunnel.dev~1kind",
    "muxtunnel.dev~1name",
    "app.kubernetes.io~1component",
];

fn orphan(object: &Value) -> Value {
    let mut orphan = with(object, "/metadata/ownerReferences", Value::Null);
    assert!(orphan["metadata"]["ownerReferences"].is_null());
    if object["kind"] == "Deployment" {
        // Some clients write an empty list.
        orphan["metadata"]["ownerReferences"] = json!([]);
    }
    orphan
}

/// One object of each kind that the operator adopts.
fn adopted() -> Vec<Value> {
    let mut kinds = BTreeSet::new();
    let all = built().into_iter().map(|(_, object)| object);
    let first = all.filter(|object| kinds.insert(object["kind"].to_string()));
    first.filter(|object| object["kind"] != "Secret").collect()
}

#[test]
fn an_object_that_nobody_owns_is_adopted_and_not_deleted() {
    let policies = policies("all-values");
    for object in adopted() {
        let orphan = orphan(&object);
        let asked = updated(&orphan, &object);
        assert_eq!(refusals(&policies, &asked), BTreeSet::new(), "{object}");
        // An update has to adopt the object, and a deletion is none.
        let asked = updated(&orphan, &orphan);
        assert!(!refusals(&policies, &asked).is_empty(), "{object}");
        let refused = refusals(&policies, &deleted(&orphan));
        assert!(!refused.is_empty(), "{object}");
    }
}

#[test]
fn an_object_that_was_never_the_operators_is_not_adopted() {
    let policies = policies("all-values");
    let owner = |kind: &str, version: &str| {
        let owner = json!([{"apiVersion": version, "kind": kind, "name": "a", "uid": "u"}]);
        ("/metadata/ownerReferences".to_owned(), owner)
    };
    for object in adopted() {
        let mut changes = vec![
            owner("Deployment", "apps/v1"),
            owner("Certificate", "cert-manager.io/v1"),
            owner("MuxTunnel", "example.com/v1"),
            ("/metadata/labels".to_owned(), Value::Null),
        ];
        for label in LABELS {
            let place = format!("/metadata/labels/{label}");
            changes.push((place.clone(), json!("other")));
            changes.push((place, Value::Null));
        }
        for (place, value) in changes {
            let stored = with(&orphan(&object), &place, value.clone());
            let refused = refusals(&policies, &updated(&stored, &object));
            assert!(
                refused
                    .iter()
                    .any(|why| why.starts_with("the operator may not change the stored")),
                "{place}: {value}: {object}: {refused:?}"
            );
        }
    }
}

/// An account that may create a Deployment cannot place settings in it that the operator's update
/// keeps: nobody owned the stored object.
#[test]
fn an_adopted_workload_keeps_no_settings_of_others() {
    let policies = policies("all-values");
    let own = one("Deployment", "exit");
    for change in others::changes() {
        let set = change.on(&own);
        let refused = refusals(&policies, &updated(&orphan(&set), &set));
        assert!(!refused.is_empty(), "{}", change.name);
        let taken_off = refusals(&policies, &updated(&orphan(&set), &own));
        assert_eq!(taken_off, BTreeSet::new(), "{}", change.name);
    }
}
