//! Several gateways of an end: the applied objects and their order.

use super::bench::Bench;
use super::*;

const HA: &str = "
entry:
  autoscaling: {minReplicas: 2, maxReplicas: 8, targetCPUUtilizationPercentage: 70}
  drainSeconds: 600
  template: {spec: {containers: [{name: gateway, resources: {requests: {cpu: 500m}}}]}}
exit:
  replicas: 3
";

fn with(extra: &str) -> String {
    format!("{SMALLEST}{extra}")
}

#[tokio::test]
async fn what_comes_with_several_pods_is_applied_after_the_deployments_and_goes_when_it_is_not_asked_for()
 {
    let bench = Bench::new(&with(HA));
    bench.reconcile().await.unwrap();
    let writes = bench.api.take_writes();
    assert_eq!(
        writes[8..],
        [
            "PATCH deployments/office-tunnel-exit",
            "PATCH deployments/office-entry",
            "PATCH poddisruptionbudgets/office-tunnel-exit",
            "PATCH poddisruptionbudgets/office-entry",
            "PATCH horizontalpodautoscalers/office-entry",
            "PATCH muxtunnels/office/status",
        ]
    );
    bench.reconcile().await.unwrap();
    assert!(bench.api.take_writes().is_empty());

    bench.edit(&with("entry: {replicas: 1}\nexit: {replicas: 1}\n"));
    bench.reconcile().await.unwrap();
    let deleted: Vec<String> = bench.api.take_writes();
    for gone in [
        "DELETE poddisruptionbudgets/office-tunnel-exit",
        "DELETE poddisruptionbudgets/office-entry",
        "DELETE horizontalpodautoscalers/office-entry",
    ] {
        assert!(
            deleted.iter().any(|write| write == gone),
            "{gone}: {deleted:?}"
        );
    }
    let counts = serde_json::json!({"replicas": 1, "readyReplicas": 0});
    assert_eq!(bench.status()["entry"], counts);
}
