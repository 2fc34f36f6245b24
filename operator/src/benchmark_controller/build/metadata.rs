//! Metadata of all objects of a benchmark.

use std::collections::BTreeMap;

use kube::api::ObjectMeta;

use crate::benchmark_controller::validate::ValidatedBenchmark;

/// The metadata of an object that is deleted with its benchmark.
#[must_use]
pub fn owned(
    benchmark: &ValidatedBenchmark,
    name: String,
    labels: BTreeMap<String, String>,
) -> ObjectMeta {
    ObjectMeta {
        name: Some(name),
        namespace: Some(benchmark.namespace.clone()),
        labels: Some(labels),
        owner_references: Some(vec![benchmark.owner.clone()]),
        ..ObjectMeta::default()
    }
}
