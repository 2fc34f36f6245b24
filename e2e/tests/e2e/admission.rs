//! The API server refuses the same objects, with the same sentences, as the local tests of `crds`.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, bail, ensure};
use kube::api::{ApiResource, DeleteParams, DynamicObject, PostParams};
use kube::{Api, ResourceExt};
use muxtunnel_crds::bad_objects::{BadObject, parse};
use muxtunnel_crds::{MuxBenchmark, MuxGrant, MuxTunnel};
use muxtunnel_e2e::{PodSecurity, TestNamespace, tools, with_temp_ns};
use serde_json::Value;

fn table(folder: &str) -> Result<Vec<(PathBuf, String)>> {
    let folder = tools::checkout().join("crds/tests").join(folder);
    let mut files = Vec::new();
    for entry in fs::read_dir(&folder).with_context(|| format!("reading {}", folder.display()))? {
        let path = entry?.path();
        let text = fs::read_to_string(&path)?;
        files.push((path, text));
    }
    files.sort();
    ensure!(!files.is_empty(), "{} is empty", folder.display());
    Ok(files)
}

fn api_of(ns: &TestNamespace, object: &Value) -> Result<Api<DynamicObject>> {
    let resource = match object["kind"].as_str() {
        Some("MuxTunnel") => ApiResource::erase::<MuxTunnel>(&()),
        Some("MuxBenchmark") => ApiResource::erase::<MuxBenchmark>(&()),
        Some("MuxGrant") => ApiResource::erase::<MuxGrant>(&()),
        other => bail!("an object of kind {other:?}"),
    };
    Ok(Api::namespaced_with(ns.client.clone(), &ns.name, &resource))
}

/// Creates the object without storing it.
async fn try_create(ns: &TestNamespace, object: &Value) -> Result<kube::Result<DynamicObject>> {
    let dry_run = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    let object_to_create = serde_json::from_value(object.clone())?;
    Ok(api_of(ns, object)?
        .create(&dry_run, &object_to_create)
        .await)
}

/// Stores `old`, replaces it by `new` without storing that, and deletes it again.
async fn try_update(
    ns: &TestNamespace,
    old: &Value,
    new: &Value,
) -> Result<kube::Result<DynamicObject>> {
    let (api, how) = (api_of(ns, old)?, PostParams::default());
    let stored = api
        .create(&how, &serde_json::from_value(old.clone())?)
        .await;
    let stored = stored.context("the object before its update was refused")?;
    let name = stored.name_any();
    let mut new: DynamicObject = serde_json::from_value(new.clone())?;
    new.metadata.resource_version = stored.metadata.resource_version;
    let dry_run = PostParams {
        dry_run: true,
        ..how
    };
    let outcome = api.replace(&name, &dry_run, &new).await;
    api.delete(&name, &DeleteParams::default()).await?;
    Ok(outcome)
}

/// What is wrong with how the API server took the object; none when it refused it as expected.
async fn complaint(ns: &TestNamespace, bad: &BadObject) -> Result<Option<String>> {
    let outcome = match &bad.old {
        Some(old) => try_update(ns, old, &bad.object).await?,
        None => try_create(ns, &bad.object).await?,
    };
    Ok(match outcome {
        Ok(_) => Some("was accepted".to_owned()),
        Err(kube::Error::Api(status)) if status.message.contains(&bad.expected) => None,
        Err(error) => Some(format!("was refused otherwise: {error}")),
    })
}

#[tokio::test]
async fn every_bad_object_is_refused_with_the_expected_sentence() -> Result<()> {
    with_temp_ns("admission", PodSecurity::Restricted, async |ns| {
        let mut complaints = Vec::new();
        for (path, text) in table("bad_objects")? {
            let bad = parse(&text)?;
            if let Some(complaint) = complaint(ns, &bad).await? {
                complaints.push(format!(
                    "{}: {complaint}\n  expected: {}",
                    path.display(),
                    bad.expected
                ));
            }
        }
        ensure!(complaints.is_empty(), "{}", complaints.join("\n"));
        Ok(())
    })
    .await
}

#[tokio::test]
async fn every_good_object_is_accepted() -> Result<()> {
    with_temp_ns("admission", PodSecurity::Restricted, async |ns| {
        for (path, text) in table("good_objects")? {
            let object: Value = serde_yaml::from_str(&text)?;
            try_create(ns, &object)
                .await?
                .with_context(|| format!("{}", path.display()))?;
        }
        Ok(())
    })
    .await
}
