//! Tests refusals of gateway pods by nodes. Running gateways continue. The pods avoid a node at
//! fault. If every node refuses a spec, the operator returns to the earlier template and tries the
//! spec again.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use serde_json::{Value, json};

use super::bench::{Bench, MADE};
use super::*;
use crate::grants::tests::known;
use crate::testing::tunnel::date;
use muxtunnel_gateway_config::{Config, Protocol};

const WAN: &str = "tuning: {profile: WAN}\n";
const NONE: &str = "tuning: {profile: None}\n";

/// A tunnel and its operator's clock.
pub(super) fn bench(spec: &str) -> (Bench, Arc<AtomicI64>) {
    let clock = Arc::new(AtomicI64::new(MADE));
    let read = clock.clone();
    let now = super::bench::clock(move || read.load(Ordering::Relaxed));
    (Bench::with(spec, known([]), now), clock)
}

/// A pod of the newest template that the kubelet of `node` refuses.
pub(super) fn refuse(bench: &Bench, end: &str, node: &str) {
    refuse_pod_of(&bench.api, &child(end), node);
}

/// A pod of the newest template of the Deployment `name` that the kubelet of `node` refuses.
pub(super) fn refuse_pod_of(api: &FakeApi, name: &str, node: &str) {
    let deployment = api.get(&format!("deployments/{name}")).unwrap();
    let mut pod = deployment["spec"]["template"].clone();
    let sysctls = &pod["spec"]["securityContext"]["sysctls"];
    let sysctl = sysctls.as_array().unwrap().last().unwrap()["name"].clone();
    pod["apiVersion"] = json!("v1");
    pod["kind"] = json!("Pod");
    pod["metadata"]["name"] = json!(format!("refused-{node}"));
    pod["metadata"]["creationTimestamp"] = json!(date(MADE));
    pod["spec"]["nodeName"] = json!(node);
    pod["status"] = json!({
        "phase": "Failed", "reason": "SysctlForbidden",
        "message": format!("forbidden sysctl on {node}: {sysctl}"),
    });
    api.put_pod_of(name, &format!("pods/refused-{node}"), pod);
}

/// A pod of the newest template that runs on `node` and is not ready, like an entry without a
/// carrier.
pub(super) fn start(bench: &Bench, end: &str, node: &str) {
    let deployment = deployment(bench, end);
    let mut spec = deployment["spec"]["template"]["spec"].clone();
    spec["nodeName"] = json!(node);
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": format!("started-{node}"), "creationTimestamp": date(MADE),
            "labels": labels_of(end),
            "annotations": deployment["spec"]["template"]["metadata"]["annotations"],
        },
        "spec": spec,
        "status": {"phase": "Running", "containerStatuses": [{
            "name": "gateway", "image": "i", "imageID": "i", "ready": false, "restartCount": 0,
            "state": {"running": {}},
        }]},
    });
    let path = format!("pods/started-{node}");
    bench.api.put_pod_of(&child(end), &path, pod);
}

pub(super) fn deployment(bench: &Bench, end: &str) -> Value {
    let path = format!("deployments/{}", child(end));
    bench.api.get(&path).unwrap_or_else(|| panic!("no {path}"))
}

fn config(bench: &Bench, end: &str) -> Config {
    Config::from_yaml(&document(&bench.api, &child(end))).unwrap()
}

pub(super) fn message(bench: &Bench, type_: &str) -> String {
    let condition = bench.condition(type_);
    condition["message"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_node_that_refuses_one_pod_is_avoided_and_no_gateway_goes() {
    for spec in [
        format!("{SMALLEST}exit: {{replicas: 2}}\n{WAN}"),
        format!(
            "{SMALLEST}exit: {{replicas: 2, template: {{spec: {{affinity: {{nodeAffinity: \
             {{requiredDuringSchedulingIgnoredDuringExecution: {{nodeSelectorTerms: [{{matchExpressions: \
             [{{key: zone, operator: Exists}}]}}]}}}}}}}}}}}}\n{WAN}"
        ),
    ] {
        let (mut bench, _) = bench(&spec);
        bench.run().await;
        let entry = deployment(&bench, "entry");
        refuse(&bench, "exit", "node-b");
        bench.api.take_requests();
        for _ in 0..3 {
            bench.reconcile().await.unwrap();
        }
        let writes = bench.api.take_writes();
        let deleted = writes.iter().filter(|write| write.starts_with("DELETE"));
        assert_eq!(deleted.count(), 0, "{writes:?}");
        assert_eq!(deployment(&bench, "entry"), entry, "the other end");
        let exit = deployment(&bench, "exit");
        assert_eq!(exit["spec"]["replicas"], 2);
        let terms = exit
            .pointer(
                "/spec/template/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/\
                 nodeSelectorTerms",
            )
            .unwrap();
        let away = json!([{"key": "metadata.name", "operator": "NotIn", "values": ["node-b"]}]);
        assert_eq!(terms[0]["matchFields"], away);
        let own = spec.contains("zone");
        assert_eq!(
            terms[0]["matchExpressions"].is_array(),
            own,
            "the user's own"
        );
        assert_eq!(bench.condition("TuningApplied")["status"], "True");
        let said = message(&bench, "TuningApplied");
        assert!(said.contains("refused a sysctl: node-b"), "{said}");
        // Another process of the operator also avoids the node, even after the pod is deleted.
        bench.api.remove("pods/refused-node-b");
        bench.restart();
        bench.reconcile().await.unwrap();
        assert_eq!(deployment(&bench, "exit"), exit);
        // Pods with other requests to nodes may use all nodes again.
        bench.edit(&spec.replace("WAN", "LAN"));
        bench.reconcile().await.unwrap();
        assert!(!deployment(&bench, "exit").to_string().contains("node-b"));
    }
}

#[tokio::test]
async fn a_spec_that_no_node_takes_is_gone_back_from_with_its_configuration_and_tried_again() {
    let (bench, clock) = bench(&format!("{SMALLEST}{NONE}"));
    bench.run().await;
    let before = [deployment(&bench, "exit"), deployment(&bench, "entry")];
    let native = SMALLEST.replace("protocol: JMUX", "protocol: Native");
    bench.edit(&format!("{native}{WAN}"));
    bench.reconcile().await.unwrap();
    assert_eq!(config(&bench, "exit").protocol, Protocol::Native);
    refuse(&bench, "exit", "node-a");
    for _ in 0..3 {
        bench.reconcile().await.unwrap();
    }
    let template = |deployment: &Value| deployment["spec"]["template"].clone();
    assert_eq!(template(&deployment(&bench, "exit")), template(&before[0]));
    assert_eq!(config(&bench, "exit").protocol, Protocol::Jmux);
    // Each end has its own roll-out: the entry's pods were not refused.
    assert_ne!(template(&deployment(&bench, "entry")), template(&before[1]));
    for type_ in ["Ready", "TuningApplied"] {
        assert_eq!(bench.condition(type_)["reason"], "SysctlForbidden");
        let said = message(&bench, type_);
        assert!(
            said.contains("exit: pod refused-node-a: forbidden sysctl"),
            "{said}"
        );
        assert!(said.contains("keep their previous settings"), "{said}");
    }
    bench.api.take_requests();
    bench.reconcile().await.unwrap();
    assert_eq!(
        bench.api.take_writes(),
        [""; 0],
        "the operator writes nothing during the pause"
    );

    clock.fetch_add(600, Ordering::Relaxed);
    bench.reconcile().await.unwrap();
    assert_ne!(template(&deployment(&bench, "exit")), template(&before[0]));
    assert_eq!(config(&bench, "exit").protocol, Protocol::Native);
}

#[tokio::test]
async fn without_ready_pods_a_refused_end_has_none_until_it_is_tried_again() {
    for (exit, replicas) in [
        ("{replicas: 3}", 3),
        (
            "{autoscaling: {minReplicas: 2, maxReplicas: 4}, template: {spec: {containers: [{name: gateway, resources: {requests: {cpu: 1}}}]}}}",
            2,
        ),
    ] {
        let (bench, clock) = bench(&format!("{SMALLEST}exit: {exit}\n{WAN}"));
        bench.reconcile().await.unwrap();
        refuse(&bench, "exit", "node-a");
        for _ in 0..3 {
            bench.reconcile().await.unwrap();
        }
        assert_eq!(deployment(&bench, "exit")["spec"]["replicas"], 0);
        assert_eq!(deployment(&bench, "entry")["spec"]["replicas"], 1);
        assert_eq!(bench.condition("Ready")["reason"], "SysctlForbidden");
        clock.fetch_add(600, Ordering::Relaxed);
        for _ in 0..3 {
            bench.reconcile().await.unwrap();
            assert_eq!(deployment(&bench, "exit")["spec"]["replicas"], replicas);
        }
    }
}

/// A tunnel's first entries have no carrier yet, so none of them is ready.
#[tokio::test]
async fn an_entry_without_a_carrier_shows_that_its_node_takes_the_sysctls() {
    let (bench, _) = bench(&format!("{SMALLEST}entry: {{replicas: 2}}\n{WAN}"));
    bench.reconcile().await.unwrap();
    start(&bench, "entry", "node-a");
    refuse(&bench, "entry", "node-b");
    for _ in 0..3 {
        bench.reconcile().await.unwrap();
    }
    let entry = deployment(&bench, "entry");
    assert_eq!(entry["spec"]["replicas"], 2);
    let avoided = &entry["metadata"]["annotations"]["muxtunnel.dev/avoided-nodes"];
    assert!(avoided.as_str().unwrap().ends_with("node-b"), "{avoided}");
    // The same is true for the other end, which has no pods.
    assert_eq!(deployment(&bench, "exit")["spec"]["replicas"], 1);
}

/// The carriers are down while the spec changes.
#[tokio::test]
async fn without_ready_pods_an_end_goes_back_to_the_pods_that_run() {
    let (bench, _) = bench(&format!("{SMALLEST}{NONE}"));
    bench.reconcile().await.unwrap();
    start(&bench, "entry", "node-a");
    bench.reconcile().await.unwrap();
    let before = deployment(&bench, "entry");
    bench.edit(&format!("{SMALLEST}{WAN}"));
    bench.reconcile().await.unwrap();
    assert_ne!(
        deployment(&bench, "entry")["spec"]["template"],
        before["spec"]["template"]
    );
    refuse(&bench, "entry", "node-b");
    for _ in 0..3 {
        bench.reconcile().await.unwrap();
    }
    let entry = deployment(&bench, "entry");
    assert_eq!(entry["spec"]["replicas"], 1);
    assert_eq!(entry["spec"]["template"], before["spec"]["template"]);
}

/// The pods `first` to `last` of the newest template, whose sandboxes their node cannot create, with
/// the kubelet's Events.
fn fail_sandboxes(bench: &Bench, end: &str, pods: std::ops::Range<usize>) {
    let deployment = deployment(bench, end);
    for number in pods {
        let (name, uid) = (format!("stuck-{number}"), format!("uid-stuck-{number}"));
        let mut spec = deployment["spec"]["template"]["spec"].clone();
        spec["nodeName"] = json!(format!("node-{number}"));
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "name": name, "uid": uid, "creationTimestamp": date(MADE),
                "labels": labels_of(end),
                "annotations": deployment["spec"]["template"]["metadata"]["annotations"],
            },
            "spec": spec,
            "status": {
                "phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "True"}],
            },
        });
        let path = format!("pods/{name}");
        let sysctl = pod["spec"]["securityContext"]["sysctls"][0]["name"].clone();
        bench.api.put_pod_of(&child(end), &path, pod);
        let event = json!({
            "apiVersion": "events.k8s.io/v1", "kind": "Event",
            "metadata": {"name": format!("{name}.1")}, "eventTime": null,
            "reason": "FailedCreatePodSandBox", "note": sysctl,
            "regarding": {"kind": "Pod", "name": name, "uid": uid},
        });
        bench.api.put(&format!("events/{name}.1"), event);
    }
}

#[tokio::test]
async fn the_events_of_all_pods_without_a_sandbox_are_one_read() {
    let (bench, _) = bench(&format!("{SMALLEST}{WAN}"));
    bench.run().await;
    fail_sandboxes(&bench, "exit", 0..40);
    bench.api.take_requests();
    bench.reconcile().await.unwrap();
    let requests = bench.api.take_requests();
    let of_events = requests.iter().filter(|request| request.path == "events");
    let reads = of_events.filter(|request| request.method == "GET").count();
    assert_eq!(reads, 1);
    assert_eq!(bench.condition("TuningApplied")["reason"], "SandboxFailed");
    // The operator knows the failure of each pod: the next template avoids as many nodes as it may.
    bench.reconcile().await.unwrap();
    let deployment = deployment(&bench, "exit");
    let avoided = &deployment["metadata"]["annotations"]["muxtunnel.dev/avoided-nodes"];
    let nodes = avoided.as_str().unwrap().split(' ').skip(1);
    assert_eq!(nodes.count(), 8, "{avoided}");
}

#[tokio::test]
async fn no_event_is_read_while_all_pods_have_a_sandbox() {
    let (bench, _) = bench(&format!("{SMALLEST}{WAN}"));
    bench.run().await;
    bench.api.take_requests();
    bench.reconcile().await.unwrap();
    let requests = bench.api.take_requests();
    let mut reads = requests.iter().filter(|request| request.method == "GET");
    assert!(reads.all(|request| request.path != "events"));
}
