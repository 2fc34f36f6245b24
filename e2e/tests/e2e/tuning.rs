//! The sysctls of a tunnel apply only inside its gateways' pods. If a node refuses a sysctl,
//! running gateways continue.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::ListParams;
use muxtunnel_crds::{MuxTunnel, MuxTunnelStatus, condition};
use muxtunnel_e2e::pods::{self, Serve};
use muxtunnel_e2e::{PodSecurity, TestNamespace, tunnel, turn, wait, with_temp_ns};

use crate::tunnel_to_web;

/// A buffer of 64 MiB. It permits about 5 Gbit/s with a delay of 50 ms in each direction.
const WINDOW_BYTES: u64 = 64 << 20;

#[tokio::test]
async fn the_sysctls_asked_for_are_in_force_inside_the_gateways_alone() -> Result<()> {
    let _turn = turn::beside().await?;
    with_temp_ns("tuning", PodSecurity::Restricted, async |ns| {
        pods::serve(ns, "web", Serve::Echo).await?;
        // The profile is Auto.
        let more = "tuning: {sysctls: [{name: net.ipv4.tcp_keepalive_time, value: '77'}]}";
        let tunnel = tunnel::up(ns, &tunnel_to_web(more)).await?;
        ensure!(
            tunnel::is_true(&tunnel, condition::TUNING_APPLIED),
            "TuningApplied is not true"
        );

        let web = ns.api::<Pod>().get("web").await?;
        for side in ["entry", "exit"] {
            for pod in tunnel::gateways(ns, "t", side).await? {
                let keepalive = tunnel::sysctl(ns, &pod, "net.ipv4.tcp_keepalive_time").await?;
                ensure!(
                    keepalive == "77",
                    "{side}: tcp_keepalive_time is {keepalive}"
                );
                for name in ["net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem"] {
                    let tuned = tunnel::sysctl(ns, &pod, name).await?;
                    let default = tunnel::sysctl(ns, &web, name).await?;
                    ensure!(most(&tuned) >= WINDOW_BYTES, "{side}: {name} is {tuned}");
                    ensure!(
                        most(&default) < WINDOW_BYTES,
                        "the server's {name} is {default}"
                    );
                    let said = tunnel
                        .status
                        .as_ref()
                        .and_then(|status| sysctl(status, name));
                    let said =
                        said.map(|value| value.split_whitespace().collect::<Vec<_>>().join(" "));
                    ensure!(
                        said.as_ref() == Some(&tuned),
                        "the status has {name} = {said:?}, {side} has {tuned}"
                    );
                }
            }
        }
        Ok(())
    })
    .await
}

/// Pod Security admits the sysctls of the profiles only by its rules since Kubernetes 1.32.
#[tokio::test]
async fn a_namespace_that_does_not_admit_the_default_sysctls_gets_gateways_without_them()
-> Result<()> {
    let _turn = turn::beside().await?;
    with_temp_ns("admission", PodSecurity::Restricted, async |ns| {
        let set = async |version: &str| {
            let label = format!("pod-security.kubernetes.io/enforce-version={version}");
            ns.kubectl(&["label", "--overwrite", "namespace", &ns.name, &label])
                .await
        };
        set("v1.31").await?;
        pods::serve(ns, "web", Serve::Hash).await?;
        let tunnel = tunnel::up(ns, &tunnel_to_web("")).await?;
        let tuning = tunnel::condition(&tunnel, condition::TUNING_APPLIED);
        ensure!(
            tuning
                .as_ref()
                .is_some_and(|tuning| tuning.status == "False"
                    && tuning.reason == "SysctlsNotAdmitted"
                    && tuning.message.contains("net.ipv4.tcp_rmem")),
            "{tuning:?}"
        );
        send(ns, "untuned").await?;
        let running = gateway_uids(ns).await?;

        // The gateways stay as they are, until a spec names the sysctls.
        set("latest").await?;
        tunnel::up(ns, &tunnel_to_web("timeouts: {idleSeconds: 900}")).await?;
        ensure!(gateway_uids(ns).await? == running, "gateways were replaced");
        let tunnel = tunnel::up(ns, &tunnel_to_web("tuning: {profile: WAN}")).await?;
        ensure!(tunnel::is_true(&tunnel, condition::TUNING_APPLIED));
        send(ns, "tuned").await
    })
    .await
}

/// The value of a sysctl in a status.
fn sysctl(status: &MuxTunnelStatus, name: &str) -> Option<String> {
    let mut sysctls = status.sysctls.iter();
    let sysctl = sysctls.find(|sysctl| sysctl.name == name)?;
    Some(sysctl.value.clone())
}

/// A namespaced sysctl that no Kubernetes version counts as safe. The test cluster's kubelets
/// refuse this sysctl. Every Pod Security level except `privileged` also refuses it.
const UNSAFE: &str =
    "tuning: {allowUnsafe: true, sysctls: [{name: net.core.somaxconn, value: '4096'}]}";
/// Observation time for refused pods. A ReplicaSet creates 7 failed pods in 10 s
/// (kubernetes#72593), so a second pod would appear within this time.
const WATCHED: Duration = Duration::from_secs(15);

/// Waits until `TuningApplied` has `reason` for the current spec, and its message names `sysctl`.
async fn refused(ns: &TestNamespace, reason: &str, sysctl: &str) -> Result<MuxTunnel> {
    let what = format!("TuningApplied is {reason} and names {sysctl}");
    let within = Duration::from_secs(180);
    wait::for_object(&ns.api::<MuxTunnel>(), "t", &what, within, |tunnel| {
        let condition = tunnel::condition(tunnel, condition::TUNING_APPLIED);
        condition.is_some_and(|condition| {
            condition.status == "False"
                && condition.reason == reason
                && condition.message.contains(sysctl)
        })
    })
    .await
}

/// All pods that a kubelet refuses during [`WATCHED`] because of a sysctl: the component of each
/// pod by the pod's UID.
async fn refused_pods(ns: &TestNamespace) -> Result<BTreeMap<String, String>> {
    let mut refused = BTreeMap::new();
    let until = Instant::now() + WATCHED;
    while Instant::now() < until {
        for pod in ns.api::<Pod>().list(&ListParams::default()).await? {
            let reason = pod.status.as_ref().and_then(|status| status.reason.clone());
            if reason.as_deref() == Some("SysctlForbidden") {
                let component = pod.labels().get("app.kubernetes.io/component").cloned();
                refused.insert(pod.uid().context("a UID")?, component.unwrap_or_default());
            }
        }
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
    Ok(refused)
}

async fn uids<K>(ns: &TestNamespace) -> Result<BTreeSet<Option<String>>>
where
    K: kube::Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>
        + Clone
        + std::fmt::Debug
        + serde::de::DeserializeOwned,
{
    let all = ns.api::<K>().list(&ListParams::default()).await?;
    Ok(all.iter().map(ResourceExt::uid).collect())
}

async fn gateway_uids(ns: &TestNamespace) -> Result<BTreeSet<Option<String>>> {
    let mut uids = BTreeSet::new();
    for side in ["entry", "exit"] {
        let pods = tunnel::gateways(ns, "t", side).await?;
        uids.extend(pods.iter().map(ResourceExt::uid));
    }
    Ok(uids)
}

async fn send(ns: &TestNamespace, client: &str) -> Result<()> {
    let send = ["send-hashed.sh", "t-entry", "8080", "1000000"];
    pods::run(ns, client, &send, Duration::from_secs(180)).await?;
    Ok(())
}

#[tokio::test]
async fn a_sysctl_that_the_kubelets_refuse_costs_one_failed_pod_and_running_gateways_nothing()
-> Result<()> {
    let _turn = turn::beside().await?;
    with_temp_ns("refused", PodSecurity::Privileged, async |ns| {
        pods::serve(ns, "web", Serve::Hash).await?;
        tunnel::up(ns, &tunnel_to_web("")).await?;
        let running = gateway_uids(ns).await?;

        tunnel::apply(ns, &tunnel_to_web(UNSAFE)).await?;
        let tunnel = refused(ns, "SysctlForbidden", "net.core.somaxconn").await?;
        let ready = tunnel::condition(&tunnel, condition::READY);
        ensure!(ready.is_some_and(|ready| ready.reason == "SysctlForbidden"));
        ensure!(tunnel::is_true(&tunnel, condition::AVAILABLE));
        let failed = refused_pods(ns).await?;
        let components: Vec<_> = failed.values().map(String::as_str).collect();
        ensure!(components == ["sysctl-probe"], "refused: {failed:?}");
        ensure!(gateway_uids(ns).await? == running, "gateways were replaced");
        send(ns, "meanwhile").await?;

        // A change of fields other than sysctls does not create another Job.
        let jobs = uids::<Job>(ns).await?;
        let more = format!("{UNSAFE}\n  timeouts: {{idleSeconds: 900}}");
        tunnel::apply(ns, &tunnel_to_web(&more)).await?;
        refused(ns, "SysctlForbidden", "net.core.somaxconn").await?;
        ensure!(uids::<Job>(ns).await? == jobs, "another Job was created");
        ensure!(refused_pods(ns).await? == failed, "another pod was refused");

        tunnel::up(ns, &tunnel_to_web("")).await?;
        send(ns, "afterwards").await?;
        wait::until("the Job is gone", Duration::from_secs(120), async || {
            Ok(uids::<Job>(ns).await?.is_empty().then_some(()))
        })
        .await
    })
    .await
}

#[tokio::test]
async fn a_tunnel_that_begins_with_a_refused_sysctl_makes_one_failed_pod_and_no_gateways()
-> Result<()> {
    let _turn = turn::beside().await?;
    with_temp_ns("refused", PodSecurity::Privileged, async |ns| {
        pods::serve(ns, "web", Serve::Hash).await?;
        tunnel::apply(ns, &tunnel_to_web(UNSAFE)).await?;
        refused(ns, "SysctlForbidden", "net.core.somaxconn").await?;
        let failed = refused_pods(ns).await?;
        ensure!(failed.len() == 1, "refused: {failed:?}");
        ensure!(uids::<Deployment>(ns).await?.is_empty(), "gateways exist");
        let safe = UNSAFE.replace("net.core.somaxconn", "net.ipv4.tcp_keepalive_time");
        let tunnel = tunnel::up(ns, &tunnel_to_web(&safe)).await?;
        ensure!(tunnel::is_true(&tunnel, condition::TUNING_APPLIED));
        send(ns, "client").await
    })
    .await
}

#[tokio::test]
async fn a_value_that_the_kernel_does_not_take_is_named_and_corrected() -> Result<()> {
    let _turn = turn::beside().await?;
    with_temp_ns("refused", PodSecurity::Restricted, async |ns| {
        pods::serve(ns, "web", Serve::Hash).await?;
        tunnel::up(ns, &tunnel_to_web("")).await?;
        let running = gateway_uids(ns).await?;
        // The kernel refuses this range, because it ends before it begins.
        let name = "net.ipv4.ip_local_port_range";
        let ports =
            |range: &str| format!("tuning: {{sysctls: [{{name: {name}, value: {range}}}]}}");
        tunnel::apply(ns, &tunnel_to_web(&ports("60000 1024"))).await?;
        refused(ns, "SandboxFailed", name).await?;
        ensure!(gateway_uids(ns).await? == running, "gateways were replaced");
        send(ns, "meanwhile").await?;
        let tunnel = tunnel::up(ns, &tunnel_to_web(&ports("1024 60000"))).await?;
        let said = tunnel.status.and_then(|status| sysctl(&status, name));
        ensure!(said.as_deref() == Some("1024 60000"), "{said:?}");
        Ok(())
    })
    .await
}

/// The last of the three numbers.
fn most(value: &str) -> u64 {
    let last = value.split_whitespace().last();
    last.and_then(|number| number.parse().ok()).unwrap_or(0)
}
