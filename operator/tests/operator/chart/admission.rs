//! The writes that the chart's admission policies permit the operator's account: all built objects,
//! and nothing that would give an attacker with the account more privileges. The tests evaluate the
//! expressions like an API server.

mod classes;
mod commands;
mod expression;
mod metadata;
mod orphans;
mod others;
mod peers;
mod secrets;

use std::collections::BTreeSet;

use kube_cel::{AdmissionRequest, GroupVersionResource, VapEvaluator};
use serde_json::{Value, json};

use muxtunnel_testkit::pod_security::SAFE_SYSCTLS;

use self::expression::{PERMANENT, compiled};
use super::{documents_of, golden, of_kind, read};
use crate::benchmark::objects as of_benchmarks;
use crate::tunnel::privileges::objects as of_tunnels;

/// The annotation that the operator adds when it applies an object.
const APPLIED_HASH: &str = "muxtunnel.dev/applied-hash";

/// The chart's names of the images, and the repositories of those that tests build with.
const IMAGES: [(&str, &str); 3] = [("gateway", "gateway"), ("wan", "netem"), ("bench", "bench")];

/// The policies of the chart with all values, including WAN emulation, or with the default values.
fn policies(name: &str) -> Vec<Value> {
    let mut text = read(&format!("charts/tests/golden/{name}.yaml"));
    for (image, repository) in IMAGES {
        let flag = format!("--{image}-image=");
        let (_, rest) = text.split_once(&flag).unwrap();
        let of_the_chart = rest.lines().next().unwrap();
        let behind = of_the_chart.rfind('/').unwrap();
        let tag = of_the_chart[behind..].find([':', '@']).unwrap();
        let of_the_chart = of_the_chart[..behind + tag].replace('.', "[.]");
        let is_in = format!("matches('^({of_the_chart}");
        assert!(text.contains(&is_in), "{is_in}");
        text = text.replace(&is_in, &format!("matches('^(example[.]com/{repository}"));
    }
    let documents = documents_of(&text);
    let policies = of_kind(&documents, "ValidatingAdmissionPolicy");
    policies.into_iter().cloned().collect()
}

/// A CSI driver that the chart with all values permits.
const DRIVER: &str = "spiffe.csi.cert-manager.io";

/// A request of the operator's account in the chart with all values, and its objects.
struct Asked<'a> {
    operation: &'a str,
    object: Option<&'a Value>,
    old: Option<&'a Value>,
    username: &'a str,
    /// The account's groups, and [`PERMANENT`] for the verb of that name.
    groups: &'a [&'a str],
    /// With the slash.
    subresource: &'a str,
    is_dry_run: bool,
}

const OPERATOR: &str = "system:serviceaccount:mux:account";
const OPERATOR_OF_DEFAULT: &str = "system:serviceaccount:mux:tunnels-muxtunnel";

fn created(object: &Value) -> Asked<'_> {
    Asked {
        operation: "CREATE",
        object: Some(object),
        old: None,
        username: OPERATOR,
        groups: &[],
        subresource: "",
        is_dry_run: false,
    }
}

fn updated<'a>(old: &'a Value, object: &'a Value) -> Asked<'a> {
    Asked {
        operation: "UPDATE",
        object: Some(object),
        old: Some(old),
        username: OPERATOR,
        groups: &[],
        subresource: "",
        is_dry_run: false,
    }
}

fn deleted(old: &Value) -> Asked<'_> {
    Asked {
        operation: "DELETE",
        object: None,
        old: Some(old),
        username: OPERATOR,
        groups: &[],
        subresource: "",
        is_dry_run: false,
    }
}

/// The resource of a kind, as in requests.
fn resource(object: &Value) -> GroupVersionResource {
    let api_version = object["apiVersion"].as_str().unwrap();
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    let plural = match object["kind"].as_str().unwrap() {
        "NetworkPolicy" => "networkpolicies".to_owned(),
        "MuxRendezvous" => "muxrendezvous".to_owned(),
        "MuxClass" => "muxclasses".to_owned(),
        kind => kind.to_lowercase() + "s",
    };
    GroupVersionResource {
        group: group.to_owned(),
        version: version.to_owned(),
        resource: plural,
    }
}

fn holds(list: &Value, wanted: &str) -> bool {
    list.as_array().unwrap().iter().any(|one| one == wanted)
}

/// The messages of the validations that refuse the request.
fn refusals(policies: &[Value], asked: &Asked<'_>) -> BTreeSet<String> {
    let object = asked.object.or(asked.old).unwrap();
    let mut resource = resource(object);
    let request = AdmissionRequest {
        operation: asked.operation.to_owned(),
        username: asked.username.to_owned(),
        groups: asked.groups.iter().map(|&group| group.to_owned()).collect(),
        name: object["metadata"]["name"].as_str().unwrap().to_owned(),
        namespace: object["metadata"]["namespace"].as_str().unwrap().to_owned(),
        resource: resource.clone(),
        dry_run: asked.is_dry_run,
        ..AdmissionRequest::default()
    };
    resource.resource += asked.subresource;
    let mut evaluator = VapEvaluator::builder().request(request);
    if let Some(object) = asked.object {
        evaluator = evaluator.object(object.clone());
    }
    if let Some(old) = asked.old {
        evaluator = evaluator.old_object(old.clone());
    }
    let evaluator = evaluator.build();
    let is_true =
        |spec: &Value, field: &str| evaluator.evaluate_compiled(compiled(&evaluator, spec, field));
    let mut refused = BTreeSet::new();
    for policy in policies {
        let spec = &policy["spec"];
        let rules = spec["matchConstraints"]["resourceRules"]
            .as_array()
            .unwrap();
        let is_meant = rules.iter().any(|rule| {
            holds(&rule["apiGroups"], &resource.group)
                && holds(&rule["apiVersions"], &resource.version)
                && holds(&rule["resources"], &resource.resource)
                && holds(&rule["operations"], asked.operation)
        });
        let conditions = is_true(spec, "matchConditions");
        if !is_meant || !conditions.iter().all(|condition| condition.passed) {
            continue;
        }
        let failed = is_true(spec, "validations").into_iter();
        refused.extend(failed.filter_map(|result| result.message));
    }
    refused
}

/// All objects that the operator builds for the good objects, with the fields that it adds when it
/// applies them.
fn built() -> Vec<(String, Value)> {
    let benchmarks = of_benchmarks().into_iter();
    let benchmarks = benchmarks.map(|object| ("benchmark".to_owned(), object));
    let mut all: Vec<_> = of_tunnels().into_iter().chain(benchmarks).collect();
    for (_, object) in &mut all {
        object["metadata"]["annotations"][APPLIED_HASH] = json!("0");
    }
    assert!(all.len() > 100, "{}", all.len());
    all
}

#[test]
fn all_that_the_operator_builds_is_let_pass() {
    let policies = policies("all-values");
    let mut kinds = BTreeSet::new();
    for (name, object) in built() {
        kinds.insert(object["kind"].as_str().unwrap().to_owned());
        for asked in [
            created(&object),
            updated(&object, &object),
            deleted(&object),
        ] {
            let refused = refusals(&policies, &asked);
            assert_eq!(refused, BTreeSet::new(), "{name}: {object}");
        }
    }
    assert_eq!(
        kinds.iter().map(String::as_str).collect::<Vec<_>>(),
        [
            "ConfigMap",
            "Deployment",
            "HorizontalPodAutoscaler",
            "Job",
            "MuxTunnel",
            "NetworkPolicy",
            "PodDisruptionBudget",
            "Secret",
            "Service",
            "ServiceAccount",
        ]
    );
}

/// A policy covers every kind that the operator may write, except Events, Leases, statuses, and the
/// objects that cert-manager reads.
#[test]
fn every_kind_that_it_may_write_is_judged() {
    let documents = golden("default");
    let roles = of_kind(&documents, "ClusterRole").into_iter();
    let names = ["tunnels-muxtunnel", "mux-tunnels-muxtunnel-classes"];
    let of_the_operator =
        roles.filter(|role| names.iter().any(|name| role["metadata"]["name"] == *name));
    let rules = of_the_operator.flat_map(|role| role["rules"].as_array().unwrap());
    let mut written = BTreeSet::new();
    for rule in rules {
        let writes = ["create", "update", "patch", "delete"];
        if writes.iter().any(|verb| holds(&rule["verbs"], verb)) {
            let resources = rule["resources"].as_array().unwrap().iter();
            written.extend(resources.map(|resource| resource.as_str().unwrap().to_owned()));
        }
    }
    let mut judged: BTreeSet<_> = [
        "events",
        "muxtunnels/status",
        "muxexits/status",
        "muxrendezvous/status",
        "muxpeers/status",
        "muxbenchmarks/status",
        "muxclasses",
        "muxclasses/status",
    ]
    .map(str::to_owned)
    .into();
    for policy in policies("default") {
        for rule in policy["spec"]["matchConstraints"]["resourceRules"]
            .as_array()
            .unwrap()
        {
            let resources = rule["resources"].as_array().unwrap().iter();
            judged.extend(resources.map(|resource| resource.as_str().unwrap().to_owned()));
        }
    }
    assert_eq!(judged, written);
}

#[test]
fn every_policy_is_bound_and_denies() {
    for name in super::GOLDEN {
        let documents = golden(name);
        let bindings = of_kind(&documents, "ValidatingAdmissionPolicyBinding");
        let policies = of_kind(&documents, "ValidatingAdmissionPolicy");
        let bound: Vec<_> = bindings
            .iter()
            .map(|binding| {
                assert_eq!(binding["spec"]["validationActions"], json!(["Deny"]));
                &binding["spec"]["policyName"]
            })
            .collect();
        let named: Vec<_> = policies
            .iter()
            .map(|policy| {
                assert_eq!(policy["spec"]["failurePolicy"], "Fail");
                &policy["metadata"]["name"]
            })
            .collect();
        assert_eq!(bound, named, "{name}");
    }
}

fn one(kind: &str, component: &str) -> Value {
    let is_meant = |object: &Value| {
        object["kind"] == kind
            && object["metadata"]["labels"]["app.kubernetes.io/component"] == component
    };
    let found = built().into_iter().map(|(_, object)| object).find(is_meant);
    found.unwrap_or_else(|| panic!("no {kind} of {component}"))
}

/// `object` with the value at `pointer` set or removed.
fn with(object: &Value, pointer: &str, value: Value) -> Value {
    let mut changed = object.clone();
    let (parent, field) = pointer.rsplit_once('/').unwrap();
    let field = &*field.replace("~1", "/");
    let parent = changed.pointer_mut(parent).unwrap();
    if value.is_null() {
        parent.as_object_mut().unwrap().remove(field);
    } else if let Some(list) = parent.as_array_mut() {
        list.push(value);
    } else {
        parent[field] = value;
    }
    changed
}

#[test]
fn workloads_have_our_images_accounts_and_privileges_alone() {
    let policies = policies("all-values");
    let spec = "/spec/template/spec";
    let at = |field: &str| format!("{spec}/{field}");
    let of_container = |field: &str| format!("{spec}/containers/0/{field}");
    let context = |field: &str| of_container(&format!("securityContext/{field}"));
    let changes = [
        (of_container("image"), json!("example.com/other:1")),
        (of_container("image"), json!("example.com/netem:1")),
        (of_container("command"), json!(["/bin/sh"])),
        (of_container("env"), json!([{"name": "A", "value": "b"}])),
        (
            of_container("envFrom"),
            json!([{"secretRef": {"name": "s"}}]),
        ),
        (
            of_container("ports"),
            json!([{"containerPort": 1, "hostPort": 1}]),
        ),
        (of_container("securityContext"), Value::Null),
        (context("privileged"), json!(true)),
        (context("allowPrivilegeEscalation"), json!(true)),
        (context("runAsUser"), json!(0)),
        (context("runAsNonRoot"), json!(false)),
        (context("procMount"), json!("Unmasked")),
        (context("seccompProfile"), json!({"type": "Unconfined"})),
        (
            context("capabilities"),
            json!({"drop": ["ALL"], "add": ["NET_ADMIN"]}),
        ),
        (context("capabilities"), json!({"drop": ["CHOWN"]})),
        (
            at("containers/-"),
            json!({"name": "more", "image": "example.com/other:1"}),
        ),
        (
            at("initContainers"),
            json!([{"name": "wan", "image": "example.com/other:1"}]),
        ),
        (
            at("initContainers"),
            json!([{"name": "wan", "image": "example.com/netem:1", "securityContext": {
                "allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"], "add": ["SYS_ADMIN"]},
            }}]),
        ),
        (at("hostNetwork"), json!(true)),
        (at("hostPID"), json!(true)),
        (at("hostIPC"), json!(true)),
        (at("securityContext/runAsNonRoot"), Value::Null),
        (
            at("securityContext/seccompProfile"),
            json!({"type": "Unconfined"}),
        ),
        (at("automountServiceAccountToken"), json!(true)),
        (at("automountServiceAccountToken"), Value::Null),
        (at("serviceAccountName"), json!("cluster-admin")),
        (
            at("volumes"),
            json!([{"name": "host", "hostPath": {"path": "/"}}]),
        ),
        (
            at("volumes"),
            json!([{"name": "token", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}}]),
        ),
        (
            at("volumes"),
            json!([{"name": "keys", "csi": {"driver": "nfs.csi.k8s.io", "readOnly": true}}]),
        ),
        (
            at("volumes"),
            json!([{"name": "keys", "csi": {"driver": DRIVER}}]),
        ),
        (
            at("volumes"),
            json!([{"name": "keys", "csi": {"driver": DRIVER, "readOnly": false}}]),
        ),
        (
            at("volumes"),
            json!([{"name": "keys", "csi": {
                "driver": DRIVER, "readOnly": true, "nodePublishSecretRef": {"name": "any"},
            }}]),
        ),
        (
            at("volumes"),
            json!([{"name": "keys", "csi": {
                "driver": DRIVER, "readOnly": true,
                "volumeAttributes": {"csi.storage.k8s.io/pod.namespace": "other"},
            }}]),
        ),
        ("/metadata/ownerReferences".to_owned(), Value::Null),
        ("/metadata/labels".to_owned(), Value::Null),
    ];
    for object in [
        one("Deployment", "entry"),
        one("Job", "sysctl-probe"),
        one("Job", "runner"),
    ] {
        let kind = &object["kind"];
        for (pointer, value) in &changes {
            let changed = with(&object, pointer, value.clone());
            if changed == object {
                continue;
            }
            let refused = refusals(&policies, &created(&changed));
            assert!(!refused.is_empty(), "{kind}: {pointer}: {value}");
            assert!(
                !refused.iter().any(|why| why.contains("evaluation error")),
                "{refused:?}"
            );
            let refused = refusals(&policies, &updated(&object, &changed));
            assert!(!refused.is_empty(), "{kind}: {pointer}: {value}");
        }
    }
}

/// Objects of several kinds may have one name.
#[test]
fn a_workload_runs_as_the_account_of_its_own_end_alone() {
    let policies = policies("all-values");
    let account = "/spec/template/spec/serviceAccountName";
    for (kind, own) in [
        ("MuxTunnel", &["entry", "tunnel-exit"][..]),
        ("MuxExit", &["exit"]),
        ("MuxRendezvous", &["rendezvous"]),
    ] {
        let is_of = |object: &Value| {
            object["kind"] == "Deployment"
                && object["metadata"]["labels"]["muxtunnel.dev/kind"] == kind
        };
        let object = built().into_iter().map(|(_, object)| object).find(is_of);
        let object = object.unwrap();
        let name = object["metadata"]["labels"]["muxtunnel.dev/name"].as_str();
        for end in ["entry", "tunnel-exit", "exit", "rendezvous", "runner"] {
            let child = format!("{}-{end}", name.unwrap());
            let changed = with(&object, account, json!(child));
            let refused = refusals(&policies, &created(&changed));
            assert_eq!(refused.is_empty(), own.contains(&end), "{kind}: {child}");
        }
    }
}

#[test]
fn what_is_of_others_is_neither_changed_nor_deleted() {
    let policies = policies("all-values");
    let mut kinds = BTreeSet::new();
    for (_, object) in built() {
        if object["kind"] == "Secret" || !kinds.insert(object["kind"].to_string()) {
            continue;
        }
        let foreign = with(&object, "/metadata/ownerReferences", Value::Null);
        let foreign = with(&foreign, "/metadata/labels", Value::Null);
        for asked in [updated(&foreign, &object), deleted(&foreign)] {
            let refused = refusals(&policies, &asked);
            assert!(
                refused
                    .iter()
                    .any(|why| why.starts_with("the operator may not change the stored object")),
                "{object}: {refused:?}"
            );
        }
        let by_a_person = Asked {
            username: "somebody",
            ..deleted(&foreign)
        };
        assert_eq!(refusals(&policies, &by_a_person), BTreeSet::new());
    }
}

/// Many clouds grant rights to pods by annotations of their ServiceAccount. So the operator may not
/// add annotations. An account that a user has annotated keeps its annotations.
#[test]
fn accounts_get_no_annotations_of_the_operator() {
    let policies = policies("all-values");
    let account = one("ServiceAccount", "exit");
    let annotations = json!({"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/admin"});
    let annotated = with(&account, "/metadata/annotations", annotations);
    for asked in [created(&annotated), updated(&account, &annotated)] {
        assert!(!refusals(&policies, &asked).is_empty());
    }
    assert_eq!(
        refusals(&policies, &updated(&annotated, &annotated)),
        BTreeSet::new()
    );
}

/// The operator may set one annotation of its own pods, and nothing else.
#[test]
fn of_a_pod_the_operator_changes_the_annotation_that_refreshes_it_alone() {
    let policies = policies("all-values");
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": "office-entry-0", "namespace": "site", "annotations": {"a": "b"},
            "labels": {"app.kubernetes.io/managed-by": "muxtunnel-operator"},
        },
        "status": {"phase": "Running", "podIP": "10.0.0.1"},
    });
    let refused = |old: &Value, new: &Value| {
        let asked = Asked {
            subresource: "/status",
            ..updated(old, new)
        };
        !refusals(&policies, &asked).is_empty()
    };
    let marked = |mark: &str| {
        with(
            &pod,
            "/metadata/annotations/muxtunnel.dev~1refresh",
            json!(mark),
        )
    };
    assert!(!refused(&pod, &pod));
    assert!(!refused(&pod, &marked("0a1f-1900000000-0")));
    assert!(!refused(
        &marked("0a1f-1900000000-0"),
        &marked("0a1f-1900000001-1")
    ));
    let bare = with(&pod, "/metadata/annotations", Value::Null);
    let bare_marked = with(
        &bare,
        "/metadata/annotations",
        json!({"muxtunnel.dev/refresh": "0-1-0"}),
    );
    assert!(!refused(&bare, &bare_marked));
    for (pointer, value) in [
        (
            "/metadata/annotations/muxtunnel.dev~1refresh",
            json!("a word"),
        ),
        (
            "/metadata/annotations/sidecar.istio.io~1inject",
            json!("true"),
        ),
        ("/metadata/annotations/a", json!("c")),
        ("/metadata/annotations", json!({})),
        ("/metadata/labels/app", json!("web")),
        ("/metadata/labels/app.kubernetes.io~1managed-by", json!("x")),
        ("/metadata/finalizers", json!(["a/b"])),
        ("/status/podIP", json!("10.0.0.2")),
        ("/status/phase", json!("Failed")),
        ("/status", Value::Null),
    ] {
        assert!(refused(&pod, &with(&pod, pointer, value)), "{pointer}");
    }
    let foreign = with(
        &pod,
        "/metadata/labels/app.kubernetes.io~1managed-by",
        json!("helm"),
    );
    let marked = with(
        &foreign,
        "/metadata/annotations/muxtunnel.dev~1refresh",
        json!("0-1-0"),
    );
    assert!(refused(&foreign, &marked));
}

/// With the default values, no class may permit a feature or a CSI driver.
#[test]
fn without_a_permission_no_workload_has_an_init_container_a_driver_or_an_unsafe_sysctl() {
    let policies = policies("default");
    let (mut emulating, mut others) = (0, 0);
    for (name, object) in built() {
        let asked = Asked {
            username: OPERATOR_OF_DEFAULT,
            ..created(&object)
        };
        let refused = refusals(&policies, &asked);
        let spec = &object["spec"]["template"]["spec"];
        let sysctls = spec["securityContext"]["sysctls"].as_array();
        let has_unsafe = sysctls.into_iter().flatten().any(|sysctl| {
            let name = sysctl["name"].as_str().unwrap();
            !SAFE_SYSCTLS.contains(&name)
        });
        let mut volumes = spec["volumes"].as_array().into_iter().flatten();
        let has_driver = volumes.any(|volume| volume["csi"].is_object());
        let emulates = spec["initContainers"].is_array() || has_unsafe || has_driver;
        assert_eq!(!refused.is_empty(), emulates, "{name}: {refused:?}");
        emulating += usize::from(emulates);
        others += usize::from(!emulates);
    }
    assert!(emulating > 0 && others > 0);
}
