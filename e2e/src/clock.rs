//! Gateways whose system time is moved. Linux has no namespace for this clock, so the gateways
//! preload a library ([`muxtunnel_testkit::clock`]) from a ConfigMap. Only for Deployments whose
//! operator is away, because the operator restores its own fields.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result};
use k8s_openapi::ByteString;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::core::ObjectMeta;
use muxtunnel_testkit::clock;
use serde_json::{Value, json};

use crate::{TestNamespace, tools, wait};

/// The ConfigMap with the library and the offset, and the volume of the pods.
const NAME: &str = "clock";
const LIBRARY: &str = "clock.so";
const OFFSET: &str = "offset";
const FOLDER: &str = "/clock";
/// Time-out for a gateway to log a line with the moved time. The kubelet needs up to 90 s for a
/// changed ConfigMap, or a second for a pod whose annotations change.
const MOVED_WITHIN: Duration = Duration::from_secs(150);
/// Time-out for the end of gateways that drain.
const DRAINED_WITHIN: Duration = Duration::from_secs(120);

/// The clock of the gateways of one Deployment.
pub struct Clock<'a> {
    ns: &'a TestNamespace,
    deployment: String,
    selector: String,
    /// The pod template before the change.
    template: Value,
}

impl<'a> Clock<'a> {
    /// Replaces the gateways of a Deployment by gateways whose clock [`Self::set`] moves. `selector`
    /// selects their pods.
    ///
    /// # Errors
    /// If the library cannot be compiled, a request fails, or the new pods do not become ready.
    pub async fn install(
        ns: &'a TestNamespace,
        deployment: &str,
        selector: String,
    ) -> Result<Self> {
        create_map(ns).await?;
        let deployments = ns.api::<Deployment>();
        let before = serde_json::to_value(deployments.get(deployment).await?)?;
        let environment = [
            (clock::LIBRARY_VARIABLE, format!("{FOLDER}/{LIBRARY}")),
            (clock::FILE_VARIABLE, format!("{FOLDER}/{OFFSET}")),
        ];
        let environment = environment.map(|(name, value)| json!({"name": name, "value": value}));
        let patch = json!({"spec": {"template": {"spec": {
            "containers": [{
                "name": "gateway",
                "env": environment,
                "volumeMounts": [{"name": NAME, "mountPath": FOLDER}],
            }],
            "volumes": [{"name": NAME, "configMap": {"name": NAME}}],
        }}}});
        let how = PatchParams::default();
        deployments
            .patch(deployment, &how, &Patch::Strategic(&patch))
            .await?;
        let clock = Self {
            ns,
            deployment: deployment.to_owned(),
            selector,
            template: before["spec"]["template"].clone(),
        };
        clock.rolled_out().await?;
        Ok(clock)
    }

    /// Moves the clock by this many days while the gateways run. Returns when a gateway has logged a
    /// line with the moved time, so the gateways must have streams.
    ///
    /// # Errors
    /// If a request fails, or the time does not move.
    pub async fn set(&self, days: i64) -> Result<()> {
        let seconds = days * clock::DAY_SECONDS;
        let data = json!({"data": {OFFSET: seconds.to_string()}});
        let how = PatchParams::default();
        let maps = self.ns.api::<ConfigMap>();
        maps.patch(NAME, &how, &Patch::Merge(&data)).await?;
        // The kubelet refreshes the volumes of a pod whose annotations change.
        let (selector, annotation) = (
            format!("--selector={}", self.selector),
            format!("e2e-clock={days}"),
        );
        let annotate = ["annotate", "pods", "--overwrite", &selector, &annotation];
        self.ns.kubectl(&annotate).await?;
        // A day earlier, because the date may change now.
        let date = format!("--date={} days", days - 1);
        let least = tools::run("date", &["--utc", "+%F", &date]).await?;
        let deployment = format!("deployment/{}", self.deployment);
        let what = format!("the gateways of {deployment} log the moved time");
        wait::until(&what, MOVED_WITHIN, async || {
            let log = self.ns.kubectl(&["logs", &deployment, "--tail=1"]).await?;
            // A line begins with its time, so the order of texts is that of times.
            Ok((log.starts_with('2') && log.as_str() >= least.trim()).then_some(()))
        })
        .await
    }

    /// Restores the Deployment.
    ///
    /// # Errors
    /// If a request fails, or the new pods do not become ready.
    pub async fn remove(self) -> Result<()> {
        let replace = json!([{"op": "replace", "path": "/spec/template", "value": self.template}]);
        let patch = Patch::Json::<()>(serde_json::from_value(replace)?);
        let deployments = self.ns.api::<Deployment>();
        deployments
            .patch(&self.deployment, &PatchParams::default(), &patch)
            .await?;
        self.rolled_out().await
    }

    async fn rolled_out(&self) -> Result<()> {
        let deployment = format!("deployment/{}", self.deployment);
        let status = ["rollout", "status", &deployment, "--timeout=240s"];
        self.ns.kubectl(&status).await?;
        // The old gateways end their streams when they have drained.
        let pods = self.ns.api::<Pod>();
        let own = ListParams::default().labels(&self.selector);
        wait::until("the old gateways are gone", DRAINED_WITHIN, async || {
            let all = pods.list(&own).await?.items;
            let mut ending = all.iter().map(|pod| &pod.metadata.deletion_timestamp);
            Ok(ending.all(Option::is_none).then_some(()))
        })
        .await
    }
}

/// Creates the ConfigMap with the library, unless the namespace has it.
async fn create_map(ns: &TestNamespace) -> Result<()> {
    let maps = ns.api::<ConfigMap>();
    if maps.get_opt(NAME).await?.is_some() {
        return Ok(());
    }
    let folder = tempfile::tempdir()?;
    let library = clock::library(folder.path());
    let library = std::fs::read(&library).context("the library")?;
    let map = ConfigMap {
        metadata: ObjectMeta {
            name: Some(NAME.to_owned()),
            ..ObjectMeta::default()
        },
        binary_data: Some(BTreeMap::from([(LIBRARY.to_owned(), ByteString(library))])),
        data: Some(BTreeMap::from([(OFFSET.to_owned(), "0".to_owned())])),
        ..ConfigMap::default()
    };
    maps.create(&PostParams::default(), &map).await?;
    Ok(())
}
