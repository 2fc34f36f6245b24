//! The Jobs that test the sysctls of a spec.

use std::sync::Arc;

use muxtunnel_codes::Code;
use muxtunnel_operator::tunnel_controller::build::probe::problem;
use muxtunnel_operator::tunnel_controller::dereference::{ProbeOutcome, SeenProbe};
use serde_json::json;

use super::*;

#[test]
fn a_job_has_the_sysctls_and_the_nodes_of_the_gateways_and_one_try() {
    let template = "{spec: {nodeSelector: {zone: a}, tolerations: [{key: edge, operator: Exists}], priorityClassName: high, \
                    imagePullSecrets: [{name: registry}], affinity: {nodeAffinity: {}}}}";
    let spec = format!(
        "{}entry: {{template: {template}}}\nexit: {{template: {template}}}\n",
        tuned().replace("tuning: {", "tuning: {profile: None, ")
    );
    let resources = built(&spec);
    assert!(resources.is_held && resources.deployments.is_empty());
    let [job] = &resources.probe_jobs[..] else {
        panic!("{:?}", resources.probe_jobs);
    };
    let seen = SeenProbe {
        job: Arc::new(job.clone()),
        outcome: ProbeOutcome::default(),
    };
    let job = serde_json::to_value(job).unwrap();
    let name = job["metadata"]["name"].as_str().unwrap();
    assert!(name.starts_with("office-sysctl-probe-"), "{name}");
    assert_eq!(job["metadata"]["ownerReferences"][0]["uid"], "uid-office");
    assert_eq!(job["spec"]["backoffLimit"], 0);
    assert_eq!(job["spec"]["activeDeadlineSeconds"], 600);
    assert!(job["spec"]["ttlSecondsAfterFinished"].is_null());
    let labels = &job["spec"]["template"]["metadata"]["labels"];
    assert_eq!(labels["app.kubernetes.io/component"], "sysctl-probe");

    let tried = &job["spec"]["template"]["spec"];
    let mut passed = valid(&spec);
    passed.pods.probes = vec![seen];
    let gateways = build(&passed, &settings()).unwrap();
    assert!(!gateways.is_held);
    assert_eq!(gateways.probe_jobs.len(), 1, "it is what remembers");
    let gateway = &super::build::pod(&gateways, "office-tunnel-exit")["spec"];
    for same in [
        "securityContext",
        "nodeSelector",
        "tolerations",
        "priorityClassName",
        "imagePullSecrets",
    ] {
        assert_eq!(tried[same], gateway[same], "{same}");
        assert!(!tried[same].is_null(), "{same}");
    }
    assert_eq!(
        tried["affinity"]["nodeAffinity"],
        gateway["affinity"]["nodeAffinity"]
    );
    assert_eq!(tried["restartPolicy"], "Never");
    assert_eq!(tried["automountServiceAccountToken"], false);
    let container = &tried["containers"][0];
    assert_eq!(container["image"], gateway["containers"][0]["image"]);
    assert_eq!(
        container["command"],
        json!(["/usr/local/bin/muxgate", "--version"])
    );
    // A namespace with a quota on limits does not admit a pod without limits.
    assert_eq!(
        container["resources"]["limits"],
        json!({"cpu": "100m", "memory": "64Mi"})
    );
    assert_eq!(
        container["securityContext"],
        gateway["containers"][0]["securityContext"]
    );
}

#[test]
fn the_longest_name_still_fits_into_a_label() {
    let mut tunnel = valid(&tuned());
    tunnel.holder.name = "n".repeat(40);
    let resources = build(&tunnel, &settings()).unwrap();
    let name = resources.probe_jobs[0].metadata.name.clone().unwrap();
    assert!(name.len() <= 63, "{name}");
}

#[test]
fn nothing_is_tried_where_the_spec_names_no_sysctl() {
    for tuning in [
        "",
        "tuning: {profile: WAN}\n",
        "tuning: {allowUnsafe: true}\n",
    ] {
        let resources = built(&format!("{SMALLEST}{tuning}"));
        assert!(
            resources.probe_jobs.is_empty() && !resources.is_held,
            "{tuning}"
        );
        assert_eq!(resources.deployments.len(), 2);
    }
}

fn name_of_probe(spec: &str) -> String {
    built(spec).probe_jobs[0].metadata.name.clone().unwrap()
}

#[test]
fn what_is_changed_is_tried_again_and_what_is_not_is_not() {
    let before = name_of_probe(&tuned());
    for same in [
        tuned().replace("8080", "9090"),
        format!("{}exit: {{replicas: 3, drainSeconds: 60}}\n", tuned()),
    ] {
        assert_eq!(name_of_probe(&same), before, "{same}");
    }
    for changed in [
        tuned().replace("value: '1'", "value: '2'"),
        format!(
            "{}exit: {{template: {{spec: {{nodeSelector: {{zone: b}}}}}}}}\n",
            tuned()
        ),
    ] {
        assert_ne!(name_of_probe(&changed), before, "{changed}");
    }
}

#[test]
fn ends_that_are_placed_otherwise_are_tried_one_after_the_other() {
    let spec = format!(
        "{}entry: {{template: {{spec: {{nodeSelector: {{zone: b}}}}}}}}\n",
        tuned()
    );
    let mut tunnel = valid(&spec);
    let mut names = Vec::new();
    for number in 1..=2 {
        let jobs = build(&tunnel, &settings()).unwrap().probe_jobs;
        assert_eq!(jobs.len(), number);
        assert_eq!(problem(&tunnel).unwrap().code, Code::SysctlProbing);
        let job = jobs[number - 1].clone();
        names.push(job.metadata.name.clone().unwrap());
        tunnel.pods.probes.push(SeenProbe {
            job: Arc::new(job),
            outcome: ProbeOutcome::default(),
        });
    }
    assert_ne!(names[0], names[1]);
    assert_eq!(problem(&tunnel), None);
}

/// A namespace's quota, LimitRange minimum or ratio applies to each container.
#[test]
fn the_resources_of_the_template_are_those_of_every_container() {
    let template = "template: {spec: {containers: [{name: gateway, resources: {requests: {cpu: 50m, memory: 32Mi}, \
                    limits: {cpu: 100m, memory: 64Mi, example.com/card: 1}}}]}}";
    let native = SMALLEST.replace("protocol: JMUX", "protocol: Native");
    let spec = format!(
        "{native}entry: {{{template}}}\nexit: {{{template}}}\nwanEmulation: {{delayMilliseconds: 10}}\n\
         network: {{entry: {{cidrs: [10.1.0.0/24]}}, exit: {{cidrs: [10.2.0.0/24]}}}}\n"
    );
    let resources = built(&spec);
    let pod = &super::build::pod(&resources, "office-tunnel-exit")["spec"];
    let own = json!({
        "requests": {"cpu": "50m", "memory": "32Mi"}, "limits": {"cpu": "100m", "memory": "64Mi"},
    });
    let names: Vec<_> = pod["initContainers"]
        .as_array()
        .unwrap()
        .iter()
        .map(|container| {
            assert_eq!(container["resources"], own, "{}", container["name"]);
            container["name"].as_str().unwrap()
        })
        .collect();
    assert_eq!(names, ["network", "wan"]);
    // A device is only for the gateway.
    let gateway = &pod["containers"][0]["resources"];
    assert_eq!(gateway["limits"]["example.com/card"], "1");
    let tuned = built(&format!("{}exit: {{{template}}}\n", tuned()));
    let jobs: Vec<_> = tuned.probe_jobs.iter().map(tried).collect();
    assert!(jobs.contains(&own), "{jobs:?}");
}

/// The resources of a Job's container.
fn tried(job: &k8s_openapi::api::batch::v1::Job) -> Value {
    let job = serde_json::to_value(job).unwrap();
    job["spec"]["template"]["spec"]["containers"][0]["resources"].clone()
}

#[test]
fn a_resource_that_the_template_does_not_name_keeps_its_default() {
    for (resources, expected) in [
        (
            "{}",
            json!({"requests": {"cpu": "1m", "memory": "8Mi"}, "limits": {"cpu": "100m", "memory": "64Mi"}}),
        ),
        // A default limit could be below the request, and a default request above the limit.
        (
            "{requests: {cpu: 2}, limits: {memory: 4Mi}}",
            json!({"requests": {"cpu": "2"}, "limits": {"memory": "4Mi"}}),
        ),
    ] {
        let template = format!(
            "template: {{spec: {{containers: [{{name: gateway, resources: {resources}}}]}}}}"
        );
        let spec = format!("{}entry: {{{template}}}\nexit: {{{template}}}\n", tuned());
        assert_eq!(tried(&built(&spec).probe_jobs[0]), expected, "{resources}");
    }
}
