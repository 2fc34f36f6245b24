use serde_json::{Value, json};

use super::*;
use crate::testing::tunnel::{CONTROLLER, class_json, class_with};

fn class(name: &str, spec: &Value) -> Arc<MuxClass> {
    let mut class = class_json();
    class["metadata"]["name"] = json!(name);
    class["spec"] = json!({"controllerName": CONTROLLER});
    for (field, value) in spec.as_object().unwrap() {
        class["spec"][field] = value.clone();
    }
    Arc::new(serde_json::from_value(class).unwrap())
}

fn foreign(name: &str, default: bool) -> Arc<MuxClass> {
    class(
        name,
        &json!({"controllerName": "example.com/operator", "default": default}),
    )
}

fn resolved(asked: Option<&str>, classes: &[Arc<MuxClass>]) -> Result<String, NoClass<()>> {
    resolve(asked, classes, CONTROLLER, Err(())).map(ResourceExt::name_any)
}

fn refused(code: Code, detail: &str) -> Result<String, NoClass<()>> {
    Err(NoClass::Refused(code, detail.to_owned()))
}

#[test]
fn an_object_has_the_class_that_it_names_or_the_only_default() {
    let classes = [
        class("a", &json!({})),
        class("b", &json!({"default": true})),
    ];
    assert_eq!(resolved(Some("a"), &classes), Ok("a".to_owned()));
    assert_eq!(resolved(None, &classes), Ok("b".to_owned()));
    assert_eq!(
        resolved(Some("c"), &classes),
        refused(Code::ClassNotFound, "no MuxClass c exists")
    );
    let none = refused(
        Code::ClassNotFound,
        "the object has no className, and no MuxClass has `default: true`",
    );
    assert_eq!(resolved(None, &classes[..1]), none);
    assert_eq!(resolved(None, &[]), none);
}

#[test]
fn two_defaults_are_no_default_and_names_still_count() {
    let default = json!({"default": true});
    let classes = [class("b", &default), class("a", &default)];
    assert_eq!(
        resolved(None, &classes),
        refused(
            Code::ClassAmbiguous,
            "the object has no className, and several MuxClasses have `default: true`: a, b"
        )
    );
    assert_eq!(resolved(Some("b"), &classes), Ok("b".to_owned()));
}

#[test]
fn an_object_of_another_operators_class_is_not_ours() {
    let own = class("own", &json!({"default": true}));
    let other = foreign("other", false);
    assert_eq!(resolved(Some("other"), &[other]), Err(NoClass::Foreign));
    let default = foreign("other", true);
    assert_eq!(
        resolved(None, std::slice::from_ref(&default)),
        Err(NoClass::Foreign)
    );
    let defaults = [default.clone(), foreign("third", true)];
    assert_eq!(resolved(None, &defaults), Err(NoClass::Foreign));
    // Both operators would serve the object.
    let both = resolved(None, &[own, default]);
    assert!(matches!(
        both,
        Err(NoClass::Refused(Code::ClassAmbiguous, _))
    ));
}

#[test]
fn a_class_may_permit_namespaces_by_their_labels() {
    let selector = json!({
        "matchLabels": {"team": "a"},
        "matchExpressions": [{"key": "zone", "operator": "In", "values": ["x", "y"]}],
    });
    let class = class(
        "a",
        &json!({"namespaces": {"from": "Selector", "selector": selector}}),
    );
    let classes = [class];
    let of = |labels: &[(&str, &str)]| {
        let labels = labels.iter();
        let labels: Labels = labels
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect();
        resolve::<()>(Some("a"), &classes, CONTROLLER, Ok(&labels)).map(ResourceExt::name_any)
    };
    assert_eq!(of(&[("team", "a"), ("zone", "y")]), Ok("a".to_owned()));
    for labels in [&[][..], &[("team", "a")], &[("team", "b"), ("zone", "x")]] {
        let Err(NoClass::Refused(code, detail)) = of(labels) else {
            panic!("{labels:?} are permitted");
        };
        assert_eq!(code, Code::ClassNotPermitted);
        assert!(
            detail.starts_with("MuxClass a does not permit this namespace"),
            "{detail}"
        );
    }
    assert_eq!(resolved(Some("a"), &classes), Err(NoClass::NotKnown(())));
}

#[test]
fn a_key_is_permitted_as_a_whole_or_by_its_prefix() {
    let refused_of = |pattern: &str, key: &str| {
        let class = class_with(|spec| spec["permitted"]["podMetadataKeys"] = json!([pattern]));
        let keys = [(key.to_owned(), String::new())];
        let label = TemplateMetadata {
            labels: keys.clone().into(),
            annotations: BTreeMap::new(),
        };
        let annotation = TemplateMetadata {
            labels: BTreeMap::new(),
            annotations: keys.into(),
        };
        let [label, annotation] = [label, annotation].map(|one| class.refused_key(&one).is_some());
        assert_eq!(label, annotation, "{pattern}: {key}");
        label
    };
    for (pattern, key, is_refused) in [
        ("team", "team", false),
        ("team", "teams", true),
        ("team", "example.com/team", true),
        ("prometheus.io/*", "prometheus.io/scrape", false),
        ("prometheus.io/*", "scrape", true),
        ("prometheus.io/*", "not-prometheus.io/scrape", true),
        ("prometheus.io/*", "prometheus.io.example.com/scrape", true),
        ("prometheus.io/port", "prometheus.io/port", false),
        ("prometheus.io/port", "prometheus.io/path", true),
    ] {
        assert_eq!(refused_of(pattern, key), is_refused, "{pattern}: {key}");
    }
}

#[test]
fn a_class_permits_nothing_that_it_does_not_name() {
    let class = class_with(|spec| spec["permitted"] = json!({}));
    for feature in [
        Feature::WanEmulation,
        Feature::Network,
        Feature::UnsafeSysctls,
    ] {
        assert!(class.refusal(feature, "field").is_some());
    }
}

#[test]
fn the_images_of_the_operators_version_stand_in_for_those_that_a_class_does_not_name() {
    let class = class_with(|spec| spec["images"] = json!({"wan": "w:2"}));
    let images = &class.part.images;
    assert_eq!(
        (&*images.gateway, &*images.wan, &*images.bench),
        ("example.com/gateway:1", "w:2", "example.com/bench:1")
    );
    assert_eq!(class.pull_policy(), "IfNotPresent");
}

fn merged(class: &Value, own: &Value) -> Value {
    let class = class_with(|spec| {
        spec["template"] = class.clone();
        spec["imagePullSecrets"] = json!([{"name": "own-registry"}]);
    });
    let own: Template = serde_json::from_value(own.clone()).unwrap();
    serde_json::to_value(class.template(&own)).unwrap()
}

#[test]
fn the_template_of_an_object_lies_over_that_of_its_class() {
    let class = json!({
        "metadata": {"labels": {"a": "class", "b": "class"}, "annotations": {"c": "class"}},
        "spec": {
            "nodeSelector": {"zone": "class", "disk": "class"},
            "tolerations": [{"key": "class"}],
            "priorityClassName": "class", "schedulerName": "class", "dnsPolicy": "Default",
            "imagePullSecrets": [{"name": "class"}],
            "hostAliases": [{"ip": "192.0.2.1", "hostnames": ["class"]}, {"ip": "192.0.2.2"}],
            "containers": [
                {"name": "gateway", "resources": {"requests": {"cpu": "1", "memory": "1Gi"}}},
                {"name": "wan", "resources": {"limits": {"cpu": "1"}}},
            ],
        },
    });
    let own = json!({
        "metadata": {"labels": {"b": "own"}},
        "spec": {
            "nodeSelector": {"zone": "own"},
            "tolerations": [{"key": "own"}],
            "schedulerName": "own",
            "hostAliases": [{"ip": "192.0.2.1", "hostnames": ["own"]}],
            "containers": [{"name": "gateway", "resources": {"requests": {"cpu": "2"}, "limits": {"cpu": "3"}}}],
        },
    });
    assert_eq!(
        merged(&class, &own),
        json!({
            "metadata": {"labels": {"a": "class", "b": "own"}, "annotations": {"c": "class"}},
            "spec": {
                "nodeSelector": {"zone": "own", "disk": "class"},
                "tolerations": [{"key": "own"}],
                "priorityClassName": "class", "schedulerName": "own", "dnsPolicy": "Default",
                "imagePullSecrets": [{"name": "own-registry"}, {"name": "class"}],
                "hostAliases": [{"ip": "192.0.2.2"}, {"ip": "192.0.2.1", "hostnames": ["own"]}],
                "containers": [
                    {"name": "wan", "resources": {"limits": {"cpu": "1"}}},
                    {"name": "gateway", "resources": {
                        "requests": {"cpu": "2", "memory": "1Gi"}, "limits": {"cpu": "3"},
                    }},
                ],
            },
        })
    );
    let [from_class, from_own] =
        [(&class, &json!({})), (&json!({}), &own)].map(|(class, own)| merged(class, own));
    assert_eq!(from_class["metadata"], class["metadata"]);
    assert_eq!(
        from_class["spec"]["containers"],
        class["spec"]["containers"]
    );
    assert_eq!(from_own["metadata"], own["metadata"]);
    assert_eq!(from_own["spec"]["tolerations"], own["spec"]["tolerations"]);
}
