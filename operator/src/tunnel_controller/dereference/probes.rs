//! The results of the Jobs that test sysctls before gateways get them.
//!
//! The result of an ended Job is in the Job's conditions or in the annotation [`REFUSED`]. The
//! Job's pod and Events are deleted after a while. [`outcome`] is the pure part.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::future::join_all;
use k8s_openapi::api::batch::v1::{Job, JobCondition};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
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
/// The codes of a node that refuses a sysctl.
const REFUSALS: [Code; 2] = [Code::SysctlForbidden, Code::SandboxFailed];
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
    /// The Job. Its name contains the hash of the tried sysctls.
    pub job: Arc<Job>,
    /// The result.
    pub outcome: ProbeOutcome,
}

/// The result of a Job that tests sysctls.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ProbeOutcome {
    /// Why gateways do not get the sysctls. `None` if the node accepts them.
    pub problem: Option<Problem>,
    /// What happens to the Job.
    pub next: Next,
}

/// What happens to a Job that tests sysctls.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Next {
    /// It stays, because it runs or has a result.
    #[default]
    Stays,
    /// A node or its kernel refuses a sysctl: the Job gets the annotation [`REFUSED`].
    Remembers,
    /// It is created again.
    Repeats,
}

/// Why gateways do not get the sysctls while the Job `name` runs. `detail`: the obstacle, if it is
/// known.
pub fn running(name: &str, detail: Option<String>) -> Problem {
    let detail = match detail {
        Some(detail) => format!("Job {name}: {detail}"),
        None => format!("Job {name} tries the sysctls"),
    };
    Problem::new(Code::SysctlProbing, detail)
}

/// The object's Jobs, and the pods of Jobs without a result.
pub(super) struct Jobs {
    jobs: Vec<Arc<Job>>,
    pods: Vec<Arc<Pod>>,
}

/// Reads the object's Jobs.
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
    Ok(Jobs { jobs, pods })
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
        (reader, namespace): (&Reader, &str),
        sandboxes: &BTreeMap<String, Problem>,
        now: Now,
    ) -> Vec<SeenProbe> {
        let seen = self.jobs.iter().map(async |job| {
            let own = self.pod_of(job);
            let problem = match own {
                _ if !is_open(job) => None,
                Some(pod) => pod.uid().and_then(|uid| sandboxes.get(&uid).cloned()),
                None => sandbox::not_created(reader, namespace, job).await,
            };
            SeenProbe {
                job: job.clone(),
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
    remembered(job).is_none() && condition(job, "Complete").is_none()
}

fn is_of(pod: &Pod, job: &Job) -> bool {
    let mut owners = pod.owner_references().iter();
    owners.any(|owner| Some(&owner.uid) == job.metadata.uid.as_ref())
}

/// The result of `job`. `pod`: its pod, if it still exists. `problem`: the problem in its Events.
fn outcome(job: &Job, pod: Option<&Pod>, problem: Option<Problem>, now: Timestamp) -> ProbeOutcome {
    let is_old = |since: Option<&Time>, seconds: i64| match since {
        Some(since) if now.as_second() - since.0.as_second() >= seconds => Next::Repeats,
        _ => Next::Stays,
    };
    if let Some(problem) = remembered(job) {
        let made = job.creation_timestamp();
        return ProbeOutcome {
            problem: Some(problem),
            next: is_old(made.as_ref(), REFUSED_RETRY_SECONDS),
        };
    }
    if condition(job, "Complete").is_some() {
        return ProbeOutcome::default();
    }
    let name = job.name_any();
    let failed = condition(job, "Failed");
    let since = failed.and_then(|failed| failed.last_transition_time.as_ref());
    let next = is_old(since, RETRY_SECONDS);
    let of_job = |code, detail: &str| Problem::new(code, format!("Job {name}: {detail}"));
    let problem = problem.or_else(|| pod.and_then(pod_problem));
    let (problem, next) = match (problem, failed) {
        (Some(Problem { code, detail }), _) if REFUSALS.contains(&code) => {
            (of_job(code, &detail), Next::Remembers)
        }
        // No annotation is stored, because the pod can be created after a change of the level.
        (Some(Problem { code, detail }), _) if code == Code::PodSecurityTooStrict => {
            (of_job(code, &detail), next)
        }
        (problem, None) => {
            let detail = problem.map(|problem| problem.detail);
            (running(&name, detail), Next::Stays)
        }
        (problem, Some(failed)) => {
            let own = || failed.message.clone().unwrap_or_default();
            let detail = problem.map_or_else(own, |problem| problem.detail);
            (of_job(Code::SysctlProbeFailed, &detail), next)
        }
    };
    ProbeOutcome {
        problem: Some(problem),
        next,
    }
}

/// The problem in the annotation [`REFUSED`].
fn remembered(job: &Job) -> Option<Problem> {
    let (reason, detail) = job.annotations().get(REFUSED)?.split_once(": ")?;
    let code = REFUSALS.into_iter().find(|code| code.reason() == reason)?;
    Some(Problem::new(code, detail))
}

fn condition<'a>(job: &'a Job, type_: &str) -> Option<&'a JobCondition> {
    let conditions = job.status.as_ref()?.conditions.as_ref()?;
    let mut conditions = conditions.iter();
    conditions.find(|condition| condition.type_ == type_ && condition.status == "True")
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

    fn problem(code: Code, detail: &str) -> Problem {
        let detail = detail.to_owned();
        Problem { code, detail }
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
        let waits = |detail: &str| ProbeOutcome {
            problem: Some(problem(Code::SysctlProbing, detail)),
            next: Next::Stays,
        };
        assert_eq!(said(&job, None, None), waits("Job j tries the sysctls"));
        let kept = pod(json!({"conditions": [
            {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no node"},
        ]}));
        let expected = waits("Job j: pod p: cannot be scheduled: no node");
        assert_eq!(said(&job, Some(&kept), None), expected);
    }

    #[test]
    fn a_pod_that_the_kubelet_refused_is_a_refusal_and_the_job_remembers_it_without_the_pod() {
        let ended = ended("Failed", "2030-01-01T00:00:00Z");
        let refused = pod(json!({
            "phase": "Failed", "reason": "SysctlForbidden", "message": "forbidden sysctl: \"net.a\"",
        }));
        let seen = said(&job(json!({}), ended.clone()), Some(&refused), None);
        let refusal = problem(
            Code::SysctlForbidden,
            "Job j: pod p: forbidden sysctl: \"net.a\"",
        );
        assert_eq!(seen.problem.as_ref(), Some(&refusal));
        assert_eq!(seen.next, Next::Remembers);

        let annotation = format!("{}: {}", refusal.code.reason(), refusal.detail);
        let later = said(&job(json!({REFUSED: annotation}), ended), None, None);
        assert_eq!(later.problem, Some(refusal));
        assert_eq!(later.next, Next::Stays);
    }

    #[test]
    fn a_sandbox_that_fails_is_a_refusal_only_where_a_sysctl_is_its_cause() {
        let job = job(json!({}), json!([]));
        let said = |code| said(&job, None, Some(problem(code, "pod p: no")));
        let refused = said(Code::SandboxFailed);
        assert_eq!(refused.next, Next::Remembers, "{refused:?}");
        for (code, shown) in [
            (Code::PodSecurityTooStrict, Code::PodSecurityTooStrict),
            (Code::GatewaysNotReady, Code::SysctlProbing),
        ] {
            let expected = ProbeOutcome {
                problem: Some(problem(shown, "Job j: pod p: no")),
                next: Next::Stays,
            };
            assert_eq!(said(code), expected);
        }
    }

    #[test]
    fn a_job_that_ended_for_another_reason_is_made_again_after_a_minute() {
        for (at, next) in [
            ("2030-01-01T00:01:01Z", Next::Stays),
            ("2030-01-01T00:01:00Z", Next::Repeats),
        ] {
            let problem = Some(problem(Code::SysctlProbeFailed, "Job j: too late"));
            assert_eq!(
                said(&job(json!({}), ended("Failed", at)), None, None),
                ProbeOutcome { problem, next }
            );
        }
        let passed = job(json!({}), ended("Complete", NOW));
        assert_eq!(said(&passed, None, None), ProbeOutcome::default());
    }
}
