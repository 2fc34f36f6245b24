//! Sends the objects in `crds/tests` to the API server, and checks that the API server accepts or
//! refuses them. The tests store only objects for updates, and delete them at the end.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, bail, ensure};
use kube::api::{ApiResource, DeleteParams, DynamicObject, PostParams, Request};
use kube::{Api, ResourceExt};
use muxtunnel_crds::{
    MuxBenchmark, MuxClass, MuxExit, MuxGrant, MuxPeer, MuxRendezvous, MuxTunnel,
};
use muxtunnel_testkit::bad_objects::{BadObject, parse};
use serde_json::Value;

use crate::namespace::TestNamespace;
use crate::tools;

/// Maximum number of attempts of an update. An attempt fails if the operator writes the status
/// between a read and the update.
const UPDATES: u32 = 10;

/// The files of a folder of `crds/tests`, with their text.
///
/// # Errors
/// If a file cannot be read, or the folder is empty.
pub fn table(folder: &str) -> Result<Vec<(PathBuf, String)>> {
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

/// Sends all objects of `crds/tests/bad_objects` to the API server, which must refuse them. Returns
/// the number of objects.
///
/// # Errors
/// If an object is accepted, or refused with an unexpected reason.
pub async fn every_bad_object_is_refused(ns: &TestNamespace) -> Result<usize> {
    let files = table("bad_objects")?;
    let mut complaints = Vec::new();
    for (path, text) in &files {
        let path = path.display();
        let bad = parse(text).with_context(|| format!("{path}"))?;
        let complaint = complaint(ns, &bad).await;
        if let Some(complaint) = complaint.with_context(|| format!("{path}"))? {
            complaints.push(format!("{path}: {complaint}\n  expected: {}", bad.expected));
        }
    }
    ensure!(complaints.is_empty(), "{}", complaints.join("\n"));
    Ok(files.len())
}

/// The unexpected answer of the API server. `None` if the server refused the object as expected.
async fn complaint(ns: &TestNamespace, bad: &BadObject) -> Result<Option<String>> {
    let outcome = match &bad.old {
        Some(old) => try_update(ns, old, &bad.object).await?,
        None => try_create(ns, &bad.object).await?,
    };
    Ok(match outcome {
        Ok(_) => Some("was accepted".to_owned()),
        Err(kube::Error::Api(status)) if status.message.contains(&bad.expected) => None,
        Err(error) => Some(format!("was refused with another reason: {error}")),
    })
}

fn api_of(ns: &TestNamespace, object: &Value) -> Result<Api<DynamicObject>> {
    let resource = match object["kind"].as_str() {
        Some("MuxTunnel") => ApiResource::erase::<MuxTunnel>(&()),
        Some("MuxExit") => ApiResource::erase::<MuxExit>(&()),
        Some("MuxRendezvous") => ApiResource::erase::<MuxRendezvous>(&()),
        Some("MuxPeer") => ApiResource::erase::<MuxPeer>(&()),
        Some("MuxBenchmark") => ApiResource::erase::<MuxBenchmark>(&()),
        Some("MuxGrant") => ApiResource::erase::<MuxGrant>(&()),
        Some("MuxClass") => {
            let resource = ApiResource::erase::<MuxClass>(&());
            return Ok(Api::all_with(ns.client.clone(), &resource));
        }
        other => bail!("an object of kind {other:?}"),
    };
    Ok(Api::namespaced_with(ns.client.clone(), &ns.name, &resource))
}

fn dry_run() -> PostParams {
    PostParams {
        dry_run: true,
        ..PostParams::default()
    }
}

/// Creates the object in a dry run. Returns the API server's answer.
///
/// # Errors
/// If the object has an unknown kind.
pub async fn try_create(ns: &TestNamespace, object: &Value) -> Result<kube::Result<DynamicObject>> {
    let url = api_of(ns, object)?.resource_url().to_owned();
    let mut request = Request::new(url).create(&dry_run(), serde_json::to_vec(object)?)?;
    // As kubectl does: without this parameter, the API server drops unknown fields.
    *request.uri_mut() = format!("{}&fieldValidation=Strict", request.uri()).parse()?;
    Ok(ns.client.request(request).await)
}

/// Stores `old`, replaces `old` by `new` in a dry run, and deletes `old`.
async fn try_update(
    ns: &TestNamespace,
    old: &Value,
    new: &Value,
) -> Result<kube::Result<DynamicObject>> {
    let api = api_of(ns, old)?;
    let old = serde_json::from_value(old.clone())?;
    let stored = api.create(&PostParams::default(), &old).await;
    let stored = stored.context("the object before its update was refused")?;
    let name = stored.name_any();
    let mut new: DynamicObject = serde_json::from_value(new.clone())?;
    new.metadata.resource_version = stored.metadata.resource_version;
    let mut outcome = api.replace(&name, &dry_run(), &new).await;
    for _ in 1..UPDATES {
        if !matches!(&outcome, Err(kube::Error::Api(status)) if status.is_conflict()) {
            break;
        }
        let stored = api.get_metadata(&name).await?;
        new.metadata.resource_version = stored.metadata.resource_version;
        outcome = api.replace(&name, &dry_run(), &new).await;
    }
    api.delete(&name, &DeleteParams::default()).await?;
    Ok(outcome)
}
