//! The foremost cause in `Ready`: each cause that the operator observes has its own reason, plain
//! words, and the next step.

use muxtunnel_gateway_config::status::Certificate;
use muxtunnel_operator::tunnel_controller::pods::pod_problem;

use super::*;

/// A cause, and the condition `Ready` that follows from it.
struct Row {
    name: &'static str,
    spec: &'static str,
    happens: fn(&mut Case),
    reason: &'static str,
    /// Parts of the message, in their order.
    words: &'static [&'static str],
}

pub(super) const PROVIDED: &str = "
forwards: [{name: web, port: 80, targets: [{host: web, port: 80}]}]
security:
  mode: Certificates
  certificates: {entry: {secretRef: {name: keys}}, exit: {secretRef: {name: other}}, entryNames: [a], exitNames: [a]}
";

const BALANCED: &str = "
forwards: [{name: web, port: 80, from: {type: Any}, targets: [{host: web, port: 80}]}]
services: [{name: office-entry, type: LoadBalancer}]
";

pub(super) fn deployment(case: &mut Case, end: End) -> &mut Deployment {
    let name = case.object.child(end);
    let own = |deployment: &&mut Deployment| deployment.name_any() == name;
    case.applied.deployments.iter_mut().find(own).unwrap()
}

/// No gateway of `end` is ready, and none answers.
fn down(case: &mut Case, end: End) {
    let deployment = deployment(case, end);
    deployment.status.as_mut().unwrap().ready_replicas = None;
    let pod = case.pod(end);
    pod.ready = false;
    pod.answer = None;
}

/// The gateways of the entry run, but have no carrier.
fn unlinked(case: &mut Case) {
    let answer = case.pod(End::Entry).answer.take();
    down(case, End::Entry);
    let pod = case.pod(End::Entry);
    pod.answer = answer;
    let status = case.status(End::Entry);
    status.ready = false;
    status.carriers.clear();
}

/// The pod of the entry has this status.
fn entry_pod(case: &mut Case, status: Value) {
    down(case, End::Entry);
    let pod = json!({"metadata": {"name": "office-entry-0"}, "status": status});
    let pod = serde_json::from_value(pod).unwrap();
    case.pod(End::Entry).problem = pod_problem(&pod);
}

fn container(name: &str, state: Value, last: Value) -> Value {
    json!({"containerStatuses": [{
        "name": name, "image": "i", "imageID": "i", "ready": false, "restartCount": 3,
        "state": state, "lastState": last,
    }]})
}

fn refused_pods_of_entry(case: &mut Case, message: &str) {
    down(case, End::Entry);
    case.seen.pods.retain(|pod| pod.end != End::Entry);
    let status = deployment(case, End::Entry).status.as_mut().unwrap();
    status.conditions = serde_json::from_value(json!([
        {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": message},
    ]))
    .unwrap();
}

fn certificate(not_after: &str) -> Option<Certificate> {
    Some(Certificate {
        fingerprint: "ab".to_owned(),
        not_before: "2020-01-01T00:00:00Z".to_owned(),
        not_after: not_after.to_owned(),
    })
}

const CAUSES: &[Row] = &[
    Row {
        name: "a certificate has expired, so no carrier comes up",
        spec: PROVIDED,
        happens: |case| {
            unlinked(case);
            case.status(End::Exit).certificate = certificate("2030-01-01T00:00:00Z");
        },
        reason: "CertificateExpired",
        words: &[
            "pod office-tunnel-exit-0: its certificate expired at 2030-01-01T00:00:00Z",
            "Renew the certificate",
        ],
    },
    Row {
        name: "a policy refuses the Secret of a certificate",
        spec: MANAGED,
        happens: |case| {
            down(case, End::Entry);
            case.certified.problem = Some(Problem {
                code: Code::ApiRefused,
                detail: "cannot apply Secret office-entry-tls: a policy forbids it".to_owned(),
            });
        },
        reason: "ApiRefused",
        words: &[
            "cannot apply Secret office-entry-tls: a policy forbids it",
            "administrator",
        ],
    },
    Row {
        name: "a Secret does not exist",
        spec: PROVIDED,
        happens: |case| down(case, End::Entry),
        reason: "SecretNotMounted",
        words: &[
            "entry: 0 of 1 gateways ready: pod office-entry-0 has not started",
            "keys",
            "kubectl describe",
        ],
    },
    Row {
        name: "a person has paused the Deployment",
        spec: SMALLEST,
        happens: |case| {
            let deployment = deployment(case, End::Entry);
            deployment.spec.as_mut().unwrap().paused = Some(true);
            deployment.status.as_mut().unwrap().updated_replicas = None;
        },
        reason: "DeploymentPaused",
        words: &[
            "Deployment office-entry is paused",
            "kubectl rollout resume",
        ],
    },
    Row {
        name: "a person has paused the Deployment before its first pod",
        spec: SMALLEST,
        happens: |case| {
            down(case, End::Exit);
            case.seen.pods.retain(|pod| pod.end != End::Exit);
            deployment(case, End::Exit).spec.as_mut().unwrap().paused = Some(true);
        },
        reason: "DeploymentPaused",
        words: &["exit: 0 of 1 gateways ready: Deployment office-tunnel-exit is paused"],
    },
    Row {
        name: "no carrier comes up",
        spec: SMALLEST,
        happens: unlinked,
        reason: "CarrierConnecting",
        words: &["pod office-entry-0 has no carrier", "Check the exit pods"],
    },
    Row {
        name: "the load balancer has no address yet",
        spec: BALANCED,
        happens: |_| {},
        reason: "AddressPending",
        words: &[
            "Service office-entry has no load balancer address yet",
            "kubectl describe service",
        ],
    },
    Row {
        name: "a quota",
        spec: SMALLEST,
        happens: |case| {
            refused_pods_of_entry(
                case,
                "pods \"office-entry-a\" is forbidden: exceeded quota: q",
            );
        },
        reason: "PodsRefused",
        words: &[
            "entry: 0 of 1 gateways ready: pods \"office-entry-a\" is forbidden: exceeded quota: q",
            "quota",
        ],
    },
    Row {
        name: "Pod Security",
        spec: SMALLEST,
        happens: |case| refused_pods_of_entry(case, "violates PodSecurity \"restricted:latest\""),
        reason: "PodsRefused",
        words: &["violates PodSecurity", "policy"],
    },
    Row {
        name: "no node has room",
        spec: SMALLEST,
        happens: |case| {
            entry_pod(
                case,
                json!({"phase": "Pending", "conditions": [{
                    "type": "PodScheduled", "status": "False", "reason": "Unschedulable",
                    "message": "0/3 nodes are available: 3 Insufficient cpu.",
                }]}),
            );
        },
        reason: "Unschedulable",
        words: &[
            "pod office-entry-0: cannot be scheduled: 0/3 nodes are available",
            "nodes",
        ],
    },
    Row {
        name: "another controller holds the pod back",
        spec: SMALLEST,
        happens: |case| {
            entry_pod(
                case,
                json!({"phase": "Pending", "conditions": [{
                    "type": "PodScheduled", "status": "False", "reason": "SchedulingGated", "message": "gated",
                }]}),
            );
        },
        reason: "Unschedulable",
        words: &["pod office-entry-0: cannot be scheduled: gated"],
    },
    Row {
        name: "the image does not exist",
        spec: SMALLEST,
        happens: |case| {
            let state = json!({"waiting": {"reason": "ErrImagePull", "message": "not found"}});
            entry_pod(case, container("gateway", state, Value::Null));
        },
        reason: "ImageNotPulled",
        words: &[
            "pod office-entry-0: container gateway: ErrImagePull: not found",
            "imagePullSecrets",
        ],
    },
    Row {
        name: "the image of an init container has an invalid name",
        spec: SMALLEST,
        happens: |case| {
            let state = json!({"waiting": {"reason": "InvalidImageName", "message": "bad"}});
            entry_pod(case, container("network", state, Value::Null));
        },
        reason: "ImageNotPulled",
        words: &["container network: InvalidImageName: bad"],
    },
    Row {
        name: "a gateway ends each time that it starts",
        spec: SMALLEST,
        happens: |case| {
            let state =
                json!({"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 5m0s"}});
            let last = json!({"terminated": {"exitCode": 2, "reason": "Error", "message": "MT0231: /tls/tls.key: bad\n"}});
            entry_pod(case, container("gateway", state, last));
        },
        reason: "ContainerCrashing",
        words: &[
            "container gateway ends with status 2 each time that it starts: MT0231: /tls/tls.key: bad",
            "--previous",
        ],
    },
    Row {
        name: "a gateway has just ended",
        spec: SMALLEST,
        happens: |case| {
            let state = json!({"terminated": {"exitCode": 1, "reason": "Error"}});
            entry_pod(case, container("gateway", state, Value::Null));
        },
        reason: "ContainerCrashing",
        words: &["container gateway ends with status 1 each time that it starts"],
    },
    Row {
        name: "a gateway exceeds its memory limit",
        spec: SMALLEST,
        happens: |case| {
            let state =
                json!({"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 5m0s"}});
            let last = json!({"terminated": {"exitCode": 137, "reason": "OOMKilled"}});
            entry_pod(case, container("gateway", state, last));
        },
        reason: "OutOfMemory",
        words: &["container gateway exceeded its memory limit", "resources"],
    },
    Row {
        name: "a container cannot be created",
        spec: SMALLEST,
        happens: |case| {
            let state =
                json!({"waiting": {"reason": "CreateContainerError", "message": "no space"}});
            entry_pod(case, container("gateway", state, Value::Null));
        },
        reason: "GatewaysNotReady",
        words: &[
            "container gateway: CreateContainerError: no space",
            "kubectl describe",
        ],
    },
    Row {
        name: "a node evicts the pod",
        spec: SMALLEST,
        happens: |case| {
            entry_pod(
                case,
                json!({"phase": "Failed", "reason": "Evicted", "message": "low on memory"}),
            );
        },
        reason: "GatewaysNotReady",
        words: &[
            "pod office-entry-0: Evicted: low on memory",
            "kubectl describe",
        ],
    },
    Row {
        name: "a kubelet refuses a sysctl",
        spec: "
forwards: [{name: web, port: 80, targets: [{host: web, port: 80}]}]
tuning: {profile: WAN}
",
        happens: |case| {
            let message = "forbidden sysctl: net.a";
            entry_pod(
                case,
                json!({"phase": "Failed", "reason": "SysctlForbidden", "message": message}),
            );
        },
        reason: "SysctlForbidden",
        words: &[
            "pod office-entry-0: forbidden sysctl: net.a",
            "allowed-unsafe-sysctls",
        ],
    },
    Row {
        name: "a kernel refuses a sysctl",
        spec: "
forwards: [{name: web, port: 80, targets: [{host: web, port: 80}]}]
tuning: {profile: WAN}
",
        happens: |case| {
            down(case, End::Entry);
            case.pod(End::Entry).problem = Some(Problem {
                code: Code::SandboxFailed,
                detail: "pod office-entry-0: sysctl net.a: invalid argument".to_owned(),
            });
        },
        reason: "SandboxFailed",
        words: &["sysctl net.a: invalid argument", "tuning.sysctls"],
    },
    Row {
        name: "the sandbox of a pod fails for another reason",
        spec: SMALLEST,
        happens: |case| {
            down(case, End::Entry);
            case.pod(End::Entry).problem = Some(Problem {
                code: Code::GatewaysNotReady,
                detail: "pod office-entry-0: no address is free".to_owned(),
            });
        },
        reason: "GatewaysNotReady",
        words: &["entry: 0 of 1 gateways ready: pod office-entry-0: no address is free"],
    },
    Row {
        name: "a port is in use, so the gateway is not ready",
        spec: SMALLEST,
        happens: |case| {
            let answer = case.pod(End::Entry).answer.take();
            down(case, End::Entry);
            case.pod(End::Entry).answer = answer;
            let mut forward = forward("web");
            forward.error = Some("MT0103: 0.0.0.0:80: address in use".to_owned());
            case.status(End::Entry).forwards = vec![forward];
        },
        reason: "ListenFailed",
        words: &[
            "pod office-entry-0: forward web: MT0103: 0.0.0.0:80: address in use",
            "free the port",
        ],
    },
    Row {
        name: "the exit is down, so the entry has no carrier",
        spec: SMALLEST,
        happens: |case| {
            unlinked(case);
            down(case, End::Exit);
            let state = json!({"waiting": {"reason": "ErrImagePull", "message": "not found"}});
            let pod = json!({"metadata": {"name": "office-tunnel-exit-0"}, "status": container("gateway", state, Value::Null)});
            case.pod(End::Exit).problem = pod_problem(&serde_json::from_value(pod).unwrap());
        },
        reason: "ImageNotPulled",
        words: &["exit: 0 of 1 gateways ready: pod office-tunnel-exit-0"],
    },
    Row {
        name: "the API server refuses an object",
        spec: SMALLEST,
        happens: |case| {
            down(case, End::Entry);
            case.applied.refusal = Some(Problem {
                code: Code::ApiRefused,
                detail: "cannot apply Service office-entry: a policy forbids it".to_owned(),
            });
        },
        reason: "ApiRefused",
        words: &["cannot apply Service office-entry: a policy forbids it"],
    },
];

pub(super) fn forward(name: &str) -> Forward {
    let forward = json!({"name": name, "listen": "0.0.0.0:80", "target": "web:80", "streams": {
        "open": 0, "opened": 0, "closed": {}, "refused": {}, "bytesSent": 0, "bytesReceived": 0,
    }});
    serde_json::from_value(forward).unwrap()
}

#[test]
fn ready_names_the_foremost_cause_and_the_next_step() {
    let mut wrong = Vec::new();
    for row in CAUSES {
        let mut case = case(row.spec);
        (row.happens)(&mut case);
        let verdict = case.verdict("Ready");
        let message = verdict.message();
        let mut rest = message.as_str();
        let has_words = row.words.iter().all(|word| {
            let found = rest.find(word);
            rest = &rest[found.map_or(0, |at| at + word.len())..];
            found.is_some()
        });
        let is_right = verdict.holds == Some(false)
            && verdict.code.reason() == row.reason
            && has_words
            && message.contains("What to do: ");
        if !is_right {
            let (holds, reason) = (verdict.holds, verdict.code.reason());
            wrong.push(format!("{}: {holds:?} {reason}: {message}", row.name));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_cause_that_has_passed_is_not_reported() {
    let mut case = case(SMALLEST);
    deployment(&mut case, End::Entry)
        .spec
        .as_mut()
        .unwrap()
        .paused = Some(true);
    case.expect("Ready", Some(true), Code::Reconciled, "");
}

#[test]
fn an_address_that_only_the_cluster_reaches_is_not_shown_for_a_load_balancer() {
    let mut case = case(BALANCED);
    let host = |case: &Case| case.facts()["services"][0]["host"].clone();
    assert_eq!(host(&case), Value::Null);
    let own = |service: &&mut Service| service.name_any() == "office-entry";
    let service = case.applied.services.iter_mut().find(own).unwrap();
    service.status =
        serde_json::from_value(json!({"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}]}}))
            .unwrap();
    assert_eq!(host(&case), "192.0.2.1");
    case.expect("Ready", Some(true), Code::Reconciled, "");
}

#[test]
fn a_carrier_that_cannot_connect_has_its_reason() {
    let mut case = case(SMALLEST);
    unlinked(&mut case);
    case.status(End::Entry).carrier_error = Some("192.0.2.1:64000: connection refused".to_owned());
    let detail = "pod office-entry-0 has no carrier: 192.0.2.1:64000: connection refused";
    for type_ in ["Ready", "Connected"] {
        case.expect(type_, Some(false), Code::CarrierConnecting, detail);
    }
}
