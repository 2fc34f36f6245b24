//! Objects whose `spec.paused` is set.

use super::bench::Bench;
use super::*;

#[tokio::test]
async fn while_paused_nothing_but_the_status_is_written() {
    let bench = Bench::new(SMALLEST);
    bench.reconcile().await.unwrap();
    let available = bench.condition("Available");
    bench.pause(true);
    bench.edit(&SMALLEST.replace("port: 443", "port: 444"));
    bench.api.remove("deployments/office-tunnel-exit");
    bench.api.take_requests();
    bench.reconcile().await.unwrap();
    bench.reconcile().await.unwrap();
    let requests = bench.api.take_requests();
    let (events, writes): (Vec<_>, Vec<_>) = requests
        .iter()
        .partition(|request| request.path.starts_with("events"));
    // One Event for each of both conditions.
    assert_eq!(events.len(), 2);
    assert!(events.iter().all(|event| event.body["reason"] == "Paused"));
    // The operator sends no other request, not even a read.
    assert_eq!(writes.len(), 1, "{writes:?}");
    assert_eq!(writes[0].path, "muxtunnels/office/status");
    for type_ in ["Ready", "Programmed"] {
        let condition = bench.condition(type_);
        assert_eq!(condition["status"], "False", "the new spec was not applied");
        assert_eq!(condition["reason"], "Paused");
    }
    assert_eq!(bench.condition("Available"), available);

    bench.pause(false);
    bench.reconcile().await.unwrap();
    assert!(bench.api.get("deployments/office-tunnel-exit").is_some());
    let ready = bench.condition("Ready");
    assert_ne!(ready["reason"], "Paused");
}

/// The kind makes no difference.
#[tokio::test]
async fn an_object_that_is_paused_from_the_start_says_so() {
    for spec in [SMALLEST, ELSEWHERE, EXIT, RENDEZVOUS] {
        let bench = Bench::new(spec);
        bench.pause(true);
        bench.reconcile().await.unwrap();
        let ready = bench.condition("Ready");
        assert_eq!(ready["status"], "False");
        assert_eq!(ready["reason"], "Paused");
        let status = format!("PATCH {}/status", bench.path());
        assert_eq!(bench.api.take_writes(), [status]);
        // The operator does not work towards the generation, and no person has to act.
        for absent in ["Reconciling", "Stalled"] {
            assert_eq!(condition(&bench.api, &bench.path(), absent), None);
        }
    }
}
