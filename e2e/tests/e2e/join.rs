//! A tunnel between two clusters. Its exit is in the second cluster behind a node port, and its
//! entry is in the first cluster.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Secret, Service};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Patch, PatchParams, PostParams};
use kube::core::ObjectMeta;
use muxtunnel_crds::{JoinedStatus, MuxTunnel, tunnel_condition};
use muxtunnel_e2e::pods::{self, Serve};
use muxtunnel_e2e::{
    Cluster, PodSecurity, TestNamespace, keys, tunnel, turn, wait, with_temp_ns_in_both,
};
use serde_json::json;

use crate::lives::with_short_lives;

/// The YAML of the exit `far`, which is behind a node port and dials port 80 of `web` in its
/// namespace.
fn exit(carrier: &str) -> String {
    format!(
        "
apiVersion: muxtunnel.dev/v1alpha1
kind: MuxTunnel
metadata: {{name: far}}
spec:
  side: Exit
  policy: {{allow: [{{host: web, port: 80}}]}}
  exit: {{service: {{type: NodePort}}}}
  carrier: {{{carrier}}}
"
    )
}

/// The YAML of the entry `near`, which forwards its clients to the name `web`. The exit resolves
/// the name.
fn entry(carrier: &str) -> String {
    format!(
        "
apiVersion: muxtunnel.dev/v1alpha1
kind: MuxTunnel
metadata: {{name: near}}
spec:
  side: Entry
  forwards:
  - name: web
    listen: {{port: 8080}}
    target: {{address: {{host: web, port: 80}}}}
  carrier: {{{carrier}}}
"
    )
}

/// Time-out for the expiry of a copied bundle.
const EXPIRES_WITHIN: Duration = Duration::from_secs(480);
/// Time-out for exits to get a new generation of bundles, and for entries to lose their carriers.
const REVOKED_WITHIN: Duration = Duration::from_secs(120);
/// Duration of the load after the revocation.
const AFTER: Duration = Duration::from_secs(10);
/// Time-out for a load to end after SIGTERM.
const LOAD_ENDS: Duration = Duration::from_secs(180);

async fn one_mebibyte_arrives(ns: &TestNamespace, client: &str) -> Result<()> {
    let send = ["send-hashed.sh", "near-entry", "8080", "1048576"];
    pods::run(ns, client, &send, Duration::from_secs(180)).await?;
    Ok(())
}

/// The node port of the exit.
async fn carrier_port(far: &TestNamespace) -> Result<i32> {
    let service = far.api::<Service>().get("far-exit").await?;
    let ports = service.spec.and_then(|spec| spec.ports).unwrap_or_default();
    let port = ports.iter().find_map(|port| port.node_port);
    port.context("the exit's Service has no node port")
}

#[tokio::test]
async fn an_entry_reaches_an_exit_in_another_cluster_with_keys_of_ones_own() -> Result<()> {
    let _turn = turn::across().await;
    with_temp_ns_in_both("join", PodSecurity::Restricted, async |near, far| {
        pods::serve(far, "web", Serve::Hash).await?;
        keys::certificates(&[(near, "near"), (far, "far")]).await?;
        let security = |end: &str, other: &str, side: &str| {
            format!(
                "security: {{mode: MutualTls, {side}: {{secretName: {end}, peers: [{other}]}}}}"
            )
        };
        tunnel::apply(far, &exit(&security("far", "near", "exit"))).await?;
        let port = wait::until("a node port", Duration::from_secs(120), async || {
            Ok(carrier_port(far).await.ok())
        })
        .await?;
        let node = Cluster::Second.node().await?;
        let carrier = format!(
            "address: '{}:{port}', {}",
            node.address,
            security("near", "far", "entry")
        );
        tunnel::up(near, &entry(&carrier)).await?;
        tunnel::ready(far, "far").await?;
        one_mebibyte_arrives(near, "client").await
    })
    .await
}

/// The names of the join bundle at the exit and of its copy at the entry.
const BUNDLE: &str = "far-join";
const COPY: &str = "from-far";

/// Copies the exit's bundle, as a user does, and permits the entry's operator to read it.
async fn hand_over(near: &TestNamespace, far: &TestNamespace) -> Result<()> {
    let bundles = far.api::<Secret>();
    let what = "the exit publishes its bundle";
    let bundle = wait::until(what, Duration::from_secs(180), async || {
        Ok(bundles.get_opt(BUNDLE).await?)
    })
    .await?;
    let copy = Secret {
        metadata: ObjectMeta {
            name: Some(COPY.to_owned()),
            ..ObjectMeta::default()
        },
        data: bundle.data,
        type_: bundle.type_,
        ..Secret::default()
    };
    near.api::<Secret>()
        .create(&PostParams::default(), &copy)
        .await?;
    let copy = format!("--resource-name={COPY}");
    let role = [
        "create",
        "role",
        "muxtunnel-join",
        "--verb=get",
        "--resource=secrets",
        &copy,
    ];
    near.kubectl(&role).await?;
    let binding = [
        "create",
        "rolebinding",
        "muxtunnel-join",
        "--role=muxtunnel-join",
        "--serviceaccount=muxtunnel-system:muxtunnel",
    ];
    near.kubectl(&binding).await?;
    Ok(())
}

/// Creates an exit in the second cluster, and an entry in the first cluster that joins this exit.
async fn joined(near: &TestNamespace, far: &TestNamespace) -> Result<()> {
    let node = Cluster::Second.node().await?;
    tunnel::apply(far, &exit(&format!("address: '{}'", node.address))).await?;
    hand_over(near, far).await?;
    tunnel::up(near, &entry(&format!("joinFrom: {{secretName: {COPY}}}"))).await?;
    tunnel::ready(far, "far").await?;
    Ok(())
}

#[tokio::test]
async fn an_entry_joins_an_exit_in_another_cluster_by_one_secret() -> Result<()> {
    let _turn = turn::across().await;
    with_temp_ns_in_both("join", PodSecurity::Restricted, async |near, far| {
        pods::serve(far, "web", Serve::Hash).await?;
        joined(near, far).await?;
        one_mebibyte_arrives(near, "client").await
    })
    .await
}

/// Waits until the certificate of `side` expires later than `before`. Returns the new expiry.
async fn renewed(
    ns: &TestNamespace,
    name: &str,
    side: &str,
    before: Option<String>,
) -> Result<String> {
    let path = format!("--output=jsonpath={{.status.certificates.{side}.notAfter}}");
    let what = format!("the {side}'s certificate is renewed");
    wait::until(&what, Duration::from_secs(240), async || {
        let now = ns.kubectl(&["get", "muxtunnel", name, &path]).await?;
        let other = !now.is_empty() && before.as_ref() != Some(&now);
        Ok(other.then_some(now))
    })
    .await
}

/// The status of the entry's join bundle.
async fn joined_by(near: &TestNamespace) -> Result<JoinedStatus> {
    let tunnel = near.api::<MuxTunnel>().get("near").await?;
    let certificates = tunnel.status.and_then(|status| status.certificates);
    let joined = certificates.and_then(|certificates| certificates.joined);
    joined.context("the entry's status has no join bundle")
}

#[tokio::test]
async fn certificates_and_the_bundle_itself_are_renewed_under_load_and_no_stream_is_lost()
-> Result<()> {
    with_short_lives(async || {
        with_temp_ns_in_both("join", PodSecurity::Restricted, async |near, far| {
            pods::serve(far, "web", Serve::Load).await?;
            joined(near, far).await?;
            let entry = renewed(near, "near", "entry", None).await?;
            let exit = renewed(far, "far", "exit", None).await?;
            let first = joined_by(near).await?;
            ensure!(!first.renewed, "{first:?}");
            pods::load(near, "load", "near-entry:8080", 50, 10, 900).await?;
            renewed(near, "near", "entry", Some(entry)).await?;
            renewed(far, "far", "exit", Some(exit)).await?;
            // The test waits longer than the lifetime of the copied bundle, and so longer than the
            // lifetime of each certificate.
            let copy = near.api::<Secret>().get(COPY).await?;
            let expiry = text(&copy, "expires")?.parse::<Timestamp>()?;
            wait::until("the copied bundle expires", EXPIRES_WITHIN, async || {
                Ok((Timestamp::now() > expiry).then_some(()))
            })
            .await?;
            tokio::time::sleep(AFTER).await;
            let load = pods::end_load(near, "load", LOAD_ENDS).await?;
            ensure!(load.failed_opens() + load.lost_streams() == 0, "{load:?}");
            let last = joined_by(near).await?;
            ensure!(last.renewed && last.expires > first.expires, "{last:?}");
            Ok(())
        })
        .await
    })
    .await
}

fn text(secret: &Secret, key: &str) -> Result<String> {
    let bytes = secret.data.as_ref().and_then(|data| data.get(key));
    let bytes = bytes.with_context(|| format!("the Secret has no key {key}"))?;
    Ok(String::from_utf8(bytes.0.clone())?)
}

#[tokio::test]
async fn a_bundle_that_is_revoked_opens_nothing_any_more() -> Result<()> {
    let _turn = turn::across().await;
    with_temp_ns_in_both("join", PodSecurity::Restricted, async |near, far| {
        pods::serve(far, "web", Serve::Load).await?;
        joined(near, far).await?;
        pods::load(near, "load", "near-entry:8080", 20, 5, 600).await?;
        let revoke = json!({"metadata": {"annotations": {"muxtunnel.dev/join-generation": "1"}}});
        let exits = far.api::<MuxTunnel>();
        let how = PatchParams::default();
        exits.patch("far", &how, &Patch::Merge(&revoke)).await?;
        let entries = near.api::<MuxTunnel>();
        let what = "the entry has no carrier";
        wait::for_object(&entries, "near", what, REVOKED_WITHIN, |tunnel| {
            let carrier = tunnel::condition(tunnel, tunnel_condition::CARRIER_CONNECTED);
            carrier.is_some_and(|carrier| carrier.status == "False")
        })
        .await?;
        // The load continues until the exit ends the streams and refuses new streams.
        tokio::time::sleep(AFTER).await;
        let load = pods::end_load(near, "load", LOAD_ENDS).await?;
        ensure!(
            load.lost_streams() >= 5,
            "streams continued after the revocation: {load:?}"
        );
        ensure!(
            load.failed_opens() > 0,
            "connections still succeeded after the revocation: {load:?}"
        );
        // This load ends with an error, because every open fails for a minute.
        let again = pods::load(near, "again", "near-entry:8080", 1, 0, 1);
        let again = again
            .await
            .err()
            .context("a revoked bundle still reaches the exit")?;
        let said = near.kubectl(&["logs", "again"]).await?;
        ensure!(
            said.contains("does not answer"),
            "the load failed for a reason other than the revocation: {again:#}\n{said}"
        );
        Ok(())
    })
    .await
}
