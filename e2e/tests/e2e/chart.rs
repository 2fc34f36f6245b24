//! The chart with a real API server: the rendered objects, the chart's own test, and the admission
//! of all pods at the level `restricted`.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Pod, PodTemplateSpec};
use kube::ResourceExt;
use kube::api::{ListParams, PostParams};
use muxtunnel_e2e::pods::{self, Serve};
use muxtunnel_e2e::{PodSecurity, TestNamespace, tools, tunnel, turn, with_temp_ns};
use serde::Deserialize;
use serde_json::Value;

use crate::tunnel_to_web;

/// The rendered objects of the chart for a release in the test's namespace.
async fn rendered(ns: &TestNamespace) -> Result<Vec<Value>> {
    let arguments = [
        "template",
        "rendered",
        "charts/muxtunnel",
        "--namespace",
        &ns.name,
        "--set",
        "crds.enabled=false",
    ];
    let text = tools::run("helm", &arguments).await?;
    let documents = serde_yaml::Deserializer::from_str(&text).map(Value::deserialize);
    let documents = documents.collect::<Result<Vec<_>, _>>()?;
    Ok(documents
        .into_iter()
        .filter(|document| !document.is_null())
        .collect())
}

/// Asserts that the API server admits a pod of this template, in a dry run.
async fn admitted(ns: &TestNamespace, name: &str, template: PodTemplateSpec) -> Result<()> {
    let mut pod = Pod {
        metadata: template.metadata.unwrap_or_default(),
        spec: template.spec,
        status: None,
    };
    pod.metadata.name = Some("dry-run".to_owned());
    if let Some(spec) = &mut pod.spec {
        // Removes the ServiceAccount, because it does not exist in this namespace. Pod Security
        // does not check it.
        spec.service_account_name = None;
        spec.priority_class_name = None;
    }
    let dry_run = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    ns.api::<Pod>()
        .create(&dry_run, &pod)
        .await
        .with_context(|| format!("a pod of {name} is refused"))?;
    Ok(())
}

#[tokio::test]
async fn every_pod_of_chart_and_tunnel_is_admitted_at_the_level_restricted() -> Result<()> {
    let _turn = turn::beside().await?;
    with_temp_ns("chart", PodSecurity::Restricted, async |ns| {
        let mut seen = 0;
        for mut document in rendered(ns).await? {
            if matches!(document["kind"].as_str(), Some("Deployment" | "Job")) {
                let name = document["metadata"]["name"].to_string();
                let template = document["spec"]["template"].take();
                admitted(ns, &name, serde_json::from_value(template)?).await?;
                seen += 1;
            }
        }
        pods::serve(ns, "web", Serve::Echo).await?;
        tunnel::up(ns, &tunnel_to_web("tuning: {profile: WAN}")).await?;
        for deployment in ns.api::<Deployment>().list(&ListParams::default()).await? {
            let name = deployment.name_any();
            let template = deployment.spec.context("a spec")?.template;
            admitted(ns, &name, template).await?;
            seen += 1;
        }
        ensure!(
            seen == 4,
            "{seen} kinds of pods instead of operator, test, entry and exit"
        );
        Ok(())
    })
    .await
}

#[tokio::test]
async fn the_api_server_takes_what_the_chart_renders() -> Result<()> {
    let _turn = turn::beside().await?;
    with_temp_ns("chart", PodSecurity::Restricted, async |ns| {
        let folder = tools::checkout().join("target");
        std::fs::create_dir_all(&folder)?;
        for (index, document) in rendered(ns).await?.into_iter().enumerate() {
            let file = folder.join(format!("e2e-rendered-{index}.json"));
            std::fs::write(&file, document.to_string())?;
            let file = file.display().to_string();
            let arguments = [
                "apply",
                "--server-side",
                // The cluster's own release has the roles for users, whose names are fixed.
                "--force-conflicts",
                "--dry-run=server",
                "--validate=strict",
                "--filename",
                &file,
            ];
            tools::run("kubectl", &arguments).await?;
        }
        Ok(())
    })
    .await
}

#[tokio::test]
async fn helm_test_moves_a_mebibyte_through_a_tunnel_and_leaves_nothing() -> Result<()> {
    let _turn = turn::beside().await?;
    let _installation = turn::installation().await;
    let arguments = [
        "test",
        "muxtunnel",
        "--namespace",
        "muxtunnel-system",
        "--timeout",
        "300s",
    ];
    let printed = tools::run("helm", &arguments).await?;
    ensure!(printed.contains("Succeeded"), "{printed}");
    let left = [
        "get",
        "muxtunnels,muxexits,jobs",
        "--namespace",
        "muxtunnel-system",
        "-o",
        "name",
    ];
    let left = tools::run("kubectl", &left).await?;
    ensure!(left.trim().is_empty(), "{left}");
    Ok(())
}
