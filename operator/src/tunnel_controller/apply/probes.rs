//! Creates each Job that tests sysctls once, and stores a refusal in the Job.
//!
//! The operator never updates a Job to its built form: the template of a Job is immutable, and
//! another image is no reason to repeat the test.

use k8s_openapi::api::batch::v1::Job;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions, PropagationPolicy};
use kube::{Api, ResourceExt};
use serde_json::json;
use tracing::info;

use crate::apply::{ApplyError, Obstacle, adopt_unchanged, is_other, is_owned};
use crate::caches::{Cache, Cluster};
use crate::labels::MANAGER;
use crate::tunnel_controller::dereference::{ProbeOutcome, REFUSED, RESOURCES_HASH, SeenProbe};
use crate::tunnel_controller::problem::Problem;
use crate::tunnel_controller::validate::ValidatedObject;

/// Creates the missing Jobs of `built`, and deletes the object's other Jobs and the Jobs to repeat.
///
/// # Errors
/// [`ApplyError`]. The next call continues.
pub(super) async fn apply(
    cluster: &Cluster,
    object: &ValidatedObject,
    built: &[Job],
) -> Result<(), ApplyError> {
    let jobs = Jobs {
        api: Api::namespaced(cluster.client.clone(), &object.holder.namespace),
        known: &cluster.caches.jobs,
        object,
    };
    for seen in &object.pods.probes {
        let asked = built.iter().find(|job| job.name_any() == seen.name);
        // A quota may refuse the pod of a Job that has not ended, until the resources change.
        let is_outdated = asked.is_none_or(|job| {
            job.annotations().get(RESOURCES_HASH) != seen.resources_hash.as_ref()
        });
        match &seen.outcome {
            _ if asked.is_none() => jobs.delete(seen).await?,
            ProbeOutcome::Running(_) if is_outdated => jobs.delete(seen).await?,
            ProbeOutcome::Failed { is_old: true, .. }
            | ProbeOutcome::NotAdmitted { is_old: true, .. }
            | ProbeOutcome::Refused { is_old: true, .. } => jobs.delete(seen).await?,
            ProbeOutcome::Refused {
                problem,
                is_remembered: false,
                ..
            } => jobs.remember(seen, problem).await?,
            _ => {}
        }
    }
    for job in built {
        if !object
            .pods
            .probes
            .iter()
            .any(|seen| seen.name == job.name_any())
        {
            jobs.create(job).await?;
        }
    }
    Ok(())
}

/// The Jobs of an object's namespace.
struct Jobs<'a> {
    api: Api<Job>,
    known: &'a Cache<Job>,
    object: &'a ValidatedObject,
}

impl Jobs<'_> {
    async fn create(&self, job: &Job) -> Result<(), ApplyError> {
        let name = job.name_any();
        info!(kind = "Job", name, "creating a Job that tests sysctls");
        let params = PostParams {
            field_manager: Some(MANAGER.to_owned()),
            ..PostParams::default()
        };
        match self.api.create(&params, job).await {
            Ok(created) => {
                self.known.wrote(&created);
                return Ok(());
            }
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            Err(source) => return Err(failed("create", &name, source)),
        }
        // A Job with this name exists. It is the object's Job, created by a request whose answer
        // was lost, an earlier Job that is being deleted, a Job that nobody owns, or the Job of
        // another owner.
        let found = self.api.get_opt(&name).await;
        let Some(found) = found.map_err(|source| failed("get", &name, source))? else {
            return Ok(());
        };
        if is_owned(&found, &self.object.holder.owner) {
            self.known.wrote(&found);
            return Ok(());
        }
        let adopted = adopt_unchanged(&self.api, &found, job).await?;
        self.known
            .wrote(&adopted.ok_or_else(|| Obstacle::of(&found))?);
        Ok(())
    }

    /// Stores a refusal in the Job, and suspends the Job. A suspended Job has no pod, so the
    /// kubelet stops trying to create an impossible sandbox.
    async fn remember(&self, seen: &SeenProbe, problem: &Problem) -> Result<(), ApplyError> {
        let (reason, detail) = (problem.code.reason(), &problem.detail);
        info!(
            kind = "Job",
            name = seen.name,
            reason,
            "a node refused a sysctl"
        );
        let patch = json!({
            "metadata": {"uid": seen.uid, "annotations": {REFUSED: format!("{reason}: {detail}")}},
            "spec": {"suspend": true},
        });
        let (params, patch) = (PatchParams::default(), Patch::Merge(patch));
        match self.api.patch(&seen.name, &params, &patch).await {
            Ok(written) => {
                self.known.wrote(&written);
                Ok(())
            }
            // The Job was deleted or replaced meanwhile. The next reconciliation handles the
            // change.
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
            Err(source) => Err(failed("patch", &seen.name, source)),
        }
    }

    async fn delete(&self, seen: &SeenProbe) -> Result<(), ApplyError> {
        let params = DeleteParams {
            preconditions: Some(Preconditions {
                uid: seen.uid.clone(),
                resource_version: None,
            }),
            propagation_policy: Some(PropagationPolicy::Background),
            ..DeleteParams::default()
        };
        info!(
            kind = "Job",
            name = seen.name,
            "deleting a Job that is no longer requested"
        );
        match self.api.delete(&seen.name, &params).await {
            Ok(_) => {}
            Err(kube::Error::Api(status)) if status.code == 404 || is_other(&status) => {}
            Err(source) => return Err(failed("delete", &seen.name, source)),
        }
        let known = self.known.get(&self.object.holder.namespace, &seen.name)?;
        if let Some(gone) = known.filter(|job| job.uid() == seen.uid) {
            self.known.deleted(&gone);
        }
        Ok(())
    }
}

fn failed(verb: &'static str, name: &str, source: kube::Error) -> ApplyError {
    ApplyError::Api {
        verb,
        kind: "Job".to_owned(),
        name: name.to_owned(),
        source: Box::new(source),
    }
}
