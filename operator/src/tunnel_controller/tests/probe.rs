//! Tests that a Job tests the sysctls of the spec before gateways get them.

use serde_json::{Value, json};

use super::bench::Bench;
use super::*;
use crate::testing::Failure;

/// The only Job, and its path.
fn job(bench: &Bench) -> (String, Value) {
    let jobs: Vec<_> = bench
        .api
        .snapshot()
        .into_keys()
        .filter(|path| path.starts_with("jobs/"))
        .collect();
    let [path] = &jobs[..] else {
        panic!("{jobs:?}");
    };
    (path.clone(), bench.api.get(path).unwrap())
}

/// Ends the Job, as its controller writes it.
fn end_job(bench: &Bench, type_: &str) {
    let (path, mut job) = job(bench);
    job["status"] = json!({"conditions": [{
        "type": type_, "status": "True", "message": "it ended", "lastTransitionTime": "2030-01-01T00:00:00Z",
    }]});
    bench.api.put(&path, job);
}

/// Stores the Job's pod, as the kubelet reports it.
fn put_pod(bench: &Bench, status: &Value) {
    let (_, job) = job(bench);
    let pod = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "tried", "uid": "uid-tried",
            "labels": labels_of("sysctl-probe"),
            "ownerReferences": [{
                "apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": job["metadata"]["uid"],
            }],
        },
        "spec": {"containers": [], "securityContext": job["spec"]["template"]["spec"]["securityContext"]},
        "status": status,
    });
    bench.api.put("pods/tried", pod);
}

fn refused_by_the_kubelet() -> Value {
    json!({
        "phase": "Failed", "reason": "SysctlForbidden",
        "message": "forbidden sysctl: \"net.a\" not allowlisted",
    })
}

fn has_deployments(bench: &Bench) -> bool {
    let there = |name| bench.api.get(&format!("deployments/{name}")).is_some();
    assert_eq!(there("office-tunnel-exit"), there("office-entry"));
    there("office-tunnel-exit")
}

#[tokio::test]
async fn gateways_are_made_once_the_job_has_ended_well_and_it_is_never_made_again() {
    let bench = Bench::new(&tuned());
    bench.reconcile().await.unwrap();
    assert!(!has_deployments(&bench));
    for type_ in ["Ready", "TuningApplied"] {
        assert_eq!(bench.condition(type_)["reason"], "SysctlProbing", "{type_}");
    }
    bench.reconcile().await.unwrap();
    end_job(&bench, "Complete");
    bench.reconcile().await.unwrap();
    assert!(has_deployments(&bench));
    bench.api.take_requests();
    bench.edit(&tuned().replace("443", "444"));
    bench.reconcile().await.unwrap();
    bench.reconcile().await.unwrap();
    let writes = bench.api.take_writes();
    assert!(
        writes.iter().all(|write| !write.contains("jobs/")),
        "{writes:?}"
    );
}

#[tokio::test]
async fn a_refusal_is_remembered_makes_no_gateways_and_ends_with_the_spec() {
    let bench = Bench::new(&tuned());
    bench.reconcile().await.unwrap();
    put_pod(&bench, &refused_by_the_kubelet());
    end_job(&bench, "Failed");
    bench.api.take_requests();
    bench.reconcile().await.unwrap();
    for type_ in ["Ready", "TuningApplied"] {
        let condition = bench.condition(type_);
        assert_eq!(condition["reason"], "SysctlForbidden", "{type_}");
        let message = condition["message"].as_str().unwrap();
        assert!(message.contains("\"net.a\" not allowlisted"), "{message}");
        assert!(
            message.contains("What to do: Remove the sysctl from"),
            "{message}"
        );
    }
    let (path, job) = job(&bench);
    let said = bench.condition("Ready");
    assert_eq!(
        bench.api.take_writes(),
        [
            format!("PATCH {path}"),
            "PATCH muxtunnels/office/status".to_owned()
        ]
    );
    assert_eq!(job["spec"]["suspend"], true);

    // The pod may be deleted, and another change of the spec does not repeat the attempt.
    bench.api.remove("pods/tried");
    bench.edit(&tuned().replace("443", "444"));
    bench.reconcile().await.unwrap();
    assert_eq!(bench.condition("Ready")["message"], said["message"]);
    assert!(!has_deployments(&bench));
    bench.api.take_requests();
    bench.reconcile().await.unwrap();
    assert!(bench.api.take_writes().is_empty());

    bench.edit(SMALLEST);
    bench.reconcile().await.unwrap();
    assert!(has_deployments(&bench));
    assert!(bench.api.get(&path).is_none());
    assert_eq!(bench.condition("Ready")["reason"], "GatewaysNotReady");
    assert_eq!(
        bench.condition("TuningApplied")["reason"],
        "GatewaysNotReady"
    );
}

#[tokio::test]
async fn gateways_that_run_stay_as_they_are_while_other_sysctls_are_tried_and_refused() {
    let two = format!("{SMALLEST}exit: {{replicas: 2}}\n");
    let bench = Bench::new(&two);
    bench.reconcile().await.unwrap();
    let before = bench.api.snapshot();
    bench.edit(&format!("{two}{NET_A}"));
    bench.reconcile().await.unwrap();
    put_pod(&bench, &refused_by_the_kubelet());
    end_job(&bench, "Failed");
    for _ in 0..3 {
        bench.reconcile().await.unwrap();
    }
    assert_eq!(
        bench.condition("TuningApplied")["reason"],
        "SysctlForbidden"
    );
    let after = bench.api.snapshot();
    for kept in [
        "deployments/office-tunnel-exit",
        "deployments/office-entry",
        "poddisruptionbudgets/office-tunnel-exit",
    ] {
        assert_eq!(before[kept], after[kept], "{kept}");
    }
}

#[tokio::test]
async fn a_refused_job_is_made_again_once_it_is_ten_minutes_old() {
    let bench = Bench::new(&tuned());
    bench.reconcile().await.unwrap();
    put_pod(&bench, &refused_by_the_kubelet());
    end_job(&bench, "Failed");
    bench.reconcile().await.unwrap();
    let (path, mut refused) = job(&bench);
    bench.api.take_requests();
    bench.reconcile().await.unwrap();
    assert_eq!(bench.api.take_writes(), [""; 0]);
    refused["metadata"]["creationTimestamp"] = json!("2020-01-01T00:00:00Z");
    bench.api.put(&path, refused);
    bench.reconcile().await.unwrap();
    assert!(bench.api.get(&path).is_none());
    bench.reconcile().await.unwrap();
    let (_, again) = job(&bench);
    assert!(again["metadata"]["annotations"]["muxtunnel.dev/refused"].is_null());
}

#[tokio::test]
async fn a_value_that_the_kernel_does_not_take_is_named_from_the_kubelets_event() {
    let bench = Bench::new(&tuned());
    bench.reconcile().await.unwrap();
    put_pod(
        &bench,
        &json!({
            "phase": "Pending",
            "conditions": [
                {"type": "PodScheduled", "status": "True"},
                {"type": "PodReadyToStartContainers", "status": "False"},
            ],
        }),
    );
    let event = json!({
        "apiVersion": "events.k8s.io/v1", "kind": "Event",
        "metadata": {"name": "tried.1"}, "eventTime": null, "reason": "FailedCreatePodSandBox",
        "regarding": {"kind": "Pod", "name": "tried", "uid": "uid-tried"},
        "note": "runc create failed: write /proc/sys/net/a: invalid argument",
    });
    bench.api.put("events/tried.1", event);
    bench.reconcile().await.unwrap();
    let condition = bench.condition("TuningApplied");
    assert_eq!(condition["reason"], "SandboxFailed");
    let message = condition["message"].as_str().unwrap();
    assert!(
        message.contains("sysctl net.a: runc create failed"),
        "{message}"
    );
    let (_, job) = job(&bench);
    assert_eq!(job["spec"]["suspend"], true, "the kubelet stops trying");
    assert!(!has_deployments(&bench));
}

#[tokio::test]
async fn what_keeps_the_job_from_having_a_pod_is_said_in_the_first_words_for_it() {
    let bench = Bench::new(&tuned());
    bench.reconcile().await.unwrap();
    let (_, job) = job(&bench);
    for (name, at) in [
        ("later", "2030-01-01T00:00:02Z"),
        ("first", "2030-01-01T00:00:01Z"),
    ] {
        let note = format!("Error creating: pods \"{name}\" is forbidden: violates PodSecurity");
        bench.api.put(
            &format!("events/{name}"),
            json!({
                "apiVersion": "events.k8s.io/v1", "kind": "Event",
                "metadata": {"name": name, "creationTimestamp": at},
                "eventTime": null, "reason": "FailedCreate", "note": note,
                "regarding": {"uid": job["metadata"]["uid"]},
            }),
        );
    }
    bench.reconcile().await.unwrap();
    let condition = bench.condition("TuningApplied");
    assert_eq!(condition["reason"], "PodSecurityTooStrict");
    assert_eq!(bench.condition("Ready")["reason"], "PodSecurityTooStrict");
    let message = condition["message"].as_str().unwrap();
    assert!(
        message.contains(": Error creating: pods \"first\" is forbidden"),
        "{message}"
    );
    assert!(!has_deployments(&bench));

    // The Job fails and is created again. Meanwhile the namespace gets another level.
    let (path, mut failed) = self::job(&bench);
    let refused = &failed["metadata"]["annotations"]["muxtunnel.dev/refused"];
    assert!(refused.is_null(), "no refusal is stored");
    failed["status"] = json!({"conditions": [{
        "type": "Failed", "status": "True", "message": "DeadlineExceeded",
        "lastTransitionTime": "2020-01-01T00:00:00Z",
    }]});
    bench.api.put(&path, failed);
    bench.reconcile().await.unwrap();
    assert_eq!(
        bench.condition("TuningApplied")["reason"],
        "PodSecurityTooStrict"
    );
    assert!(
        bench.api.get(&path).is_none(),
        "the Job is deleted, so that it is created again"
    );
    bench.reconcile().await.unwrap();
    end_job(&bench, "Complete");
    bench.reconcile().await.unwrap();
    assert!(has_deployments(&bench));
}

#[tokio::test]
async fn a_quota_that_keeps_the_job_from_having_a_pod_is_waited_for() {
    let bench = Bench::new(&tuned());
    bench.reconcile().await.unwrap();
    let (_, job) = job(&bench);
    bench.api.put(
        "events/quota",
        json!({
            "apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"name": "quota"},
            "eventTime": null, "reason": "FailedCreate", "note": "Error creating: exceeded quota",
            "regarding": {"uid": job["metadata"]["uid"]},
        }),
    );
    bench.reconcile().await.unwrap();
    let condition = bench.condition("TuningApplied");
    assert_eq!(condition["reason"], "SysctlProbing");
    let message = condition["message"].as_str().unwrap();
    assert!(message.contains("exceeded quota"), "{message}");
}

#[tokio::test]
async fn a_job_that_showed_nothing_is_made_again_later() {
    let bench = Bench::new(&tuned());
    bench.reconcile().await.unwrap();
    let (path, mut failed) = job(&bench);
    let since = |time: &str| {
        json!({"conditions": [{
            "type": "Failed", "status": "True", "message": "DeadlineExceeded", "lastTransitionTime": time,
        }]})
    };
    failed["status"] = since("2199-01-01T00:00:00Z");
    bench.api.put(&path, failed.clone());
    bench.api.take_requests();
    bench.reconcile().await.unwrap();
    assert_eq!(bench.api.take_writes(), ["PATCH muxtunnels/office/status"]);
    let condition = bench.condition("TuningApplied");
    assert_eq!(condition["reason"], "SysctlProbeFailed");
    assert!(
        condition["message"]
            .as_str()
            .unwrap()
            .contains("DeadlineExceeded")
    );

    failed["status"] = since("2020-01-01T00:00:00Z");
    bench.api.put(&path, failed);
    bench.reconcile().await.unwrap();
    assert!(bench.api.get(&path).is_none());
    bench.reconcile().await.unwrap();
    assert!(bench.api.get(&path).is_some());
}

#[tokio::test]
async fn an_answer_that_gets_lost_or_a_conflict_makes_no_second_job() {
    // The operator first writes two accounts, two NetworkPolicies, two ConfigMaps and two Services,
    // and then the Job.
    for failure in [
        Failure::Before(500),
        Failure::After(500),
        Failure::After(409),
    ] {
        let bench = Bench::new(&tuned());
        bench.api.fail_write(8, failure);
        let _failed_or_not = bench.reconcile().await;
        bench.reconcile().await.unwrap();
        job(&bench);
        assert_eq!(
            bench.condition("Ready")["reason"],
            "SysctlProbing",
            "{failure:?}"
        );
    }
}

#[tokio::test]
async fn a_job_of_the_needed_name_that_is_not_ours_is_not_touched() {
    let other = Bench::new(&tuned());
    other.reconcile().await.unwrap();
    let (path, _) = job(&other);
    let (_, name) = path.split_once('/').unwrap();
    let bench = Bench::new(&tuned());
    bench.api.put(
        &path,
        json!({"metadata": {"name": name}, "spec": {"own": "spec"}}),
    );
    bench.reconcile().await.unwrap();
    assert_eq!(bench.condition("Ready")["reason"], "NameTaken");
    assert_eq!(
        bench.api.get(&path).unwrap()["spec"],
        json!({"own": "spec"})
    );
}

#[tokio::test]
async fn gateways_that_run_keep_a_configuration_that_they_can_start_with() {
    let forwards = |bench: &Bench| {
        let text = document(&bench.api, "office-entry");
        let config = muxtunnel_gateway_config::Config::from_yaml(&text).unwrap();
        (config.protocol, config.forwards.len())
    };
    let bench = Bench::new(SMALLEST);
    bench.run().await;
    let before = forwards(&bench);
    // Changes that running gateways can reload reach them while the sysctl is tried.
    let one_more = "- name: more
  port: 8081
  targets: [{host: db.example.com, port: 5432}]
carrier";
    let more = tuned().replacen("carrier", one_more, 1);
    bench.edit(&more);
    bench.reconcile().await.unwrap();
    assert_eq!(forwards(&bench), (before.0, before.1 + 1));
    // Changes that need a restart do not reach gateways meanwhile.
    bench.edit(&tuned().replace("protocol: JMUX", "protocol: Native"));
    bench.reconcile().await.unwrap();
    assert_eq!(forwards(&bench), before);
    end_job(&bench, "Complete");
    bench.reconcile().await.unwrap();
    bench.reconcile().await.unwrap();
    let (protocol, number) = forwards(&bench);
    assert_eq!(number, before.1);
    assert_ne!(protocol, before.0);
}

/// A quota may refuse the pod of a Job for good.
#[tokio::test]
async fn a_job_without_a_pod_is_made_again_with_other_resources() {
    let bench = Bench::new(&tuned());
    bench.reconcile().await.unwrap();
    let (path, before) = job(&bench);
    bench.reconcile().await.unwrap();
    assert_eq!(job(&bench), (path.clone(), before.clone()));
    let more = "template: {spec: {containers: [{name: gateway, resources: {requests: {cpu: 50m}, limits: {cpu: 50m}}}]}}";
    bench.edit(&format!("{}entry: {{{more}}}\nexit: {{{more}}}\n", tuned()));
    for _ in 0..2 {
        bench.reconcile().await.unwrap();
    }
    let (same, after) = job(&bench);
    assert_eq!(same, path);
    assert_ne!(after["metadata"]["uid"], before["metadata"]["uid"]);
    let container = "/spec/template/spec/containers/0/resources/requests/cpu";
    assert_eq!(after.pointer(container), Some(&json!("50m")));
}
