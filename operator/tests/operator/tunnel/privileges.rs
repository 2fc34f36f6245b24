//! Tests that no spec gives its pods more privileges than another spec. The tests use every object
//! in the table of good objects, and change every text in these objects.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use k8s_openapi::api::batch::v1::Job;
use kube::ResourceExt;
use muxtunnel_operator::tunnel_controller::dereference::{ProbeOutcome, SeenProbe};
use muxtunnel_operator::tunnel_controller::end::End;
use muxtunnel_testkit::openshift::{restricted_v2, unreadable};

use super::*;

/// The only fields of a pod's spec that a pod may have.
const POD_FIELDS: [&str; 20] = [
    "affinity",
    "automountServiceAccountToken",
    "containers",
    "dnsConfig",
    "dnsPolicy",
    "enableServiceLinks",
    "hostAliases",
    "imagePullSecrets",
    "initContainers",
    "nodeSelector",
    "priorityClassName",
    "restartPolicy",
    "runtimeClassName",
    "schedulerName",
    "securityContext",
    "serviceAccountName",
    "terminationGracePeriodSeconds",
    "tolerations",
    "topologySpreadConstraints",
    "volumes",
];

/// The objects with gateways that the API server has to accept, by file name.
fn good_objects() -> Vec<(String, Value)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crds/tests/good_objects");
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let text = fs::read_to_string(&path).unwrap();
        let mut object: Value = serde_yaml::from_str(&text).unwrap();
        let kind = object["kind"].as_str().unwrap();
        let has_gateways = ["MuxTunnel", "MuxExit", "MuxRendezvous"].contains(&kind);
        if has_gateways {
            object["metadata"]["namespace"] = json!("site");
            object["metadata"]["uid"] = json!("uid-office");
            object["metadata"]["generation"] = json!(1);
            found.push((
                path.file_stem().unwrap().to_string_lossy().into_owned(),
                object,
            ));
        }
    }
    found.sort_by(|a, b| a.0.cmp(&b.0));
    assert!(found.len() >= 10, "{} good objects", found.len());
    found
}

/// The tunnel of a MuxBenchmark that measures IP packets. An agent runs in each of its gateways'
/// pods.
fn measured_network() -> Value {
    let mut object = object_json(
        "network: {entry: {cidrs: [10.72.0.1/32]}, exit: {cidrs: [10.72.0.2/32], forwarding: SNAT}, queues: 2}\n",
    );
    object["metadata"]["ownerReferences"] = json!([{
        "apiVersion": "muxtunnel.dev/v1alpha1", "kind": "MuxBenchmark",
        "name": "probe", "uid": "u", "controller": true,
    }]);
    object
}

/// All objects of the good objects and of [`measured_network`], each with the file of its tunnel.
pub(crate) fn objects() -> Vec<(String, Value)> {
    fn json<K: serde::Serialize>(objects: &[K]) -> impl Iterator<Item = Value> + '_ {
        let objects = objects.iter();
        objects.map(|object| serde_json::to_value(object).unwrap())
    }
    let mut all = Vec::new();
    let measured = [("measured network".to_owned(), measured_network())];
    for (name, object) in good_objects().into_iter().chain(measured) {
        let built = resources(&object).unwrap_or_else(|why| panic!("{name}: {why}"));
        let objects = json(&built.service_accounts)
            .chain(json(&built.config_maps))
            .chain(json(&built.services))
            .chain(json(&built.network_policies))
            .chain(json(&built.deployments))
            .chain(json(&built.pod_disruption_budgets))
            .chain(json(&built.autoscalers))
            .chain(json(&built.probe_jobs));
        all.extend(objects.map(|object| (name.clone(), object)));
    }
    all
}

/// The object's pods of Deployments and Jobs, by the name of their account, or why the object is
/// invalid.
fn pods(object: &Value) -> Result<Vec<(String, Value)>, String> {
    resources(object)
        .as_ref()
        .map(pods_of)
        .map_err(Clone::clone)
}

fn resources(object: &Value) -> Result<Resources, String> {
    let decoded = try_decoded(object.clone()).map_err(|error| error.to_string())?;
    match validate(&decoded, &shop(), class()) {
        Ok(mut valid) => {
            // The gateways' Deployments are built only after their sysctls have passed.
            let passed = |job: Job| SeenProbe {
                job: Arc::new(job),
                outcome: ProbeOutcome::default(),
            };
            // A Job per placement, one after another.
            for _ in End::ALL {
                let tried = try_built(&valid)?.probe_jobs;
                valid.pods.probes = tried.into_iter().map(passed).collect();
            }
            try_built(&valid)
        }
        Err(Hindrance::Invalid(problem)) => Err(problem),
        Err(Hindrance::Blocked(problem)) => Err(problem.detail),
        Err(hindrance) => panic!("{hindrance:?}"),
    }
}

fn try_built(valid: &ValidatedObject) -> Result<Resources, String> {
    build(valid, &settings()).map_err(|error| error.to_string())
}

fn pods_of(resources: &Resources) -> Vec<(String, Value)> {
    let deployments = resources.deployments.iter().map(|deployment| {
        let object = serde_json::to_value(deployment).unwrap();
        (deployment.name_any(), object)
    });
    let jobs = resources.probe_jobs.iter().map(|job| {
        let object = serde_json::to_value(job).unwrap();
        let account = &object["spec"]["template"]["spec"]["serviceAccountName"];
        (account.as_str().unwrap().to_owned(), object)
    });
    deployments
        .chain(jobs)
        .map(|(name, object)| (name, object["spec"]["template"]["spec"].clone()))
        .collect()
}

/// The fields of a pod that could give it a privilege. Names of Secrets are omitted, because the
/// author of a tunnel may mount any Secret of the tunnel's namespace into a pod there. The
/// arguments of muxwan are omitted, too. Sysctls are omitted, because the schema, the kubelet and
/// Pod Security check them.
fn privileges(pod: &Value) -> Value {
    let unknown: Vec<_> = pod.as_object().unwrap().keys().collect();
    let unknown: Vec<_> = unknown
        .into_iter()
        .filter(|key| !POD_FIELDS.contains(&key.as_str()))
        .collect();
    assert!(unknown.is_empty(), "{unknown:?}");
    let mut pod = pod.clone();
    for chosen in [
        "affinity",
        "dnsConfig",
        "dnsPolicy",
        "hostAliases",
        "imagePullSecrets",
        "nodeSelector",
        "priorityClassName",
        "runtimeClassName",
        "schedulerName",
        "tolerations",
        "topologySpreadConstraints",
    ] {
        pod.as_object_mut().unwrap().remove(chosen);
    }
    pod["securityContext"]["sysctls"] = Value::Null;
    for volume in pod["volumes"].as_array_mut().into_iter().flatten() {
        let kinds: BTreeSet<_> = volume.as_object().unwrap().keys().cloned().collect();
        *volume = json!({"name": volume["name"], "kinds": kinds});
    }
    for list in ["containers", "initContainers"] {
        for container in pod[list].as_array_mut().into_iter().flatten() {
            container["resources"] = Value::Null;
            if list == "initContainers" {
                container["args"] = Value::Null;
            }
        }
    }
    pod
}

/// The JSON pointers of all texts in `value`.
fn texts(at: &str, value: &Value, found: &mut Vec<String>) {
    match value {
        Value::String(_) => found.push(at.to_owned()),
        Value::Object(fields) => {
            for (key, value) in fields {
                let key = key.replace('~', "~0").replace('/', "~1");
                texts(&format!("{at}/{key}"), value, found);
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                texts(&format!("{at}/{index}"), item, found);
            }
        }
        _ => {}
    }
}

#[test]
fn no_text_in_a_spec_reaches_image_command_account_volumes_or_privileges() {
    let mut tried = 0;
    for (name, object) in good_objects() {
        let wanted: Vec<_> = pods(&object).unwrap_or_else(|why| panic!("{name}: {why}"));
        let wanted: Vec<_> = wanted
            .iter()
            .map(|(name, pod)| (name, privileges(pod)))
            .collect();
        let mut pointers = Vec::new();
        texts("/spec", &object["spec"], &mut pointers);
        for pointer in pointers {
            let mut changed = object.clone();
            *changed.pointer_mut(&pointer).unwrap() = json!("canary");
            let Ok(found) = pods(&changed) else {
                continue;
            };
            tried += 1;
            let found: Vec<_> = found
                .iter()
                .map(|(name, pod)| (name, privileges(pod)))
                .collect();
            assert_eq!(found, wanted, "{name}: {pointer}");
        }
    }
    assert!(tried > 50, "only {tried} texts could be changed");
}

#[test]
fn images_accounts_and_volumes_are_of_a_closed_list() {
    for (name, object) in good_objects() {
        for (deployment, pod) in pods(&object).unwrap_or_else(|why| panic!("{name}: {why}")) {
            assert_eq!(pod["serviceAccountName"], json!(deployment), "{name}");
            assert_eq!(pod["automountServiceAccountToken"], false, "{name}");
            for volume in pod["volumes"].as_array().into_iter().flatten() {
                let mut kinds = volume.as_object().unwrap().keys();
                let known = |kind: &String| {
                    [
                        "name",
                        "configMap",
                        "secret",
                        "projected",
                        "emptyDir",
                        "csi",
                    ]
                    .contains(&kind.as_str())
                };
                assert!(kinds.all(known), "{name}: {volume}");
                if let Some(source) = volume.get("configMap") {
                    assert_eq!(source["name"], json!(deployment), "{name}");
                    let key = source["items"][0]["key"].as_str().unwrap();
                    let is_hash = |byte: u8| byte.is_ascii_hexdigit() || byte == b'-';
                    let hashes = key.strip_suffix(".yaml").unwrap();
                    assert!(hashes.bytes().all(is_hash), "{name}: {key}");
                    let items = json!([{"key": key, "path": "config.yaml"}]);
                    assert_eq!(source["items"], items, "{name}");
                }
                if let Some(source) = volume.get("csi") {
                    assert_eq!(source["driver"], "spiffe.csi.cert-manager.io", "{name}");
                    assert_eq!(source["readOnly"], true, "{name}");
                    assert!(source["nodePublishSecretRef"].is_null(), "{name}");
                }
                // The token of a service account is projected, too.
                for source in volume["projected"]["sources"]
                    .as_array()
                    .into_iter()
                    .flatten()
                {
                    let kinds: Vec<_> = source.as_object().unwrap().keys().collect();
                    assert_eq!(kinds, ["secret"], "{name}");
                }
            }
            let init = pod["initContainers"].as_array().into_iter().flatten();
            for container in init.chain(pod["containers"].as_array().unwrap()) {
                let (image, command) = match container["name"].as_str().unwrap() {
                    "gateway" | "network" | "sysctl-probe" => {
                        ("example.com/gateway:1", "/usr/local/bin/muxgate")
                    }
                    "wan" => ("example.com/netem:1", "/usr/local/bin/muxwan"),
                    other => panic!("{name}: container {other}"),
                };
                assert_eq!(container["image"], image, "{name}");
                let tries = container["name"] == "sysctl-probe";
                let wanted = match tries {
                    true => json!([command, "--version"]),
                    false => json!([command]),
                };
                assert_eq!(container["command"], wanted, "{name}");
                assert!(container.get("env").is_none() && container.get("envFrom").is_none());
            }
        }
    }
}

/// `restricted-v2` of OpenShift has the rules of the Pod Security level `restricted`, and a range of
/// users for each namespace.
#[test]
fn every_pod_fits_into_restricted_v2_but_for_the_emulation_networks_and_unsafe_sysctls() {
    const USER: &str = "runAsUser outside of the namespace's range";
    let (mut emulating, mut routing) = (0, 0);
    for (name, object) in good_objects() {
        for (_, pod) in pods(&object).unwrap_or_else(|why| panic!("{name}: {why}")) {
            let found = restricted_v2(&pod).err().unwrap_or_default();
            let own = [": wan", ": network", ": pod"];
            let (own, others): (BTreeSet<_>, BTreeSet<_>) = found
                .into_iter()
                .partition(|control| own.iter().any(|place| control.ends_with(place)));
            let init = pod["initContainers"].as_array().into_iter().flatten();
            let init = init.map(|container| container["name"].as_str().unwrap());
            let mut wanted: BTreeSet<_> = init
                .flat_map(|container| {
                    ["capabilities added", "non-root user", "non-root", USER]
                        .map(|control| format!("{control}: {container}"))
                })
                .collect();
            // The interface for IP packets belongs to one user.
            if wanted.contains("non-root: network") {
                wanted.insert(format!("{USER}: pod"));
            }
            assert_eq!(unreadable(&pod), BTreeSet::new(), "{name}");
            emulating += usize::from(wanted.contains("non-root: wan"));
            routing += usize::from(wanted.contains("non-root: network"));
            assert_eq!(own, wanted, "{name}");
            let allows_unsafe = object["spec"]["tuning"]["allowUnsafe"] == true;
            let excused = |control: &String| allows_unsafe && control.starts_with("sysctls: ");
            assert!(others.iter().all(excused), "{name}: {others:?}");
        }
    }
    assert!(
        emulating > 0 && routing > 0,
        "no good object has an init container"
    );
}

/// An object, and the path of a template of its pods.
const TEMPLATES: [(&str, &str); 4] = [
    (SMALLEST, "/entry/template"),
    (SMALLEST, "/exit/template"),
    (EXIT, "/gateway/template"),
    (RENDEZVOUS, "/template"),
];

/// An object of [`TEMPLATES`], whose pods get the label or annotation (`field`) `key`.
fn with_key((spec, path): (&str, &str), field: &str, key: &str) -> Value {
    let mut object = object_json(spec);
    let mut place = &mut object["spec"];
    for part in path.split('/').skip(1) {
        place = &mut place[part];
    }
    *place = json!({"metadata": {field: {key: "any"}}});
    object
}

/// Asserts that the object is refused with a sentence that names the key and the class.
fn assert_key_is_refused(place: (&str, &str), field: &str, key: &str) {
    let object = try_decoded(with_key(place, field, key)).unwrap();
    match validate(&object, &shop(), class()) {
        Err(Hindrance::Blocked(problem)) => {
            assert_eq!(problem.code, Code::ClassNotPermitted);
            let sentence = format!(
                "template.metadata.{field} {key}: permitted.podMetadataKeys of MuxClass muxtunnel does not have this key"
            );
            assert_eq!(problem.detail, sentence);
        }
        _ => panic!("{}: {field}: {key} is taken", place.1),
    }
}

/// Labels and annotations can make other controllers add images, volumes and networks to pods. Each
/// controller has its own keys.
#[test]
fn no_label_or_annotation_that_the_class_does_not_permit_reaches_a_pod() {
    let refused = [
        "config.linkerd.io/proxy-image",
        "container.apparmor.security.beta.kubernetes.io/muxgate",
        "sidecar.istio.io/proxyImage",
        "k8s.v1.cni.cncf.io/networks",
        "azure.workload.identity/use",
        "muxtunnel.dev/name",
        "not-prometheus.io/scrape",
    ];
    let permitted = [
        "note",
        "prometheus.io/scrape",
        "cluster-autoscaler.kubernetes.io/safe-to-evict",
        "karpenter.sh/do-not-disrupt",
    ];
    for place in TEMPLATES.into_iter() {
        for key in refused {
            assert_key_is_refused(place, "labels", key);
            assert_key_is_refused(place, "annotations", key);
        }
        for key in permitted {
            let plain = pods(&object_json(place.0));
            let with = pods(&with_key(place, "annotations", key));
            assert!(plain.is_ok() && plain == with, "{place:?}: {key}");
        }
    }
}

/// A Service selects pods by any labels, in particular by `app` and by the keys that charts use. The
/// gateway of a tunnel must not become an endpoint of such a Service.
#[test]
fn a_label_that_another_service_may_select_reaches_no_pod() {
    for place in TEMPLATES.into_iter() {
        for key in [
            "app",
            "k8s-app",
            "name",
            "tier",
            "teams",
            "app.kubernetes.io/name",
            "app.kubernetes.io/part-of",
            "example.com/team",
        ] {
            assert_key_is_refused(place, "labels", key);
        }
        let (plain, with) = (
            pods(&object_json(place.0)),
            pods(&with_key(place, "labels", "team")),
        );
        assert!(plain.is_ok() && plain == with, "{place:?}");
    }
}

/// No field of a tunnel labels a Service, and Services select pods by the operator's own labels.
#[test]
fn services_have_and_select_the_operators_own_labels_alone() {
    let mut services = 0;
    for (name, object) in objects() {
        if object["kind"] != "Service" {
            continue;
        }
        services += 1;
        let own = [
            "app.kubernetes.io/component",
            "app.kubernetes.io/managed-by",
            "app.kubernetes.io/name",
            "app.kubernetes.io/version",
            "muxtunnel.dev/kind",
            "muxtunnel.dev/name",
        ];
        let keys = |labels: &Value| -> Vec<String> {
            let labels = labels.as_object().unwrap();
            labels.keys().cloned().collect()
        };
        assert_eq!(keys(&object["metadata"]["labels"]), own, "{name}: {object}");
        assert_eq!(
            keys(&object["spec"]["selector"]),
            [own[0], own[4], own[5]],
            "{name}: {object}"
        );
    }
    assert!(services > 20, "only {services} Services");
}

#[test]
fn annotations_of_services_are_free() {
    let annotations = json!({"service.beta.kubernetes.io/aws-load-balancer-type": "external"});
    let mut object = object_json(SMALLEST);
    object["spec"]["services"] = json!([{"name": "office-entry", "annotations": annotations}]);
    assert_eq!(pods(&object), pods(&object_json(SMALLEST)));
    let mut object = object_json(EXIT);
    object["spec"]["service"] = json!({"annotations": annotations});
    assert_eq!(pods(&object), pods(&object_json(EXIT)));
}
