//! The API server refuses the same objects, with the same sentences, as the local tests of `crds`.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, bail, ensure};
use kube::Api;
use kube::api::{ApiResource, DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use muxtunnel_crds::bad_objects::{BadObject, parse};
use muxtunnel_crds::{MuxBenchmark, MuxTunnel};
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
        other => bail!("an object of kind {other:?}"),
    };
    Ok(Api::namespaced_with(ns.client.clone(), &ns.name, &resource))
}

/// Applies the object without storing it.
async fn try_apply(ns: &TestNamespace, object: &Value) -> Result<kube::Result<DynamicObject>> {
    let name = object["metadata"]["name"].as_str().unwrap_or("unnamed");
    let how = PatchParams::apply("muxtunnel-e2e").dry_run();
    Ok(api_of(ns, object)?
        .patch(name, &how, &Patch::Apply(object))
        .await)
}

/// What is wrong with how the API server took the object; none when it refused it as expected.
async fn complaint(ns: &TestNamespace, bad: &BadObject) -> Result<Option<String>> {
    if let Some(old) = &bad.old {
        let stored: DynamicObject = serde_json::from_value(old.clone())?;
        api_of(ns, old)?
            .create(&PostParams::default(), &stored)
            .await
            .context("the object before its update was refused")?;
    }
    let outcome = try_apply(ns, &bad.object).await?;
    if let Some(old) = &bad.old {
        let name = old["metadata"]["name"].as_str().context("a name")?;
        api_of(ns, old)?
            .delete(name, &DeleteParams::default())
            .await?;
    }
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
            try_apply(ns, &object)
                .await?
                .with_context(|| format!("{}", path.display()))?;
        }
        Ok(())
    })
    .await
}
