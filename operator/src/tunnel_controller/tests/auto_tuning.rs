//! Tests of `tuning.profile: Auto`, the default: the gateways get the sysctls of WAN where nodes and
//! the namespace admit them. A refusal makes no tunnel worse than the kernel's defaults.

use std::sync::atomic::Ordering;

use serde_json::{Value, json};

use super::bench::Bench;
use super::rollouts::{bench, deployment, message, refuse, start};
use super::*;

const WAN_RMEM: &str = "4096 131072 134217728";

/// The sysctls of the pods of an end, as text.
fn sysctls(bench: &Bench, end: &str) -> String {
    let deployment = deployment(bench, end);
    deployment["spec"]["template"]["spec"]["securityContext"]["sysctls"].to_string()
}

fn is_tuned(bench: &Bench, end: &str) -> bool {
    sysctls(bench, end).contains(WAN_RMEM)
}

/// The API server does not admit pods of the newest template.
fn deny(bench: &Bench, end: &str, message: &str) {
    let uid = deployment(bench, end)["metadata"]["uid"].clone();
    let sets = bench.api.list("replicasets").into_iter();
    let own = sets.filter(|set| set["metadata"]["ownerReferences"][0]["uid"] == uid);
    let revision = |set: &Value| {
        let text = set["metadata"]["annotations"]["deployment.kubernetes.io/revision"].as_str();
        text.unwrap().parse::<u64>().unwrap()
    };
    let mut set = own.max_by_key(revision).unwrap();
    set["status"] = json!({"replicas": 0, "conditions": [
        {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": message},
    ]});
    let name = set["metadata"]["name"].as_str().unwrap().to_owned();
    bench.api.put(&format!("replicasets/{name}"), set);
}

#[tokio::test]
async fn gateways_have_the_sysctls_of_wan_without_a_word_and_without_a_job() {
    for (spec, is_set) in [
        (SMALLEST.to_owned(), true),
        (format!("{SMALLEST}tuning: {{profile: Auto}}\n"), true),
        (format!("{SMALLEST}tuning: {{profile: None}}\n"), false),
    ] {
        let (bench, _) = bench(&spec);
        bench.run().await;
        for end in ["entry", "exit"] {
            assert_eq!(is_tuned(&bench, end), is_set, "{spec}");
        }
        let tuning = condition(&bench.api, &bench.path(), "TuningApplied");
        let holds = tuning.map(|tuning| tuning["status"] == "True");
        assert_eq!(holds, is_set.then_some(true), "{spec}");
        assert_eq!(bench.condition("Ready")["status"], "True");
        let requests = bench.api.take_requests();
        assert!(
            requests
                .iter()
                .all(|request| !request.path.starts_with("jobs/"))
        );
    }
}

#[tokio::test]
async fn an_end_that_a_node_refuses_runs_without_the_sysctls_and_stays_so() {
    let (mut bench, clock) = bench(&format!("{SMALLEST}exit: {{replicas: 2}}\n"));
    bench.run().await;
    let entry = deployment(&bench, "entry");
    refuse(&bench, "exit", "node-b");
    bench.api.take_requests();
    bench.reconcile().await.unwrap();
    bench.run().await;
    let writes = bench.api.take_writes();
    let deleted = writes.iter().filter(|write| write.starts_with("DELETE"));
    assert_eq!(deleted.count(), 0, "{writes:?}");
    assert!(!is_tuned(&bench, "exit"));
    assert_eq!(deployment(&bench, "exit")["spec"]["replicas"], 2);
    assert_eq!(deployment(&bench, "entry"), entry, "the other end");
    assert_eq!(bench.condition("Ready")["status"], "True");
    assert_eq!(bench.condition("Programmed")["status"], "True");
    let tuning = bench.condition("TuningApplied");
    assert_eq!(
        (&tuning["status"], &tuning["reason"]),
        (&json!("False"), &json!("SysctlsNotAdmitted"))
    );
    let said = message(&bench, "TuningApplied");
    assert!(
        said.contains("exit gateways have the kernel's defaults"),
        "{said}"
    );
    assert!(said.contains("forbidden sysctl on node-b"), "{said}");

    // The refusal outlasts the operator and a day. Nothing is written again.
    bench.restart();
    clock.fetch_add(100_000, Ordering::Relaxed);
    bench.reconcile().await.unwrap();
    bench.api.take_requests();
    bench.reconcile().await.unwrap();
    assert_eq!(bench.api.take_writes(), [""; 0]);
    assert!(!is_tuned(&bench, "exit"));

    // Another image replaces the pods anyway, so their sysctls are tried again. The refused pod still
    // exists.
    bench.classify(|class| class["images"] = json!({"gateway": "another"}));
    bench.run().await;
    start(&bench, "exit", "node-a");
    bench.run().await;
    assert!(is_tuned(&bench, "exit"));
    // A profile by name is not Auto.
    bench.edit(&format!("{SMALLEST}tuning: {{profile: WAN}}\n"));
    bench.reconcile().await.unwrap();
    let annotations = deployment(&bench, "exit")["metadata"]["annotations"].clone();
    assert!(
        annotations.get("muxtunnel.dev/untuned").is_none(),
        "{annotations}"
    );
}

#[tokio::test]
async fn an_end_that_the_namespace_does_not_admit_runs_without_the_sysctls() {
    for refusal in [
        "pods \"office-entry-1\" is forbidden: violates PodSecurity \"restricted:v1.31\": \
         forbidden sysctls (net.ipv4.tcp_rmem, net.ipv4.tcp_wmem)",
        // A policy that names only the permitted ones.
        "admission webhook denied the request: Setting additional sysctls above the allowed type is disallowed",
    ] {
        let (bench, _) = bench(SMALLEST);
        bench.run().await;
        deny(&bench, "entry", refusal);
        bench.run().await;
        assert!(!is_tuned(&bench, "entry") && is_tuned(&bench, "exit"));
        for type_ in ["Ready", "Programmed"] {
            assert_eq!(bench.condition(type_)["status"], "True", "{type_}");
        }
        let said = message(&bench, "TuningApplied");
        assert!(
            said.contains("entry gateways have the kernel's defaults"),
            "{said}"
        );
        assert!(said.contains(refusal), "{said}");
    }
}

/// A policy can refuse the Deployment itself.
#[tokio::test]
async fn an_end_whose_deployment_is_refused_runs_without_the_sysctls() {
    let (bench, _) = bench(SMALLEST);
    bench.api.refuses("deployments", |_, new| {
        let is_tuned = new.pointer("/spec/template/spec/securityContext/sysctls/1");
        is_tuned.map(|_| (403, "a disallowed sysctl".to_owned()))
    });
    bench.run().await;
    bench.run().await;
    assert!(!is_tuned(&bench, "entry") && !is_tuned(&bench, "exit"));
    assert_eq!(bench.condition("Ready")["status"], "True");
}

/// A refusal that is about to be given up is no fault that somebody has to remove.
#[tokio::test]
async fn a_refusal_makes_no_object_stalled() {
    let (bench, _) = bench(SMALLEST);
    bench.run().await;
    refuse(&bench, "exit", "node-b");
    let before = bench.status();
    bench.reconcile().await.unwrap();
    assert_eq!(bench.status(), before);
    bench.reconcile().await.unwrap();
    assert!(condition(&bench.api, &bench.path(), "Stalled").is_none());
    assert!(!is_tuned(&bench, "exit"));
}

#[tokio::test]
async fn a_quota_is_no_refusal_of_sysctls() {
    let (bench, _) = bench(SMALLEST);
    bench.run().await;
    deny(&bench, "entry", "exceeded quota: small");
    for _ in 0..3 {
        bench.reconcile().await.unwrap();
    }
    assert!(is_tuned(&bench, "entry"));
}

#[tokio::test]
async fn sysctls_of_the_spec_stay_while_those_of_auto_go() {
    let own = "tuning: {sysctls: [{name: net.ipv4.tcp_fin_timeout, value: \"20\"}]}\n";
    let (bench, _) = bench(&format!("{SMALLEST}{own}"));
    bench.run().await;
    assert!(is_tuned(&bench, "exit") && sysctls(&bench, "exit").contains("fin_timeout"));
    let jobs = bench.api.list("jobs");
    assert_eq!(jobs.len(), 1);
    assert!(!jobs[0].to_string().contains(WAN_RMEM), "{}", jobs[0]);
    refuse(&bench, "exit", "node-b");
    for _ in 0..2 {
        bench.reconcile().await.unwrap();
    }
    assert!(!is_tuned(&bench, "exit") && sysctls(&bench, "exit").contains("fin_timeout"));
}

#[tokio::test]
async fn buffers_that_the_spec_names_are_not_those_of_auto() {
    let own = "tuning: {sysctls: [{name: net.ipv4.tcp_rmem, value: 1 2 3}, \
               {name: net.ipv4.tcp_wmem, value: 1 2 3}]}\n";
    let (bench, _) = bench(&format!("{SMALLEST}{own}"));
    bench.run().await;
    refuse(&bench, "exit", "node-b");
    for _ in 0..2 {
        bench.reconcile().await.unwrap();
    }
    assert!(sysctls(&bench, "exit").contains("1 2 3"));
    assert!(message(&bench, "TuningApplied").contains("avoid the nodes"));
}

/// The refusal of one tunnel saves the others of its namespace the attempt.
#[tokio::test]
async fn another_end_of_the_namespace_does_not_try_what_was_refused_within_a_day() {
    for (seconds, tried) in [(0, false), (86_000, false), (86_400, true)] {
        let (bench, clock) = bench(SMALLEST);
        bench.run().await;
        refuse(&bench, "exit", "node-b");
        for _ in 0..2 {
            bench.reconcile().await.unwrap();
        }
        assert!(!is_tuned(&bench, "exit"));
        // The entry has the sysctls already, and keeps them.
        assert!(is_tuned(&bench, "entry"));
        // Its Deployment is created again.
        bench.api.remove(&format!("deployments/{}", child("entry")));
        clock.fetch_add(seconds, Ordering::Relaxed);
        bench.reconcile().await.unwrap();
        assert_eq!(is_tuned(&bench, "entry"), tried, "after {seconds} s");
    }
}
