//! The API server accepts every example, and an object of which the operator has written the status
//! has no difference to its manifest.

use std::collections::BTreeSet;
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
const SYNCED_WITHIN: Duration = Duration::from_secs(180);
/// The ways to apply and to compare a manifest.
const WAYS: [&[&str]; 2] = [&[], &["--server-side"]];

/// Objects of the operator with different names, as the objects of all examples share one namespace.
#[derive(Default)]
struct Batch {
    names: BTreeSet<(String, String)>,
    objects: Vec<Value>,
}

#[tokio::test]
async fn every_example_is_accepted_and_a_synced_object_has_no_difference_to_its_manifest()
-> Result<()> {
    let _turn = turn::beside().await?;
    with_temp_ns("diff", PodSecurity::Privileged, async |ns| {
        let folder = TempDir::new()?;
        let objects = examples(ns)?;
        let all = write(folder.path(), "all", &objects)?;
        ns.kubectl(&["apply", "--dry-run=server", &all]).await?;
        // An object has a status without any pod. Only the objects are compared.
        ns.kubectl(&["create", "quota", "no-pods", "--hard=pods=0"])
            .await?;
        let mut batches: Vec<Batch> = Vec::new();
        for object in objects.into_iter().filter(|one| one["apiVersion"] == OURS) {
            let name = (kind(&object)?, name(&object)?);
            let free = batches.iter().position(|one| !one.names.contains(&name));
            let free = free.unwrap_or_else(|| {
                batches.push(Batch::default());
                batches.len() - 1
            });
            batches[free].names.insert(name);
            batches[free].objects.push(object);
        }
        ensure!(
            !batches.is_empty(),
            "no example has an object of the operator"
        );
        for batch in &batches {
            let ours = write(folder.path(), "ours", &batch.objects)?;
            for way in WAYS {
                ns.kubectl(&[&["apply", &ours], way].concat()).await?;
                synced(ns, &ours).await?;
                no_difference(ns, &ours, way).await?;
                ns.kubectl(&["delete", "--timeout=120s", &ours]).await?;
            }
        }
        Ok(())
    })
    .await
}

/// The objects of all examples, in the namespace of the test.
fn examples(ns: &TestNamespace) -> Result<Vec<Value>> {
    let mut files = fs::read_dir(tools::checkout().join("docs/examples"))?
        .map(|entry| Ok(entry?.path()))
        .collect::<Result<Vec<_>>>()?;
    files.sort();
    let mut objects = Vec::new();
    for file in files {
        let text = fs::read_to_string(&file)?;
        let of_file = serde_yaml::Deserializer::from_str(&text).map(Value::deserialize);
        for object in of_file {
            let mut object = object.with_context(|| file.display().to_string())?;
            if !object["metadata"]["namespace"].is_null() {
                object["metadata"]["namespace"] = ns.name.clone().into();
            }
            objects.push(object);
        }
    }
    Ok(objects)
}

fn kind(object: &Value) -> Result<String> {
    Ok(object["kind"].as_str().context("a kind")?.to_owned())
}

fn name(object: &Value) -> Result<String> {
    let name = object["metadata"]["name"].as_str().context("a name")?;
    Ok(name.to_owned())
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

/// Waits until the operator has written the status of each object for the current spec. A MuxGrant has
/// no status.
async fn synced(ns: &TestNamespace, ours: &str) -> Result<()> {
    wait::until("each object has a status", SYNCED_WITHIN, async || {
        let stored = ns.kubectl(&["get", ours, "-o", "json"]).await?;
        let stored: Value = serde_json::from_str(&stored)?;
        // A manifest of one object gives that object instead of a list.
        let objects = stored["items"].as_array().cloned();
        let objects = objects.unwrap_or_else(|| vec![stored]);
        let is_synced = |object: &Value| {
            let seen = &object["status"]["observedGeneration"];
            object["kind"] == "MuxGrant"
                || !seen.is_null() && *seen == object["metadata"]["generation"]
        };
        Ok(objects.iter().all(is_synced).then_some(()))
    })
    .await
}
