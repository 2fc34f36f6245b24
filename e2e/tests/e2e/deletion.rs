//! A deleted tunnel leaves no children.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Result, ensure};
use kube::api::DeleteParams;
use muxtunnel_crds::MuxTunnel;
use muxtunnel_e2e::pods::{self, Serve};
use muxtunnel_e2e::{
    PodSecurity, TestNamespace, definitions, tools, tunnel, turn, wait, with_temp_ns,
};

use crate::tunnel_to_web;

/// Kinds of objects that could remain after the deletion. Events are not included, because they
/// expire by themselves.
const KINDS: &str = "deployments,replicasets,statefulsets,daemonsets,jobs,pods,services,endpointslices,\
    configmaps,secrets,serviceaccounts,roles,rolebindings,networkpolicies,poddisruptionbudgets";

async fn objects(ns: &TestNamespace) -> Result<BTreeSet<String>> {
    let kinds = format!("{KINDS},{}", definitions::kinds()?);
    let names = tools::run(
        "kubectl",
        &["get", &kinds, "--namespace", &ns.name, "-o", "name"],
    )
    .await?;
    Ok(names.lines().map(str::to_owned).collect())
}

#[tokio::test]
async fn deleting_a_tunnel_leaves_nothing() -> Result<()> {
    let _turn = turn::beside().await?;
    with_temp_ns("deletion", PodSecurity::Restricted, async |ns| {
        pods::serve(ns, "web", Serve::Echo).await?;
        let slices = async || {
            Ok(objects(ns)
                .await?
                .iter()
                .any(|name| name.contains("endpointslice"))
                .then_some(()))
        };
        wait::until(
            "the Service has its endpoints",
            Duration::from_secs(120),
            slices,
        )
        .await?;
        let before = objects(ns).await?;
        tunnel::up(ns, &tunnel_to_web("")).await?;
        let with_tunnel = objects(ns).await?;
        ensure!(
            with_tunnel.len() >= before.len() + 11,
            "only {with_tunnel:?}"
        );

        ns.api::<MuxTunnel>()
            .delete("t", &DeleteParams::default())
            .await?;
        wait::until(
            "all children of the tunnel are gone",
            Duration::from_secs(180),
            async || Ok((objects(ns).await? == before).then_some(())),
        )
        .await
    })
    .await
}

#[tokio::test]
async fn deleting_one_tunnel_leaves_its_neighbour_working() -> Result<()> {
    let _turn = turn::beside().await?;
    with_temp_ns("deletion", PodSecurity::Restricted, async |ns| {
        pods::serve(ns, "web", Serve::Echo).await?;
        tunnel::up(ns, &tunnel_to_web("")).await?;
        let other = tunnel_to_web("").replace("{name: t}", "{name: other}");
        tunnel::up(ns, &other).await?;
        ns.api::<MuxTunnel>()
            .delete("other", &DeleteParams::default())
            .await?;
        wait::until(
            "the other tunnel is gone",
            Duration::from_secs(180),
            async || {
                let left = objects(ns)
                    .await?
                    .into_iter()
                    .any(|name| name.contains("/other-"));
                Ok((!left).then_some(()))
            },
        )
        .await?;
        let probe = ["round-trips.sh", "t-entry", "8080", "3"];
        pods::run(ns, "client", &probe, Duration::from_secs(180)).await?;
        Ok(())
    })
    .await
}
