//! The chart's roles for users, and the admission policy that limits the peers of users without the
//! verb `permanent`.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use muxtunnel_crds::MuxPeer;
use muxtunnel_e2e::{Cluster, PodSecurity, TestNamespace, turn, wait, with_temp_ns};
use serde_json::{Value, json};

const USER: &str = "jane";
const KEY: &str = "mte1q8t44xqps2cs4d74f0ld8jtyquaqactj70d2vge94upp568hqag35gy0qhe";

/// A peer that ends `hours` from now. `None`: never.
fn peer(name: &str, hours: Option<i64>) -> Result<MuxPeer> {
    let mut object = json!({
        "apiVersion": "muxtunnel.dev/v1alpha1", "kind": "MuxPeer", "metadata": {"name": name},
        "spec": {"exitRef": {"name": "hub"}, "publicKeys": [KEY]},
    });
    if let Some(hours) = hours {
        let time = Timestamp::now() + SignedDuration::from_hours(hours);
        object["spec"]["expirationTime"] = json!(time.to_string());
    }
    Ok(serde_json::from_value(object)?)
}

/// The API server's message that refuses a request. `None` if the server accepts the request.
fn refusal<T>(answer: kube::Result<T>) -> Result<Option<String>> {
    match answer {
        Ok(_) => Ok(None),
        Err(kube::Error::Api(status)) => Ok(Some(status.message.clone())),
        Err(error) => Err(error.into()),
    }
}

fn is_bounded(refused: Option<String>, what: &str) -> Result<()> {
    let refused = refused.with_context(|| format!("the API server accepts {what}"))?;
    let is_meant = refused.contains("ValidatingAdmissionPolicy") && refused.contains("permanent");
    ensure!(is_meant, "{what}: {refused}");
    Ok(())
}

/// The peers of the namespace, with the account of a user who has `role` there.
async fn as_user(ns: &TestNamespace, role: &str) -> Result<Api<MuxPeer>> {
    let binding = format!("--clusterrole={role}");
    let user = format!("--user={USER}");
    ns.kubectl(&["create", "rolebinding", role, &binding, &user])
        .await?;
    let client = Cluster::First
        .client_as(USER, &["system:authenticated"])
        .await?;
    let peers: Api<MuxPeer> = Api::namespaced(client, &ns.name);
    // The API server's authorizer learns of the binding by a watch.
    let what = format!("rights by {role}");
    wait::until(&what, Duration::from_secs(30), async || {
        let dry_run = PostParams {
            dry_run: true,
            ..PostParams::default()
        };
        let refused = refusal(peers.create(&dry_run, &peer("probe", Some(1))?).await)?;
        Ok(refused.is_none().then_some(()))
    })
    .await?;
    Ok(peers)
}

#[tokio::test]
async fn a_user_who_may_connect_admits_peers_for_a_day_and_removes_only_such_peers() -> Result<()> {
    let _turn = turn::beside().await?;
    with_temp_ns("connect", PodSecurity::Restricted, async |ns| {
        let permanent = peer("permanent", None)?;
        let by_an_administrator: Api<MuxPeer> = ns.api();
        let how = PostParams::default();
        by_an_administrator.create(&how, &permanent).await?;
        let peers = as_user(ns, "muxtunnel-connect").await?;
        for (hours, what) in [(None, "a peer without an end"), (Some(25), "25 hours")] {
            let answer = peers.create(&how, &peer("laptop", hours)?).await;
            is_bounded(refusal(answer)?, what)?;
        }
        peers.create(&how, &peer("laptop", Some(23))?).await?;
        let patch = |name: &'static str, spec: Value| {
            let patch = Patch::Merge(json!({"spec": spec}));
            let peers = peers.clone();
            async move { refusal(peers.patch(name, &PatchParams::default(), &patch).await) }
        };
        let endless = patch("laptop", json!({"expirationTime": null})).await?;
        is_bounded(endless, "a removed end")?;
        let others = patch("permanent", json!({"suspend": true})).await?;
        is_bounded(others, "a change of a peer of an administrator")?;
        let delete = DeleteParams::default();
        let answer = peers.delete("permanent", &delete).await;
        is_bounded(refusal(answer)?, "a deletion of a peer of an administrator")?;
        let own = patch("laptop", json!({"suspend": true})).await?;
        ensure!(own.is_none(), "{own:?}");
        peers.delete("laptop", &delete).await?;
        Ok(())
    })
    .await
}

#[tokio::test]
async fn an_administrator_of_peers_admits_them_without_an_end() -> Result<()> {
    let _turn = turn::beside().await?;
    with_temp_ns("peer-admin", PodSecurity::Restricted, async |ns| {
        let peers = as_user(ns, "muxtunnel-peer-admin").await?;
        let how = PostParams::default();
        peers.create(&how, &peer("office", None)?).await?;
        peers.delete("office", &DeleteParams::default()).await?;
        // The deletion of the namespace also deletes this peer. The namespace's controller lacks the
        // verb `permanent`.
        peers.create(&how, &peer("office", None)?).await?;
        Ok(())
    })
    .await
}
