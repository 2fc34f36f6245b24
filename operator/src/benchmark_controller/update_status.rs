//! Writes the progress of a benchmark to its status, unless the status is unchanged. This module
//! requires a client.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{Patch, PatchParams};
use kube::core::DeserializeGuard;
use kube::{Api, Resource, ResourceExt};
use muxtunnel_bench_api::result::Summary;
use muxtunnel_codes::Code;
use muxtunnel_crds::{
    BenchmarkCells, BenchmarkSummary, MuxBenchmark, MuxBenchmarkStatus, benchmark_condition,
};
use serde_json::json;

use super::names;
use crate::caches::Cluster;
use crate::conditions::{Verdict, conditions};
use crate::labels::MANAGER;

/// The result of one reconciliation of a benchmark.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// Running.
    Running {
        /// A description of the current step, or of the missing part.
        detail: String,
        /// Delay and tuning of the current environment, such as `50ms Wan`. `None` if there is no
        /// current environment.
        environment: Option<String>,
        /// The numbers of ended cells and of all cells, such as `7/24`. `None` if the runner has
        /// not reported them yet.
        progress: Option<String>,
    },
    /// The runner has reported its results.
    Ended(Summary),
    /// The benchmark ended before all cells were measured.
    Failed(Code, String),
    /// This version of the operator cannot decode the object. The text is the decoder's error.
    Undecoded(String),
}

/// The status could not be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write the status: {0}")]
pub struct UpdateStatusError(#[from] kube::Error);

/// The status for `outcome`. Pure.
#[must_use]
pub fn status(benchmark: &MuxBenchmark, outcome: &Outcome, now: &Time) -> MuxBenchmarkStatus {
    let old = benchmark.status.clone().unwrap_or_default();
    if let Outcome::Undecoded(reason) = outcome {
        return undecoded(old, reason, benchmark.metadata.generation, now);
    }
    let name = benchmark.name_any();
    let generation = benchmark.metadata.generation;
    let verdicts = verdicts(outcome);
    let over = !matches!(outcome, Outcome::Running { .. });
    let started = !matches!(outcome, Outcome::Failed(Code::InvalidSpec, _));
    let (environment, progress) = match outcome {
        Outcome::Running {
            environment,
            progress,
            ..
        } => (environment.clone(), progress.clone().or(old.progress)),
        Outcome::Ended(summary) => {
            let done = summary.ok + summary.failed + summary.refused;
            (None, Some(format!("{done}/{}", summary.cells)))
        }
        Outcome::Failed(..) | Outcome::Undecoded(_) => (None, old.progress),
    };
    MuxBenchmarkStatus {
        observed_generation: generation,
        conditions: conditions(&verdicts, &old.conditions, generation, now),
        start_time: old.start_time.or_else(|| started.then(|| now.clone())),
        completion_time: old.completion_time.or_else(|| over.then(|| now.clone())),
        job: started.then(|| names::job(&name)),
        results_config_map: started.then(|| names::results(&name)),
        environment,
        progress,
        summary: match outcome {
            Outcome::Ended(summary) => Some(summary_of(summary)),
            _ => old.summary,
        },
    }
}

/// The old status with the condition Progressing. The benchmark has not ended: another version of
/// the operator can continue it.
fn undecoded(
    old: MuxBenchmarkStatus,
    reason: &str,
    generation: Option<i64>,
    now: &Time,
) -> MuxBenchmarkStatus {
    let detail = format!("the object cannot be decoded: {reason}");
    let verdict = Verdict::no(benchmark_condition::PROGRESSING, Code::UnknownValue, detail);
    let new = conditions(&[verdict], &old.conditions, generation, now);
    MuxBenchmarkStatus {
        observed_generation: generation,
        conditions: new,
        ..old
    }
}

/// While the benchmark runs, only Progressing is True. Afterwards Progressing is False, and
/// Complete or Failed is True.
fn verdicts(outcome: &Outcome) -> Vec<Verdict> {
    use benchmark_condition::{COMPLETE, FAILED, PROGRESSING};
    let ended = |code: Code, detail: String| {
        let type_ = if code == Code::BenchmarkComplete {
            COMPLETE
        } else {
            FAILED
        };
        let verdict = Verdict {
            detail: detail.clone(),
            ..Verdict::yes(type_, code)
        };
        vec![Verdict::no(PROGRESSING, code, detail), verdict]
    };
    match outcome {
        Outcome::Running { detail, .. } => {
            let verdict = Verdict::yes(PROGRESSING, Code::BenchmarkRunning);
            vec![Verdict {
                detail: detail.clone(),
                ..verdict
            }]
        }
        Outcome::Ended(summary) => {
            let (code, detail) = judge(summary);
            ended(code, detail)
        }
        Outcome::Failed(code, detail) => ended(*code, detail.clone()),
        Outcome::Undecoded(_) => Vec::new(),
    }
}

fn judge(summary: &Summary) -> (Code, String) {
    let Summary {
        cells,
        ok,
        failed,
        refused,
        ..
    } = summary;
    let counts = format!("{ok} of {cells} cells measured, {failed} failed, {refused} refused");
    let code = match (ok == cells, *failed > 0) {
        (true, _) => return (Code::BenchmarkComplete, counts),
        (false, true) => Code::BenchmarkCellsFailed,
        (false, false) => Code::BenchmarkDelayRefused,
    };
    let first_code = summary.first_code.as_deref().unwrap_or_default();
    let reason = summary
        .first_reason
        .as_deref()
        .unwrap_or("read the Job's log");
    (
        code,
        format!("{counts}; the first reason: {first_code} {reason}"),
    )
}

fn summary_of(summary: &Summary) -> BenchmarkSummary {
    let count = |cells: usize| i32::try_from(cells).unwrap_or(i32::MAX);
    BenchmarkSummary {
        cells: BenchmarkCells {
            total: count(summary.cells),
            ok: count(summary.ok),
            failed: count(summary.failed),
            refused: count(summary.refused),
        },
        best_ratio: summary.best.as_ref().map(|cell| cell.ratio_to_direct),
        worst_ratio: summary.worst.as_ref().map(|cell| cell.ratio_to_direct),
    }
}

/// Writes and returns the status for `outcome`.
///
/// # Errors
/// [`UpdateStatusError`] if the API server refuses the write or does not answer.
pub async fn update_status(
    cluster: &Cluster,
    benchmark: &MuxBenchmark,
    outcome: &Outcome,
    now: &Time,
) -> Result<MuxBenchmarkStatus, UpdateStatusError> {
    let status = status(benchmark, outcome, now);
    if benchmark.status.as_ref() == Some(&status) {
        return Ok(status);
    }
    let namespace = benchmark.namespace().unwrap_or_default();
    // The answer contains the spec, which this version perhaps cannot decode.
    let api: Api<DeserializeGuard<MuxBenchmark>> =
        Api::namespaced(cluster.client.clone(), &namespace);
    let patch = json!({
        "apiVersion": MuxBenchmark::api_version(&()),
        "kind": MuxBenchmark::kind(&()),
        "metadata": { "name": benchmark.name_any() },
        "status": status,
    });
    let params = PatchParams::apply(MANAGER).force();
    let written = api
        .patch_status(&benchmark.name_any(), &params, &Patch::Apply(&patch))
        .await?;
    if let Ok(written) = &written.0 {
        cluster.caches.benchmarks.wrote(written);
    }
    Ok(status)
}
