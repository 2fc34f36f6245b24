//! Reads the objects of a benchmark from the caches. This module makes no decisions.

use std::sync::Arc;

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::ResourceExt;

use super::names::{self, ENVIRONMENT_COMPONENTS, RUNNER};
use super::validate::ValidatedBenchmark;
use crate::apply::is_owned;
use crate::caches::{Caches, NotKnown};
use crate::labels::COMPONENT;

/// The existing objects of a benchmark.
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
/// [`NotKnown`] if one of these kinds is not known yet.
pub fn dereference(caches: &Caches, benchmark: &ValidatedBenchmark) -> Result<Seen, NotKnown> {
    let (name, namespace) = (&benchmark.name, &benchmark.namespace);
    let job = caches.jobs.get(namespace, &names::job(name))?;
    let results = caches.config_maps.get(namespace, &names::results(name))?;
    let mut components = ENVIRONMENT_COMPONENTS.to_vec();
    components.push(RUNNER);
    Ok(Seen {
        job: job
            .filter(|job| is_owned(job.as_ref(), &benchmark.owner))
            .map(Arc::unwrap_or_clone),
        pods: pods(caches, namespace, name, &components)?,
        results: results
            .filter(|results| is_owned(results.as_ref(), &benchmark.owner))
            .map(Arc::unwrap_or_clone),
    })
}

/// Pods of `instance` that have one of `components`.
///
/// # Errors
/// [`NotKnown`] if the pods are not known yet.
pub fn pods(
    caches: &Caches,
    namespace: &str,
    instance: &str,
    components: &[&str],
) -> Result<Vec<Pod>, NotKnown> {
    let pods = caches.pods.children(namespace, instance, components)?;
    Ok(pods.into_iter().map(Arc::unwrap_or_clone).collect())
}
