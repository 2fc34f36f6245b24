//! The results of the Jobs that test sysctls before gateways get them.
//!
//! The result of an ended Job is in the Job's conditions or in the annotation [`REFUSED`]. The
//! Job's pod and Events are deleted after a while. [`outcome`] is the pure part.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::future::join_all;
use k8s_openapi::api::batch::v1::{Job, JobCondition};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use muxtunnel_codes::Code;

use crate::apply::is_owned;
use crate::caches::{Caches, NotKnown};
use crate::clock::Now;
use crate::reader::Reader;
use crate::tunnel_controller::end::PROBE;
use crate::tunnel_controller::holder::Holder;
use crate::tunnel_controller::pods::pod_problem;
use crate::tunnel_controller::problem::Problem;
use crate::tunnel_controller::sandbox;

/// Annotation of a Job with the hash of its container's resources.
pub const RESOURCES_HASH: &str = "muxtunnel.dev/resources-hash";
/// Annotation of a refused Job. The annotation's value is the reason and a sentence.
pub const REFUSED: &str = "muxtunnel.dev/refused";
/// Maximum number of Jobs of an object that are read: one per placement of its ends, and the same
/// number again for an earlier spec.
const JOBS_MAX: usize = 8;
/// Maximum number of pods of these Jobs that are read.
const PODS_MAX: usize = 16;
/// Age in seconds at which a refused Job is created again, because another node may accept the
/// sysctls.
const REFUSED_RETRY_SECONDS: i64 = 600;
/// Seconds from the end of a Job without a result until the Job is created again.
const RETRY_SECONDS: i64 = 60;

/// A Job that tests sysctls.
#[derive(Debug, Clone, PartialEq)]
pub struct SeenProbe {
    /// The name, which contains the hash of the tried sysctls.
    pub name: String,
    /// UID of the Job.
    pub uid: Option<String>,
    /// The value of [`RESOURCES_HASH`].
    pub resources_hash: Option<String>,
    /// The result.
    pub outcome: ProbeOutcome,
}

/// The result of a Job that tests sysctls.
#[derive(Debug, Clone, PartialEq)]
pub enum ProbeOutcome {
    /// The Job has not ended. Contains the obstacle, if it is known.
    Running(Option<String>),
    /// The node accepts the sysctls.
    Passed,
    /// The node or its kernel refuses a sysctl.
    Refused {
        /// The refused sysctl, with the node's message.
        problem: Problem,
        /// Whether the Job has the annotation [`REFUSED`].
        is_remembered: bool,
        /// Whether the Job has to be created again.
        is_old: bool,
    },
    /// The namespace's Pod Security level rejects the pod. No annotation is stored, because the pod
    /// can be created after a change of the level.
    NotAdmitted {
        /// The API server's message.
        detail: String,
        /// Whether the Job has to be created again.
        is_old: bool,
    },
    /// The Job ended for another reason.
    Failed {
        /// The known details.
        detail: String,
        /// Whether the Job has to be created again.
        is_old: bool,
    },
}

/// The object's Jobs, and the pods of Jobs without a result.
pub(super) struct Jobs {
    namespace: String,
    jobs: Vec<Arc<Job>>,
    pods: Vec<Arc<Pod>>,
}

/// Reads the object's Jobs.
///
/// # Errors
/// [`NotKnown`].
pub(super) fn jobs(caches: &Caches, holder: &Holder) -> Result<Jobs, NotKnown> {
    let (namespace, owner) = (&*holder.namespace, holder.labelled());
    let mut jobs = caches.jobs.children(namespace, owner, &[PROBE])?;
    jobs.retain(|job| {
        is_owned(job.as_ref(), &holder.owner) && job.metadata.deletion_timestamp.is_none()
    });
    jobs.truncate(JOBS_MAX);
    let mut pods = if jobs.iter().any(|job| is_open(job)) {
        caches.pods.children(namespace, owner, &[PROBE])?
    } else {
        Vec::new()
    };
    pods.truncate(PODS_MAX);
    let namespace = namespace.to_owned();
    Ok(Jobs {
        namespace,
        jobs,
        pods,
    })
}

impl Jobs {
    /// The pods of the Jobs without a result.
    pub(super) fn open_pods(&self) -> impl Iterator<Item = &Pod> {
        let open = self.jobs.iter().filter(|job| is_open(job));
        open.filter_map(|job| self.pod_of(job))
    }

    /// The Jobs with their results. `sandboxes`: the failed sandboxes by UID of the pod.
    pub(super) async fn seen(
        &self,
        reader: &Reader,
        sandboxes: &BTreeMap<String, Problem>,
        now: Now,
    ) -> Vec<SeenProbe> {
        let seen = self.jobs.iter().map(async |job| {
            let own = self.pod_of(job);
            let problem = match own {
                _ if !is_open(job) => None,
                Some(pod) => pod.uid().and_then(|uid| sandboxes.get(&uid).cloned()),
                None => sandbox::not_created(reader, &self.namespace, job).await,
            };
            SeenProbe {
                name: job.name_any(),
                uid: job.uid(),
                resources_hash: job.annotations().get(RESOURCES_HASH).cloned(),
                outcome: outcome(job, own, problem, now.time),
            }
        });
        join_all(seen).await
    }

    fn pod_of(&self, job: &Job) -> Option<&Pod> {
        let own = self.pods.iter().find(|pod| is_of(pod, job));
        own.map(AsRef::as_ref)
    }
}

fn is_open(job: &Job) -> bool {
    remembered(job).is_none() && !has(job, "Complete")
}

fn is_of(pod: &Pod, job: &Job) -> bool {
    let mut owners = pod.owner_references().iter();
    owners.any(|owner| Some(&owner.uid) == job.metadata.uid.as_ref())
}

/// The result of `job`. `pod`: its pod, if it still exists. `problem`: the problem in its Events.
fn outcome(job: &Job, pod: Option<&Pod>, problem: Option<Problem>, now: Timestamp) -> ProbeOutcome {
    if let Some(problem) = remembered(job) {
        return ProbeOutcome::Refused {
            problem,
            is_remembered: true,
            is_old: job
                .creation_timestamp()
                .is_some_and(|made| now.as_second() - made.0.as_second() >= REFUSED_RETRY_SECONDS),
        };
    }
    if has(job, "Complete") {
        return ProbeOutcome::Passed;
    }
    let problem = problem.or_else(|| pod.and_then(pod_problem));
    match problem {
        Some(problem) if is_refusal(problem.code) => ProbeOutcome::Refused {
            problem: Problem {
                detail: format!("Job {}: {}", job.name_any(), problem.detail),
                ..problem
            },
            is_remembered: false,
            is_old: false,
        },
        Some(problem) if problem.code == Code::PodSecurityTooStrict => ProbeOutcome::NotAdmitted {
            detail: format!("Job {}: {}", job.name_any(), problem.detail),
            is_old: condition(job, "Failed").is_some_and(|failed| is_old(failed, now)),
        },
        problem => {
            let detail = problem.map(|problem| problem.detail);
            match condition(job, "Failed") {
                None => ProbeOutcome::Running(detail),
                Some(failed) => failure(job, failed, detail, now),
            }
        }
    }
}

fn failure(
    job: &Job,
    failed: &JobCondition,
    detail: Option<String>,
    now: Timestamp,
) -> ProbeOutcome {
    let own = failed.message.clone().unwrap_or_default();
    ProbeOutcome::Failed {
        detail: format!("Job {}: {}", job.name_any(), detail.unwrap_or(own)),
        is_old: is_old(failed, now),
    }
}

/// Whether the Job ended so long ago that it has to be created again.
fn is_old(failed: &JobCondition, now: Timestamp) -> bool {
    let since = failed.last_transition_time.as_ref().map(|time| time.0);
    since.is_some_and(|since| now.as_second() - since.as_second() >= RETRY_SECONDS)
}

/// Whether `code` means that a node refuses a sysctl.
const fn is_refusal(code: Code) -> bool {
    matches!(code, Code::SysctlForbidden | Code::SandboxFailed)
}

/// The problem in the annotation [`REFUSED`].
fn remembered(job: &Job) -> Option<Problem> {
    let (reason, detail) = job.annotations().get(REFUSED)?.split_once(": ")?;
    let codes = [Code::SysctlForbidden, Code::SandboxFailed];
    let code = codes.into_iter().find(|code| code.reason() == reason)?;
    let detail = detail.to_owned();
    Some(Problem { code, detail })
}

fn condition<'a>(job: &'a Job, type_: &str) -> Option<&'a JobCondition> {
    let conditions = job.status.as_ref()?.conditions.as_ref()?;
    let mut conditions = conditions.iter();
    conditions.find(|condition| condition.type_ == type_ && condition.status == "True")
}

fn has(job: &Job, type_: &str) -> bool {
    condition(job, type_).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    const NOW: &str = "2030-01-01T00:02:00Z";

    fn job(annotations: Value, conditions: Value) -> Job {
        serde_json::from_value(json!({
            "metadata": {"name": "j", "annotations": annotations},
            "status": {"conditions": conditions},
        }))
        .unwrap()
    }

    fn pod(status: Value) -> Pod {
        serde_json::from_value(json!({"metadata": {"name": "p"}, "status": status})).unwrap()
    }

    fn said(job: &Job, pod: Option<&Pod>, sandbox: Option<Problem>) -> ProbeOutcome {
        outcome(job, pod, sandbox, NOW.parse().unwrap())
    }

    fn ended(type_: &str, at: &str) -> Value {
        json!([{"type": type_, "status": "True", "lastTransitionTime": at, "message": "too late"}])
    }

    #[test]
    fn a_job_that_is_under_way_says_what_keeps_it() {
        let job = job(json!({}), json!([]));
        assert_eq!(said(&job, None, None), ProbeOutcome::Running(None));
        let kept = pod(json!({"conditions": [
            {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no node"},
        ]}));
        let detail = Some("pod p: cannot be scheduled: no node".to_owned());
        assert_eq!(said(&job, Some(&kept), None), ProbeOutcome::Running(detail));
    }

    #[test]
    fn a_pod_that_the_kubelet_refused_is_a_refusal_and_the_job_remembers_it_without_the_pod() {
        let ended = ended("Failed", "2030-01-01T00:00:00Z");
        let refused = pod(json!({
            "phase": "Failed", "reason": "SysctlForbidden", "message": "forbidden sysctl: \"net.a\"",
        }));
        let seen = said(&job(json!({}), ended.clone()), Some(&refused), None);
        let ProbeOutcome::Refused {
            problem,
            is_remembered,
            ..
        } = seen
        else {
            panic!("{seen:?}");
        };
        assert_eq!(problem.code, Code::SysctlForbidden);
        assert_eq!(problem.detail, "Job j: pod p: forbidden sysctl: \"net.a\"");
        assert!(!is_remembered);

        let annotation = format!("{}: {}", problem.code.reason(), problem.detail);
        let later = said(&job(json!({REFUSED: annotation}), ended), None, None);
        let is_remembered = true;
        assert_eq!(
            later,
            ProbeOutcome::Refused {
                problem,
                is_remembered,
                is_old: false,
            }
        );
    }

    #[test]
    fn a_sandbox_that_fails_is_a_refusal_only_where_a_sysctl_is_its_cause() {
        let job = job(json!({}), json!([]));
        let failed = |code| Problem {
            code,
            detail: "pod p: no".to_owned(),
        };
        let refused = said(&job, None, Some(failed(Code::SandboxFailed)));
        assert!(
            matches!(refused, ProbeOutcome::Refused { .. }),
            "{refused:?}"
        );
        let kept_out = said(&job, None, Some(failed(Code::PodSecurityTooStrict)));
        let detail = "Job j: pod p: no".to_owned();
        let is_old = false;
        assert_eq!(kept_out, ProbeOutcome::NotAdmitted { detail, is_old });
        let other = said(&job, None, Some(failed(Code::GatewaysNotReady)));
        assert_eq!(other, ProbeOutcome::Running(Some("pod p: no".to_owned())));
    }

    #[test]
    fn a_job_that_ended_for_another_reason_is_made_again_after_a_minute() {
        for (at, is_old) in [
            ("2030-01-01T00:01:01Z", false),
            ("2030-01-01T00:01:00Z", true),
        ] {
            let detail = "Job j: too late".to_owned();
            assert_eq!(
                said(&job(json!({}), ended("Failed", at)), None, None),
                ProbeOutcome::Failed { detail, is_old }
            );
        }
        let passed = job(json!({}), ended("Complete", NOW));
        assert_eq!(said(&passed, None, None), ProbeOutcome::Passed);
    }
}
