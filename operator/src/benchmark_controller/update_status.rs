//! Writes the progress of a benchmark to its status, unless the status is unchanged. This module
//! requires a client.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{Api, ResourceExt};
use muxtunnel_bench_api::result::{Extreme, Summary};
use muxtunnel_bench_api::runner::State;
use muxtunnel_codes::Code;
use muxtunnel_crds::{
    BenchmarkCells, BenchmarkEnvironment, MuxBenchmark, MuxBenchmarkStatus, condition,
};

use super::names;
use crate::caches::Cluster;
use crate::conditions::{Verdict, conditions};
use crate::status_patch::write_status;

/// The result of one reconciliation of a benchmark.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// Running.
    Running {
        /// A description of the current step, or of the missing part.
        detail: String,
        /// The current environment, if there is one.
        environment: Option<BenchmarkEnvironment>,
        /// The numbers of cells by outcome. `None` if the runner has not reported them yet.
        cells: Option<BenchmarkCells>,
    },
    /// The runner has reported its results.
    Ended(Summary),
    /// The benchmark ended before all cells were measured.
    Failed(Code, String),
    /// The benchmark waits for another version of the operator, or for a class. It has not ended.
    Blocked(Code, String),
}

/// The status could not be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write the status: {0}")]
pub struct UpdateStatusError(#[from] kube::Error);

/// The status for `outcome`. Pure.
#[must_use]
pub fn status(benchmark: &MuxBenchmark, outcome: &Outcome, now: &Time) -> MuxBenchmarkStatus {
    let old = benchmark.status.clone().unwrap_or_default();
    if let Outcome::Blocked(code, detail) = outcome {
        return blocked(old, (*code, detail), benchmark.metadata.generation, now);
    }
    let name = benchmark.name_any();
    let generation = benchmark.metadata.generation;
    let verdicts = verdicts(outcome);
    let over = !matches!(outcome, Outcome::Running { .. });
    let started = !matches!(outcome, Outcome::Failed(Code::InvalidSpec, _));
    let (environment, cells) = match outcome {
        Outcome::Running {
            environment, cells, ..
        } => (*environment, *cells),
        Outcome::Ended(summary) => (None, Some(cells_of(summary))),
        Outcome::Failed(..) | Outcome::Blocked(..) => (None, None),
    };
    let (best, worst) = match outcome {
        Outcome::Ended(summary) => (percent(&summary.best), percent(&summary.worst)),
        _ => (old.best_ratio_percent, old.worst_ratio_percent),
    };
    MuxBenchmarkStatus {
        observed_generation: generation,
        conditions: conditions(&verdicts, &old.conditions, generation, now),
        start_time: old.start_time.or_else(|| started.then(|| now.clone())),
        completion_time: old.completion_time.or_else(|| over.then(|| now.clone())),
        job_name: started.then(|| names::job(&name)),
        results_config_map_name: started.then(|| names::results(&name)),
        environment,
        cells: cells.or(old.cells),
        best_ratio_percent: best,
        worst_ratio_percent: worst,
    }
}

/// The old status with the condition Ready. The benchmark has not ended, and can continue.
fn blocked(
    old: MuxBenchmarkStatus,
    (code, detail): (Code, &str),
    generation: Option<i64>,
    now: &Time,
) -> MuxBenchmarkStatus {
    let verdicts = [
        Verdict::no(condition::READY, code, detail),
        stalled(code, detail.to_owned()),
    ];
    let new = conditions(&verdicts, &old.conditions, generation, now);
    MuxBenchmarkStatus {
        observed_generation: generation,
        conditions: new,
        ..old
    }
}

/// While the benchmark runs, Reconciling is True. Afterwards Complete is True, and with it Ready, or
/// Failed is True, and with it Stalled.
fn verdicts(outcome: &Outcome) -> Vec<Verdict> {
    let holds = |type_, code, detail: &str| Verdict::yes(type_, code).with(detail.to_owned());
    let ended = |code: Code, detail: &str| {
        if code == Code::BenchmarkComplete {
            return vec![
                holds(condition::COMPLETE, code, detail),
                holds(condition::READY, code, detail),
            ];
        }
        vec![
            holds(condition::FAILED, code, detail),
            Verdict::no(condition::READY, code, detail),
            stalled(code, detail.to_owned()),
        ]
    };
    match outcome {
        Outcome::Running { detail, .. } => {
            let code = Code::BenchmarkRunning;
            vec![
                Verdict::no(condition::READY, code, detail.clone()),
                holds(condition::RECONCILING, code, detail),
            ]
        }
        Outcome::Ended(summary) => {
            let (code, detail) = judge(summary);
            ended(code, &detail)
        }
        Outcome::Failed(code, detail) => ended(*code, detail),
        Outcome::Blocked(..) => Vec::new(),
    }
}

fn stalled(code: Code, detail: String) -> Verdict {
    Verdict::yes(condition::STALLED, code).with(detail)
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

fn cells_of(summary: &Summary) -> BenchmarkCells {
    BenchmarkCells {
        total: count(summary.cells),
        ok: count(summary.ok),
        failed: count(summary.failed),
        refused: count(summary.refused),
    }
}

/// The numbers of the cells that have ended so far, and of all cells.
#[must_use]
pub fn cells_so_far(state: &State) -> BenchmarkCells {
    let ended = Summary::of(&state.cells, 0);
    BenchmarkCells {
        total: count(state.cells_total),
        ..cells_of(&ended)
    }
}

fn count(cells: usize) -> i32 {
    i32::try_from(cells).unwrap_or(i32::MAX)
}

/// The ratio of a cell to the direct path in whole percent.
fn percent(cell: &Option<Extreme>) -> Option<i32> {
    let ratio = cell.as_ref()?.ratio_to_direct;
    Some((ratio * 100.0).round() as i32)
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
    let api = Api::namespaced(cluster.client.clone(), &namespace);
    let cache = &cluster.caches.benchmarks;
    write_status(&api, cache, &benchmark.name_any(), &status).await?;
    Ok(status)
}
