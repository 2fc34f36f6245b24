//! Decides the next step of an unfinished benchmark. Pure: computes the step from the status and
//! the observation.

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use muxtunnel_bench_api::result::{Record, Summary};
use muxtunnel_crds::{MuxBenchmarkStatus, condition};

use super::readiness::why_not_ready;
use crate::conditions::is_true;
use crate::pods::{self, is_ready};

/// The next step of a benchmark.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    /// The benchmark has not started. Create the token and the Job.
    Start,
    /// The Job has no pod yet.
    NoPod,
    /// The runner is not ready yet. The text is the reason.
    Wait(String),
    /// Query the runner at this address.
    Ask(String),
    /// The runner has ended, perhaps with a summary.
    Ended(Option<Box<Summary>>),
    /// The Job no longer exists. Results that the operator has not stored are lost. The Job is not
    /// created again.
    Gone,
}

/// Whether the benchmark is finished.
pub fn is_over(status: Option<&MuxBenchmarkStatus>) -> bool {
    let conditions = status.map_or(&[][..], |status| &status.conditions);
    is_true(conditions, condition::COMPLETE) || is_true(conditions, condition::FAILED)
}

/// Decides the next step. `pod`: the runner's pod.
pub fn next_step(
    status: Option<&MuxBenchmarkStatus>,
    job: Option<&Job>,
    pod: Option<&Pod>,
) -> Step {
    let Some(job) = job else {
        let recorded = status.is_some_and(|status| status.job_name.is_some());
        return if recorded { Step::Gone } else { Step::Start };
    };
    if has_ended(job) || pod.is_some_and(is_terminated) {
        return Step::Ended(pod.and_then(last_words));
    }
    let Some(pod) = pod else {
        return Step::NoPod;
    };
    match pods::host(pod).filter(|_| is_ready(pod)) {
        Some(host) => Step::Ask(host),
        None => Step::Wait(format!("the runner is not ready: {}", why_not_ready(pod))),
    }
}

fn has_ended(job: &Job) -> bool {
    let conditions = job
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_ref());
    conditions.into_iter().flatten().any(|condition| {
        matches!(condition.type_.as_str(), "Complete" | "Failed") && condition.status == "True"
    })
}

fn is_terminated(pod: &Pod) -> bool {
    let phase = pod
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

/// The summary in the runner's termination message.
fn last_words(pod: &Pod) -> Option<Box<Summary>> {
    let statuses = pod.status.as_ref()?.container_statuses.as_ref()?;
    let terminated = statuses.first()?.state.as_ref()?.terminated.as_ref()?;
    match serde_json::from_str(terminated.message.as_deref()?.trim()) {
        Ok(Record::Summary(summary)) => Some(Box::new(summary)),
        _ => None,
    }
}
