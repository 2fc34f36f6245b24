//! The health of objects in Argo CD, in the statuses that the operator writes.

use serde_json::json;

use super::bench::Bench;
use super::*;
use crate::testing::health::health;

fn health_of(bench: &Bench) -> String {
    health(&bench.object()).0
}

#[tokio::test]
async fn an_object_progresses_until_it_is_ready_and_is_suspended_while_it_is_paused() {
    for spec in [SMALLEST, ELSEWHERE, EXIT, RENDEZVOUS] {
        let bench = Bench::new(spec);
        assert_eq!(health_of(&bench), "Progressing", "no status");
        bench.reconcile().await.unwrap();
        let (status, message) = health(&bench.object());
        assert_eq!(status, "Progressing");
        assert!(message.contains("MT0"), "{message}");
        bench.run().await;
        assert_eq!(health_of(&bench), "Healthy");

        bench.pause(true);
        let mut edited = bench.object();
        edited["metadata"]["generation"] = json!(9);
        let (status, message) = health(&edited);
        assert_eq!(status, "Progressing");
        assert!(message.contains("generation"), "{message}");
        bench.reconcile().await.unwrap();
        assert_eq!(health_of(&bench), "Suspended");
        bench.pause(false);
        bench.run().await;
        assert_eq!(health_of(&bench), "Healthy");
    }
}

#[tokio::test]
async fn an_object_that_needs_a_person_is_degraded() {
    let bench = Bench::new(&SMALLEST.replace("443", "8080"));
    bench.reconcile().await.unwrap();
    let (status, message) = health(&bench.object());
    assert_eq!(status, "Degraded");
    assert!(message.starts_with("InvalidSpec: "), "{message}");
}

/// The gateways have the spec, so the operator waits for nothing.
#[tokio::test]
async fn a_tunnel_without_a_carrier_is_degraded() {
    let bench = Bench::new(SMALLEST);
    bench.run().await;
    let mut object = bench.object();
    let conditions = object["status"]["conditions"].as_array_mut().unwrap();
    for condition in conditions {
        if ["Ready", "Connected", "Available"].contains(&condition["type"].as_str().unwrap()) {
            condition["status"] = json!("False");
            condition["reason"] = json!("CarrierConnecting");
        }
    }
    let (status, message) = health(&object);
    assert_eq!(status, "Degraded");
    assert!(message.starts_with("CarrierConnecting"), "{message}");
}

#[tokio::test]
async fn a_peer_is_healthy_while_it_is_idle_and_suspended_on_request() {
    let bench = Bench::new(EXIT);
    let peers = [
        ("idle", ENTRY_KEY, json!({}), "Healthy"),
        ("off", OTHER, json!({"suspend": true}), "Suspended"),
        ("twice", ENTRY_KEY, json!({}), "Degraded"),
    ];
    for (name, key, more, _) in &peers {
        bench
            .api
            .put(&format!("muxpeers/{name}"), peer_json(name, key, more));
    }
    bench.run().await;
    for (name, _, _, expected) in &peers {
        let peer = bench.api.get(&format!("muxpeers/{name}")).unwrap();
        assert_eq!(health(&peer).0, *expected, "{name}");
    }
}

#[test]
fn a_class_progresses_until_its_objects_run_it_and_is_degraded_after_a_failure() {
    let class = |status: Option<&str>, reason: &str| {
        let conditions = status.map(|status| json!({"type": "RolledOut", "status": status, "reason": reason, "message": ""}));
        let conditions: Vec<_> = conditions.into_iter().collect();
        json!({
            "kind": "MuxClass", "metadata": {"name": "wide", "generation": 2},
            "status": {"observedGeneration": 2, "conditions": conditions},
        })
    };
    for (status, reason, expected) in [
        (None, "", "Progressing"),
        (Some("False"), "RollingOut", "Progressing"),
        (Some("False"), "Paused", "Degraded"),
        (Some("True"), "RolledOut", "Healthy"),
    ] {
        assert_eq!(health(&class(status, reason)).0, expected, "{reason}");
    }
    let mut changed = class(Some("True"), "RolledOut");
    changed["metadata"]["generation"] = json!(3);
    assert_eq!(health(&changed).0, "Progressing");
}

/// The key of another entry.
const OTHER: &str = "mte1q9503hlhl7dhlagz72halmawpml35gucsg95q5ym74fws0r59wa4ssld50k";
