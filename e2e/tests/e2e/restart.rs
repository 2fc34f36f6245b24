//! Tunnels and benchmarks survive a killed operator.

use std::time::Duration;

use anyhow::Result;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, ListParams};
use kube::{Api, ResourceExt};
use muxtunnel_crds::condition;
use muxtunnel_e2e::pods::{self, Serve};
use muxtunnel_e2e::{
    PodSecurity, TestNamespace, benchmark, operator, tunnel, turn, wait, with_temp_ns,
};

use crate::tunnel_to_web;

/// Deletes the operator's pods without a grace period. Returns when the Deployment has new pods and
/// one of them is the leader. This lasts until the Lease of the killed leader expires.
async fn kill_operator(ns: &TestNamespace) -> Result<()> {
    let _installation = turn::installation().await;
    let pods: Api<Pod> = Api::namespaced(ns.client.clone(), operator::NAMESPACE);
    // Other pods of the namespace belong to the tunnel of `helm test`.
    let operators = ListParams::default().labels(operator::LABEL);
    let killed = pods.list(&operators).await?.items;
    for pod in &killed {
        pods.delete(&pod.name_any(), &DeleteParams::default().grace_period(0))
            .await?;
    }
    let within = Duration::from_secs(120);
    wait::until("new operators run", within, async || {
        let now = pods.list(&operators).await?.items;
        let new =
            |pod: &Pod| pods::is_ready(pod) && killed.iter().all(|old| old.uid() != pod.uid());
        Ok((now.len() == killed.len() && now.iter().all(new)).then_some(()))
    })
    .await?;
    wait::until("an operator leads", within, async || {
        Ok(operator::leader(ns).await.ok().map(|_| ()))
    })
    .await
}

#[tokio::test]
async fn an_operator_that_dies_while_it_builds_a_tunnel_finishes_it_after_its_restart() -> Result<()>
{
    let _turn = turn::beside().await?;
    with_temp_ns("restart", PodSecurity::Restricted, async |ns| {
        pods::serve(ns, "web", Serve::Echo).await?;
        tunnel::apply(ns, &tunnel_to_web("")).await?;
        wait::until("the operator began", Duration::from_secs(120), async || {
            let begun = ns.api::<Deployment>().list(&ListParams::default()).await?;
            Ok((!begun.items.is_empty()).then_some(()))
        })
        .await?;
        kill_operator(ns).await?;
        tunnel::ready(ns, "t").await?;
        let probe = ["round-trips.sh", "t-entry", "8080", "3"];
        pods::run(ns, "client", &probe, Duration::from_secs(180)).await?;
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_benchmark_goes_on_when_the_operator_dies_in_the_middle_of_it() -> Result<()> {
    let _turn = turn::beside().await?;
    with_temp_ns("restart", PodSecurity::Privileged, async |ns| {
        let yaml = "
apiVersion: muxtunnel.dev/v1alpha1
kind: MuxBenchmark
metadata: {name: b}
spec:
  tunnel: {security: {mode: None}}
  connections: [1]
  delayMilliseconds: [0, 5]
  profiles: [None]
  durationSeconds: 2
  warmUpSeconds: 1
  rounds: 1
";
        let name = benchmark::create(ns, yaml).await?;
        let benchmarks = ns.api();
        let within = Duration::from_secs(180);
        let begun = |benchmark: &muxtunnel_crds::MuxBenchmark| {
            benchmark
                .status
                .as_ref()
                .is_some_and(|status| status.environment.is_some())
        };
        wait::for_object(
            &benchmarks,
            &name,
            "an environment is measured",
            within,
            begun,
        )
        .await?;
        kill_operator(ns).await?;
        let outcome = benchmark::end(ns, &name, Duration::from_secs(300)).await?;
        assert!(
            benchmark::is_true(&outcome.benchmark, condition::COMPLETE),
            "{}",
            outcome.log
        );
        assert_eq!(outcome.cells().count(), 4, "{}", outcome.log);
        Ok(())
    })
    .await
}
