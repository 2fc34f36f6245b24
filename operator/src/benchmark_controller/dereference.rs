//! Reads what a benchmark owns. Client required; must not judge.

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt};

use super::names::{self, ENVIRONMENT_COMPONENTS, RUNNER};
use super::validate::ValidatedBenchmark;
use crate::apply::is_owned;
use crate::labels::{self, COMPONENT};

/// An object could not be read.
#[derive(Debug, thiserror::Error)]
#[error("cannot read {what}: {source}")]
pub struct ReadError {
    what: String,
    source: kube::Error,
}

fn failed(what: impl Into<String>) -> impl FnOnce(kube::Error) -> ReadError {
    let what = what.into();
    move |source| ReadError { what, source }
}

/// What exists.
#[derive(Debug, Default)]
pub struct Seen {
    /// The runner's Job.
    pub job: Option<Job>,
    /// All pods of the benchmark: runner and agents.
    pub pods: Vec<Pod>,
    /// The results so far.
    pub results: Option<ConfigMap>,
}

impl Seen {
    /// The runner's pod.
    #[must_use]
    pub fn runner(&self) -> Option<&Pod> {
        self.pods
            .iter()
            .find(|pod| pod.labels().get(COMPONENT).map(String::as_str) == Some(RUNNER))
    }
}

/// Reads Job, pods and results.
///
/// # Errors
/// [`ReadError`] when the API server does not answer or refuses.
pub async fn dereference(
    client: &Client,
    benchmark: &ValidatedBenchmark,
) -> Result<Seen, ReadError> {
    let (name, namespace) = (&benchmark.name, &benchmark.namespace);
    let jobs: Api<Job> = Api::namespaced(client.clone(), namespace);
    let config_maps: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    let job = jobs
        .get_opt(&names::job(name))
        .await
        .map_err(failed("the Job"))?;
    let results = config_maps
        .get_opt(&names::results(name))
        .await
        .map_err(failed("the results"))?;
    let mut components = ENVIRONMENT_COMPONENTS.to_vec();
    components.push(RUNNER);
    Ok(Seen {
        job: job.filter(|job| is_owned(job, &benchmark.owner)),
        pods: pods(client, namespace, name, &components).await?,
        results: results.filter(|results| is_owned(results, &benchmark.owner)),
    })
}

/// Pods of `instance` that have one of `components`.
///
/// # Errors
/// [`ReadError`] when the API server does not answer or refuses.
pub async fn pods(
    client: &Client,
    namespace: &str,
    instance: &str,
    components: &[&str],
) -> Result<Vec<Pod>, ReadError> {
    let api: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let params = ListParams::default().labels(&labels::children_of(instance, components));
    Ok(api.list(&params).await.map_err(failed("pods"))?.items)
}
