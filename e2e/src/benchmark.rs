//! Creates MuxBenchmarks for tests, and reads their results.

use std::time::Duration;

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::ResourceExt;
use kube::api::{ListParams, LogParams, PostParams};
use muxtunnel_crds::{MuxBenchmark, condition};
use serde_json::Value;

use crate::namespace::TestNamespace;
use crate::wait;

/// The results of a benchmark.
pub struct Outcome {
    /// The benchmark with its last status.
    pub benchmark: MuxBenchmark,
    /// The log of the benchmark's Job.
    pub log: String,
    /// The JSON lines of the log.
    pub lines: Vec<Value>,
    /// The ConfigMap with the results.
    pub results: ConfigMap,
}

impl Outcome {
    /// The JSON lines of the matrix's cells.
    pub fn cells(&self) -> impl Iterator<Item = &Value> {
        self.lines.iter().filter(|line| line["type"] == "cell")
    }
}

/// Creates a MuxBenchmark from YAML. Returns its name.
///
/// # Errors
/// If the YAML is not a MuxBenchmark, or the API server refuses it.
pub async fn create(ns: &TestNamespace, yaml: &str) -> Result<String> {
    let benchmark: MuxBenchmark = serde_yaml::from_str(yaml).context("the test's YAML")?;
    let benchmarks = ns.api::<MuxBenchmark>();
    let created = benchmarks
        .create(&PostParams::default(), &benchmark)
        .await?;
    Ok(created.name_any())
}

/// Waits until the condition Complete or Failed of the benchmark is true, and collects the results.
///
/// # Errors
/// If the benchmark does not end within `within`, or a result is missing.
pub async fn end(ns: &TestNamespace, name: &str, within: Duration) -> Result<Outcome> {
    let benchmarks = ns.api::<MuxBenchmark>();
    let ended = |benchmark: &MuxBenchmark| {
        is_true(benchmark, condition::COMPLETE) || is_true(benchmark, condition::FAILED)
    };
    let benchmark =
        wait::for_object(&benchmarks, name, "the benchmark ends", within, ended).await?;
    let status = benchmark.status.as_ref().context("a status")?;
    let job = status.job_name.as_deref().context("status.jobName")?;
    let map = status.results_config_map_name.as_deref();
    let map = map.context("status.resultsConfigMapName")?;
    let results = ns.api::<ConfigMap>().get(map).await?;
    let log = job_log(ns, job).await?;
    let lines = log
        .lines()
        .filter_map(|line| line.strip_prefix("MUXBENCH "))
        .map(serde_json::from_str)
        .collect::<Result<_, _>>()
        .context("a MUXBENCH line is not JSON")?;
    Ok(Outcome {
        benchmark,
        log,
        lines,
        results,
    })
}

/// Whether the condition with the type `type_` is true.
#[must_use]
pub fn is_true(benchmark: &MuxBenchmark, type_: &str) -> bool {
    let conditions = benchmark
        .status
        .iter()
        .flat_map(|status| &status.conditions);
    conditions
        .into_iter()
        .any(|condition| condition.type_ == type_ && condition.status == "True")
}

async fn job_log(ns: &TestNamespace, job: &str) -> Result<String> {
    let pods = ns.api::<Pod>();
    let selector = ListParams::default().labels(&format!("batch.kubernetes.io/job-name={job}"));
    let pod = pods.list(&selector).await?.items.pop();
    let pod = pod.with_context(|| format!("the Job {job} has no pod"))?;
    Ok(pods.logs(&pod.name_any(), &LogParams::default()).await?)
}
