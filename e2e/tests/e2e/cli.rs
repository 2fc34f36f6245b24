//! The command line with a real API server: its output, findings, waits and exit statuses.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use muxtunnel_e2e::pods::{self, Serve};
use muxtunnel_e2e::tools::{Ran, muxtunnel};
use muxtunnel_e2e::{PodSecurity, tunnel, turn, with_temp_ns};
use serde_json::Value;

use crate::tunnel_to_web;

fn json(ran: &Ran) -> Result<Value> {
    serde_json::from_str(&ran.out).with_context(|| format!("{ran:?}"))
}

/// The codes of all findings of a check.
fn findings(ran: &Ran) -> Result<Vec<String>> {
    let report = json(ran)?;
    let categories = report["categories"].as_array().context("categories")?;
    let checks = categories
        .iter()
        .flat_map(|category| category["checks"].as_array().into_iter().flatten());
    Ok(checks
        .filter(|check| check["result"] == "finding")
        .filter_map(|check| Some(check["code"].as_str()?.to_owned()))
        .collect())
}

#[tokio::test]
async fn status_waits_for_a_tunnel_and_shows_what_is_in_force() -> Result<()> {
    let _turn = turn::beside().await?;
    with_temp_ns("cli-status", PodSecurity::Restricted, async |ns| {
        pods::serve(ns, "web", Serve::Echo).await?;
        tunnel::apply(ns, &tunnel_to_web("tuning: {profile: WAN}")).await?;
        let ran = muxtunnel(&[
            "status",
            "t",
            "-n",
            &ns.name,
            "--wait",
            "--timeout",
            "2m",
            "-o",
            "json",
        ])
        .await?;
        ensure!(ran.status == 0, "{ran:?}");
        let status = &json(&ran)?["object"];
        ensure!(status["current"] == true, "{status}");
        for end in ["entry", "exit"] {
            ensure!(status[end]["readyReplicas"] == 1, "{status}");
        }
        ensure!(
            status["carriers"]["connected"].as_i64() >= Some(1),
            "{status}"
        );
        ensure!(
            status["sysctls"].as_array().is_some_and(|sysctls| {
                sysctls.iter().any(|one| one["name"] == "net.ipv4.tcp_rmem")
            }),
            "{status}"
        );
        ensure!(
            status["events"]
                .as_array()
                .is_some_and(|events| !events.is_empty()),
            "{status}"
        );

        let shown = muxtunnel(&["status", "t", "-n", &ns.name]).await?;
        // An address is not broken, so it may be too long.
        let fits = |line: &str| line.chars().count() <= 100 || !line.trim().contains(' ');
        ensure!(shown.out.lines().all(fits), "{shown:?}");
        ensure!(shown.out.contains("Connected"), "{shown:?}");
        let list = muxtunnel(&["status", "-n", &ns.name]).await?;
        ensure!(
            list.out
                .lines()
                .nth(1)
                .is_some_and(|line| line.starts_with("t ")),
            "{list:?}"
        );
        let good = muxtunnel(&["check", "--only", "tunnels", "-n", &ns.name]).await?;
        ensure!(good.status == 0, "{good:?}");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn waiting_in_vain_and_findings_have_their_own_exit_statuses() -> Result<()> {
    let _turn = turn::beside().await?;
    // This lock prevents that another test kills the operator, because the command waits for the
    // operator.
    let _installation = turn::installation().await;
    with_temp_ns("cli-faults", PodSecurity::Restricted, async |ns| {
        // The Service `web` does not exist, and the Pod Security level of the namespace does not
        // admit WAN emulation.
        tunnel::apply(ns, &tunnel_to_web("wanEmulation: {delayMilliseconds: 50}")).await?;
        let waited =
            muxtunnel(&["status", "t", "-n", &ns.name, "--wait", "--timeout", "10s"]).await?;
        ensure!(
            waited.status == 4
                && waited
                    .err
                    .contains("t is not Ready after 10s: Ready=False: MT"),
            "{waited:?}"
        );

        let only = ["--only", "namespace", "--only", "tunnels", "-o", "json"];
        let checked = muxtunnel(&[&["check", "-n", &ns.name], only.as_slice()].concat()).await?;
        let found = findings(&checked)?;
        ensure!(checked.status == 3, "{checked:?}");
        for code in ["MT0388", "MT0105"] {
            ensure!(
                found.contains(&code.to_owned()),
                "{code} is not among {found:?}"
            );
        }
        Ok(())
    })
    .await
}

#[tokio::test]
async fn the_cluster_and_the_installation_have_no_findings() -> Result<()> {
    let _turn = turn::beside().await?;
    let _installation = turn::installation().await;
    let checked = muxtunnel(&[
        "check",
        "--only",
        "cluster",
        "--only",
        "installation",
        "-o",
        "json",
    ])
    .await?;
    ensure!(checked.status == 0, "{checked:?}");
    let before = muxtunnel(&["check", "--pre", "--only", "cluster", "-o", "json"]).await?;
    ensure!(before.status == 0, "{before:?}");
    let explained = muxtunnel(&["explain", "SysctlForbidden"]).await?;
    ensure!(
        explained.status == 0 && explained.out.starts_with("MT0308 "),
        "{explained:?}"
    );
    Ok(())
}

#[tokio::test]
async fn probing_finds_what_the_node_has_and_leaves_no_pod() -> Result<()> {
    let _turn = turn::beside().await?;
    with_temp_ns("cli-probe", PodSecurity::Privileged, async |ns| {
        let arguments = [
            "check", "--only", "node", "--probe", "-n", &ns.name, "-o", "json",
        ];
        let checked = muxtunnel(&arguments).await?;
        // The check succeeds, because the node emulates WANs for other tests and accepts the
        // sysctls of every gateway.
        ensure!(checked.status == 0, "{checked:?}");
        let report = json(&checked)?;
        let checks = report["categories"][0]["checks"]
            .as_array()
            .context("checks")?;
        for wanted in ["sysctls", "UDP buffers", "netem", "NFQUEUE", "/dev/net/tun"] {
            let tried = checks.iter().any(|check| {
                let text = check["description"].as_str().unwrap_or_default();
                text.contains(wanted) && check["result"] != "skipped"
            });
            ensure!(tried, "{wanted} was not tested: {report}");
        }
        let left = ns.api::<Pod>().list(&ListParams::default()).await?.items;
        let left = left
            .iter()
            .filter(|pod| pod.metadata.deletion_timestamp.is_none());
        ensure!(left.count() == 0, "pods are left");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn probing_a_restricted_namespace_finds_its_level() -> Result<()> {
    let _turn = turn::beside().await?;
    with_temp_ns("cli-level", PodSecurity::Restricted, async |ns| {
        let arguments = [
            "check", "--only", "node", "--probe", "-n", &ns.name, "-o", "json",
        ];
        let checked = muxtunnel(&arguments).await?;
        ensure!(checked.status == 3, "{checked:?}");
        let found = findings(&checked)?;
        // The API server refuses only the pods for netem and NFQUEUE. The Pod Security level
        // permits the pods for sysctls and buffers.
        ensure!(found == ["MT0388", "MT0388"], "{found:?}");
        Ok(())
    })
    .await
}
