//! Creates each Job that tests sysctls once, and stores a refusal in the Job.
//!
//! The operator never updates a Job to its built form: the template of a Job is immutable, and
//! another image is no reason to repeat the test.

use k8s_openapi::api::batch::v1::Job;
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt};
use muxtunnel_codes::Code;
use serde_json::json;
use tracing::info;

use crate::apply::{ApplyError, Children, Pass, delete, failed};
use crate::caches::Cluster;
use crate::tunnel_controller::dereference::{Next, REFUSED, RESOURCES_HASH};
use crate::tunnel_controller::problem::Problem;
use crate::tunnel_controller::validate::ValidatedObject;

/// Creates the missing Jobs of `built`, and deletes the object's other Jobs and the Jobs to repeat.
///
/// # Errors
/// [`ApplyError`]. The next call continues.
pub(super) async fn apply(
    pass: &mut Pass<'_>,
    children: Children<'_>,
    object: &ValidatedObject,
    built: &[Job],
) -> Result<(), ApplyError> {
    let (cluster, seen) = (pass.cluster, &object.pods.probes);
    for probe in seen.iter().filter(|_| !pass.is_blocked()) {
        let (job, problem) = (&*probe.job, probe.outcome.problem.as_ref());
        let asked = built.iter().find(|own| own.name_any() == job.name_any());
        let hash = |job: &Job| job.annotations().get(RESOURCES_HASH).cloned();
        // A quota may refuse the pod of a Job that has not ended, until the resources change.
        let is_outdated = problem.is_some_and(|problem| problem.code == Code::SysctlProbing)
            && asked.is_some_and(|asked| hash(asked) != hash(job));
        match (probe.outcome.next, problem) {
            _ if asked.is_none() || is_outdated => delete(cluster, job).await?,
            (Next::Repeats, _) => delete(cluster, job).await?,
            (Next::Remembers, Some(problem)) => remember(cluster, job, problem).await?,
            _ => {}
        }
    }
    let is_seen = |job: &Job| {
        seen.iter()
            .any(|seen| seen.job.name_any() == job.name_any())
    };
    for job in built.iter().filter(|job| !is_seen(job)) {
        pass.create(children, job).await?;
    }
    Ok(())
}

/// Stores a refusal in the Job, and suspends the Job. A suspended Job has no pod, so the kubelet
/// stops trying to create an impossible sandbox.
async fn remember(cluster: &Cluster, job: &Job, problem: &Problem) -> Result<(), ApplyError> {
    let (name, namespace) = (job.name_any(), job.namespace().unwrap_or_default());
    let (reason, detail) = (problem.code.reason(), &problem.detail);
    info!(kind = "Job", name, reason, "a node refused a sysctl");
    let patch = json!({
        "metadata": {"uid": job.uid(), "annotations": {REFUSED: format!("{reason}: {detail}")}},
        "spec": {"suspend": true},
    });
    let api: Api<Job> = Api::namespaced(cluster.client.clone(), &namespace);
    let patch = Patch::Merge(patch);
    match api.patch(&name, &PatchParams::default(), &patch).await {
        // The Job was deleted or replaced meanwhile. The next reconciliation handles the change.
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {}
        written => {
            let written = written.map_err(failed::<Job>("patch", &name))?;
            cluster.caches.jobs.wrote(&written);
        }
    }
    Ok(())
}
