//! The sysctls of a tunnel are in force inside its gateways' pods, and nowhere else.

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use muxtunnel_crds::tunnel_condition;
use muxtunnel_e2e::pods::{self, Serve};
use muxtunnel_e2e::{PodSecurity, tunnel, with_temp_ns};

use crate::tunnel_to_web;

/// What 50 ms each way needs for 4 Gbit/s and more: a window of 64 MiB.
const WINDOW_BYTES: u64 = 64 << 20;

#[tokio::test]
async fn the_sysctls_asked_for_are_in_force_inside_the_gateways_alone() -> Result<()> {
    with_temp_ns("tuning", PodSecurity::Restricted, async |ns| {
        pods::serve(ns, "web", Serve::Echo).await?;
        let more =
            "tuning: {profile: Wan, sysctls: [{name: net.ipv4.tcp_keepalive_time, value: '77'}]}";
        let tunnel = tunnel::up(ns, &tunnel_to_web(more)).await?;
        ensure!(
            tunnel::is_true(&tunnel, tunnel_condition::TUNING_APPLIED),
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
                        .and_then(|status| status.sysctls.get(name));
                    let said =
                        said.map(|value| value.split_whitespace().collect::<Vec<_>>().join(" "));
                    ensure!(
                        said.as_ref() == Some(&tuned),
                        "status says {name} is {said:?}, {side} has {tuned}"
                    );
                }
            }
        }
        Ok(())
    })
    .await
}

/// The last of the three numbers.
fn most(value: &str) -> u64 {
    let last = value.split_whitespace().last();
    last.and_then(|number| number.parse().ok()).unwrap_or(0)
}
