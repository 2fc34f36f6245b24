//! The programs that the operator's account can start: those of the operator's own containers, with
//! their own arguments. Some of the images' programs start other programs, such as `muxbench agent
//! --iperf PROGRAM`, and hooks, probes and mounts start or replace programs, too.

use std::collections::BTreeMap;

use super::*;

/// The workloads' containers, by their field in a pod's spec.
const LISTS: [&str; 2] = ["containers", "initContainers"];

/// Command lines of programs in the images, which no container of the operator has.
fn command_lines() -> Vec<Value> {
    let texts = [
        "/bin/sh -c id",
        "/usr/local/bin/muxgate",
        "/usr/local/bin/muxgate entry --connect-command /bin/sh",
        "/usr/local/bin/muxgate run --config /tmp/config.yaml",
        "/usr/local/bin/muxwan run --delay 1ms --port 1 --termination-log /etc/passwd",
        "/usr/local/bin/muxbench agent --iperf /bin/sh",
        "muxgate run --config /etc/muxgate/config.yaml",
        "entry --connect-command /bin/sh --forward 1:a:2",
        "exit --listen 0.0.0.0:64000 --security none --allow 0.0.0.0/0",
        "agent --token-file=/etc/muxbench/token --iperf=/bin/sh",
        "agent --iperf /bin/sh",
        "run --config /tmp/config.yaml",
        "tun delete",
        "target --listen=[::]:1",
        "",
    ];
    let words = |text: &str| text.split_whitespace().map(Value::from).collect();
    texts
        .map(|text: &str| Value::Array(words(text)))
        .into_iter()
        .chain([Value::Null])
        .collect()
}

/// Words that none of the containers' programs may get at any place.
const WORDS: [&str; 7] = [
    "/bin/sh",
    "sh -c id",
    "--connect-command=/bin/sh",
    "--iperf=/bin/sh",
    "--config=/tmp/config.yaml",
    "--termination-log=/etc/passwd",
    "--report=/etc/passwd",
];

/// `container` with each list of words in which one of [`WORDS`] is added or replaces a word.
fn further_words(container: &Value) -> Vec<(&'static str, Value)> {
    let mut lists = Vec::new();
    for field in ["command", "args"] {
        let own = container[field].as_array().cloned().unwrap_or_default();
        for word in WORDS {
            for place in [0, own.len()] {
                let mut words = own.clone();
                words.insert(place, json!(word));
                lists.push((field, json!(words)));
            }
        }
        for place in 0..own.len() {
            let mut words = own.clone();
            words[place] = json!("/bin/sh");
            lists.push((field, json!(words)));
        }
    }
    lists
}

/// Fields of a container that no container of the operator has.
fn foreign_fields(container: &Value) -> Vec<(&'static str, Value)> {
    let exec = json!({"exec": {"command": ["/bin/sh", "-c", "id"]}});
    let elsewhere = json!({"httpGet": {"host": "169.254.169.254", "port": 80}});
    let by_name = json!({"exec": {"command": ["muxwan", "check"]}});
    let by_port = json!({"tcpSocket": {"port": 1}});
    let lines = command_lines().into_iter();
    let mut fields: Vec<_> = lines
        .flat_map(|words| [("command", words.clone()), ("args", words)])
        .collect();
    fields.extend(further_words(container));
    for probe in ["livenessProbe", "readinessProbe", "startupProbe"] {
        let handlers = [&exec, &elsewhere, &by_name, &by_port].into_iter();
        fields.extend(handlers.map(|to| (probe, to.clone())));
    }
    fields.extend([
        ("lifecycle", json!({"postStart": exec})),
        ("lifecycle", json!({"preStop": exec})),
        ("lifecycle", json!({"preStop": elsewhere})),
        ("lifecycle", json!({"stopSignal": "SIGKILL"})),
        ("workingDir", json!("/tmp")),
        ("terminationMessagePath", json!("/etc/ld.so.preload")),
        ("volumeDevices", json!([{"name": "a", "devicePath": "/a"}])),
        ("name", json!("other")),
    ]);
    let own = &container["volumeMounts"];
    let own = own.as_array().cloned().unwrap_or_default();
    for place in [
        "/usr/local/bin",
        "/lib64",
        "/etc",
        "/etc/ld.so.preload",
        "/",
    ] {
        let mut mounts = own.clone();
        mounts.push(json!({"name": "config", "mountPath": place, "subPath": "a"}));
        fields.push(("volumeMounts", json!(mounts)));
    }
    fields
}

/// A field with the value null or an empty list is not set.
fn is_set(value: &Value) -> bool {
    !value.is_null() && value.as_array().is_none_or(|items| !items.is_empty())
}

/// For each container that the operator writes: the workload in which it has the most arguments,
/// and its place there.
fn containers() -> BTreeMap<String, (Value, String)> {
    let mut found: BTreeMap<String, (usize, (Value, String))> = BTreeMap::new();
    for (_, object) in built() {
        for list in LISTS {
            let pointer = format!("/spec/template/spec/{list}");
            let containers = object.pointer(&pointer).and_then(Value::as_array);
            for (index, container) in containers.into_iter().flatten().enumerate() {
                let name = container["name"].as_str().unwrap().to_owned();
                let words = container["args"].as_array().map_or(0, Vec::len);
                let place = (object.clone(), format!("{pointer}/{index}"));
                match found.get(&name) {
                    Some((most, _)) if *most >= words => {}
                    _ => drop(found.insert(name, (words, place))),
                }
            }
        }
    }
    let found = found.into_iter();
    found.map(|(name, (_, place))| (name, place)).collect()
}

/// The policies with only the validations of containers' command lines, so that no other validation
/// refuses a container in their place.
fn judging_containers() -> Vec<Value> {
    let mut policies = policies("all-values");
    policies.retain_mut(|policy| {
        let validations = policy["spec"]["validations"].as_array_mut().unwrap();
        validations.retain(|validation| {
            let message = validation["message"].as_str().unwrap();
            let of_programs = [
                "may only have the operator's containers",
                "may only emulate a WAN",
                "command, arguments and probes",
                "mount points",
            ];
            of_programs.iter().any(|part| message.contains(part))
        });
        !validations.is_empty()
    });
    policies
}

#[test]
fn no_container_runs_another_program_than_the_operator_writes() {
    let policies = judging_containers();
    let containers = containers();
    let names: Vec<_> = containers.keys().map(String::as_str).collect();
    assert_eq!(
        names,
        [
            "agent",
            "gateway",
            "network",
            "runner",
            "sysctl-probe",
            "wan"
        ]
    );
    for (name, (object, pointer)) in &containers {
        let own = refusals(&policies, &created(object));
        assert_eq!(own, BTreeSet::new(), "{name}");
        let container = object.pointer(pointer).unwrap();
        for (field, value) in foreign_fields(container) {
            if container[field] == value || !is_set(&container[field]) && !is_set(&value) {
                continue;
            }
            let mut changed = object.clone();
            let place = changed.pointer_mut(pointer).unwrap();
            if value.is_null() {
                place.as_object_mut().unwrap().remove(field);
            } else {
                place[field] = value.clone();
            }
            let refused = refusals(&policies, &created(&changed));
            assert!(!refused.is_empty(), "{name}: {field}: {value}");
            let failed = refused.iter().any(|why| why.contains("evaluation error"));
            assert!(!failed, "{refused:?}");
        }
    }
}

/// A container has the image of its own program: the policy permits no exchange of the images.
#[test]
fn each_container_has_the_image_of_its_program() {
    let policies = policies("all-values");
    for object in [one("Deployment", "entry"), one("Job", "runner")] {
        let place = "/spec/template/spec/containers/0/image";
        let own = object.pointer(place).unwrap();
        let mut others = 0;
        for image in IMAGES.map(|(_, image)| json!(format!("example.com/{image}:1"))) {
            if image == *own {
                continue;
            }
            others += 1;
            let changed = with(&object, place, image);
            assert!(
                !refusals(&policies, &created(&changed)).is_empty(),
                "{changed}"
            );
        }
        assert_eq!(others, IMAGES.len() - 1);
    }
}

#[test]
fn no_workload_has_an_ephemeral_container() {
    let policies = policies("all-values");
    let object = one("Deployment", "entry");
    let container = object.pointer("/spec/template/spec/containers/0").unwrap();
    let place = "/spec/template/spec/ephemeralContainers";
    let changed = with(&object, place, json!([container]));
    assert!(!refusals(&policies, &created(&changed)).is_empty());
}
