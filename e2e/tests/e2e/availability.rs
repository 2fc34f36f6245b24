//! Disruption budgets, autoscalers and drains prevent the simultaneous loss of several gateways.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::{EvictParams, ListParams};
use kube::{Api, ResourceExt};
use muxtunnel_crds::MuxTunnel;
use muxtunnel_e2e::pods::{self, Serve};
use muxtunnel_e2e::{PodSecurity, tunnel, turn, wait, with_temp_ns};

use crate::tunnel_to_web;

#[tokio::test]
async fn of_two_gateways_one_at_a_time_can_be_evicted() -> Result<()> {
    let _turn = turn::beside().await?;
    with_temp_ns("evicted", PodSecurity::Restricted, async |ns| {
        pods::serve(ns, "web", Serve::Hash).await?;
        tunnel::up(ns, &tunnel_to_web("exit: {replicas: 2}")).await?;
        let budgets = ns.api::<PodDisruptionBudget>();
        let what = "the budget counts two pods";
        let within = Duration::from_secs(180);
        wait::for_object(&budgets, "t-tunnel-exit", what, within, |budget| {
            let status = budget.status.as_ref();
            status.is_some_and(|status| status.disruptions_allowed == 1)
        })
        .await?;
        ensure!(
            budgets.get_opt("t-entry").await?.is_none(),
            "a tunnel with one entry has a disruption budget"
        );
        let exits = tunnel::gateways(ns, "t", "exit").await?;
        let [first, second] = &exits[..] else {
            bail!("expected two exits, found {}", exits.len());
        };
        let client = ns.cluster.client_that_asks_once().await?;
        let pods = Api::<Pod>::namespaced(client, &ns.name);
        pods.evict(&first.name_any(), &EvictParams::default())
            .await?;
        match pods
            .evict(&second.name_any(), &EvictParams::default())
            .await
        {
            Err(kube::Error::Api(status)) if status.code == 429 => {}
            other => bail!("the second eviction: {other:?}"),
        }
        let send = ["send-hashed.sh", "t-entry", "8080", "1000000"];
        pods::run(ns, "client", &send, Duration::from_secs(180)).await?;
        Ok(())
    })
    .await
}

#[tokio::test]
async fn an_autoscaler_has_the_number_of_gateways_from_when_it_is_asked_for_until_it_is_not()
-> Result<()> {
    let _turn = turn::beside().await?;
    with_temp_ns("scaled", PodSecurity::Restricted, async |ns| {
        pods::serve(ns, "web", Serve::Hash).await?;
        let scaled = |min: i32| {
            tunnel_to_web(&format!(
                "entry: {{autoscaling: {{minReplicas: {min}, maxReplicas: 4}}, \
                 template: {{spec: {{containers: [{{name: gateway, resources: {{requests: {{cpu: 10m}}}}}}]}}}}}}"
            ))
        };
        tunnel::up(ns, &tunnel_to_web("entry: {replicas: 2}")).await?;
        for (yaml, wanted) in [
            (scaled(2), 2),
            (scaled(3), 3),
            (tunnel_to_web("entry: {replicas: 2}"), 2),
        ] {
            tunnel::apply(ns, &yaml).await?;
            tunnel::ready(ns, "t").await?;
            let within = Duration::from_secs(180);
            let what = format!("{wanted} entries are ready");
            wait::for_object(&ns.api::<MuxTunnel>(), "t", &what, within, |tunnel| {
                let status = tunnel.status.as_ref();
                let entry = status.and_then(|status| status.entry.as_ref());
                entry.is_some_and(|entry| (entry.replicas, entry.ready_replicas) == (wanted, wanted))
            })
            .await?;
        }
        let left = ns.api::<HorizontalPodAutoscaler>();
        let left = left.list(&ListParams::default()).await?;
        ensure!(left.items.is_empty(), "{left:?}");
        let tunnel = ns.api::<MuxTunnel>().get("t").await?;
        let entry = tunnel.status.and_then(|status| status.entry);
        ensure!(entry.context("a status")?.replicas == 2);
        Ok(())
    })
    .await
}
