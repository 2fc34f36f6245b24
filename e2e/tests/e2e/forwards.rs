//! Forwards change without a restart.

use std::time::Duration;

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use muxtunnel_e2e::pods::{self, Serve};
use muxtunnel_e2e::{PodSecurity, TestNamespace, tunnel, turn, with_temp_ns};

use crate::tunnel_to_web;

/// The UIDs of the pods of both sides, and the number of restarts of their containers.
async fn incarnations(ns: &TestNamespace) -> Result<Vec<(Option<String>, i32)>> {
    let mut pods = tunnel::gateways(ns, "t", "entry").await?;
    pods.extend(tunnel::gateways(ns, "t", "exit").await?);
    let restarts = |pod: &Pod| {
        let statuses = pod
            .status
            .iter()
            .flat_map(|status| status.container_statuses.iter().flatten());
        statuses.map(|container| container.restart_count).sum()
    };
    Ok(pods.iter().map(|pod| (pod.uid(), restarts(pod))).collect())
}

#[tokio::test]
async fn a_new_forward_takes_effect_within_120_s_and_open_streams_live_on() -> Result<()> {
    let _turn = turn::beside().await?;
    with_temp_ns("forwards", PodSecurity::Restricted, async |ns| {
        pods::serve(ns, "web", Serve::Echo).await?;
        tunnel::up(ns, &tunnel_to_web("")).await?;
        let before = incarnations(ns).await?;
        pods::start(ns, "client", &["new-port.sh", "t-entry", "8080", "9090", "120"]).await?;
        pods::printed(ns, "client", "held stream is open", Duration::from_secs(180)).await?;

        let two = tunnel_to_web("").replace(
            "  security:",
            "  - name: second\n    port: 9090\n    targets: [{serviceRef: {name: web}, port: 80}]\n  security:",
        );
        tunnel::apply(ns, &two).await?;
        let printed = pods::end(ns, "client", Duration::from_secs(150)).await?;
        println!("{printed}");
        tunnel::ready(ns, "t").await?;
        ensure!(before == incarnations(ns).await?, "gateways were replaced or restarted");
        Ok(())
    })
    .await
}
