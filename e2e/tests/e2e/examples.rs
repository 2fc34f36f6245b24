//! The examples in `docs/examples` do what they say.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result};
use kube::api::{Patch, PatchParams};
use muxtunnel_crds::MuxBenchmark;
use muxtunnel_e2e::pods::{self, Serve};
use muxtunnel_e2e::{PodSecurity, tools, tunnel, with_temp_ns};
use serde_json::Value;

fn example(file: &str) -> Result<String> {
    let path = tools::checkout().join("docs/examples").join(file);
    fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))
}

#[tokio::test]
async fn the_smallest_tunnel_leads_to_the_service() -> Result<()> {
    with_temp_ns("example", PodSecurity::Restricted, async |ns| {
        pods::serve(ns, "web", Serve::Hash).await?;
        tunnel::up(ns, &example("muxtunnel.yaml")?).await?;
        let send = ["send-hashed.sh", "first-entry", "8080", "1000000"];
        pods::run(ns, "client", &send, Duration::from_secs(60)).await?;
        Ok(())
    })
    .await
}

#[tokio::test]
async fn the_tunnel_over_an_emulated_wan_leads_to_the_service() -> Result<()> {
    with_temp_ns("example", PodSecurity::Privileged, async |ns| {
        pods::serve(ns, "web", Serve::Hash).await?;
        tunnel::up(ns, &example("muxtunnel-wan.yaml")?).await?;
        let send = ["send-hashed.sh", "far-entry", "8080", "1000000"];
        pods::run(ns, "client", &send, Duration::from_secs(60)).await?;
        Ok(())
    })
    .await
}

#[tokio::test]
async fn the_benchmarks_are_accepted() -> Result<()> {
    with_temp_ns("example", PodSecurity::Restricted, async |ns| {
        for file in ["muxbenchmark-demo.yaml", "muxbenchmark-full.yaml"] {
            let object: Value = serde_yaml::from_str(&example(file)?)?;
            let name = object["metadata"]["name"].as_str().context("a name")?;
            // `make demo` runs it; here it is only judged.
            let how = PatchParams::apply("muxtunnel-e2e").dry_run();
            ns.api::<MuxBenchmark>()
                .patch(name, &how, &Patch::Apply(&object))
                .await
                .with_context(|| file.to_owned())?;
        }
        Ok(())
    })
    .await
}
