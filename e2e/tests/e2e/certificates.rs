//! Certificates that the operator issues: a tunnel without Secrets of the user, renewal under load,
//! and a join within one cluster and its revocation. Tests of renewal need short lifetimes. See
//! [`with_short_lives`].

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Pod, Secret};
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::core::ObjectMeta;
use muxtunnel_contract::annotations::JOIN_GENERATION;
use muxtunnel_crds::{MuxTunnel, tunnel_condition};
use muxtunnel_e2e::pods::{self, Serve};
use muxtunnel_e2e::{PodSecurity, TestNamespace, tools, tunnel, turn, wait, with_temp_ns};
use serde_json::json;

use crate::lives::with_short_lives;
use crate::tunnel_to_web;

const WITHIN: Duration = Duration::from_secs(240);
/// Maximum duration of a load, longer than all waits of its test.
const LOAD_MOST_SECONDS: u32 = 1800;
/// Time-out for a load to end after SIGTERM.
const LOAD_ENDS: Duration = Duration::from_secs(180);

/// A tunnel of both sides. The operator issues the certificates of its gateways.
fn managed() -> String {
    tunnel_to_web("").replace("  carrier: {security: {mode: None}}\n", "")
}

fn fingerprint(tunnel: &MuxTunnel, end: &str) -> Option<String> {
    let certificates = tunnel.status.as_ref()?.certificates.as_ref()?;
    let record = match end {
        "entry" => certificates.entry.as_ref(),
        _ => certificates.exit.as_ref(),
    };
    record?.fingerprint.clone()
}

async fn send(ns: &TestNamespace, client: &str, entry: &str) -> Result<()> {
    let send = ["send-hashed.sh", entry, "8080", "10000000"];
    pods::run(ns, client, &send, Duration::from_secs(120)).await?;
    Ok(())
}

#[tokio::test]
async fn a_tunnel_without_a_word_of_security_is_mutual_tls_and_a_deleted_secret_comes_back()
-> Result<()> {
    let _turn = turn::beside().await?;
    with_temp_ns("certificates", PodSecurity::Restricted, async |ns| {
        pods::serve(ns, "web", Serve::Hash).await?;
        let up = tunnel::up(ns, &managed()).await?;
        ensure!(
            tunnel::is_true(&up, tunnel_condition::CERTIFICATES_VALID),
            "{:?}",
            up.status
        );
        send(ns, "client", "t-entry").await?;
        let secret = ns.api::<Secret>().get("t-exit-tls").await?;
        ensure!(
            secret.type_.as_deref() == Some("kubernetes.io/tls"),
            "{:?}",
            secret.type_
        );

        ns.api::<Secret>()
            .delete("t-exit-tls", &DeleteParams::default())
            .await?;
        for pod in tunnel::gateways(ns, "t", "exit").await? {
            ns.api::<Pod>()
                .delete(&pod.name_any(), &DeleteParams::default())
                .await?;
        }
        wait::until("the Secret is there again", WITHIN, async || {
            Ok(ns.api::<Secret>().get_opt("t-exit-tls").await?.map(drop))
        })
        .await?;
        tunnel::ready(ns, "t").await?;
        send(ns, "again", "t-entry").await
    })
    .await
}

/// The expiry of an end's certificate.
fn expires(tunnel: &MuxTunnel, end: &str) -> Option<Timestamp> {
    let certificates = tunnel.status.as_ref()?.certificates.as_ref()?;
    let record = match end {
        "entry" => certificates.entry.as_ref(),
        _ => certificates.exit.as_ref(),
    };
    Some(record?.not_after.as_ref()?.0)
}

#[tokio::test]
async fn certificates_are_renewed_under_load_and_no_stream_is_lost() -> Result<()> {
    with_short_lives(async || {
        with_temp_ns("renewal", PodSecurity::Restricted, async |ns| {
            pods::serve(ns, "web", Serve::Load).await?;
            let up = tunnel::up(ns, &managed()).await?;
            pods::load(ns, "load", "t-entry:8080", 50, 10, LOAD_MOST_SECONDS).await?;
            let tunnels = ns.api::<MuxTunnel>();
            let mut all_expired = Timestamp::MIN;
            for end in ["entry", "exit"] {
                let (first, expiry) = (fingerprint(&up, end), expires(&up, end));
                let expiry =
                    expiry.with_context(|| format!("the expiry of the {end}'s certificate"))?;
                let what = format!("the {end}'s certificate is renewed");
                wait::for_object(&tunnels, "t", &what, WITHIN, |tunnel| {
                    fingerprint(tunnel, end).is_some_and(|now| Some(now) != first)
                })
                .await?;
                // Waits until the first certificate has expired. Then only the new certificate is
                // valid.
                let what = format!("the {end}'s first certificate has expired");
                wait::until(&what, WITHIN, async || {
                    Ok((Timestamp::now() > expiry).then_some(()))
                })
                .await?;
                all_expired = all_expired.max(expiry);
            }
            // Only the new certificates are valid now.
            pods::load(ns, "after", "t-entry:8080", 50, 10, 3).await?;
            let after = pods::load_report(ns, "after", LOAD_ENDS).await?;
            ensure!(
                after.failed_opens() + after.lost_streams() == 0,
                "{after:?}"
            );
            let load = pods::end_load(ns, "load", LOAD_ENDS).await?;
            ensure!(load.failed_opens() + load.lost_streams() == 0, "{load:?}");
            ensure!(
                i128::from(load.last_begun_unix_ms) > i128::from(all_expired.as_millisecond()),
                "no connection began after the first certificates had expired: {load:?}"
            );
            tunnel::ready(ns, "t").await?;
            Ok(())
        })
        .await
    })
    .await
}

/// Gives the operator the right to read the Secret `far-join` of `ns`.
async fn allow_to_read(ns: &TestNamespace) -> Result<()> {
    let in_namespace = format!("--namespace={}", ns.name);
    let role = [
        "create",
        "role",
        "muxtunnel-join",
        "--verb=get",
        "--resource=secrets",
        "--resource-name=far-join",
        &in_namespace,
    ];
    tools::run("kubectl", &role).await?;
    let account = "--serviceaccount=muxtunnel-system:muxtunnel";
    let binding = [
        "create",
        "rolebinding",
        "muxtunnel-join",
        "--role=muxtunnel-join",
        account,
        &in_namespace,
    ];
    tools::run("kubectl", &binding).await?;
    Ok(())
}

/// Copies the bundle of `far` to `near`, as a user does.
async fn copy_bundle(far: &TestNamespace, near: &TestNamespace) -> Result<Secret> {
    let bundle = far.api::<Secret>().get("far-join").await?;
    let copy = Secret {
        metadata: ObjectMeta {
            name: Some("far-join".to_owned()),
            ..ObjectMeta::default()
        },
        type_: bundle.type_.clone(),
        data: bundle.data.clone(),
        ..Secret::default()
    };
    let secrets = near.api::<Secret>();
    if secrets.get_opt("far-join").await?.is_some() {
        secrets.delete("far-join", &DeleteParams::default()).await?;
    }
    secrets.create(&PostParams::default(), &copy).await?;
    Ok(bundle)
}

#[tokio::test]
async fn an_entry_joins_an_exit_of_another_namespace_until_its_bundle_is_revoked() -> Result<()> {
    let _turn = turn::beside().await?;
    let level = PodSecurity::Restricted;
    with_temp_ns("far", level, async |far| {
        with_temp_ns("near", level, async |near| join_and_revoke(far, near).await).await
    })
    .await
}

async fn join_and_revoke(far: &TestNamespace, near: &TestNamespace) -> Result<()> {
    let example =
        |file: &str| std::fs::read_to_string(tools::checkout().join("docs/examples").join(file));
    pods::serve(far, "web", Serve::Hash).await?;
    // The test changes the type of the exit's Service: the test cluster has no load balancer, and a
    // join within one cluster needs none.
    let exit = example("muxtunnel-join-exit.yaml")?.replace("LoadBalancer", "ClusterIP");
    tunnel::up(far, &exit).await?;
    tunnel::apply(near, &example("muxtunnel-join-entry.yaml")?).await?;
    let tunnels = near.api::<MuxTunnel>();
    let reason = |wanted: &'static str| {
        move |tunnel: &MuxTunnel| {
            let found = tunnel::condition(tunnel, tunnel_condition::CERTIFICATES_VALID);
            found.is_some_and(|condition| condition.reason == wanted)
        }
    };
    let forbidden = "the operator may not read the bundle";
    wait::for_object(
        &tunnels,
        "near",
        forbidden,
        WITHIN,
        reason("JoinBundleForbidden"),
    )
    .await?;
    allow_to_read(near).await?;
    wait::for_object(
        &tunnels,
        "near",
        "there is none",
        WITHIN,
        reason("JoinBundleMissing"),
    )
    .await?;
    copy_bundle(far, near).await?;
    tunnel::ready(near, "near").await?;
    send(near, "client", "near-entry").await?;

    let revoked = json!({"metadata": {"annotations": {JOIN_GENERATION: "1"}}});
    let how = PatchParams::default();
    far.api::<MuxTunnel>()
        .patch("far", &how, &Patch::Merge(&revoked))
        .await?;
    wait::for_object(
        &tunnels,
        "near",
        "the entry has no carrier",
        WITHIN,
        |tunnel| {
            let found = tunnel::condition(tunnel, tunnel_condition::CARRIER_CONNECTED);
            found.is_some_and(|condition| condition.status == "False")
        },
    )
    .await?;
    copy_bundle(far, near).await?;
    tunnel::ready(near, "near").await?;
    send(near, "again", "near-entry").await
}
