//! Both sides are deleted and restored from a dump without status.

use muxtunnel_crds::KeyOrigin;
use tempfile::TempDir;

use super::*;

/// The kinds of a dump, in the order of the restore: objects find the Secrets of their keys.
const KINDS: [&str; 2] = ["secrets", "muxexits,muxpeers,muxtunnels"];

#[tokio::test]
async fn from_a_dump_without_status_objects_find_their_keys_again() -> Result<()> {
    let _turn = turn::across().await?;
    with_temp_ns_in_both("restore", PodSecurity::Restricted, async |near, far| {
        let mut site = Site::up(near, far).await?;
        // The entry names the exit's node port, which has to be the same after the restore.
        site.exit["spec"]["service"]["nodePort"] = site.endpoint.1.into();
        tunnel::apply_of::<MuxExit>(far, &site.exit.to_string()).await?;
        let (_, key) = site.entry("near").await?;
        admit(far, "near", std::slice::from_ref(&key)).await?;
        tunnel::ready(near, "near").await?;
        works(near, "before", "near").await?;

        let dumps = [dump(near).await?, dump(far).await?];
        for ns in [near, far] {
            delete_all(ns).await?;
        }
        for (ns, dump) in [near, far].into_iter().zip(&dumps) {
            restore(ns, dump).await?;
        }
        let exit: MuxExit = tunnel::ready_of(far, "far").await?;
        let entry = tunnel::ready(near, "near").await?;
        let exit_keys = exit.status.context("a status")?.keys;
        let entry_keys = entry.status.context("a status")?.keys;
        for (keys, before) in [(exit_keys, &site.keys[0]), (entry_keys, &key)] {
            ensure!(
                keys.len() == 1
                    && keys[0].origin == KeyOrigin::Found
                    && keys[0].public_key.as_ref() == Some(before),
                "{keys:?}, before {before}"
            );
        }
        holds(far, "near", condition::CONNECTED).await?;
        works(near, "after", "near").await
    })
    .await
}

/// The objects and Secrets of a namespace, without status and without the metadata that the API
/// server sets.
async fn dump(ns: &TestNamespace) -> Result<[Vec<Value>; 2]> {
    let mut dump = [Vec::new(), Vec::new()];
    for (kinds, objects) in KINDS.into_iter().zip(&mut dump) {
        let text = ns.kubectl(&["get", kinds, "-o", "yaml"]).await?;
        let list: Value = serde_yaml::from_str(&text)?;
        for object in list["items"].as_array().context("a list")? {
            let mut object = object.clone();
            let metadata = &object["metadata"];
            object["metadata"] = json!({
                "name": metadata["name"],
                "labels": metadata["labels"],
                "annotations": metadata["annotations"],
            });
            object
                .as_object_mut()
                .context("an object")?
                .remove("status");
            objects.push(object);
        }
    }
    let [secrets, objects] = &dump;
    ensure!(!secrets.is_empty() && !objects.is_empty(), "{dump:?}");
    Ok(dump)
}

/// Deletes the objects with their gateways, and the keys.
async fn delete_all(ns: &TestNamespace) -> Result<()> {
    for kinds in KINDS.into_iter().rev() {
        ns.kubectl(&["delete", kinds, "--all", "--timeout=120s"])
            .await?;
    }
    let gateways = ListParams::default().labels("muxtunnel.dev/kind");
    let pods = ns.api::<Pod>();
    wait::until("no gateway is left", WITHIN, async || {
        Ok(pods.list(&gateways).await?.items.is_empty().then_some(()))
    })
    .await
}

async fn restore(ns: &TestNamespace, dump: &[Vec<Value>]) -> Result<()> {
    let folder = TempDir::new()?;
    for objects in dump {
        let list = json!({"apiVersion": "v1", "kind": "List", "items": objects});
        let file = folder.path().join("dump.yaml");
        std::fs::write(&file, serde_yaml::to_string(&list)?)?;
        let file = file.to_str().context("a path")?;
        ns.kubectl(&["create", "--filename", file]).await?;
    }
    Ok(())
}
