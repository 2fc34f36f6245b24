//! `helm uninstall` takes the operator away and nothing else.

use std::time::Duration;

use anyhow::Result;
use muxtunnel_e2e::pods::{self, Serve};
use muxtunnel_e2e::{PodSecurity, TestNamespace, tools, tunnel, with_temp_ns};

use crate::tunnel_to_web;

/// What a user has while the chart is not installed.
async fn without_the_chart(ns: &TestNamespace) -> Result<()> {
    tools::run(
        "kubectl",
        &[
            "get",
            "crd",
            "muxtunnels.muxtunnel.dev",
            "muxbenchmarks.muxtunnel.dev",
        ],
    )
    .await?;
    let probe = ["round-trips.sh", "t-entry", "8080", "3"];
    pods::run(ns, "without", &probe, Duration::from_secs(60)).await?;
    // Another release may take the definitions over.
    let other = [
        "install",
        "other",
        "charts/muxtunnel",
        "--namespace",
        &ns.name,
        "--take-ownership",
        "--dry-run=server",
    ];
    tools::run("helm", &other).await?;
    Ok(())
}

#[tokio::test]
async fn uninstalling_the_chart_breaks_no_tunnel_and_reinstalling_takes_it_up_again() -> Result<()>
{
    with_temp_ns("uninstall", PodSecurity::Restricted, async |ns| {
        pods::serve(ns, "web", Serve::Echo).await?;
        tunnel::up(ns, &tunnel_to_web("")).await?;

        let uninstall = [
            "uninstall",
            "muxtunnel",
            "--namespace",
            "muxtunnel-system",
            "--wait",
        ];
        tools::run("helm", &uninstall).await?;
        let outcome = without_the_chart(ns).await;
        // The tests after this one need the operator, whatever was found.
        tools::run(tools::checkout().join("e2e/install"), &[]).await?;
        outcome?;

        let changed = tunnel_to_web("").replace("port: 8080", "port: 8081");
        tunnel::up(ns, &changed).await?;
        let probe = ["round-trips.sh", "t-entry", "8081", "3"];
        pods::run(ns, "after", &probe, Duration::from_secs(150)).await?;
        Ok(())
    })
    .await
}
