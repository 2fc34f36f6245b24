//! The MuxClasses that the operator's account can write: the class of the chart, and the status of the
//! classes that it serves.

use super::*;

fn class(name: &str, controller: &str) -> Value {
    json!({
        "apiVersion": "muxtunnel.dev/v1alpha1", "kind": "MuxClass", "metadata": {"name": name, "namespace": ""},
        "spec": {"controllerName": controller, "default": true},
    })
}

#[test]
fn the_operator_writes_its_own_class_alone() {
    let policies = policies("all-values");
    let is_refused = |asked: Asked<'_>| !refusals(&policies, &asked).is_empty();
    let own = class("wide", "example.org/tunnels");
    let changed = with(&own, "/spec/default", Value::Null);
    assert!(!is_refused(created(&own)));
    assert!(!is_refused(updated(&own, &changed)));

    let named_otherwise = class("other", "example.org/tunnels");
    let of_another = class("wide", "muxtunnel.dev/operator");
    assert!(is_refused(created(&named_otherwise)));
    assert!(is_refused(created(&of_another)));
    assert!(is_refused(updated(&of_another, &own)));
    let changed = with(&named_otherwise, "/spec/default", Value::Null);
    assert!(is_refused(updated(&named_otherwise, &changed)));
}

#[test]
fn the_operator_writes_the_status_of_the_classes_that_it_serves() {
    let policies = policies("all-values");
    for (class, refused) in [
        (class("wide", "example.org/tunnels"), false),
        (class("other", "example.org/tunnels"), false),
        (class("other", "muxtunnel.dev/operator"), true),
    ] {
        let reported = with(&class, "/status", json!({"observedGeneration": 1}));
        let asked = Asked {
            subresource: "/status",
            ..updated(&class, &reported)
        };
        assert_eq!(!refusals(&policies, &asked).is_empty(), refused, "{class}");
    }
}
