//! The operator's rights in the cluster, asked of the API server; and an operator that has them in one namespace.

use anyhow::{Result, bail, ensure};
use k8s_openapi::api::apps::v1::Deployment;
use kube::api::ListParams;
use muxtunnel_crds::MuxTunnel;
use muxtunnel_e2e::pods::{self, Serve};
use muxtunnel_e2e::{Cluster, PodSecurity, TestNamespace, tunnel, turn, with_temp_ns_in};

/// What the operator can do in a namespace, as `kubectl auth can-i` says it.
async fn operator_can(
    cluster: Cluster,
    namespace: &str,
    verb: &str,
    resource: &str,
) -> Result<bool> {
    let account = "--as=system:serviceaccount:muxtunnel-system:muxtunnel";
    let namespace = format!("--namespace={namespace}");
    let question = format!("kubectl auth can-i {verb} {resource} {account} {namespace} || true");
    // It exits with 1 for "no"; nothing but a word counts as an answer.
    let answer = cluster.run("bash", &["-c", &question]).await?;
    match answer.trim() {
        "yes" => Ok(true),
        "no" => Ok(false),
        _ => bail!("{question} says neither yes nor no: {answer:?}"),
    }
}

/// It may patch Secrets, whose answer has all of one (docs/installation.md, "What the operator may do"); what else there
/// is on Secrets it has not.
#[tokio::test]
async fn the_operator_cannot_look_for_secrets_run_in_pods_or_change_rights() -> Result<()> {
    let _turn = turn::beside().await?;
    ensure!(
        operator_can(Cluster::First, "default", "create", "deployments.apps").await?,
        "the operator has no rights at all"
    );
    for (verb, resource) in [
        ("get", "secrets"),
        ("list", "secrets"),
        ("watch", "secrets"),
        ("update", "secrets"),
        ("delete", "secrets"),
        ("deletecollection", "secrets"),
        ("create", "pods/exec"),
        ("create", "pods"),
        ("create", "roles"),
        ("create", "rolebindings"),
        ("patch", "clusterroles"),
        ("get", "nodes"),
        ("impersonate", "users"),
        ("patch", "muxbenchmarks"),
        ("delete", "muxbenchmarks"),
    ] {
        ensure!(
            !operator_can(Cluster::First, "default", verb, resource).await?,
            "the operator can {verb} {resource}"
        );
    }
    Ok(())
}

/// A tunnel whose certificates the operator issues.
const TUNNEL: &str = "
apiVersion: muxtunnel.dev/v1alpha1
kind: MuxTunnel
metadata: {name: t}
spec:
  forwards:
  - name: web
    listen: {port: 8080}
    target: {service: {name: web, port: 80}}
";

#[tokio::test]
async fn an_operator_of_one_namespace_serves_that_and_no_other() -> Result<()> {
    let _turn = turn::alone().await?;
    with_temp_ns_in(
        Cluster::Second,
        "served",
        PodSecurity::Restricted,
        async |served| {
            with_temp_ns_in(
                Cluster::Second,
                "other",
                PodSecurity::Restricted,
                async |other| {
                    let one = format!("watchNamespaces=[{:?}]", served.name);
                    let alone = async {
                        Cluster::Second.set_value(&one).await?;
                        serves_alone(served, other).await
                    };
                    let alone = alone.await;
                    Cluster::Second.set_value("watchNamespaces=[]").await?;
                    alone?;
                    // What was there meanwhile is taken up.
                    tunnel::ready(other, "t").await?;
                    Ok(())
                },
            )
            .await
        },
    )
    .await
}

async fn serves_alone(served: &TestNamespace, other: &TestNamespace) -> Result<()> {
    pods::serve(other, "web", Serve::Echo).await?;
    tunnel::apply(other, TUNNEL).await?;
    pods::serve(served, "web", Serve::Echo).await?;
    tunnel::up(served, TUNNEL).await?;
    for (namespace, expected) in [(&served.name, true), (&other.name, false)] {
        for (verb, resource) in [
            ("create", "deployments.apps"),
            ("patch", "secrets"),
            ("watch", "services"),
            ("watch", "muxtunnels.muxtunnel.dev"),
        ] {
            let can = operator_can(Cluster::Second, namespace, verb, resource).await?;
            ensure!(can == expected, "{verb} {resource} in {namespace}: {can}");
        }
    }
    let unserved = other.api::<MuxTunnel>().get("t").await?;
    ensure!(
        unserved.status.is_none(),
        "a tunnel that is not served has a status: {:?}",
        unserved.status
    );
    let deployments = other.api::<Deployment>();
    let entries = deployments
        .list(&ListParams::default().labels("app.kubernetes.io/instance=t"))
        .await?;
    ensure!(entries.items.is_empty(), "it has gateways");
    Ok(())
}
