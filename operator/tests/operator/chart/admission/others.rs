//! Settings of the operator's workloads that other accounts and webhooks write. An update keeps
//! them, and a creation needs `admissionPolicy.permitted`. Privileges are never kept.

use super::*;

const POD: &str = "/spec/template/spec";

/// A change of a workload by another account.
pub(super) struct Change {
    pub(super) name: &'static str,
    pointer: &'static str,
    value: Value,
}

impl Change {
    pub(super) fn on(&self, object: &Value) -> Value {
        let pointer = format!("{POD}/{}", self.pointer);
        let (parent, field) = pointer.rsplit_once('/').unwrap();
        let mut object = object.clone();
        if field == "-" && object.pointer(parent).is_none() {
            let (above, list) = parent.rsplit_once('/').unwrap();
            object.pointer_mut(above).unwrap()[list] = json!([]);
        }
        with(&object, &pointer, self.value.clone())
    }
}

/// Changes that an update of the operator keeps.
pub(super) fn changes() -> Vec<Change> {
    let change = |name, pointer, value| Change {
        name,
        pointer,
        value,
    };
    let mount = json!({"name": "config", "mountPath": "/etc/ssl/certs"});
    let exec = json!({"exec": {"command": ["/usr/local/bin/muxgate", "--version"]}});
    vec![
        change(
            "a variable",
            "containers/0/env/-",
            json!({"name": "TZ", "value": "UTC"}),
        ),
        change(
            "variables of a ConfigMap",
            "containers/0/envFrom",
            json!([{"configMapRef": {"name": "theirs"}}]),
        ),
        change(
            "another repository",
            "containers/0/image",
            json!("cache.example/gateway:1"),
        ),
        change("a mount", "containers/0/volumeMounts/-", mount),
        change("a hook", "containers/0/lifecycle", json!({"preStop": exec})),
        change("a probe", "containers/0/startupProbe", exec),
        change("a folder", "containers/0/workingDir", json!("/tmp")),
        change(
            "a sidecar",
            "containers/-",
            json!({
                "name": "log", "image": "example.com/log:1", "command": ["/bin/sh", "-c", "log"],
                "env": [{"name": "A", "value": "b"}],
            }),
        ),
        change(
            "an init container",
            "initContainers/-",
            json!({"name": "copy", "image": "example.com/copy:1", "restartPolicy": "Always"}),
        ),
        change(
            "a volume",
            "volumes/-",
            json!({"name": "labels", "downwardAPI": {"items": []}}),
        ),
    ]
}

/// Changes that give a pod privileges.
fn privileges() -> Vec<Change> {
    let change = |name, pointer, value| Change {
        name,
        pointer,
        value,
    };
    let context = |name, context: Value| {
        let sidecar =
            json!({"name": "log", "image": "example.com/log:1", "securityContext": context});
        change(name, "containers/-", sidecar)
    };
    vec![
        change(
            "a privileged gateway",
            "containers/0/securityContext/privileged",
            json!(true),
        ),
        change(
            "a capability of the gateway",
            "containers/0/securityContext/capabilities/add",
            json!(["NET_ADMIN"]),
        ),
        change(
            "another type of SELinux",
            "containers/0/securityContext/seLinuxOptions",
            json!({"type": "spc_t"}),
        ),
        change(
            "a port of the node",
            "containers/0/ports",
            json!([{"containerPort": 1, "hostPort": 1}]),
        ),
        change("the network of the node", "hostNetwork", json!(true)),
        change("the processes of the node", "hostPID", json!(true)),
        change(
            "a folder of the node",
            "volumes/-",
            json!({"name": "node", "hostPath": {"path": "/"}}),
        ),
        change("another account", "serviceAccountName", json!("admin")),
        change("root", "securityContext/runAsNonRoot", json!(false)),
        change(
            "an init container of another with the name of ours",
            "initContainers/-",
            json!({"name": "gateway", "image": "example.com/copy:1"}),
        ),
        context("a privileged sidecar", json!({"privileged": true})),
        context(
            "a sidecar with a capability",
            json!({"capabilities": {"add": ["SYS_ADMIN"]}}),
        ),
        context("a sidecar as root", json!({"runAsUser": 0})),
        context("a sidecar that may be root", json!({"runAsNonRoot": false})),
        context(
            "a sidecar that gains privileges",
            json!({"allowPrivilegeEscalation": true}),
        ),
        context(
            "a sidecar without seccomp",
            json!({"seccompProfile": {"type": "Unconfined"}}),
        ),
        context(
            "a sidecar without AppArmor",
            json!({"appArmorProfile": {"type": "Unconfined"}}),
        ),
        change(
            "a sidecar with a port of the node",
            "containers/-",
            json!({"name": "log", "image": "a", "ports": [{"containerPort": 1, "hostPort": 1}]}),
        ),
    ]
}

/// The next change of the operator.
fn next(object: &Value) -> Value {
    let mut next = object.clone();
    next["spec"]["template"]["metadata"]["labels"]["muxtunnel.dev/next"] = json!("yes");
    next["spec"]["replicas"] = json!(3);
    next
}

#[test]
fn an_update_keeps_what_others_have_changed_and_a_creation_has_nothing_of_it() {
    let policies = policies("all-values");
    let own = one("Deployment", "exit");
    for change in changes() {
        let set = change.on(&own);
        assert_eq!(
            refusals(&policies, &updated(&set, &next(&set))),
            BTreeSet::new(),
            "{}",
            change.name
        );
        assert_eq!(
            refusals(&policies, &updated(&set, &next(&own))),
            BTreeSet::new(),
            "{}",
            change.name
        );
        for asked in [created(&set), updated(&own, &set)] {
            let refused = refusals(&policies, &asked);
            assert!(!refused.is_empty(), "{}", change.name);
        }
    }
}

#[test]
fn nothing_keeps_a_privilege() {
    let policies = policies("all-values");
    let own = one("Deployment", "exit");
    for change in privileges() {
        let set = change.on(&own);
        assert_ne!(set, own, "{}", change.name);
        for asked in [
            updated(&set, &set),
            updated(&set, &next(&set)),
            created(&set),
        ] {
            let refused = refusals(&policies, &asked);
            assert!(!refused.is_empty(), "{}", change.name);
            assert!(
                !refused.iter().any(|why| why.contains("evaluation error")),
                "{refused:?}"
            );
        }
    }
}

/// A setting of another account is kept as it is, and only in its own container.
#[test]
fn a_kept_setting_does_not_change() {
    let policies = policies("all-values");
    let own = one("Deployment", "exit");
    let env = |variables: Value| with(&own, &format!("{POD}/containers/0/env"), variables);
    let stored = env(json!([{"name": "A", "value": "b"}]));
    for other in [
        json!([{"name": "A", "value": "c"}]),
        json!([{"name": "B", "value": "b"}]),
        json!([{"name": "A", "value": "b"}, {"name": "B", "value": "b"}]),
        json!([{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]),
    ] {
        assert!(!refusals(&policies, &updated(&stored, &env(other))).is_empty());
    }
    let place = format!("{POD}/containers/-");
    let sidecar = |image: &str| with(&own, &place, json!({"name": "log", "image": image}));
    let [one, other] = ["example.com/log:1", "example.com/log:2"].map(sidecar);
    assert!(refusals(&policies, &updated(&one, &one)).is_empty());
    assert!(!refusals(&policies, &updated(&one, &other)).is_empty());
}

/// The stored object has to be a workload of the operator.
#[test]
fn settings_of_a_foreign_workload_are_not_kept() {
    let policies = policies("all-values");
    let own = one("Deployment", "exit");
    let mut workloads = policies;
    workloads.retain(|policy| {
        let name = policy["metadata"]["name"].as_str().unwrap();
        name.ends_with("-workloads")
    });
    for change in changes() {
        let set = change.on(&own);
        let owner =
            json!([{"apiVersion": "apps/v1", "kind": "Deployment", "name": "a", "uid": "u"}]);
        let manager = "/metadata/labels/app.kubernetes.io~1managed-by";
        let mut unlabelled = set.clone();
        *unlabelled.pointer_mut(manager).unwrap() = json!("Helm");
        for stored in [
            with(&set, "/metadata/ownerReferences", Value::Null),
            with(&set, "/metadata/ownerReferences", owner),
            with(&set, "/metadata/labels", Value::Null),
            unlabelled,
        ] {
            let refused = refusals(&workloads, &updated(&stored, &set));
            assert!(!refused.is_empty(), "{}", change.name);
        }
    }
}

/// An account that may write a workload without capabilities cannot make the operator's update add a
/// capability to settings of others.
#[test]
fn an_init_container_with_settings_of_others_gets_no_capability() {
    let policies = policies("all-values");
    let is_meant = |object: &Value| {
        let name = object.pointer("/spec/template/spec/initContainers/0/name");
        object["kind"] == "Deployment" && name.is_some_and(|name| name == "wan")
    };
    let own = built().into_iter().map(|(_, object)| object).find(is_meant);
    let own = own.unwrap();
    let place = "/spec/template/spec/initContainers/0";
    let library = json!({"name": "run", "mountPath": "/lib/evil.so", "subPath": "evil.so"});
    let settings = [
        (
            "env",
            json!([{"name": "LD_PRELOAD", "value": "/run/evil.so"}]),
        ),
        ("envFrom", json!([{"configMapRef": {"name": "theirs"}}])),
        ("image", json!("evil.example/wan:1")),
        ("volumeMounts", json!([library])),
        ("workingDir", json!("/run")),
    ];
    for (field, value) in settings {
        let set = with(&own, &format!("{place}/{field}"), value);
        let context = format!("{place}/securityContext");
        for capabilities in [
            json!({"drop": ["ALL"]}),
            json!({"drop": ["ALL"], "add": ["NET_RAW"]}),
        ] {
            let stored = with(&set, &format!("{context}/capabilities"), capabilities);
            let refused = refusals(&policies, &updated(&stored, &set));
            assert!(!refused.is_empty(), "{field}");
        }
        let stored = with(&set, &context, Value::Null);
        assert!(
            !refusals(&policies, &updated(&stored, &set)).is_empty(),
            "{field}"
        );
        // The setting stays where the capability was there before.
        let kept = refusals(&policies, &updated(&set, &next(&set)));
        assert_eq!(kept, BTreeSet::new(), "{field}");
    }
}

#[test]
fn what_webhooks_add_at_the_creation_is_permitted_by_the_chart() {
    let policies = policies("all-values");
    let own = one("Deployment", "exit");
    let container = |field: &str| format!("{POD}/containers/0/{field}");
    let env = |name: &str| json!([{"name": name, "value": "http://proxy:3128"}]);
    let sidecar = |name: &str, image: &str| json!({"name": name, "image": image});
    let more = format!("{POD}/containers/-");
    let mirror = "mirror.example:5000/mux/gateway";
    let digest = format!("{mirror}:1@sha256:{}", "0".repeat(64));
    let permitted = [
        (container("env"), env("HTTP_PROXY")),
        (container("image"), json!(digest)),
        (container("image"), json!(format!("{mirror}:2"))),
        (
            more.clone(),
            sidecar("log-agent", "registry.example/log-agent:7"),
        ),
    ];
    for (place, value) in permitted {
        let set = with(&own, &place, value);
        assert_eq!(refusals(&policies, &created(&set)), BTreeSet::new());
        assert_eq!(refusals(&policies, &updated(&own, &set)), BTreeSet::new());
    }
    let privileged = json!({
        "name": "log-agent", "image": "registry.example/log-agent:7",
        "securityContext": {"privileged": true},
    });
    let refused = [
        (container("env"), env("LD_PRELOAD")),
        (container("env"), env("HTTP_PROXY_")),
        (container("image"), json!(format!("{mirror}-evil:1"))),
        (
            more.clone(),
            sidecar("log-agent", "registry.example/other:7"),
        ),
        (more.clone(), sidecar("log", "registry.example/log-agent:7")),
        (more, privileged),
    ];
    for (place, value) in refused {
        let set = with(&own, &place, value.clone());
        assert!(!refusals(&policies, &created(&set)).is_empty(), "{value}");
    }
}

/// After a half-finished upgrade, one of both operators writes the tag that the chart does not
/// name.
#[test]
fn an_image_has_any_tag_or_digest_of_its_repository_and_no_other_repository() {
    let policies = policies("all-values");
    let own = one("Deployment", "exit");
    let place = format!("{POD}/containers/0/image");
    let of = |image: &str| {
        let set = with(&own, &place, json!(image));
        refusals(&policies, &created(&set))
    };
    let digest = format!("sha256:{}", "0".repeat(64));
    for behind in [
        "",
        ":2",
        ":v0.1.0-rc.1_x",
        &format!("@{digest}"),
        &format!(":2@{digest}"),
    ] {
        let image = format!("example.com/gateway{behind}");
        assert_eq!(of(&image), BTreeSet::new(), "{image}");
    }
    for image in [
        "example.com/gateway-evil:1",
        "example.com/gateway/evil:1",
        "example.com/gateway:5000/evil:1",
        "example.com/gateway:1/evil",
        "example.com/gateway:",
        "example.com/gateway@",
        "example.com/gateway@sha256:a@sha256:b",
        "example.com/evil/gateway:1",
        "evil.example/example.com/gateway:1",
        "exampleXcom/gateway:1",
        "example.com/gateway:1 ",
        "example.com/gateway:1\n",
        "example.com/bench:1",
        "gateway:1",
        "",
    ] {
        assert!(!of(image).is_empty(), "{image:?}");
    }
}

#[test]
fn the_message_names_the_field() {
    let policies = policies("all-values");
    let own = one("Deployment", "exit");
    let named = |pointer: &str, value: Value, field: &str| {
        let set = with(&own, &format!("{POD}/{pointer}"), value);
        let refused = refusals(&policies, &created(&set));
        let suffix = format!(": {field}");
        assert!(
            refused.iter().any(|why| why.ends_with(&suffix)),
            "{field}: {refused:?}"
        );
    };
    let container = "spec.template.spec.containers";
    named(
        "containers/0/env",
        json!([{"name": "A", "value": "b"}]),
        &format!("{container}[gateway].env"),
    );
    named(
        "containers/0/image",
        json!("a"),
        &format!("{container}[gateway].image"),
    );
    named(
        "containers/0/securityContext/privileged",
        json!(true),
        &format!("{container}[gateway].securityContext"),
    );
    named(
        "containers/-",
        json!({"name": "log", "image": "a"}),
        &format!("{container}[log]"),
    );
}
