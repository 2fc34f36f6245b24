use serde_json::json;

use super::*;
use crate::check::Verdict;

fn ours() -> CustomResourceDefinition {
    let mut ours = schema::definitions().unwrap().remove(0).1;
    ours.status = serde_json::from_value(json!({
        "acceptedNames": {"kind": "MuxTunnel", "plural": "muxtunnels"},
        "storedVersions": ["v1alpha1"],
        "conditions": [{"type": "Established", "status": "True"}],
    }))
    .unwrap();
    ours
}

fn changed(pointer: &str, change: impl FnOnce(&mut Value)) -> CustomResourceDefinition {
    let mut value = serde_json::to_value(ours()).unwrap();
    change(value.pointer_mut(pointer).unwrap());
    serde_json::from_value(value).unwrap()
}

fn finding(check: Check) -> Finding {
    match check.verdict {
        Verdict::Finding(finding) => finding,
        other => panic!("{other:?}"),
    }
}

#[test]
fn texts_of_the_api_server_are_no_difference() {
    let schema = "/spec/versions/0/schema/openAPIV3Schema";
    let theirs = changed(schema, |schema| {
        schema["properties"]["apiVersion"] = json!({"type": "string"});
        schema["properties"]["spec"]["description"] = json!("something else");
    });
    assert_eq!(
        compare("d".into(), Some(&theirs), &ours(), "i").verdict,
        Verdict::Good
    );
}

#[test]
fn fields_values_and_rules_that_differ_are_named() {
    let spec = "/spec/versions/0/schema/openAPIV3Schema/properties/spec";
    let without_field = changed(spec, |spec| {
        spec["properties"].as_object_mut().unwrap().remove("tuning");
    });
    let lacking = finding(compare("d".into(), Some(&without_field), &ours(), "i"));
    assert_eq!(lacking.code, "MT0384");
    let wanted = "the definition lacks v1alpha1.spec.tuning, v1alpha1.spec.tuning";
    assert!(lacking.cause.starts_with(wanted), "{lacking:?}");
    assert!(lacking.cause.contains(" more"), "{lacking:?}");

    let with_value = changed(spec, |spec| {
        spec["properties"]["carrier"]["properties"]["protocol"]["enum"]
            .as_array_mut()
            .unwrap()
            .push(json!("Morse"));
    });
    let more = finding(compare("d".into(), Some(&with_value), &ours(), "i"));
    assert_eq!(
        more.cause,
        "the definition also has v1alpha1.spec.carrier.protocol=\"Morse\""
    );

    let with_rule = changed(spec, |spec| {
        spec["x-kubernetes-validations"] = json!([{"rule": "false"}]);
    });
    let rule = finding(compare("d".into(), Some(&with_rule), &ours(), "i"));
    let wanted = "also has v1alpha1.spec (the rule \"false\")";
    assert!(rule.cause.contains(wanted), "{rule:?}");
}

#[test]
fn what_is_not_there_or_not_served_is_missing() {
    assert_eq!(
        finding(compare("d".into(), None, &ours(), "i")).code,
        "MT0383"
    );
    let waiting = changed("/status/conditions/0/status", |status| {
        *status = json!("False");
    });
    assert_eq!(
        finding(compare("d".into(), Some(&waiting), &ours(), "i")).code,
        "MT0383"
    );
}

fn operator(ready: i32) -> Deployment {
    serde_json::from_value(json!({
        "metadata": {"name": "muxtunnel", "namespace": "mux", "labels": {VERSION_LABEL: "0.0.1"}},
        "spec": {
            "replicas": 2,
            "selector": {},
            "template": {"spec": {"containers": [
                {"name": "operator", "args": ["run", "--gateway-image=g:1", "--wan-image=n:1"]},
            ]}},
        },
        "status": {"readyReplicas": ready, "conditions": [
            {"type": "Available", "status": "False", "message": "no minimum"},
        ]},
    }))
    .unwrap()
}

#[test]
fn an_operator_without_pods_is_a_finding_and_one_short_of_pods_a_warning() {
    assert_eq!(available(&operator(2)).verdict, Verdict::Good);
    let none = finding(available(&operator(0)));
    assert_eq!(none.cause, "0 of 2 pods are ready: no minimum");
    assert!(matches!(
        available(&operator(1)).verdict,
        Verdict::Warning(_)
    ));
    assert!(matches!(
        same_version(&operator(2)).verdict,
        Verdict::Warning(_)
    ));
    assert_eq!(images(&operator(2)), Some(("g:1".into(), "n:1".into())));
}

#[test]
fn a_leader_renews_its_lease() {
    let now: Timestamp = "2030-01-01T00:01:00Z".parse().unwrap();
    let lease = |holder: &str, renewed: &str| -> Lease {
        serde_json::from_value(json!({"metadata": {}, "spec": {
            "holderIdentity": holder, "renewTime": renewed, "leaseDurationSeconds": 15,
        }}))
        .unwrap()
    };
    let judge =
        |lease: Option<&Lease>, renewed| judge_leader("d".into(), "l", lease, renewed, "mux");
    let fresh = lease("a", "2030-01-01T00:00:50.000000Z");
    assert!(is_fresh(Some(&fresh), now));
    assert_eq!(judge(Some(&fresh), true).verdict, Verdict::Good);
    let stale = lease("a", "2030-01-01T00:00:10.000000Z");
    assert!(!is_fresh(Some(&stale), now));
    let stale = finding(judge(Some(&stale), false));
    assert_eq!(stale.code, "MT0386");
    assert_eq!(
        stale.cause,
        "a holds the Lease l and does not renew it (last at 2030-01-01T00:00:10Z)"
    );
    let free = finding(judge(Some(&lease("", "2030-01-01T00:00:50.000000Z")), true));
    assert_eq!(free.cause, "no operator holds the Lease l");
    assert_eq!(
        finding(judge(None, false)).cause,
        "the Lease l does not exist"
    );
}
