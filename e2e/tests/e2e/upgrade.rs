//! An upgrade of the chart keeps stored objects and running tunnels.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use kube::ResourceExt;
use muxtunnel_crds::{MuxTunnel, condition};
use muxtunnel_e2e::pods::{self, Serve};
use muxtunnel_e2e::{
    Cluster, PodSecurity, TestNamespace, tools, tunnel, turn, wait, with_temp_ns_in,
};
use serde_json::Value;

use crate::tunnel_to_web;

/// Builds a chart like the chart of an older release. The chart has another version. Its
/// definitions lack MuxGrant, one current field and all rules. `Chart.yaml` names the current
/// images, because no older images are published.
fn older_chart() -> Result<PathBuf> {
    let older = tools::checkout().join("target/e2e-older-chart");
    if older.exists() {
        fs::remove_dir_all(&older)?;
    }
    copy(&tools::checkout().join("charts/muxtunnel"), &older)?;
    let chart = older.join("Chart.yaml");
    let text = fs::read_to_string(&chart)?;
    let (version, older_version) = ("\nversion: ", "\nversion: 0.0.1-older # ");
    ensure!(text.contains(version), "no version in Chart.yaml");
    fs::write(&chart, text.replacen(version, older_version, 1))?;
    fs::remove_file(older.join("files/crds/muxgrants.yaml"))?;
    let file = older.join("files/crds/muxtunnels.yaml");
    let mut definition: Value = serde_yaml::from_str(&fs::read_to_string(&file)?)?;
    let schema = definition
        .pointer_mut("/spec/versions/0/schema/openAPIV3Schema")
        .context("a schema")?;
    without_rules(schema);
    let service = "/properties/spec/properties/forwards/items/properties/targets/items/properties/serviceRef/properties";
    let service = schema.pointer_mut(service).and_then(Value::as_object_mut);
    let field = service.context("targets[].serviceRef")?.remove("namespace");
    ensure!(
        field.is_some(),
        "the definition of targets[].serviceRef has no field `namespace` to remove"
    );
    fs::write(&file, serde_yaml::to_string(&definition)?)?;
    Ok(older)
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let to = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &to)?;
        } else {
            fs::copy(entry.path(), to)?;
        }
    }
    Ok(())
}

fn without_rules(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            fields.remove("x-kubernetes-validations");
            fields.values_mut().for_each(without_rules);
        }
        Value::Array(items) => items.iter_mut().for_each(without_rules),
        _ => {}
    }
}

async fn upgrade_to(chart: &Path) -> Result<()> {
    let chart = chart.display().to_string();
    let arguments = [
        "upgrade",
        "muxtunnel",
        &chart,
        "--namespace",
        "muxtunnel-system",
        "--reset-then-reuse-values",
        "--force-conflicts",
        "--wait",
        "--timeout",
        "180s",
    ];
    Cluster::Second.run("helm", &arguments).await?;
    Ok(())
}

/// A tunnel with two forwards on one port, which only the older definitions accept.
fn refused_today() -> String {
    let forward = "forwards:\n";
    let twice = "forwards:\n  - {name: twice, port: 8080, targets: [{host: web, port: 80}]}\n";
    let text = tunnel_to_web("").replacen(forward, twice, 1);
    text.replace("{name: t}", "{name: odd}")
}

#[tokio::test]
async fn what_an_older_release_stored_goes_on_after_the_upgrade() -> Result<()> {
    let _turn = turn::alone().await?;
    with_temp_ns_in(
        Cluster::Second,
        "upgrade",
        PodSecurity::Restricted,
        async |ns| {
            pods::serve(ns, "web", Serve::Echo).await?;
            upgrade_to(&older_chart()?).await?;
            let outcome = through_the_upgrade(ns).await;
            // Later tests need the current definitions, even if this test fails.
            Cluster::Second.install().await?;
            outcome
        },
    )
    .await
}

async fn through_the_upgrade(ns: &TestNamespace) -> Result<()> {
    let before = tunnel::up(ns, &tunnel_to_web("")).await?;
    tunnel::apply(ns, &refused_today()).await?;
    // The client holds a stream while the chart is upgraded and while a field of the newer
    // definitions adds port 8081.
    let held = ["new-port.sh", "t-entry", "8080", "8081", "240"];
    pods::start(ns, "held", &held).await?;
    pods::printed(ns, "held", "held stream is open", Duration::from_secs(180)).await?;

    Cluster::Second.install().await?;
    let tunnels = ns.api::<MuxTunnel>();
    let after = tunnels.get("t").await?;
    ensure!(after.uid() == before.uid(), "the tunnel was replaced");
    ensure!(
        after.spec == before.spec,
        "the spec of the tunnel has changed: {:?}",
        after.spec
    );

    let says_so = |tunnel: &MuxTunnel| {
        tunnel::condition(tunnel, condition::ACCEPTED)
            .is_some_and(|accepted| accepted.reason == "InvalidSpec")
    };
    let what = "the status reports that the newer rules refuse the spec";
    wait::for_object(&tunnels, "odd", what, Duration::from_secs(180), says_so).await?;

    let added = "forwards:\n  - {name: far, port: 8081, targets: [{serviceRef: {name: web, namespace: NS}, port: 80}]}\n";
    let added = tunnel_to_web("").replacen("forwards:\n", &added.replace("NS", &ns.name), 1);
    tunnel::up(ns, &added).await?;
    let log = pods::end(ns, "held", Duration::from_secs(300)).await?;
    ensure!(log.contains("held stream is alive"), "{log}");
    Ok(())
}
