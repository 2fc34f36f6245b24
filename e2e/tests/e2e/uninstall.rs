//! `helm uninstall` removes only the operator. Users can delete the chart, objects, namespaces and
//! definitions in any order. No deletion waits for the operator.

use std::time::Duration;

use anyhow::{Context, Result};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{DeleteParams, ListParams, ObjectMeta, PostParams};
use kube::{Api, ResourceExt};
use muxtunnel_crds::MuxTunnel;
use muxtunnel_e2e::pods::{self, Serve};
use muxtunnel_e2e::{
    Cluster, PodSecurity, TestNamespace, definitions, tunnel, turn, wait, with_temp_ns_in,
};

use crate::tunnel_to_web;

/// Checks the tunnel while the chart is not installed.
async fn without_the_chart(ns: &TestNamespace) -> Result<()> {
    let names = definitions::names()?;
    let names = names.iter().map(String::as_str);
    let get: Vec<_> = ["get", "crd"].into_iter().chain(names).collect();
    ns.kubectl(&get).await?;
    let probe = ["round-trips.sh", "t-entry", "8080", "3"];
    pods::run(ns, "without", &probe, Duration::from_secs(180)).await?;
    // Another release can take over the definitions.
    let other = [
        "install",
        "other",
        "charts/muxtunnel",
        "--namespace",
        &ns.name,
        "--take-ownership",
        "--dry-run=server",
    ];
    ns.cluster.run("helm", &other).await?;
    Ok(())
}

async fn uninstall() -> Result<()> {
    let arguments = [
        "uninstall",
        "muxtunnel",
        "--namespace",
        "muxtunnel-system",
        "--wait",
    ];
    Cluster::Second.run("helm", &arguments).await?;
    Ok(())
}

#[tokio::test]
async fn uninstalling_the_chart_breaks_no_tunnel_and_reinstalling_takes_it_up_again() -> Result<()>
{
    let _turn = turn::alone().await?;
    with_temp_ns_in(
        Cluster::Second,
        "uninstall",
        PodSecurity::Restricted,
        async |ns| {
            pods::serve(ns, "web", Serve::Echo).await?;
            tunnel::up(ns, &tunnel_to_web("")).await?;

            uninstall().await?;
            let outcome = without_the_chart(ns).await;
            // Later tests need the operator, even if this test fails.
            Cluster::Second.install().await?;
            outcome?;

            let changed = tunnel_to_web("").replace("port: 8080", "port: 8081");
            tunnel::up(ns, &changed).await?;
            let probe = ["round-trips.sh", "t-entry", "8081", "3"];
            pods::run(ns, "after", &probe, Duration::from_secs(150)).await?;
            Ok(())
        },
    )
    .await
}

/// Time-out for the deletion, including pods with a grace period of 30 s.
const GONE: Duration = Duration::from_secs(120);

/// A separate namespace with a ready tunnel, for the test to delete.
async fn namespace_with_a_tunnel(cluster: Cluster) -> Result<TestNamespace> {
    let client = cluster.client().await?;
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let namespace = Namespace {
        metadata: ObjectMeta {
            generate_name: Some("e2e-order-".to_owned()),
            ..ObjectMeta::default()
        },
        ..Namespace::default()
    };
    let created = namespaces
        .create(&PostParams::default(), &namespace)
        .await?;
    let ns = TestNamespace {
        cluster,
        client,
        name: created.metadata.name.context("a namespace has a name")?,
    };
    pods::serve(&ns, "web", Serve::Echo).await?;
    tunnel::up(&ns, &tunnel_to_web("")).await?;
    Ok(ns)
}

async fn delete_namespace(ns: &TestNamespace) -> Result<()> {
    let namespaces: Api<Namespace> = Api::all(ns.client.clone());
    namespaces
        .delete(&ns.name, &DeleteParams::default())
        .await?;
    wait::until("the namespace is gone", GONE, async || {
        Ok(namespaces.get_opt(&ns.name).await?.is_none().then_some(()))
    })
    .await
}

/// Waits until the namespace has no objects of the tunnel.
async fn nothing_left(ns: &TestNamespace) -> Result<()> {
    let deployments = ns.api::<Deployment>();
    let pods = ns.api::<k8s_openapi::api::core::v1::Pod>();
    let ours = ListParams::default().labels("app.kubernetes.io/managed-by=muxtunnel-operator");
    wait::until("nothing of the tunnel is left", GONE, async || {
        let left = deployments.list(&ours).await?.items.len() + pods.list(&ours).await?.items.len();
        Ok((left == 0).then_some(()))
    })
    .await
}

#[tokio::test]
async fn a_namespace_goes_with_its_tunnels_while_the_operator_is_there() -> Result<()> {
    let _turn = turn::beside().await?;
    delete_namespace(&namespace_with_a_tunnel(Cluster::First).await?).await
}

#[tokio::test]
async fn a_namespace_and_a_tunnel_go_when_the_operator_is_gone_before() -> Result<()> {
    let _turn = turn::alone().await?;
    let first = namespace_with_a_tunnel(Cluster::Second).await?;
    let second = namespace_with_a_tunnel(Cluster::Second).await?;
    uninstall().await?;
    let outcome = async {
        delete_namespace(&first).await?;
        let tunnels = second.api::<MuxTunnel>();
        tunnels.delete("t", &DeleteParams::default()).await?;
        wait::until("the tunnel is gone", GONE, async || {
            Ok(tunnels.get_opt("t").await?.is_none().then_some(()))
        })
        .await?;
        nothing_left(&second).await
    }
    .await;
    // Later tests need the operator, even if this test fails.
    Cluster::Second.install().await?;
    outcome?;
    delete_namespace(&second).await
}

#[tokio::test]
async fn definitions_go_with_every_object_and_what_these_owned() -> Result<()> {
    let _turn = turn::alone().await?;
    let ns = namespace_with_a_tunnel(Cluster::Second).await?;
    uninstall().await?;
    let outcome = async {
        let names = definitions::names()?;
        let names = names.iter().map(String::as_str);
        let delete = ["delete", "crd", "--timeout=60s"].into_iter();
        let delete: Vec<_> = delete.chain(names).collect();
        Cluster::Second.run("kubectl", &delete).await?;
        nothing_left(&ns).await
    }
    .await;
    Cluster::Second.install().await?;
    outcome?;
    let tunnels = ns.api::<MuxTunnel>().list(&ListParams::default()).await?;
    let left: Vec<_> = tunnels.iter().map(ResourceExt::name_any).collect();
    anyhow::ensure!(left.is_empty(), "{left:?}");
    delete_namespace(&ns).await
}
