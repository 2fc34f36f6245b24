//! The API server accepts every example, and an object of which the operator has written the status
//! has no difference to its manifest.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use muxtunnel_e2e::{PodSecurity, TestNamespace, tools, turn, wait, with_temp_ns};
use serde::Deserialize;
use serde_json::Value;
use tempfile::TempDir;

/// The group and version of the objects of the operator.
const OURS: &str = "muxtunnel.dev/v1alpha1";
/// Time-out for the first status of an object.
const SYNCED_WITHIN: Duration = Duration::from_secs(60);
/// The ways to apply and to compare a manifest.
const WAYS: [&[&str]; 2] = [&[], &["--server-side"]];

#[tokio::test]
async fn every_example_is_accepted_and_a_synced_object_has_no_difference_to_its_manifest()
-> Result<()> {
    let _turn = turn::beside().await?;
    with_temp_ns("diff", PodSecurity::Privileged, async |ns| {
        let folder = TempDir::new()?;
        let mut count = 0;
        let mut files = fs::read_dir(tools::checkout().join("docs/examples"))?
            .map(|entry| Ok(entry?.path()))
            .collect::<Result<Vec<_>>>()?;
        files.sort();
        for file in files {
            let checked = check(ns, &file, folder.path()).await;
            count += checked.with_context(|| file.display().to_string())?;
        }
        ensure!(count > 0, "no example has an object of the operator");
        Ok(())
    })
    .await
}

/// Checks the objects of a file. Returns the number of objects of the operator.
async fn check(ns: &TestNamespace, file: &Path, folder: &Path) -> Result<usize> {
    let text = fs::read_to_string(file)?;
    let mut objects = serde_yaml::Deserializer::from_str(&text)
        .map(Value::deserialize)
        .collect::<Result<Vec<_>, _>>()?;
    for object in &mut objects {
        if !object["metadata"]["namespace"].is_null() {
            object["metadata"]["namespace"] = ns.name.clone().into();
        }
    }
    let all = write(folder, "all", &objects)?;
    ns.kubectl(&["apply", "--dry-run=server", &all]).await?;
    objects.retain(|object| object["apiVersion"] == OURS);
    if objects.is_empty() {
        return Ok(0);
    }
    let ours = write(folder, "ours", &objects)?;
    for way in WAYS {
        ns.kubectl(&[&["apply", &ours], way].concat()).await?;
        for object in &objects {
            synced(ns, object).await?;
        }
        no_difference(ns, &ours, way).await?;
        ns.kubectl(&["delete", "--timeout=120s", &ours]).await?;
    }
    Ok(objects.len())
}

/// Compares the stored objects with their manifest.
///
/// A server-side `kubectl diff` reads an object twice, without a lock. A status that the operator
/// writes between the two reads is in the output. So a difference counts only if no object changed
/// while kubectl compared them.
async fn no_difference(ns: &TestNamespace, ours: &str, way: &[&str]) -> Result<()> {
    let what = format!("kubectl diff {way:?} ends without a concurrent change");
    wait::until(&what, SYNCED_WITHIN, async || {
        let before = versions(ns, ours).await?;
        // The exit status of kubectl is 1 if there is a difference.
        let Err(difference) = ns.kubectl(&[&["diff", ours], way].concat()).await else {
            return Ok(Some(()));
        };
        if before == versions(ns, ours).await? {
            return Err(difference.context(format!("{way:?}")));
        }
        Ok(None)
    })
    .await
}

/// Returns the resource versions of the objects of a manifest.
async fn versions(ns: &TestNamespace, ours: &str) -> Result<String> {
    let versions = "--output=jsonpath={..metadata.resourceVersion}";
    ns.kubectl(&["get", ours, versions]).await
}

/// Writes a manifest. Returns kubectl's argument that names the file.
fn write(folder: &Path, name: &str, objects: &[Value]) -> Result<String> {
    let file = folder.join(format!("{name}.yaml"));
    // JSON is valid YAML.
    let documents = objects.iter().map(|object| format!("---\n{object}\n"));
    fs::write(&file, documents.collect::<String>())?;
    Ok(format!("--filename={}", file.display()))
}

/// Waits until the operator has written the status for the current spec. A MuxGrant has no status.
async fn synced(ns: &TestNamespace, object: &Value) -> Result<()> {
    let kind = object["kind"].as_str().context("a kind")?;
    let name = object["metadata"]["name"].as_str().context("a name")?;
    if kind == "MuxGrant" {
        return Ok(());
    }
    let what = format!("the {kind} {name} has a status");
    wait::until(&what, SYNCED_WITHIN, async || {
        let stored = ns.kubectl(&["get", kind, name, "-o", "json"]).await?;
        let stored: Value = serde_json::from_str(&stored)?;
        let seen = &stored["status"]["observedGeneration"];
        let is_seen = !seen.is_null() && *seen == stored["metadata"]["generation"];
        Ok(is_seen.then_some(()))
    })
    .await
}
