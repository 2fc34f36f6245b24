//! Reads the objects of a benchmark from the caches, and Events from the API server. This module
//! makes no decisions.

use std::sync::Arc;

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::ResourceExt;

use super::names::{self, ENVIRONMENT_COMPONENTS, KIND};
use super::validate::ValidatedBenchmark;
use crate::apply::is_owned;
use crate::caches::{Caches, NotKnown};
use crate::labels::{COMPONENT, RUNNER};
use crate::reader::Reader;
use crate::tunnel_controller::not_created;

/// The existing objects of a benchmark.
#[derive(Debug, Default)]
pub struct Seen {
    /// The runner's Job.
    pub job: Option<Arc<Job>>,
    /// All pods of the benchmark: runner and agents.
    pub pods: Vec<Arc<Pod>>,
    /// The results so far.
    pub results: Option<Arc<ConfigMap>>,
}

impl Seen {
    /// The runner's pod.
    pub fn runner(&self) -> Option<&Pod> {
        let component = |pod: &Pod| pod.labels().get(COMPONENT).map(String::as_str) == Some(RUNNER);
        let mut pods = self.pods.iter().map(AsRef::as_ref);
        pods.find(|pod| component(pod))
    }
}

/// Reads Job, pods and results.
///
/// # Errors
/// [`NotKnown`] if one of these kinds is not known yet.
pub fn dereference(caches: &Caches, benchmark: &ValidatedBenchmark) -> Result<Seen, NotKnown> {
    let (name, namespace) = (&benchmark.name, &benchmark.namespace);
    let job = caches.jobs.get(namespace, name)?;
    let results = caches.config_maps.get(namespace, &names::results(name))?;
    let mut components = ENVIRONMENT_COMPONENTS.to_vec();
    components.push(RUNNER);
    Ok(Seen {
        job: job.filter(|job| is_owned(job.as_ref(), &benchmark.owner)),
        pods: caches.pods.children(namespace, (KIND, name), &components)?,
        results: results.filter(|results| is_owned(results.as_ref(), &benchmark.owner)),
    })
}

/// Why the runner's Job has no pod. If the API server refuses the pod, for example because of a
/// quota or a LimitRange, only Events have the reason.
pub async fn why_no_pod(reader: &Reader, seen: &Seen) -> String {
    let waiting = || "the Job has no pod yet".to_owned();
    let Some(job) = &seen.job else {
        return waiting();
    };
    let (name, namespace) = (job.name_any(), job.namespace().unwrap_or_default());
    let refused = not_created(reader, &namespace, job).await;
    refused.map_or_else(waiting, |problem| {
        let detail = problem.detail;
        format!("the pod of the Job {name} cannot be created: {detail}")
    })
}
