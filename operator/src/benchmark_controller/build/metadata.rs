//! Metadata of all objects of a benchmark.

use std::collections::BTreeMap;

use kube::api::ObjectMeta;

use crate::benchmark_controller::validate::ValidatedBenchmark;
use crate::labels::versioned;

/// The metadata of an object that is deleted with its benchmark. `labels`: those of its pods, if it has
/// pods.
#[must_use]
pub fn owned(
    benchmark: &ValidatedBenchmark,
    name: String,
    labels: BTreeMap<String, String>,
) -> ObjectMeta {
    ObjectMeta {
        name: Some(name),
        namespace: Some(benchmark.namespace.clone()),
        labels: Some(versioned(labels)),
        owner_references: Some(vec![benchmark.owner.clone()]),
        ..ObjectMeta::default()
    }
}
