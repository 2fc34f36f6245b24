//! The settings of `spec.template` for the pods of the runner and of the agents.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::PodSpec;
use kube::api::ObjectMeta;
use muxtunnel_crds::{BenchmarkContainerName, TemplateSpec};

use crate::benchmark_controller::validate::ValidatedBenchmark;

/// The metadata of a pod with the labels `own`, which take precedence.
#[must_use]
pub fn metadata(benchmark: &ValidatedBenchmark, own: BTreeMap<String, String>) -> ObjectMeta {
    let asked = benchmark.class.common(&benchmark.template);
    let asked = asked.metadata.unwrap_or_default();
    let mut labels = asked.labels;
    labels.extend(own);
    ObjectMeta {
        labels: Some(labels),
        annotations: (!asked.annotations.is_empty()).then_some(asked.annotations),
        ..ObjectMeta::default()
    }
}

/// Replaces the fields of `pod` that the template `asked` has.
pub fn place(pod: &mut PodSpec, asked: TemplateSpec<BenchmarkContainerName>) {
    let selector = (!asked.node_selector.is_empty()).then_some(asked.node_selector);
    replace(&mut pod.node_selector, selector);
    replace(&mut pod.tolerations, some(asked.tolerations));
    replace(&mut pod.affinity, asked.affinity);
    replace(
        &mut pod.topology_spread_constraints,
        some(asked.topology_spread_constraints),
    );
    replace(&mut pod.priority_class_name, asked.priority_class_name);
    replace(&mut pod.runtime_class_name, asked.runtime_class_name);
    replace(&mut pod.scheduler_name, asked.scheduler_name);
    replace(&mut pod.image_pull_secrets, some(asked.image_pull_secrets));
    let policy = asked.dns_policy.map(|policy| policy.as_str().to_owned());
    replace(&mut pod.dns_policy, policy);
    replace(&mut pod.dns_config, asked.dns_config);
    replace(&mut pod.host_aliases, some(asked.host_aliases));
}

fn replace<T>(field: &mut Option<T>, asked: Option<T>) {
    if asked.is_some() {
        *field = asked;
    }
}

fn some<T>(items: Vec<T>) -> Option<Vec<T>> {
    (!items.is_empty()).then_some(items)
}
