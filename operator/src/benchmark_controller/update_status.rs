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

/// The status for `outcome`. Pure.
pub fn status(benchmark: &MuxBenchmark, outcome: &Outcome, now: &Time) -> MuxBenchmarkStatus {
    let old = benchmark.status.clone().unwrap_or_default();
    let generation = benchmark.metadata.generation;
    let new = MuxBenchmarkStatus {
        observed_generation: generation,
        conditions: conditions(&verdicts(outcome), &old.conditions, generation, now),
        ..old
    };
    let (environment, cells) = match outcome {
        Outcome::Running {
            environment, cells, ..
        } => (*environment, *cells),
        Outcome::Ended(summary) => (None, Some(cells_of(summary))),
        Outcome::Failed(..) => (None, None),
        // The benchmark has not ended, and can continue.
        Outcome::Blocked(..) => return new,
    };
    let (best, worst) = match outcome {
        Outcome::Ended(summary) => (percent(&summary.best), percent(&summary.worst)),
        _ => (new.best_ratio_percent, new.worst_ratio_percent),
    };
    let name = benchmark.name_any();
    let over = !matches!(outcome, Outcome::Running { .. });
    let started = !matches!(outcome, Outcome::Failed(Code::InvalidSpec, _));
    MuxBenchmarkStatus {
        start_time: new.start_time.or_else(|| started.then(|| now.clone())),
        completion_time: new.completion_time.or_else(|| over.then(|| now.clone())),
        job_name: started.then(|| name.clone()),
        results_config_map_name: started.then(|| names::results(&name)),
        environment,
        cells: cells.or(new.cells),
        best_ratio_percent: best,
        worst_ratio_percent: worst,
        ..new
    }
}

/// While the benchmark runs, Reconciling is True. Afterwards Complete is True, and with it Ready, or
/// Failed is True, and with it Stalled.
fn verdicts(outcome: &Outcome) -> Vec<Verdict> {
    let yes = |type_, code, detail: &str| Verdict::yes(type_, code).with(detail);
    let unready = |why, code, detail: &str| {
        let ready = Verdict::no(condition::READY, code, detail);
        vec![ready, yes(why, code, detail)]
    };
    let failed = |code, detail: &str| {
        let mut all = vec![yes(condition::FAILED, code, detail)];
        all.extend(unready(condition::STALLED, code, detail));
        all
    };
    match outcome {
        Outcome::Running { detail, .. } => {
            unready(condition::RECONCILING, Code::BenchmarkRunning, detail)
        }
        Outcome::Blocked(code, detail) => unready(condition::STALLED, *code, detail),
        Outcome::Failed(code, detail) => failed(*code, detail),
        Outcome::Ended(summary) => match judge(summary) {
            (code @ Code::BenchmarkComplete, detail) => {
                let both = [condition::COMPLETE, condition::READY];
                both.map(|type_| yes(type_, code, &detail)).into()
            }
            (code, detail) => failed(code, &detail),
        },
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
    let first = summary.first_code.as_deref().unwrap_or_default();
    let reason = summary.first_reason.as_deref();
    let reason = reason.unwrap_or("read the Job's log");
    (
        code,
        format!("{counts}; the first reason: {first} {reason}"),
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
/// The client's error if the API server refuses the write or does not answer.
pub async fn update_status(
    cluster: &Cluster,
    benchmark: &MuxBenchmark,
    outcome: &Outcome,
    now: &Time,
) -> Result<MuxBenchmarkStatus, kube::Error> {
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
