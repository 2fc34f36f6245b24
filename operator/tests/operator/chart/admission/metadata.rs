//! The labels and annotations that the operator's account can give to pods. A label makes a pod an
//! endpoint of a Service, and webhooks add containers to pods by labels and annotations.

use super::*;

const TEMPLATE: &str = "/spec/template/metadata";

/// The workload with a further label or annotation (`field`) of its pods.
fn with_key(object: &Value, field: &str, key: &str, value: &str) -> Value {
    let mut changed = object.clone();
    let metadata = changed.pointer_mut(TEMPLATE).unwrap();
    metadata[field][key] = json!(value);
    changed
}

#[test]
fn pods_have_no_label_or_annotation_that_no_class_may_permit() {
    let policies = policies("all-values");
    let refused = [
        ("labels", "app"),
        ("labels", "app.kubernetes.io/part-of"),
        ("labels", "example.com/other"),
        ("labels", "sidecar.istio.io/inject"),
        ("annotations", "monitoring.example.com/a"),
        ("annotations", "prometheus.io/scrape"),
        ("annotations", "sidecar.istio.io/proxyImage"),
        ("annotations", "k8s.v1.cni.cncf.io/networks"),
    ];
    // Of the template and the permissions of the class, and of the permissions of other classes.
    let permitted = [
        ("labels", "team"),
        ("labels", "example.com/team"),
        ("annotations", "example.com/note"),
        ("annotations", "monitoring.example/any"),
        ("annotations", "note"),
        ("annotations", "muxtunnel.dev/note"),
    ];
    for object in [one("Deployment", "entry"), one("Job", "runner")] {
        for (field, key) in refused {
            let changed = with_key(&object, field, key, "a");
            for asked in [created(&changed), updated(&object, &changed)] {
                let refused = refusals(&policies, &asked);
                let sentence = format!("may only have the operator's {field}, and those of");
                let is_meant = |why: &String| why.contains(&sentence);
                assert!(refused.iter().any(is_meant), "{field}: {key}: {refused:?}");
            }
            // Another account wrote the key, for example by `kubectl rollout restart`.
            let again = refusals(&policies, &updated(&changed, &changed));
            assert_eq!(again, BTreeSet::new(), "{field}: {key}");
            let other = with_key(&object, field, key, "b");
            let refused = refusals(&policies, &updated(&changed, &other));
            assert!(!refused.is_empty(), "{field}: {key}");
        }
        for (field, key) in permitted {
            let changed = with_key(&object, field, key, "a");
            let refused = refusals(&policies, &created(&changed));
            assert_eq!(refused, BTreeSet::new(), "{field}: {key}");
        }
    }
}

/// With the default values, keys of some controllers are permitted.
#[test]
fn by_default_pods_have_no_key_of_a_user() {
    let policies = policies("default");
    let object = one("Deployment", "entry");
    let is_taken = |field: &str, key: &str| {
        let changed = with_key(&object, field, key, "a");
        let asked = Asked {
            username: OPERATOR_OF_DEFAULT,
            ..created(&changed)
        };
        refusals(&policies, &asked).is_empty()
    };
    for (key, taken) in [
        ("app", false),
        ("note", false),
        ("prometheus.io/scrape", true),
        ("not-prometheus.io/scrape", false),
        ("sidecar.istio.io/proxyImage", false),
    ] {
        for field in ["labels", "annotations"] {
            assert_eq!(is_taken(field, key), taken, "{field}: {key}");
        }
    }
}
