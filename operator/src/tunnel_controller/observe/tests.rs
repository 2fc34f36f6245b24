//! Reads problems from pods as the kubelet reports them, and the status from a gateway's answer.

use std::sync::Arc;

use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use super::*;
use crate::testing::tunnel::{EXIT, OPEN, class, object_json};
use crate::tunnel_controller::dereference::Dereferenced;
use crate::tunnel_controller::object::Object;
use crate::tunnel_controller::pods::{WAITING_SECONDS_MIN, waiting_since};
use crate::tunnel_controller::validate::validate;

const UNTUNED: &str = "tuning: {profile: None}\n";

fn exit() -> ValidatedObject {
    let object = serde_json::from_value(object_json(&format!("{EXIT}{OPEN}{UNTUNED}"))).unwrap();
    let object = Object::Exit(Arc::new(object));
    *validate(&object, &Dereferenced::default(), class()).unwrap()
}

fn seen(status: Value) -> Option<SeenPod> {
    seen_with(json!({"containers": []}), status)
}

fn seen_with(mut spec: Value, status: Value) -> Option<SeenPod> {
    spec["securityContext"] =
        json!({"sysctls": [{"name": "net.ipv4.ip_unprivileged_port_start", "value": "0"}]});
    let pod = json!({
        "metadata": {"name": "p", "labels": crate::labels::child("MuxExit", "office", "exit")},
        "spec": spec,
        "status": status,
    });
    facts(&serde_json::from_value(pod).unwrap(), &exit())
}

fn wan_of(container: Value) -> Wan {
    wan_with(json!({"name": "wan", "restartPolicy": "Always"}), container)
}

fn wan_with(spec: Value, container: Value) -> Wan {
    let spec = json!({"containers": [], "initContainers": [spec]});
    let status = json!({"initContainerStatuses": [container]});
    seen_with(spec, status).unwrap().wan
}

fn container_status(state: Value, last_state: Value) -> Value {
    json!({
        "name": "wan", "image": "i", "imageID": "i", "ready": false, "restartCount": 0,
        "state": state, "lastState": last_state,
    })
}

#[test]
fn a_forbidden_sysctl_is_a_problem_of_its_own() {
    let status = json!({
        "phase": "Failed", "reason": "SysctlForbidden",
        "message": "forbidden sysctl: \"net.ipv4.tcp_mtu_probing\" not allowlisted",
    });
    let problem = seen(status).unwrap().problem.unwrap();
    assert_eq!(problem.code, Code::SysctlForbidden);
    assert!(problem.detail.contains("tcp_mtu_probing"));
}

#[test]
fn a_failed_pod_of_an_earlier_spec_is_passed_over() {
    let pod = json!({
        "metadata": {"name": "p", "labels": crate::labels::child("MuxExit", "office", "exit")},
        "spec": {"containers": [], "securityContext": {"sysctls": [
            {"name": "net.ipv4.tcp_mtu_probing", "value": "1"},
        ]}},
        "status": {"phase": "Failed", "reason": "SysctlForbidden"},
    });
    assert!(facts(&serde_json::from_value(pod).unwrap(), &exit()).is_none());
}

#[test]
fn a_pod_that_is_being_deleted_is_passed_over() {
    let pod = json!({
        "metadata": {
            "name": "p", "labels": crate::labels::child("MuxExit", "office", "exit"),
            "deletionTimestamp": "2030-01-01T00:00:00Z",
        },
    });
    assert!(facts(&serde_json::from_value(pod).unwrap(), &exit()).is_none());
}

#[test]
fn a_container_that_is_merely_being_created_is_no_problem() {
    let state = |reason: &str| {
        let waiting = json!({"waiting": {"reason": reason, "message": "m"}});
        let container = container_status(waiting, Value::Null);
        seen(json!({"containerStatuses": [container]}))
            .unwrap()
            .problem
    };
    assert_eq!(state("ContainerCreating"), None);
    let problem = state("ImagePullBackOff").unwrap();
    assert_eq!(problem.detail, "pod p: container wan: ImagePullBackOff: m");
}

#[test]
fn a_pod_that_fits_on_no_node_says_why() {
    let status = json!({"conditions": [{
        "type": "PodScheduled", "status": "False", "reason": "Unschedulable",
        "message": "0/1 nodes are available: 1 Insufficient cpu.",
    }]});
    let problem = seen(status).unwrap().problem.unwrap();
    assert!(problem.detail.contains("Insufficient cpu"));
}

#[test]
fn emulation_is_proven_by_a_passed_startup_probe_or_a_clean_exit() {
    let running = json!({"running": {}});
    let mut sidecar = container_status(running, Value::Null);
    assert_eq!(wan_of(sidecar.clone()), Wan::Pending);
    sidecar["started"] = json!(true);
    assert_eq!(wan_of(sidecar.clone()), Wan::Proven);
    let plain = json!({"name": "wan"});
    assert_eq!(wan_with(plain.clone(), sidecar), Wan::Pending);
    let exited = json!({"terminated": {"exitCode": 0}});
    let exited = container_status(exited, Value::Null);
    assert_eq!(wan_with(plain, exited), Wan::Proven);
    assert_eq!(seen(json!({})).unwrap().wan, Wan::Absent);
}

#[test]
fn a_refusal_is_read_from_the_termination_message_also_while_it_waits_to_begin_again() {
    let ended = |message: &str| json!({"terminated": {"exitCode": 3, "message": message}});
    let waiting = json!({"waiting": {"reason": "CrashLoopBackOff"}});
    let refused = wan_of(container_status(
        waiting,
        ended("MT0404 WanUnsupported: netem: none\n"),
    ));
    let Wan::Refused(problem) = refused else {
        panic!("{refused:?}");
    };
    assert_eq!(problem.code, Code::WanUnsupported);
    assert_eq!(problem.detail, "pod p: netem: none");
    let off = wan_of(container_status(ended("MT0405 61 ms"), Value::Null));
    assert!(matches!(off, Wan::Refused(problem) if problem.code == Code::WanDelayOff));
    let killed = wan_of(container_status(ended(""), Value::Null));
    assert_eq!(killed, Wan::Pending);
}

/// Serves `body` to one request and returns its address.
async fn served(body: Vec<u8>) -> http::Uri {
    answered(StatusCode::OK, body).await
}

async fn answered(status: StatusCode, body: Vec<u8>) -> http::Uri {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        let service = service_fn(move |_: Request<Incoming>| {
            let body = body.clone();
            let answer = Response::builder()
                .status(status)
                .body(Full::new(Bytes::from(body)));
            async move { answer }
        });
        let _cut_off = hyper::server::conn::http1::Builder::new()
            .serve_connection(TokioIo::new(stream), service)
            .await;
    });
    format!("http://{address}/status").parse().unwrap()
}

#[tokio::test]
async fn an_answer_without_end_is_cut_off() {
    let uri = served(vec![b' '; ANSWER_BYTES_MAX + 1]).await;
    let answer = HttpGateways::default().body(uri).await;
    let error = answer.unwrap_err();
    assert!(error.contains("ended early"), "{error}");
}

#[test]
fn an_answer_that_is_no_status_is_said_to_be_none() {
    let error = status_in(b"<html>").unwrap_err();
    assert!(error.contains("not a valid status"), "{error}");
}

#[tokio::test]
async fn a_refusal_comes_with_what_the_gateway_says() {
    let line = b"the gateway is draining\n".to_vec();
    let uri = answered(StatusCode::BAD_GATEWAY, line).await;
    let answer = HttpGateways::default().body(uri).await;
    assert_eq!(
        answer.unwrap_err(),
        "answered 502 Bad Gateway: the gateway is draining"
    );
}

#[test]
fn a_pod_whose_containers_are_not_begun_waits_once_it_is_ten_seconds_old() {
    let made: i64 = 1_900_000_000;
    let date = crate::testing::tunnel::date(made);
    let creating = json!({"name": "muxgate", "image": "i", "imageID": "i", "ready": false, "restartCount": 0,
        "state": {"waiting": {"reason": "ContainerCreating"}}});
    let mut begun = creating.clone();
    begun["state"] = json!({"waiting": {"reason": "ErrImagePull"}});
    let scheduled = json!([{"type": "PodScheduled", "status": "True"}]);
    for (phase, conditions, containers, age, expected) in [
        (
            "Pending",
            scheduled.clone(),
            json!([creating]),
            WAITING_SECONDS_MIN,
            true,
        ),
        (
            "Pending",
            scheduled.clone(),
            json!([]),
            WAITING_SECONDS_MIN,
            true,
        ),
        (
            "Pending",
            scheduled.clone(),
            json!([creating]),
            WAITING_SECONDS_MIN - 1,
            false,
        ),
        ("Pending", json!([]), json!([]), WAITING_SECONDS_MIN, false),
        (
            "Pending",
            scheduled.clone(),
            json!([begun]),
            WAITING_SECONDS_MIN,
            false,
        ),
        (
            "Running",
            scheduled.clone(),
            json!([creating]),
            WAITING_SECONDS_MIN,
            false,
        ),
    ] {
        let pod = json!({
            "metadata": {"name": "p", "creationTimestamp": date},
            "status": {"phase": phase, "conditions": conditions, "containerStatuses": containers},
        });
        let pod = serde_json::from_value(pod).unwrap();
        assert_eq!(
            waiting_since(&pod, made + age),
            expected.then_some(made),
            "{phase} {conditions} {containers} {age}"
        );
    }
}
