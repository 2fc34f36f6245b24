//! The ConfigMap with the results: the same JSON lines as in the runner's log.

use k8s_openapi::api::core::v1::ConfigMap;
use muxtunnel_bench_api::result::{Cell, Record, Summary};

use super::owned;
use crate::benchmark_controller::names::{self, KIND, RESULTS};
use crate::benchmark_controller::validate::ValidatedBenchmark;
use crate::labels;

/// Key of the JSON lines.
pub const RESULTS_KEY: &str = "results.jsonl";

/// The ConfigMap. `summary`: `None` while cells are being measured.
pub fn config_map(
    benchmark: &ValidatedBenchmark,
    cells: &[Cell],
    summary: Option<&Summary>,
) -> ConfigMap {
    let records = cells.iter().cloned().map(Record::Cell);
    let records = records.chain(summary.cloned().map(Record::Summary));
    // A record has only plain data, so its serialization cannot fail.
    let lines: Vec<String> = records
        .filter_map(|record| serde_json::to_string(&record).ok())
        .collect();
    ConfigMap {
        metadata: owned(
            benchmark,
            names::results(&benchmark.name),
            labels::child(KIND, &benchmark.name, RESULTS),
        ),
        data: Some([(RESULTS_KEY.to_owned(), lines.join("\n") + "\n")].into()),
        ..ConfigMap::default()
    }
}

/// The cells and the summary in a results ConfigMap. Invalid lines are omitted.
pub fn read(config_map: &ConfigMap) -> (Vec<Cell>, Option<Summary>) {
    let (mut cells, mut summary) = (Vec::new(), None);
    let lines = config_map
        .data
        .as_ref()
        .and_then(|data| data.get(RESULTS_KEY));
    for line in lines.map(String::as_str).unwrap_or_default().lines() {
        match serde_json::from_str(line) {
            Ok(Record::Cell(cell)) => cells.push(cell),
            Ok(Record::Summary(last)) => summary = Some(last),
            Err(_) => {}
        }
    }
    (cells, summary)
}
