//! The MuxClass of the chart, in a mounted file. Helm cannot create an object of a kind that the same
//! release defines, so the leader applies the file.

use std::future::ready;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures::stream::{self, StreamExt};
use kube::api::{Patch, PatchParams};
use kube::{Api, Client, ResourceExt};
use muxtunnel_crds::MuxClass;
use serde_json::Value;
use tokio::time::sleep;
use tracing::{info, warn};

use crate::classes::Classes;
use crate::labels::MANAGER;
use crate::leader::Leadership;

/// The first pause after an error. The following pauses double.
const FIRST: Duration = Duration::from_secs(1);
/// The longest pause after an error.
const LONGEST: Duration = Duration::from_secs(60);

/// The file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file cannot be read.
    #[error("cannot read {0}: {1}: mount the chart's ConfigMap")]
    Unreadable(PathBuf, io::Error),
    /// The file has another content.
    #[error("{0} is not the manifest of a MuxClass: {1}: correct the chart's value class")]
    Invalid(PathBuf, String),
}

/// The manifest of a MuxClass.
pub struct ClassFile {
    name: String,
    manifest: Value,
}

impl ClassFile {
    /// Reads the file.
    ///
    /// # Errors
    /// [`Error`] if the file cannot be used.
    pub fn read(file: &Path) -> Result<Self, Error> {
        let text = std::fs::read_to_string(file);
        let text = text.map_err(|error| Error::Unreadable(file.to_owned(), error))?;
        let invalid = |why: String| Error::Invalid(file.to_owned(), why);
        let manifest: Value =
            serde_yaml::from_str(&text).map_err(|error| invalid(error.to_string()))?;
        let name = manifest["metadata"]["name"].as_str().map(str::to_owned);
        let name = name.ok_or_else(|| invalid("metadata.name is missing".to_owned()))?;
        Ok(Self { name, manifest })
    }

    /// Applies the class whenever this process becomes the leader, and whenever the class is missing
    /// among `classes`.
    pub async fn keep_applied(self, client: Client, classes: Classes, leadership: Leadership) {
        let api = Api::all(client);
        let is_missing = || {
            // Before the first list, no class is missing.
            let known = classes.cache().all();
            known.is_ok_and(|known| known.iter().all(|class| class.name_any() != self.name))
        };
        let missing = classes.changes();
        let missing = missing.filter_map(|_change| ready(is_missing().then_some(())));
        let mut causes = stream::select(leadership.won(), missing.boxed());
        while let Some(()) = causes.next().await {
            let mut pause = FIRST;
            while leadership.is_held() {
                let Err(error) = self.apply(&api).await else {
                    info!(name = self.name, "applied the MuxClass of the chart");
                    break;
                };
                warn!(
                    name = self.name, %error,
                    "cannot apply the MuxClass of the chart: install the definitions (crds.enabled), apply the chart's \
                     template classrole.yaml, or correct the value class"
                );
                sleep(pause).await;
                pause = LONGEST.min(pause * 2);
            }
        }
    }

    /// The fields of the file replace changes of others.
    async fn apply(&self, api: &Api<MuxClass>) -> kube::Result<()> {
        let how = PatchParams::apply(MANAGER).force().validation_strict();
        let patch = Patch::Apply(&self.manifest);
        api.patch(&self.name, &how, &patch).await.map(drop)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;
    use crate::testing::tunnel::{CONTROLLER, images};
    use crate::testing::{FakeApi, Trouble};

    const CLASS: &str = "muxclasses/muxtunnel";

    /// The class of the chart with its default values.
    fn file() -> tempfile::NamedTempFile {
        let golden = include_str!("../../charts/tests/golden/default.yaml");
        let (_, rest) = golden.split_once("  class.yaml: |\n").unwrap();
        let lines = rest.lines().take_while(|line| line.starts_with("    "));
        let text: String = lines.map(|line| format!("{}\n", &line[4..])).collect();
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        file
    }

    async fn until(mut holds: impl FnMut() -> bool) {
        while !holds() {
            sleep(FIRST).await;
        }
    }

    #[tokio::test]
    async fn changes_of_others_are_overwritten() {
        let (api, class) = (FakeApi::default(), ClassFile::read(file().path()).unwrap());
        let classes = Api::all(api.client());
        class.apply(&classes).await.unwrap();
        let mut changed = api.get(CLASS).unwrap();
        assert_eq!(changed["spec"]["controllerName"], "muxtunnel.dev/operator");
        changed["spec"]["default"] = json!(false);
        api.put(CLASS, changed);
        class.apply(&classes).await.unwrap();
        assert_eq!(api.get(CLASS).unwrap()["spec"]["default"], true);
    }

    #[tokio::test(start_paused = true)]
    async fn the_leader_applies_the_class_until_it_exists_and_again_if_it_is_deleted() {
        let (api, class) = (FakeApi::default(), ClassFile::read(file().path()).unwrap());
        // As long as the definition is missing.
        api.trouble("muxclasses", Some(Trouble::Status(404)));
        let served = (CONTROLLER.to_owned(), images());
        let (classes, watch) = Classes::watch(&api.client(), served, &[], &Arc::default());
        tokio::spawn(watch);
        tokio::spawn(class.keep_applied(api.client(), classes, Leadership::always()));
        let writes = || {
            api.requests()
                .iter()
                .filter(|one| one.method == "PATCH")
                .count()
        };
        until(|| writes() >= 3).await;
        assert_eq!(api.get(CLASS), None);
        api.trouble("muxclasses", None);
        until(|| api.get(CLASS).is_some()).await;
        api.remove(CLASS);
        until(|| api.get(CLASS).is_some()).await;
    }

    #[test]
    fn another_file_is_refused() {
        let file = file();
        std::fs::write(file.path(), "{}").unwrap();
        let error = ClassFile::read(file.path()).err().unwrap().to_string();
        assert!(error.contains("metadata.name is missing"), "{error}");
        let error = ClassFile::read(Path::new("/nowhere"))
            .err()
            .unwrap()
            .to_string();
        assert!(error.contains("/nowhere"), "{error}");
    }
}
